"""Even pairs, topics, sinks, the scan of a layer, temperatures: claims hold, broken twins do not."""

import numpy as np
from scipy.optimize import check_grad

from attsvm_lab import datasets
from attsvm_lab.claims.scan_and_snap import gradients, token_shares
from attsvm_lab.claims.selective_attention import WIDTH, loss_and_gradient, silent_task
from attsvm_lab.claims.sinks import relu_loss
from tests.lab.claims.agreement import check, each_claim


@each_claim("even_pairs", "topics", "sinks", "scan_and_snap", "selective_attention")
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


def test_the_gradients_of_the_scan_are_those_of_finite_differences():
    P, rng = token_shares(0), np.random.default_rng(0)
    z, Y = rng.standard_normal(P.shape[1]), rng.standard_normal(P.shape[::-1])

    def loss(flat, normalised):
        s = P * np.exp(flat[: len(z)])
        s /= s.sum(-1, keepdims=True)
        f = s / np.linalg.norm(s, axis=-1, keepdims=True) if normalised else s
        logits = f @ flat[len(z) :].reshape(Y.shape)
        return np.mean(np.log(np.exp(logits).sum(-1)) - np.diag(logits))

    flat = np.concatenate([z, Y.ravel()])
    for normalised in (True, False):
        _, dz, dY = gradients(P, z, Y, normalised)
        found = -np.concatenate([dz, dY.ravel()])
        assert check_grad(lambda x, n=normalised: loss(x, n), lambda x, g=found: g, flat) < 1e-6
        assert check_grad(lambda x, n=normalised: loss(x, not n), lambda x, g=found: g, flat) > 1e-2


def test_the_gradient_of_a_value_temperature_is_that_of_finite_differences():
    task = silent_task(0, 0.5)
    at = 0.3 * np.random.default_rng(0).standard_normal(2 * WIDTH + 1)

    def loss(parameters, reads_token=True):
        return loss_and_gradient(parameters, task, reads_token)[0]

    def gradient(parameters):
        return loss_and_gradient(parameters, task, True)[1]

    assert check_grad(loss, gradient, at) < 1e-5
    assert check_grad(lambda x: loss(x, False), gradient, at) > 1e-2
