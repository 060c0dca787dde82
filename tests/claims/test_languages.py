"""Even pairs and parity, topics, sinks: claims hold, broken twins do not."""

from tests.claims.agreement import check, each_claim


@each_claim("even_pairs")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
