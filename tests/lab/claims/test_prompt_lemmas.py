"""The lemmas of "Max-Margin Token Selection" hold, their broken twins do not."""

import numpy as np
from scipy.optimize import approx_fprime

from attsvm_lab.claims.prompt_instances import gradient, small
from tests.lab.claims.agreement import check, each_claim


@each_claim("prompt_lemmas")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


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
