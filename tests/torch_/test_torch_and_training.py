"""Torch optimizers and pooling beside training: two programs, one path."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

import jax  # noqa: E402

from attsvm import Entrywise, Schatten, frobenius, l1, linf, nuclear, spectral  # noqa: E402
from attsvm.datasets import sphere  # noqa: E402
from attsvm.torch import LpMirrorDescent, SteepestDescent, pool  # noqa: E402
from attsvm.training import attention as training  # noqa: E402
from attsvm.training.data import arrays  # noqa: E402
from attsvm.training.losses import logistic  # noqa: E402
from attsvm.training.optimizers import mirror, steepest  # noqa: E402
from attsvm.training.prediction_heads import Linear  # noqa: E402

NORMS = [l1, linf, frobenius, nuclear, spectral, Entrywise(3), Schatten(1.5)]
SAME = 1e-12
"""Two float64 programs of a few hundred roundings each, relative to the largest weight."""


@functools.cache
def problem():
    """One attention problem: training's gradient, as (mantissa, log scale), and torch's loss."""
    tokens, v = sphere(n=6, T=8, d=10, seed=0)
    X, Z, Y, head = (torch.from_numpy(np.array(a)) for a in (tokens.keys, tokens.queries, tokens.labels, v))
    data = jax.device_put(arrays(tokens))

    def loss(W, read):
        pooled = read((X @ (Z @ W.T)[:, :, None])[..., 0], X)
        return torch.nn.functional.softplus(-Y * (pooled @ head)).mean()

    def gradient(W):
        look = training.attend(data, W)
        return training.gradient(data, look, training.read(data, look, Linear(v)), logistic)

    return jax.jit(gradient), loss


def distance(make, rule, read=pool, steps=100):
    """How far a torch run ends from training's run with the same start, relative to the largest weight."""
    with jax.enable_x64(True):
        gradient, loss = problem()
        theirs = 0.1 * np.random.default_rng(5).standard_normal((10, 10))
        ours, state = torch.nn.Parameter(torch.from_numpy(theirs.copy())), rule.init(theirs)
        optimizer, update = make([ours]), jax.jit(rule.update)
        for _ in range(steps):
            grads = gradient(theirs)
            step, state = update(grads.mantissa, state, theirs, log_scale=grads.log_scale)
            theirs = theirs + np.asarray(step)
            optimizer.zero_grad()
            loss(ours, read).backward()
            optimizer.step()
    return np.abs(ours.detach().numpy() - theirs).max() / np.abs(theirs).max()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_steepest_descent_takes_the_steps_of_training(norm):
    assert distance(lambda q: SteepestDescent(q, 0.1, norm), steepest(norm, 0.1)) < SAME


@pytest.mark.parametrize(("p", "normalised"), [(1.2, False), (1.5, True), (2, True), (3, True), (6, False)])
def test_mirror_descent_takes_the_steps_of_training(p, normalised):
    ours = lambda q: LpMirrorDescent(q, 0.1, p, normalised=normalised)  # noqa: E731
    assert distance(ours, mirror(p, 0.1, normalised)) < SAME


def test_momentum_is_that_of_training_and_another_momentum_is_not():
    rule = steepest(linf, 0.1, momentum=0.9)
    assert distance(lambda q: SteepestDescent(q, 0.1, linf, momentum=0.9), rule) < SAME
    assert distance(lambda q: SteepestDescent(q, 0.1, linf, momentum=0.8), rule, steps=20) > 1e-2


def test_training_past_saturation_takes_the_steps_of_training_and_textbook_softmax_does_not():
    rule, ours = steepest(frobenius, 2.0), lambda q: SteepestDescent(q, 2.0, frobenius)
    textbook = lambda logits, X: (torch.softmax(logits, -1)[:, None] @ X)[:, 0]  # noqa: E731
    assert distance(ours, rule, functools.partial(pool, scale_free=True)) < SAME
    assert distance(ours, rule, textbook) > 0.1


def test_another_norm_does_not_take_the_steps_of_training():
    assert distance(lambda q: SteepestDescent(q, 0.1, spectral), steepest(frobenius, 0.1), steps=20) > 1e-2
