"""Where training of K and Q ends: the claims hold, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("factor_kkt_points")
def test_a_claim_holds_and_its_twin_does_not(claim):
    check(claim)
