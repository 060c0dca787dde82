"""Kinds of attention: the claims hold, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("attention_kinds")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
