"""The local theorems of "Max-Margin Token Selection" hold, their broken twins do not."""

from attsvm_lab.claims.local_selection import starts_on_every_direction
from tests.lab.claims.agreement import check, each_claim


@each_claim("local_selection")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


def test_locally_optimal_starts_stay_and_all_others_leave_on_many_problems():
    verdict = starts_on_every_direction(range(10))
    assert verdict.holds
    assert verdict["locally optimal starts"] + verdict["other starts"] == 90
    assert verdict["of them stay at R = 1000"] == verdict["locally optimal starts"]
