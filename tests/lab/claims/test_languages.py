"""Even pairs and parity, topics, sinks: claims hold, broken twins do not."""

import numpy as np
from scipy.optimize import check_grad

from attsvm import datasets
from attsvm_lab.claims.sinks import relu_loss
from tests.lab.claims.agreement import check, each_claim


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
