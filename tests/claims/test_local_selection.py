"""The local theorems of "Max-Margin Token Selection" hold, their broken twins do not."""

import pytest

from attsvm.claims.local_selection import CLAIMS, starts_on_every_direction


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim, seed):
    verdict = claim(seed)
    assert verdict.status == ("fails" if claim.mark == "refuted" else "holds"), str(verdict)
    assert not claim.twin(seed).holds


def test_locally_optimal_starts_stay_and_all_others_leave_on_many_problems():
    verdict = starts_on_every_direction(range(10))
    assert verdict.holds
    assert verdict["locally optimal starts"] + verdict["other starts"] == 90
    assert verdict["of them stay at R = 1000"] == verdict["locally optimal starts"]
