"""Benign overfitting: claims hold, broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("benign_overfitting", "benign_overfitting_joint")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
