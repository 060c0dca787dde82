"""The squared error: the target enters through the values, and nothing cancels past saturation."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import attsvm as att
from attsvm.training import attention
from attsvm.training.data import arrays
from attsvm.training.losses import correlation
from attsvm.training.prediction_heads import QuadraticPenalty, SquaredError

FLOOR = 1e-11  # logits of size 1e3 carry a rounding error of 1e-13, which is a relative error in s_t
SQUARED = SquaredError()
MILD = {"optimizer": att.gd(0.5)}
FAR = {"optimizer": att.steepest(att.frobenius, 0.5)}


def problem(seed=0, n=3, T=4, d=5, c=2, at=1, width=None):
    """Keys and queries at random; values minus the target, which token `at` holds."""
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, width or d))
    values = rng.standard_normal((n, T, c))
    return att.Tokens(keys, queries, values=values - values[:, at : at + 1])


def runs_of(*problems):
    parts = ([getattr(one, name) for one in problems] for name in ("keys", "queries", "values"))
    keys, queries, values = map(np.stack, parts)
    return att.Tokens(keys, queries, values=values)


@jax.jit
def looked(data, W, head):
    look = attention.attend(data, W)
    reading = attention.read(data, look, head)
    mantissa, log_scale = attention.gradient(data, look, reading, correlation)
    return mantissa, log_scale, attention.log_excess(data, *attention.drops(data, look, reading), correlation)


def ours(tokens, W, head=SQUARED):
    with jax.enable_x64(True):
        mantissa, log_scale, excess = looked(jax.device_put(arrays(tokens)), jnp.asarray(W), head)
    return np.asarray(mantissa), float(log_scale), float(excess)


def exact(tokens, W):
    """Direction of the textbook gradient, log of its length, and log of the loss, by mpmath."""
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    with mp.workdps(int(60 + 2 * np.ptp(logits, axis=1).max() / np.log(10))):
        G, loss = mp.zeros(tokens.d, tokens.e), mp.mpf(0)
        for X, z, V in zip(tokens.keys, tokens.queries, tokens.values, strict=True):
            X, z, V = (mp.matrix(part.tolist()) for part in (X, z, V))
            a = X * (mp.matrix(W.tolist()) * z)
            e = [mp.exp(value - max(a)) for value in a]
            s = [value / mp.fsum(e) for value in e]
            r = V.T * mp.matrix(s)
            loss += mp.fsum(x * x for x in r) / 2 / tokens.n
            score = V * r
            mean = mp.fdot(s, score)
            G += X.T * mp.matrix([s[t] * (score[t] - mean) for t in range(tokens.T)]) * z.T / tokens.n
        size = mp.norm(G)
        unit = [[float(G[j, k] / size) for k in range(tokens.e)] for j in range(tokens.d)]
        return np.array(unit), float(mp.log(size)), float(mp.log(loss))


@pytest.fixture(scope="module")
def direction():
    W = att.max_margin(problem(), np.full(3, 1)).W
    return np.asarray(W)  # margin one: at size 200 losing tokens have e^-200 or less


@pytest.mark.parametrize("size", [0.1, 10, 200, 1_000])
def test_gradient_and_excess_agree_with_mpmath_at_every_size_of_the_weight(size, direction):
    mantissa, log_scale, excess = ours(problem(), size * direction)
    unit, log_size, log_loss = exact(problem(), size * direction)
    length = np.linalg.norm(mantissa)
    assert np.linalg.norm(mantissa / length - unit) <= FLOOR
    assert log_scale + np.log(length) == pytest.approx(log_size, rel=1e-12, abs=1e-12)
    assert excess == pytest.approx(log_loss, rel=1e-12, abs=1e-12)


def test_a_head_that_knows_no_target_loses_the_gradient_there(direction):
    tokens = problem()
    plain = QuadraticPenalty(np.zeros(2), 0.5)  # the same function, read without a log scale
    np.testing.assert_allclose(ours(tokens, 2 * direction, plain)[0], ours_unscaled(tokens, 2 * direction))
    assert np.abs(ours(tokens, 1_000 * direction, plain)[0]).max() == 0
    assert np.abs(ours(tokens, 1_000 * direction)[0]).max() > 1e-3


def ours_unscaled(tokens, W):
    """Our gradient in the log scale of a head without one: that of the strongest losing token."""
    mantissa, log_scale, _ = ours(tokens, W)
    return mantissa * np.exp(log_scale - ours(tokens, W, QuadraticPenalty(np.zeros(2), 0.5))[1])


@pytest.mark.parametrize("size", [1, 200])
def test_several_tokens_on_the_target_and_padding_change_nothing_but_the_loss(size, direction):
    tokens = problem()
    twice = np.concatenate([tokens.keys, tokens.keys[:, 1:2] + 0.01, 9 + tokens.keys[:, :1]], axis=1)
    values = np.concatenate([tokens.values, 0 * tokens.values[:, :2]], axis=1)
    mask = np.arange(6) < np.full((3, 1), 5)
    padded = att.Tokens(twice, tokens.queries, mask=mask, values=values)
    whole = att.Tokens(twice[:, :5], tokens.queries, values=values[:, :5])
    mantissa, log_scale, excess = ours(padded, size * direction)
    unit, log_size, log_loss = exact(whole, size * direction)
    length = np.linalg.norm(mantissa)
    assert np.linalg.norm(mantissa / length - unit) <= FLOOR
    assert log_scale + np.log(length) == pytest.approx(log_size, rel=1e-11, abs=1e-12)
    assert excess == pytest.approx(log_loss, rel=1e-11, abs=1e-12)


def test_gradient_descent_on_scalar_targets_is_that_of_the_textbook_formula():
    tokens = problem(seed=2, c=1, at=0)
    shifted = att.Tokens(tokens.keys, tokens.queries, values=tokens.values + 0.3)  # no token is the target
    for data, known in ((tokens, True), (shifted, False)):
        run = att.train(data, att.SquaredError(), steps=20, record=[20], **MILD)
        W, loss = textbook_descent(data, steps=20, lr=0.5)
        np.testing.assert_allclose(run.final, W, rtol=1e-9, atol=1e-12)
        assert run.loss[-1] == pytest.approx(loss, rel=1e-9)
        assert np.isfinite(run.log_excess).all() == known
        if known:
            np.testing.assert_allclose(run.log_excess, np.log(run.loss), rtol=1e-9)


def textbook_descent(tokens, steps, lr):
    def loss(W):
        s = jax.nn.softmax(jnp.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries))
        return (jnp.einsum("nt,ntc->nc", s, tokens.values) ** 2).sum(-1).mean() / 2

    with jax.enable_x64(True):
        W = jnp.zeros((tokens.d, tokens.e))
        step = jax.jit(lambda W: W - lr * jax.grad(loss)(W))
        for _ in range(steps):
            W = step(W)
        return np.asarray(W), float(loss(W))


@pytest.fixture(scope="module")
def far():
    """Nine runs, which share the lanes, past the smallest squares of float64."""
    tokens = runs_of(*(problem(seed) for seed in range(9)))
    return att.train(tokens, att.SquaredError(), steps=12_000, record=[12_000], **FAR)


def test_runs_past_underflow_reach_the_max_margin_of_what_they_select(far):
    kept = [k for k in range(9) if (far.run(k).selected.argmax(1) == 1).all()]
    assert len(kept) >= 5  # one rests at a mixture of tokens, where the loss stops
    for run in map(far.run, kept):
        assert run.stopped == "steps"
        assert run.log_excess[-1] < -3_000
        assert att.margin_ratio(run, att.max_margin(run.tokens, run.selected))[-1] > 0.997  # seen: 0.9997


def test_runs_and_one_run_resume_and_half_agree(far):
    alone = att.train(problem(0), att.SquaredError(), steps=500, record=[250, 500], **FAR)
    half = att.train(problem(0), att.SquaredError(), steps=250, record=[250], **FAR)
    again = att.train(problem(0), att.SquaredError(), steps=500, record=[250, 500], resume=half, **FAR)
    np.testing.assert_array_equal(again.W, alone.W)
    many = att.train(far.tokens, att.SquaredError(), steps=500, record=[500], **FAR)
    np.testing.assert_allclose(many.final[0], alone.final, rtol=1e-9, atol=1e-9)


def test_mini_batches_of_all_examples_are_full_steps_and_small_ones_are_not():
    whole, all_, few = (
        att.train(problem(0), att.SquaredError(), steps=500, record=[250, 500], batch=batch, **FAR)
        for batch in (None, att.Batches(3), att.Batches(2))
    )
    np.testing.assert_allclose(all_.final, whole.final, rtol=1e-9, atol=1e-9)
    assert np.abs(few.final - whole.final).max() > 1e-3


def test_key_and_query_factors_follow_the_chain_rule():
    tokens = problem(6, c=1)
    K, Q = np.random.default_rng(0).standard_normal((2, 5, 2)) / 3
    run = att.train(
        tokens, att.SquaredError(), weight=att.KeyQuery(2), init=(K, Q), steps=1, record=[1], **MILD
    )
    mantissa, log_scale, _ = ours(tokens, K @ Q.T)
    G = mantissa * np.exp(log_scale)
    np.testing.assert_allclose(run.K[-1], K - 0.5 * G @ Q, rtol=1e-9)
    np.testing.assert_allclose(run.Q[-1], Q - 0.5 * G.T @ K, rtol=1e-9)


def test_a_regularisation_path_finds_the_target_in_growing_balls():
    tokens, radii = problem(0), np.array([1.0, 10.0, 40.0])
    path = att.regularisation_path(tokens, att.SquaredError(), radii=radii, starts=4)
    assert (path.selected.argmax(1) == 1).all()
    np.testing.assert_allclose(path.log_excess, np.log(path.loss), rtol=1e-6)
    assert att.margin_ratio(path, att.max_margin(tokens, path.selected))[-1] > 0.9


@pytest.mark.parametrize("call", [att.train, att.regularisation_path])
def test_labels_and_other_losses_are_refused(call):
    more = {"optimizer": att.gd(0.1), "steps": 1} if call is att.train else {"radii": [1.0]}
    flipped = att.Tokens(problem().keys, problem().queries, labels=[1, -1, 1], values=problem().values)
    with pytest.raises(ValueError, match="takes no labels"):
        call(flipped, att.SquaredError(), **more)
    with pytest.raises(ValueError, match="Drop loss"):
        call(problem(), att.SquaredError(), loss=att.logistic, **more)


def test_polyaks_step_is_the_textbook_one_and_the_best_loss_is_zero():
    tokens, start = problem(), np.random.default_rng(1).standard_normal((5, 5))
    path = att.train(tokens, SQUARED, optimizer=att.polyak(0.5), steps=1, init=start, record=[1])
    unit, log_size, log_loss = exact(tokens, start)
    wanted = start - 0.5 * np.exp(log_loss - log_size) * unit  # (L − 0)/‖∇L‖² · ∇L
    np.testing.assert_allclose(path.W[-1], wanted, rtol=1e-10, atol=1e-12)


def test_polyak_fits_the_targets_and_is_refused_where_no_token_is_on_one():
    tokens = problem()
    path = att.train(tokens, SQUARED, optimizer=att.polyak(), steps=200)
    assert path.loss[-1] < 1e-6 * path.loss[0] and (path.selected.argmax(1) == 1).all()
    values = np.array(tokens.values)
    values[2, 1] = 0.1  # the control: an example whose target no token holds
    off = att.Tokens(tokens.keys, tokens.queries, values=values)
    with pytest.raises(ValueError, match="example 2 has no token on its target"):
        att.train(off, SQUARED, optimizer=att.polyak(), steps=1)
