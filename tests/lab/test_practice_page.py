"""What per-head Muon does: every statement of the page names its evidence, and the evidence exists."""

import re
from pathlib import Path

import pytest

from attsvm_lab.claims import claims

PAGE = Path(__file__).parents[2] / "docs" / "practice" / "per_head_muon.md"
LINK = re.compile(r"\]\(([^)#]*)(#[^)]+)?\)")
CLAIM = re.compile(r"`([a-z][a-z0-9_]*_[a-z0-9_]+)`")
COMMAND = re.compile(r"lab/[\w/]+\.py")


def statements(text):
    """Every bullet, and every row of a table with a column `evidence`."""
    bullets = [line for line in text.splitlines() if line.startswith("* ")]
    tables = re.findall(r"^\|[^\n]*evidence \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return bullets + [row for table in tables for row in table.splitlines()]


def supported(statement):
    """Whether it has a link, a claim or a command, or points to the row above."""
    named = any(pattern.search(statement) for pattern in (LINK, COMMAND)) or "| the same |" in statement
    return named or any(name in claims for name in CLAIM.findall(statement))


@pytest.mark.parametrize("statement", statements(PAGE.read_text(encoding="utf8")), ids=lambda x: x[:40])
def test_a_statement_names_evidence_that_exists(statement):
    assert supported(statement)
    files = [PAGE.parent / name if name else PAGE for name, _ in LINK.findall(statement) if "://" not in name]
    files += [PAGE.parents[2] / name for name in COMMAND.findall(statement)]
    assert all(file.is_file() for file in files)


def test_a_statement_without_evidence_is_found():
    bare = statements("* **Heads are fair.** They are.\n\n| a | evidence |\n|---|---|\n| 1 | none |\n")
    assert len(bare) == 2
    assert not any(map(supported, bare))
