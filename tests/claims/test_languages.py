"""Even pairs and parity, topics, sinks: claims hold, broken twins do not."""

import numpy as np
from scipy.optimize import check_grad

from attsvm import cosine, datasets, max_margin
from attsvm.claims.sinks import relu_loss
from tests.claims.agreement import check, each_claim


@each_claim("even_pairs", "topics", "sinks")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


def test_the_gradient_of_relu_attention_is_that_of_finite_differences():
    tokens, _ = datasets.trigger_means(3, 5, 6, seed=1)
    W = np.random.default_rng(0).standard_normal((6, 6))

    def loss(flat):
        return relu_loss(flat.reshape(6, 6), tokens)[0]

    def gradient(flat):
        return relu_loss(flat.reshape(6, 6), tokens)[1].ravel()

    size = np.linalg.norm(gradient(W.ravel()))
    assert check_grad(loss, gradient, W.ravel()) < 1e-5 * size  # differences of 1.5e-8
    assert check_grad(loss, lambda flat: 1.01 * gradient(flat), W.ravel()) > 1e-3 * size


def test_the_program_of_a_sink_has_a_closed_form():
    """Under a plain query BOS is at 2/3 and the others at −1/3; at the trigger the signs are exchanged."""
    tokens, selected = datasets.trigger_means(16, 6, 6, seed=0)
    solution = max_margin(tokens, selected)
    form = np.zeros((6, 6))
    form[[0, 1, -1], -1] = 2 / 3, -1 / 3, -1 / 3
    form[:, 1] = -form[:, -1]
    np.testing.assert_allclose(solution.W, form, atol=1e-7)
    assert cosine(solution.W[None], np.where(form, 1.0, 0.1))[0] < 0.9
