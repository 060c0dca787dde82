"""Every claim holds, and its broken twin does not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("next_token", "markov")
def test_the_claim_holds_and_its_twin_does_not(claim):
    check(claim)
