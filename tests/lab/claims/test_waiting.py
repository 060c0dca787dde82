"""Waiting beside stops, and leaving them: the claims hold, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("waiting")
def test_a_claim_holds_and_its_twin_does_not(claim):
    check(claim)
