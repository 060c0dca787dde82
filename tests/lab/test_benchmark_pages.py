"""Benchmarks that write a table into a page find its place there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def has_place(script, table):
    """Whether the page that a benchmark names has the marks of the table."""
    code = (ROOT / "lab" / "benchmarks" / f"{script}.py").read_text("utf8")
    folders = re.search(r'^PAGE\b.*? = ROOT((?: / "[\w.]+")+)', code, re.MULTILINE)[1]
    page = ROOT.joinpath(*re.findall(r'"(.*?)"', folders))
    text = page.read_text("utf8") if page.exists() else ""
    return f"<!-- {table}: begin -->" in text and f"<!-- {table}: end -->" in text


@pytest.mark.parametrize(
    ("script", "table"),
    [
        ("solvers", "programs"),
        ("scaling", "scaling"),
        ("hostile", "hostile small"),
        ("hostile", "hostile medium large"),
    ],
)
def test_a_table_has_its_place_in_the_page(script, table):
    assert has_place(script, table)
    assert not has_place(script, "another table")
