"""Regularisation paths in a cone around a solution, and of head and weight together."""

from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import scores
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise
from attsvm.training.prediction_heads import Linear
from attsvm.training.regularise import regularisation_path
from tests.training.geometry import angle, max_margin, rows

# ---------------------------------------------------------------------- local paths


@cache
def every_selection():
    """All selections of five small prompt problems: tokens, heads, weights, locally optimal or not."""
    parts = []
    for seed in range(5):
        tokens, v = datasets.prompt_sphere(2, 3, 4, seed=seed)
        gamma = scores(tokens, v)
        for chosen in product(range(3), repeat=2):
            A, pairs = rows(tokens, chosen)
            W = max_margin(A)
            support = [pair for pair, gap in zip(pairs, (A * W).sum((1, 2)), strict=True) if gap < 1 + 1e-6]
            good = all(gamma[i, chosen[i]] > gamma[i, t] for i, t in support)
            parts.append((tokens.keys, tokens.labels, v, W, good))
    keys, labels, v, W, good = map(np.stack, zip(*parts, strict=True))
    return Tokens(keys, labels=labels), v, W, good


@cache
def local_path(cone):
    tokens, v, W, _ = every_selection()
    return regularisation_path(
        tokens, Linear(v), radii=[100.0, 300, 1000], around=SimpleNamespace(W=W), cone=cone, starts=3
    )


def test_the_local_path_leaves_every_selection_that_is_not_locally_optimal():
    _, _, W, good = every_selection()
    final = local_path(0.05).final
    edge = np.arccos(0.95)
    assert min(angle(final[r], W[r]) for r in np.flatnonzero(~good)) >= 0.8 * edge
    assert max(angle(final[r], W[r]) for r in range(len(W))) <= edge * (1 + 1e-9)


def test_the_local_path_stays_at_locally_optimal_selections():
    _, _, W, good = every_selection()
    angles = np.array([[angle(w, W[r]) for w in local_path(0.05).W[r]] for r in np.flatnonzero(good)])
    stays = angles[:, -1] < 0.01
    # "In a suitable cone": 0.05 is too wide for few of them; every other one converges.
    assert stays.mean() >= 0.8
    assert (angles[stays, -1] < angles[stays, 0]).all()


@pytest.mark.parametrize("third_score, stays", [(0.0, True), (0.95, False)])
def test_one_support_token_decides_whether_the_local_path_stays(third_score, stays):
    tokens, v = datasets.single_input(third_score)
    around = SimpleNamespace(W=np.array([[1.0], [0.0]]))
    found = regularisation_path(
        tokens, Linear(v), norm=Entrywise(3), radii=[300.0, 1000], around=around, cone=0.004, starts=2
    )
    assert (angle(found.final, around.W) < 1e-3) == stays


# ---------------------------------------------------------------------- head and weight together


def limit(third, radii, head_radii):
    tokens, v = datasets.joint_training(third)
    found = regularisation_path(tokens, Linear(v), radii=radii, head_radii=head_radii, starts=3)
    assert found.stopped == "converged"
    return found.final[:, 0] / radii[-1], found.v[-1] / head_radii[-1]


RATIOS = {"r/R → 0": ([10, 100, 1000], [1, 3, 10]), "r/R → ∞": ([10, 30, 100], [100, 1000, 10000])}


@pytest.mark.parametrize("ratio", RATIOS)
def test_where_every_example_supports_the_head_the_order_of_limits_is_free(ratio):
    p, v = limit((0.5, 1.0), *RATIOS[ratio])
    assert angle(p, np.array([4, 1])) < 0.01
    assert angle(v, np.array([0, 1])) < 0.03


@pytest.mark.parametrize("ratio, p_limit, other", [("r/R → 0", (5, 1), (1, 0)), ("r/R → ∞", (1, 0), (5, 1))])
def test_a_loose_example_relaxes_its_constraint_only_when_the_head_grows_faster(ratio, p_limit, other):
    p, v = limit((0.5, 1.5), *RATIOS[ratio])
    assert angle(p, np.array(p_limit)) < 0.01
    assert angle(p, np.array(other)) > 0.15
    assert angle(v, np.array([0, 1])) < 0.03


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.3, 1.0])
def test_at_a_finite_ratio_the_loose_margin_counts_with_its_head_start(ratio):
    p, _ = limit((0.5, 1.5), [100, 1000], [100 * ratio, 1000 * ratio])
    # maximise min(m_1, m_2, m_3 + ratio · (1.5 − 1)) over directions; two margins tie at the maximum.
    theta = np.linspace(-0.5, 0.5, 200_001)
    x, y = np.cos(theta), np.sin(theta)
    best = theta[np.min([x + y, x - y, 0.5 * x + 1.5 * y + 0.5 * ratio], axis=0).argmax()]
    assert np.arctan2(p[1], p[0]) == pytest.approx(best, abs=5e-3)
