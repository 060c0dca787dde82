"""The page that counts the statements of four papers: its names exist, its totals are those of its rows."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

import attsvm
import attsvm_lab
from attsvm_lab import claims, figures

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "coverage.md"
JUDGEMENTS = ("faithful", "partial", "missing")


def rows(text):
    """Number, names and judgement of every row: A1, [train, …], faithful."""
    found = re.findall(r"^\| ([A-Z])\d+ \| .* \| (.*) \| (\w+).* \|$", text, re.MULTILINE)
    return [(paper, re.findall("`([^`]+)`", names), judgement) for paper, names, judgement in found]


def unknown(names):
    """Names that are no claim, no figure and no function of attsvm or of its laboratory's programs."""
    for name in names:
        try:
            if name not in claims.claims and name not in figures.ALL:
                attrgetter(name)(attsvm_lab if name.startswith("programs.") else attsvm)
        except AttributeError:
            yield name


def totals(text):
    """Rows, then faithful, partial and missing ones, of each paper and of all, as the page says."""
    found = re.findall(r"^\| .* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    return [tuple(map(int, numbers)) for numbers in found]


def counted(text):
    """The same, counted."""
    papers = dict.fromkeys(paper for paper, *_ in rows(text))
    judgements = [[kind for paper, _, kind in rows(text) if paper == one] for one in papers]
    judgements.append([kind for *_, kind in rows(text)])
    return [(len(kinds), *map(kinds.count, JUDGEMENTS)) for kinds in judgements]


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf8")


def test_every_name_of_the_page_exists(page):
    assert not list(unknown(name for _, names, _ in rows(page) for name in names))


def test_the_totals_are_those_of_the_rows(page):
    assert totals(page) == counted(page)
    assert all(rows == sum(kinds) for rows, *kinds in totals(page))


def test_a_name_that_does_not_exist_and_a_wrong_total_are_seen(page):
    renamed = page.replace("`max_margin`", "`max_margins`", 1)
    assert list(unknown(name for _, names, _ in rows(renamed) for name in names)) == ["max_margins"]
    assert totals(page) != counted(page.replace("` | faithful |", "` | partial: half |", 1))


def test_what_is_not_missing_is_somewhere(page):
    assert all(bool(names) == (judgement != "missing") for _, names, judgement in rows(page))
