"""The claims on heads that mix tokens hold, and their broken twins do not."""

import pytest

from attsvm.claims.gen_svm import CLAIMS

SEEDS = (0, 1)


STANDING = [claim for claim in CLAIMS if claim.mark != "refuted"]
REFUTED = [claim for claim in CLAIMS if claim.mark == "refuted"]


@pytest.mark.parametrize("claim", REFUTED, ids=lambda claim: claim.name)
def test_a_refuted_claim_is_seen_to_fail(claim):
    assert "fails" in [claim(seed).status for seed in SEEDS]


@pytest.mark.parametrize("claim", STANDING, ids=lambda claim: claim.name)
def test_the_claim_holds(claim):
    for seed in SEEDS:
        verdict = claim(seed)
        assert verdict.holds, str(verdict)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_broken_twin_does_not_hold(claim):
    for seed in SEEDS:
        verdict = claim.twin(seed)
        assert not verdict.holds, str(verdict)
