"""The gradient and the excess loss relative to the winning token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm import Tokens
from attsvm.datasets import sphere
from attsvm.training import attention
from attsvm.training.data import arrays, equal_values
from attsvm.training.losses import correlation, exponential, logistic
from attsvm.training.prediction_heads import Linear, QuadraticPenalty, ReLUNetwork

pytestmark = pytest.mark.quick

LOSSES = [logistic, exponential, correlation]
NAMES = ["logistic", "exponential", "correlation"]
FLOOR = 1e-12  # logits of size 1e4 carry a rounding error of 1e-12, which is a relative error in s_t


@partial(jax.jit, static_argnames="loss")
def slope(data, head, loss, W):
    look = attention.attend(data, W)
    return attention.gradient(data, look, attention.read(data, look, head), loss)


def scaled_gradient(tokens, head, loss, W):
    with jax.enable_x64(True):
        data = jax.device_put(arrays(tokens)._replace(alike=equal_values(tokens)))
        found = slope(data, jax.tree.map(jnp.asarray, head), loss, jnp.asarray(W))
    return np.asarray(found.mantissa), float(found.log_scale)


def textbook_loss(tokens, head, loss, W):
    logits = jnp.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    weights = jax.nn.softmax(jnp.where(tokens.mask, logits, -jnp.inf))
    pooled = jnp.einsum("nt,ntc->nc", weights, tokens.values)
    return loss.value(tokens.labels * head.value(pooled)).mean()


def autodiff_gradient(tokens, head, loss, W):
    with jax.enable_x64(True):
        return jax.jit(jax.grad(lambda W: textbook_loss(tokens, head, loss, W)))(jnp.asarray(W))


@pytest.fixture(scope="module")
def direction():
    """A weight of size one whose losing tokens compete: 1,000 normalised steps, rescaled."""
    tokens, v = sphere(3, 4, 5, seed=0)
    with jax.enable_x64(True):
        data, head = jax.device_put(arrays(tokens)), Linear(jnp.asarray(v))

        def step(_, W):
            G = slope(data, head, logistic, W).mantissa
            return W - 0.1 * G / jnp.linalg.norm(G)

        W = np.asarray(jax.lax.fori_loop(0, 1_000, step, jnp.zeros((5, 5))))
    return W / np.linalg.norm(W)


@pytest.mark.parametrize("size", [1, 1e2, 1e4])
def test_the_gradient_agrees_with_mpmath_at_every_size_of_the_weight(size, direction, exact_gradient):
    tokens, v = sphere(3, 4, 5, seed=0)
    mantissa, log_scale = scaled_gradient(tokens, Linear(v), logistic, size * direction)
    exact, log_size = exact_gradient(tokens, v, size * direction)
    assert np.linalg.norm(mantissa / np.linalg.norm(mantissa) - exact) <= FLOOR
    assert log_scale + np.log(np.linalg.norm(mantissa)) == pytest.approx(log_size, rel=1e-12, abs=1e-12)


def tied(tokens, v, kind, W):
    """Tokens of which some have the winner's score and are as strong, in every example or in the last."""
    keys, values = tokens.keys.copy(), tokens.keys.copy()
    order = np.argsort(-np.einsum("ntd,de,ne->nt", keys, W, tokens.queries), 1)
    if kind == "one of them says nothing":
        values[-1] = values[-1, :1]
        keys[-1] = 1e-5 * keys[-1]  # at a weight of 1e4 no token has won there
    for i in range(tokens.n if kind == "two winners" else 0):
        first, second = order[i, :2]
        values[i, second] = values[i, first]
        keys[i, second] = keys[i, first] + 1e-5 * keys[i, second]
    if kind == "copies":
        keys, values = (np.concatenate([x, x], 1) for x in (keys, values))
    return Tokens(keys, tokens.queries, tokens.labels, values=values)


@pytest.mark.parametrize("kind", ["two winners", "one of them says nothing", "copies"])
def test_tokens_with_the_score_of_the_winner_do_not_hide_the_others(kind, direction, exact_gradient):
    tokens, v = sphere(3, 4, 5, seed=0)
    tokens = tied(tokens, v, kind, direction)
    mantissa, log_scale = scaled_gradient(tokens, Linear(v), logistic, 1e4 * direction)
    exact, log_size = exact_gradient(tokens, v, 1e4 * direction)
    assert log_size < -1_000  # beside a token as strong as the winner this is no float64
    assert np.linalg.norm(mantissa / np.linalg.norm(mantissa) - exact) <= FLOOR
    assert log_scale + np.log(np.linalg.norm(mantissa)) == pytest.approx(log_size, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("kind", ["linear", "relu", "quadratic"])
def test_the_gradient_is_that_of_autodiff_before_saturation(kind, loss):
    rng = np.random.default_rng(3)
    tokens, v = sphere(3, 4, 5, seed=1)
    V, u = rng.standard_normal((5, 7)), rng.standard_normal(7)
    head = {"linear": Linear(v), "relu": ReLUNetwork(V, u), "quadratic": QuadraticPenalty(v, 0.3)}[kind]
    W = rng.standard_normal((5, 5))
    mantissa, log_scale = scaled_gradient(tokens, head, loss, W)
    expected = autodiff_gradient(tokens, head, loss, W)
    np.testing.assert_allclose(mantissa * np.exp(log_scale), expected, rtol=1e-11, atol=1e-14)


def test_the_textbook_gradient_vanishes_where_ours_does_not(direction):
    tokens, v = sphere(3, 4, 5, seed=0)
    mantissa, log_scale = scaled_gradient(tokens, Linear(v), logistic, 1e4 * direction)
    naive = autodiff_gradient(tokens, Linear(v), logistic, 1e4 * direction)
    assert np.abs(mantissa).max() > 1e-3
    assert log_scale < -1_000
    assert np.linalg.norm(naive) < 1e-12


def test_masked_tokens_change_nothing():
    tokens, v = sphere(3, 4, 5, seed=2)
    W = np.random.default_rng(0).standard_normal((5, 5))
    padded = Tokens.from_sequences(list(tokens.keys) + [np.ones((9, 5))], np.vstack([tokens.queries, W[:1]]))
    cut = Tokens(padded.keys[:3], tokens.queries, tokens.labels, padded.mask[:3])
    for short, long in zip(
        scaled_gradient(tokens, Linear(v), logistic, W),
        scaled_gradient(cut, Linear(v), logistic, W),
        strict=True,
    ):
        np.testing.assert_allclose(long, short, rtol=1e-13, atol=1e-16)


def test_an_example_with_one_token_has_no_gradient():
    tokens = Tokens(np.ones((2, 1, 3)), np.ones((2, 2)))
    mantissa, log_scale = scaled_gradient(tokens, Linear(np.ones(3)), logistic, np.ones((3, 2)))
    assert (mantissa == 0).all()
    assert log_scale == 0


def test_the_choice_among_tied_winners_does_not_matter():
    tokens, v = sphere(3, 4, 5, seed=4)
    order = np.roll(np.arange(4), 2)
    turned = Tokens(tokens.keys[:, order], tokens.queries, tokens.labels)
    zero = np.zeros((5, 5))  # every token ties
    first, _ = scaled_gradient(tokens, Linear(v), logistic, zero)
    second, _ = scaled_gradient(turned, Linear(v), logistic, zero)
    np.testing.assert_allclose(first, second, rtol=1e-13, atol=1e-16)


@partial(jax.jit, static_argnames="loss")
def excess(data, v, loss, W):
    look = attention.attend(data, W)
    drops = attention.drops(data, look, attention.read(data, look, Linear(v)))
    return attention.log_excess(data, *drops, loss)


def log_excess(tokens, v, loss, W):
    with jax.enable_x64(True):
        return float(excess(jax.device_put(arrays(tokens)), jnp.asarray(v), loss, jnp.asarray(W)))


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_the_excess_loss_is_the_loss_minus_that_of_the_best_tokens(loss):
    tokens, v = sphere(3, 4, 5, seed=5)
    W = 3 * np.random.default_rng(1).standard_normal((5, 5))
    best = (tokens.labels[:, None] * (tokens.keys @ v)).max(1)
    with jax.enable_x64(True):
        gap = textbook_loss(tokens, Linear(v), loss, W) - loss.value(jnp.asarray(best)).mean()
    assert log_excess(tokens, v, loss, W) == pytest.approx(float(np.log(gap)), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_the_excess_loss_is_exact_past_underflow(loss):
    # Two tokens: the excess is s_2 · gap · |ℓ'(γ_best)| to first order, with log s_2 = −size exactly.
    tokens, size = Tokens([[[1.0, 1.0], [0.0, 0.25]]]), 5_000.0
    with jax.enable_x64(True):
        expected = -size + np.log(0.75) + float(loss.log_slope(jnp.asarray(1.0)))
    found = log_excess(tokens, np.array([0.0, 1.0]), loss, np.array([[size], [0.0]]))
    assert found == pytest.approx(expected, rel=1e-14)


def test_the_excess_loss_of_a_wrong_selection_is_of_order_one():
    tokens = Tokens([[[1.0, 1.0], [0.0, 0.25]]])
    value = log_excess(tokens, np.array([0.0, 1.0]), correlation, np.array([[-5_000.0], [0.0]]))
    assert value == pytest.approx(np.log(0.75), rel=1e-12)
