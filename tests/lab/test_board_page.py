"""The page of the public board says what its record says."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lab" / "board.md").read_text(encoding="utf8")
RECORD, *OF_DECODERS = (
    json.loads((ROOT / "lab" / "records" / f"{name}.json").read_text()) for name in ("board", "board_smollm2")
)
MINILM = ("The table",)


@pytest.fixture
def printed(monkeypatch, capsys):
    """The lines that `board.py tables` prints of a record."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "benchmarks" / "practice"))
    import board

    def lines(record):
        board.tables(record)
        return set(capsys.readouterr().out.splitlines())

    return lines


def rows_on_the_page(headings=MINILM):
    """Rows of the tables under these headings."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = "\n".join(part for part in sections if part.startswith(headings))
    tables = re.findall(r"^\|[^\n]*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return {row for table in tables for row in table.splitlines()}


def test_every_row_of_the_page_is_printed_from_the_record(printed):
    rows = rows_on_the_page()
    assert len(rows) > 30
    assert rows <= printed(RECORD)


def test_every_row_of_the_decoders_is_printed_from_their_records(printed):
    rows, of_records = rows_on_the_page(("Decoders",)), [printed(record) for record in OF_DECODERS]
    assert rows <= set.union(*of_records)
    assert len(rows & of_records[0]) > 20


def test_every_row_of_long_contexts_is_printed_from_a_record(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "benchmarks" / "practice"))
    import board_long

    for name in ("board_long", "board_long_joined"):
        board_long.tables(json.loads((ROOT / "lab" / "records" / f"{name}.json").read_text()))
    rows = rows_on_the_page(("Long contexts",))
    assert len(rows) == 7
    assert rows <= set(capsys.readouterr().out.splitlines())


def test_a_changed_number_of_the_record_is_not_on_the_page(printed):
    changed = json.loads(json.dumps(RECORD))
    changed["layers"]["6"]["default"]["AUC"][0] -= 0.2
    assert len(rows_on_the_page() - printed(changed)) > 2
