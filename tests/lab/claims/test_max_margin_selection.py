"""The global theorems of "Max-Margin Token Selection" hold, their broken twins do not."""

from attsvm_lab.claims import by_module
from tests.lab.claims.agreement import check, each_claim


@each_claim("max_margin_selection", "nonlinear_selection", "set_selection")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


def test_a_refuted_claim_describes_its_counterexample():
    claims = [*by_module()["max_margin_selection"], *by_module()["nonlinear_selection"]]
    refuted = [claim for claim in claims if claim.refuted]
    assert [claim.name for claim in refuted] == ["gradient_descent_from_anywhere_tends_to_the_best_direction"]
    assert "Refuted" in refuted[0].check.__doc__
