"""Match and copy, sparse signals, one location, polarisation: the claims hold, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("match_and_copy", "sparse_signals", "one_location", "polarisation")
def test_a_claim_holds_and_its_twin_does_not(claim):
    check(claim)
