"""The claims of mirror_descent hold, and their broken twins do not."""

import pytest

from attsvm.claims.mirror_descent import CLAIMS


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_claim_holds(claim, seed):
    verdict = claim(seed)
    assert verdict.holds, str(verdict)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.twin.__name__)
def test_its_broken_twin_does_not(claim, seed):
    verdict = claim.twin(seed)
    assert not verdict.holds, str(verdict)
