"""Every claim holds, and its broken twin does not."""

import pytest

from attsvm.claims.next_token import CLAIMS


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_claim_holds_and_its_twin_does_not(claim):
    verdict, twin = claim.check(0), claim.twin(0)
    assert verdict.holds, str(verdict)
    assert not twin.holds, str(twin)
