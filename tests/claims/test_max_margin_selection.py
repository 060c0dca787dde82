"""Every claim of "Max-Margin Token Selection" holds, every broken twin does not, on two seeds."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from attsvm.claims import (
    joint_selection,
    local_selection,
    max_margin_selection,
    nonlinear_selection,
    prompt_lemmas,
)
from attsvm.claims.prompt_instances import gradient, small

MODULES = (prompt_lemmas, max_margin_selection, local_selection, joint_selection, nonlinear_selection)
CLAIMS = [claim for module in MODULES for claim in module.CLAIMS]
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


@each_claim
@pytest.mark.parametrize("seed", [0, 1])
def test_a_claim_holds_unless_it_is_refuted(claim, seed):
    verdict = claim(seed)
    assert verdict.status == ("fails" if claim.mark == "refuted" else "holds"), str(verdict)


@each_claim
@pytest.mark.parametrize("seed", [0, 1])
def test_a_broken_twin_does_not_hold(claim, seed):
    assert not claim.twin(seed).holds


@each_claim
def test_a_claim_says_what_it_states_and_measures(claim):
    assert claim.statement.endswith(".")
    assert claim.removed and claim.reference and claim.mark
    assert all(np.isfinite(e.value) for e in claim(0).evidence if e.sense)


def test_locally_optimal_starts_stay_and_all_others_leave_on_many_problems():
    verdict = local_selection.starts_on_every_direction(range(10))
    assert verdict.holds
    assert verdict["locally optimal starts"] + verdict["other starts"] == 90
    assert verdict["of them stay at R = 1000"] == verdict["locally optimal starts"]


def test_the_closed_form_gradient_agrees_with_finite_differences():
    tokens = small(3)
    gamma = tokens.values[..., 0]

    def loss(p):
        logits = tokens.keys @ p
        s = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return np.log1p(np.exp(-(s * gamma).sum(-1))).mean()

    p = np.array([0.3, -1.0, 0.5, 2.0])
    mantissa, log_scale = gradient(gamma, tokens.keys, p[None])
    np.testing.assert_allclose(mantissa[0] * np.exp(log_scale[0]), approx_fprime(p, loss, 1e-7), atol=1e-6)
