"""The objective and its gradient, of many probes in one pass."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="AttentionProbe needs the extra 'sklearn'")

from attsvm.probe import TokenStore
from attsvm.probe.data.backends import RaggedSegments, backend_of
from attsvm.probe.fitting.attention import softmax_gradient
from attsvm.probe.fitting.objective import Objective, Probes, evaluate


def small_problem(k=1):
    """The objective of three probes on four sequences, and a point for each of them."""
    rng = np.random.default_rng(0)
    store = TokenStore.from_flat(rng.standard_normal((40, 3)), [0, 5, 6, 16, 40])
    targets = np.eye(3)[[0, 1, 2, 1]].T[None] if k == 3 else np.array([[[0.0, 1, 1, 0]], [[0.5, 0, 1, 0.2]]])
    parts = np.array([[1, 1, -1, 1]], np.int8)
    objective = Objective.of(store, targets, np.array([1.0, 2, 1, 1]), parts)
    concept = np.array([0, 0, len(targets) - 1])
    probes = Probes(concept, np.array([0, 1, 0]), np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.2, 0.5]))
    return objective, probes, rng.standard_normal((3, objective.size))


@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_is_the_derivative(k):
    objective, probes, points = small_problem(k)
    backend, step = backend_of(objective.store.rows), 1e-6
    value = lambda at: evaluate(objective, backend, at, probes).value  # noqa: E731
    slopes = [
        (value(points + step * e) - value(points - step * e)) / (2 * step) for e in np.eye(objective.size)
    ]
    gradient = evaluate(objective, backend, points, probes).gradient
    np.testing.assert_allclose(gradient, np.transpose(slopes), atol=1e-8)
    assert np.abs(gradient - np.transpose(slopes)[::-1]).max() > 1e-2


def test_probes_that_share_a_pass_do_not_see_each_other():
    objective, probes, points = small_problem()
    backend = backend_of(objective.store.rows)
    together = evaluate(objective, backend, points, probes)
    for i in range(3):
        alone = evaluate(objective, backend, points[i : i + 1], probes.take([i]))
        np.testing.assert_allclose(alone.gradient[0], together.gradient[i], atol=1e-14)
        np.testing.assert_allclose(alone.held_out[0], together.held_out[i], atol=1e-14)
    assert together.held_out[1] > 0 and together.held_out[0] == together.held_out[2] == 0


def test_the_gradient_survives_saturation_where_the_usual_formula_is_zero():
    segments, worth = RaggedSegments(np.array([2])), np.array([[[2.0, 0.5]]])
    attention = np.array([[[1.0, np.exp(-60)]]]) / (1 + np.exp(-60))
    safe = softmax_gradient(np, segments, attention, worth)
    usual = attention * (worth - (attention * worth).sum(-1, keepdims=True))
    np.testing.assert_allclose(safe[0, 0], [1.5 * np.exp(-60), -1.5 * np.exp(-60)], rtol=1e-12)
    assert usual[0, 0, 0] == 0.0
