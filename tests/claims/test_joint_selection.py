"""Head and prompt together: the claims hold, their broken twins do not."""

import pytest

from attsvm.claims.joint_selection import CLAIMS


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim, seed):
    verdict = claim(seed)
    assert verdict.status == ("fails" if claim.mark == "refuted" else "holds"), str(verdict)
    assert not claim.twin(seed).holds
