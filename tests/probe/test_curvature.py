"""The curvature near the optimum."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe.data.backends import Host
from attsvm.probe.fitting.attention import attend
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.objective import ProbeBatch, evaluate, gauss_newton
from tests.probe.cases import problem, with_tolerances


@pytest.mark.parametrize("k", [1, 3])
def test_the_curvature_is_that_of_the_loss_through_scores_made_linear(k, monkeypatch):
    goal, backend, points, probes = problem(np.float16, k)
    seven = 7 * 2 * k * goal.size  # sequences at a time
    with_tolerances(monkeypatch, "objective", row_numbers=seven)
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
    ridges = np.repeat([one.prompt_ridge[0], one.head_ridge[0], 0.0], [d, d * k, k])
    expected = goal.training[one.fold[0]] @ spread + ridges @ v**2
    batch = ProbeBatch.at(goal, backend, probes.take(np.array([1, 1])), points[[1, 0]])
    factors = gauss_newton(batch)
    here, elsewhere = (((np.tril(factor).T @ v) ** 2).sum() for factor in factors)
    assert here == pytest.approx(expected, rel=1e-4)
    assert elsewhere != pytest.approx(expected, rel=1e-2)


def scores(goal, backend, at):
    """Scores (k, n) of all sequences at a point."""
    d, c = goal.store.width, 1 + goal.k
    columns = (at[: c * d].reshape(c, d) / goal.standard.scale).T
    _, products = backend.products(goal.store.read(slice(None)), goal.standard.mean, columns)
    segments = backend.segments(goal.store.lengths)
    return attend(backend, segments, products, at[None, c * d :], 1).scores[0]


def test_the_curvature_saves_steps_and_leads_to_the_same_optimum(monkeypatch):
    goal, backend, points, probes = problem(np.float16, n=120)
    backend.block = 64
    some, start = probes.take(np.array([0, 0, 0])), 0.1 * points[:3]
    some.prompt_ridge[:], some.head_ridge[:] = 0.03, 0.03

    def search(near, room):
        with_tolerances(monkeypatch, "descent", newton_slope=near)
        with_tolerances(monkeypatch, "objective", matrix_numbers=room * goal.size**2)
        one = lambda at, which: evaluate(goal, backend, at, some.take(which))  # noqa: E731
        return minimise(backend, one, start, steps=500, tolerance=1e-5).scalars

    known, two, guessed = search(np.inf, 3), search(np.inf, 2), search(0.0, 3)
    assert (known.slope <= 1e-5).all() and (known.steps < guessed.steps).all()
    np.testing.assert_allclose(known.value, guessed.value, atol=1e-6)
    np.testing.assert_array_equal(two.steps[:2], known.steps[:2])  # there was room for the matrices of two
    assert two.steps[2] > known.steps[2]
