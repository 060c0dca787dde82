"""The tables and the chart of lab/benchmarks/scaling.py say what its record says."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "lab" / "benchmarks"
SIZES = (1_000, 5_000, 20_000, 100_000)


@pytest.fixture
def scaling_page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scaling_page

    return scaling_page


def series(program, who="attsvm", seconds=lambda n: 1e-5 * n, **results):
    first = {"name": f"{program}, {who}", "program": program, "who": who, "T": 10, "d": 12, "prompt": False}
    return [first | {"n": n, "seconds": seconds(n), "value": 2.0, "memory": 1.5} | results for n in SIZES]


def record(*rows):
    machine = {"processor": "one", "load": 0.0, "python": "3", "versions": {}}
    return {"machine": machine, "cap": 40, "missing": ["SCS"], "rows": [row for one in rows for row in one]}


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power_of_the_examples_where_they_are_many(scaling_page, power):
    line = series("Frobenius", seconds=lambda n: 7.0 if n < 5_000 else 1e-6 * n**power)
    assert scaling_page.slope(line) == pytest.approx(power)


def test_only_what_has_no_certificate_is_marked(scaling_page):
    proven, doubtful = series("l1", certified=True), series("nuclear", certified=False, gap=0.1)
    lines = "\n".join(scaling_page.tables(record(proven, doubtful))).splitlines()
    assert [line.split()[1] for line in lines if "not certified" in line] == ["nuclear"]
    assert "Of our 8 answers 4 are certified, or proven to have no solution." in lines


@pytest.mark.parametrize(("value", "shown"), [(2.0 * (1 + 1e-10), False), (2.0002, True)])
def test_a_worse_answer_of_a_peer_shows_its_excess(scaling_page, value, shown):
    rows = record(series("Frobenius"), series("Frobenius", "daqp", value=value))
    line = next(line for line in scaling_page.tables(rows) if "daqp" in line)
    assert ("(+1e-04)" in line) == shown


def test_a_series_ends_with_the_reason_and_the_page_names_who_was_not_installed(scaling_page):
    rows = series("Frobenius")
    rows[-1] = {name: rows[-1][name] for name in ("name", "program", "who", "T", "d", "prompt", "n")}
    ended = record([*rows[:-1], rows[-1] | {"error": "> 40 s"}])
    assert "> 40 s |" in "\n".join(scaling_page.tables(ended))
    assert "\n".join(scaling_page.page([ended] * 2)).count("Not installed: SCS.") == 2


def test_the_chart_has_a_line_for_every_solver(scaling_page, tmp_path):
    scaling_page.chart(record(series("Frobenius"), series("Frobenius", "daqp")), tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf8")
    assert "<!-- daqp -->" in drawn and "<!-- Clarabel -->" not in drawn
