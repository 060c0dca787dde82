"""Heads that mix tokens, and several layers: claims hold unless they are refuted, their twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("gen_svm", "convex_networks", "hierarchy")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
