"""The global theorems of "Max-Margin Token Selection" hold, their broken twins do not."""

import pytest

from attsvm.claims import max_margin_selection, nonlinear_selection

CLAIMS = [*max_margin_selection.CLAIMS, *nonlinear_selection.CLAIMS]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim, seed):
    verdict = claim(seed)
    assert verdict.status == ("fails" if claim.mark == "refuted" else "holds"), str(verdict)
    assert not claim.twin(seed).holds


def test_a_refuted_claim_describes_its_counterexample():
    refuted = [claim for claim in CLAIMS if claim.mark == "refuted"]
    assert [claim.name for claim in refuted] == ["gradient_descent_from_anywhere_tends_to_the_best_direction"]
    assert "Refuted" in refuted[0].check.__doc__
