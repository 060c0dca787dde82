"""The page that compares repeats recorded numbers: those of programs are read from the benchmark's file."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf8")
ROWS = json.loads((ROOT / "lab" / "benchmarks" / "solvers.json").read_text(encoding="utf8"))["rows"]
NAMES = {"a hidden contradiction, prompt": "hidden contradiction, prompt"}


def table(page):
    """(program, size) → the cells after them, of the table of programs."""
    found = re.findall(r"^\| ([^|(]+) \((\d+), (\d+), (\d+)\) \|(.*)\|$", page, re.MULTILINE)
    return {(NAMES.get(name, name), (int(n), int(T), int(d))): rest for name, n, T, d, rest in found}


def wrong(page):
    """Cells of the table that the benchmark did not measure so, to two digits."""
    recorded = {(row["program"], tuple(row["size"])): row for row in ROWS}
    for key, rest in table(page).items():
        row = recorded[key]
        ours, best, clarabel = (cell.strip() for cell in rest.split("|"))
        measured = {name: one.get("seconds") for name, one in row["peers"].items()}
        told = [("attsvm", ours, row["ours"]["seconds"])]
        if clarabel != "not run":
            told.append(("Clarabel", clarabel, measured["Clarabel"]))
        name, *number = best.split()
        told += [(name, number[0], measured[name])] if number[0][0] != "(" else []
        for who, cell, seconds in told:
            shown = float(re.match(r"[\d.]+", cell)[0])
            if abs(shown - seconds) > 0.06 * seconds:  # two digits, rounded: at most half of one in ten
                yield key, who
        if best_peer(measured) != measured[name]:
            yield key, "another peer is the best"


def best_peer(measured):
    return min(seconds for seconds in measured.values() if seconds is not None)


def test_programs_are_compared_by_recorded_numbers():
    assert len(table(PAGE)) == 8 and list(wrong(PAGE)) == []


@pytest.mark.parametrize(("right", "false"), [("daqp 0.19", "daqp 0.29"), ("| 0.0025 |", "| 0.0020 |")])
def test_a_wrong_number_is_seen(right, false):
    assert right in PAGE and len(list(wrong(PAGE.replace(right, false)))) == 1


def test_a_peer_that_is_not_the_best_is_seen():
    assert list(wrong(PAGE.replace("SCS 2.3", "Clarabel 25.9")))
