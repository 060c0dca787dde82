"""The compiled pass over sequences, numbers of 16 bits in it, and the curvature near the optimum."""

import numpy as np
import pytest
from numba import njit

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.numbers.elementary import exponential, log_one_plus
from attsvm.numbers.halves import BRAIN, HALF
from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.data.arithmetic import Host
from attsvm.probe.fitting.attention import read_products
from attsvm.probe.fitting.curvature import gauss_newton
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.evaluation import evaluate
from attsvm.probe.fitting.objective import Objective, Probes
from attsvm.program.passes import widen


def problem(dtype, k=1, h=1, n=30, d=5):
    """An objective of two folds on sequences that do not lie one after the other, four probes and points."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 2 * n)
    store = TokenStore.from_flat(
        rng.standard_normal((lengths.sum(), d)).astype(dtype), np.cumsum([0, *lengths])
    )[rng.permutation(2 * n)[:n]]
    targets = np.eye(k)[rng.integers(0, k, n)].T[None] if k > 1 else rng.random((2, 1, n))
    parts = np.where(rng.random((2, n)) < 0.6, 1, -1)
    goal = Objective.of(store, targets, rng.random(n), parts, h)
    probes = Probes(np.arange(4) % len(targets), np.array([0, 1, 2, 1]), rng.random(4), rng.random(4))
    return goal, Host(store.rows), rng.standard_normal((4, goal.size)), probes


@pytest.mark.parametrize(("k", "h"), [(1, 1), (3, 2)])
def test_the_compiled_pass_is_the_same_evaluation(k, h):
    goal, where, points, probes = problem(np.float16, k, h)  # one type: it takes seconds to compile
    points[0, 0] = 300  # one token takes all attention
    plain = evaluate(goal, where, points, probes)
    where.part, where.cached = 64, 32  # several blocks of several pieces
    compiled, other = evaluate(goal, where, points, probes), evaluate(goal, where, points + 1e-3, probes)
    for one, same, not_it in zip(plain[:3], compiled[:3], other[:3], strict=True):
        np.testing.assert_allclose(same, one, rtol=1e-5, atol=1e-6)
        assert np.abs(not_it - one).max() > 1e-5


@pytest.mark.parametrize("shift", [HALF, BRAIN])
def test_every_number_of_16_bits_is_widened_exactly(shift):
    bits, out = np.arange(1 << 16, dtype=np.uint16)[None], np.empty((1, 1 << 16), np.float32)
    widen(bits, shift, np.zeros(1 << 16, np.float32), out)
    exact = bits.view(np.float16).astype(np.float32)
    if shift == BRAIN:
        exact = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(out, exact)


def test_elementary_functions_are_those_of_the_library():
    @njit
    def both(x):
        return [(exponential(-each), log_one_plus(each)) for each in x]

    x = np.concatenate([[0.0, 1.0], 10.0 ** -np.linspace(0, 300, 400), np.linspace(0, 1, 400)])
    found = np.array(both(x)).T
    np.testing.assert_allclose(found, [np.exp(-x), np.log1p(x)], rtol=1e-14)
    assert np.abs(found[1] - x).max() > 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_half_precision_that_is_no_number_is_named(bad):
    X, y = np.random.default_rng(0).standard_normal((12, 3, 4)).astype(np.float16), np.arange(12) % 2
    AttentionProbe(head_ridge=1, prompt_ridge=1).fit(X, y)
    X[7, 1, 2] = bad
    with pytest.raises(ValueError, match="sequence 7"):
        AttentionProbe(head_ridge=1, prompt_ridge=1).fit(X, y)


@pytest.mark.parametrize(("k", "h"), [(1, 2), (3, 1)])
def test_the_curvature_is_that_of_the_loss_through_scores_made_linear(k, h, monkeypatch):
    goal, where, points, probes = problem(np.float16, k, h)
    monkeypatch.setattr(
        "attsvm.probe.fitting.curvature.ROWS", 7 * 2 * k * goal.size
    )  # seven sequences at a time
    point, one, D = points[1], probes.take(np.array([1])), goal.size
    v = np.random.default_rng(1).standard_normal(D)

    step, exact = 1e-5, Host(as_matrix(np.zeros((1, 1))))
    s, there, back = (scores(goal, exact, point + sign * step * v) for sign in (0, 1, -1))
    turned = (there - back) / (2 * step)  # J v, (k, n)
    chance = 1 / (1 + np.exp(-s)) if k == 1 else np.exp(s) / np.exp(s).sum(0)
    spread = (chance * (1 - chance) * turned**2).sum(0)
    if k > 1:
        spread = (chance * turned**2).sum(0) - (chance * turned).sum(0) ** 2
    d = goal.store.width
    ridges = np.repeat([one.prompt_ridge[0], one.head_ridge[0], 0.0], [d * h, d * h * k, k])
    expected = goal.training[one.fold[0]] @ spread + ridges @ v**2
    factors = gauss_newton(goal, where, points[[1, 0]], probes.take(np.array([1, 1])))
    here, elsewhere = (((np.tril(factor).T @ v) ** 2).sum() for factor in factors)
    assert here == pytest.approx(expected, rel=1e-4)
    assert elsewhere != pytest.approx(expected, rel=1e-2)


def scores(goal, where, at):
    """Scores (k, n) of all sequences at a point."""
    d, c = goal.store.width, goal.h * (1 + goal.k)
    columns = (at[: c * d].reshape(c, d) / goal.standard.scale).T
    _, products = where.forward(goal.store.read(slice(None)), goal.standard.mean, columns)
    segments = where.segments(goal.store.lengths)
    return read_products(where, segments, products, at[None, c * d :], goal.h).scores[0]


def test_the_curvature_saves_steps_and_leads_to_the_same_optimum(monkeypatch):
    goal, where, points, probes = problem(np.float16, n=120)
    where.part = 64
    some, start = probes.take(np.array([0, 0, 0])), 0.1 * points[:3]
    some.prompt_ridge[:], some.head_ridge[:] = 0.03, 0.03

    def search(near, room):
        monkeypatch.setattr("attsvm.probe.fitting.descent.NEAR", near)
        monkeypatch.setattr("attsvm.probe.fitting.curvature.ROOM", room * goal.size**2)
        one = lambda at, which: evaluate(goal, where, at, some.take(which))  # noqa: E731
        return minimise(where, one, start, steps=500, tolerance=1e-5).numbers

    known, two, guessed = search(np.inf, 3), search(np.inf, 2), search(0.0, 3)
    assert (known.slope <= 1e-5).all() and (known.steps < guessed.steps).all()
    np.testing.assert_allclose(known.value, guessed.value, atol=1e-6)
    np.testing.assert_array_equal(two.steps[:2], known.steps[:2])  # there was room for the matrices of two
    assert two.steps[2] > known.steps[2]
