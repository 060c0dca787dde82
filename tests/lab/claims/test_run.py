"""Running claims: counts, names, and the table."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attsvm.comparison.verdict import at_least, judge
from attsvm_lab.claims import MODULES, Claim, by_module, claims, run as running, table


def coin(seed):
    """Even seeds hold.

    Wanted: one.

    Surprise: odd seeds do not.
    """
    return judge("coin", at_least("evenness", 1 - seed % 2, 1))


def broken(seed):
    """Not applicable on seed 2."""
    if seed == 2:
        raise ValueError("nothing to measure")
    return judge("broken coin", at_least("evenness", 0, 1))


@pytest.fixture
def one_claim(monkeypatch):
    claim = Claim(coin, broken, "the coin", "nobody", "derived")
    for module in (running, table):
        monkeypatch.setattr(module, "by_module", lambda: {"coins": (claim,)})
    return claim


def test_every_claim_is_found_by_its_name_and_says_what_it_states():
    assert list(claims) == [claim.name for group in by_module().values() for claim in group]
    assert set(by_module()) <= set(MODULES)
    assert all(c.statement and c.removed and c.reference and c.mark for c in claims.values())


def test_a_row_counts_what_holds_and_a_twin_only_where_it_applies_and_fails(one_claim):
    (row,) = running.run(seeds=range(3))
    assert (row.held, row.detected) == (2, 2)
    assert row.twins == ("fails", "fails", "not applicable")
    assert row.reasons == ("seed 1: not met: evenness",)


def test_a_row_counts_the_seeds_that_had_no_part_in_choosing_the_settings(one_claim):
    (row,) = running.run(seeds=range(18, 23))
    assert (row.fresh, running.run(seeds=[0])[0].fresh) == (3, 0)
    assert "held-out seeds   3/5" in str(row)
    geometry = by_module()["optimizer_geometry"]
    assert {claim.chosen_on for claim in geometry} == {range(40)}


def test_an_unknown_name_and_no_seed_are_refused(one_claim):
    with pytest.raises(ValueError, match="no claim is named dice"):
        running.run(["dice"])
    with pytest.raises(ValueError, match="seeds is empty"):
        running.run(seeds=[])


def test_the_table_tells_statement_evidence_verdict_and_surprise(one_claim, tmp_path):
    table.write_table(running.run(None, range(3)), tmp_path / "claims.md")
    text = (tmp_path / "claims.md").read_text(encoding="utf8")
    for part in ("Even seeds hold.", "Wanted: one.", "evenness 1 (≥ 1)", "2 of 3", "odd seeds do not"):
        assert part in text


def test_a_table_of_some_claims_and_seeds_speaks_of_these_only(monkeypatch, one_claim, tmp_path):
    refuted = Claim(broken, coin, "nothing", "nobody", "refuted as recalled")
    for module in (running, table):
        monkeypatch.setattr(module, "by_module", lambda: {"coins": (one_claim, refuted)})
    for names, seeds, said in (
        (["coin"], (0, 2, 7), "0,2,7; .*below: none"),
        (None, (1, 2), "1-2; .*`broken`"),
    ):
        table.write_table(running.run(names, seeds), tmp_path / "claims.md")
        text = (tmp_path / "claims.md").read_text(encoding="utf8")
        assert re.search(f"over the seeds {said}", text, re.DOTALL)


def test_named_claims_join_a_table_of_the_same_seeds(monkeypatch, one_claim, tmp_path):
    refuted = Claim(broken, coin, "nothing", "nobody", "refuted as recalled")
    for module in (running, table):
        monkeypatch.setattr(module, "by_module", lambda: {"coins": (one_claim, refuted)})
    whole, joined = tmp_path / "whole.md", tmp_path / "joined.md"
    rows = [replace(row, seconds=1.0) for row in running.run(None, (0, 1, 2))]
    table.write_table(rows, whole)
    table.write_table(rows[:1], joined)
    table.write_table(rows[1:], joined, join=True)
    assert joined.read_text(encoding="utf8") == whole.read_text(encoding="utf8")
    with pytest.raises(ValueError, match=r"of the seeds 0-2, these claims ran on 0-1\. Pass the same seeds"):
        table.write_table(running.run(None, (0, 1)), joined, join=True)
    (tmp_path / "letter.md").write_text("Dear reader")
    with pytest.raises(ValueError, match="no table of claims"):
        table.write_table(rows, tmp_path / "letter.md", join=True)


def test_the_page_of_claims_is_what_the_command_writes_of_all_claims():
    docs = Path(__file__).parents[3] / "docs"
    entries = table.entries_of(docs / "claims.md", "1300-1319")
    assert list(entries) == [claim.name for group in by_module().values() for claim in group]
    written = table.page(entries, "1300-1319")
    assert (docs / "claims.md").read_text(encoding="utf8") == written, (
        "run one claim with --seeds 1300-1319 --table docs/claims.md: it writes the page anew"
    )
    some = dict(list(entries.items())[1:])
    assert table.page(some, "1300-1319") != written and f"{len(entries)} claims over" in written
    assert all((docs / name).exists() for name in re.findall(r"\]\(([^)]+)\)", written))
