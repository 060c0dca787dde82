"""The law of halves: the claims hold, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim

FILES = (
    "law_of_halves",
    "weight_decay",
    "mini_batches",
    "beyond_schatten",
    "several_heads",
    "heads_together",
    "values_and_outputs",
    "mixtures",
    "other_products",
)


@each_claim(*FILES)
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
