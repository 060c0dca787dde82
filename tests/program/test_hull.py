"""Shortest vectors of convex hulls and projections on dual cones, against nonnegative least squares."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

import attsvm as att

CLOSE = 1e-9
"""Relative difference to SciPy's nonnegative least squares, which ends at 1e-14 in other coordinates."""


def family(m, d, seed=0, shift=0.3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)) + shift * rng.standard_normal(d)


def smallest_by_least_squares(vectors):
    """min ‖Σ λ_j g_j‖² + (Σ λ_j − 1)² over λ ≥ 0 points to the shortest vector of the hull."""
    unit = np.abs(vectors).max()
    A = np.vstack([vectors.T / unit, np.ones(len(vectors))])
    lam, _ = nnls(A, np.eye(len(A))[-1])
    return lam / lam.sum() @ vectors


SIZES = [(1, 1), (1, 5), (2, 1), (3, 2), (8, 20), (20, 8), (40, 41), (64, 10)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_the_shortest_vector_is_that_of_nonnegative_least_squares(size, shift):
    vectors = family(*size, shift=shift)
    oracle, shortest = smallest_by_least_squares(vectors), np.linalg.norm(vectors, axis=1).min()
    for point in (att.smallest_in_hull(vectors), att.smallest_in_hull(gram=vectors @ vectors.T)):
        assert point.certified
        assert (point.weights >= 0).all() and abs(point.weights.sum() - 1) < 1e-14
        np.testing.assert_allclose(point.weights @ vectors, oracle, atol=1e-7 * shortest)
        assert point.least_length <= np.linalg.norm(oracle) + CLOSE


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_projections_are_those_of_nonnegative_least_squares(size):
    vectors = family(*size)
    u = np.random.default_rng(1).standard_normal((5, size[0]))
    by_vectors, by_gram = (
        att.dual_cone_projection(u, vectors),
        att.dual_cone_projection(u, gram=vectors @ vectors.T),
    )
    for projection in (by_vectors, by_gram):
        assert projection.certified.all()
        for row, weights in zip(u, projection.weights, strict=True):
            oracle = vectors.T @ (row + nnls(vectors.T, -row @ vectors)[0])
            np.testing.assert_allclose(weights @ vectors, oracle, atol=1e-7 * np.linalg.norm(row @ vectors))
    assert (by_vectors.vector @ vectors.T > -CLOSE * np.abs(vectors).max()).all()


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1.0, 1e9, 1e150])
def test_answers_scale_with_the_vectors(scale):
    vectors, u = family(12, 9, shift=1.0), np.linspace(-1, 1, 12)
    assert att.smallest_in_hull(scale * vectors).certified
    weights = att.smallest_in_hull(vectors).weights
    np.testing.assert_allclose(att.smallest_in_hull(scale * vectors).weights, weights, atol=1e-12)
    point = att.dual_cone_projection(u, scale * vectors)
    assert point.certified
    np.testing.assert_allclose(point.vector / scale, att.dual_cone_projection(u, vectors).vector, atol=1e-12)


def test_vectors_of_very_different_lengths_are_certified():
    vectors = family(10, 30)
    for spread in (3, 9):
        far = vectors * np.logspace(-spread, spread, 10)[:, None]
        point, projection = att.smallest_in_hull(far), att.dual_cone_projection(np.eye(10), far)
        assert point.length <= np.linalg.norm(far, axis=1).min() * (1 + CLOSE)
        assert projection.certified.all()
        assert point.certified == (spread == 3)  # a product with 18 digits between its factors has none left


def test_copies_and_dependent_vectors_change_no_point():
    vectors = family(6, 9, shift=1.0)
    more = np.vstack([vectors, vectors, vectors[:3] + vectors[3:], 2 * vectors])
    few, many = att.smallest_in_hull(vectors), att.smallest_in_hull(more)
    np.testing.assert_allclose(many.vector, few.vector, atol=1e-12)
    by_gram = att.smallest_in_hull(gram=more @ more.T)
    assert many.certified and by_gram.certified
    np.testing.assert_allclose(by_gram.weights @ more, few.vector, atol=1e-7)


HOLD_ZERO = [[[0.0, 0.0]], [[1.0, 0], [-2, 0]], [[1, 0], [0, 0], [5, 5]], family(30, 3)]


@pytest.mark.parametrize("vectors", HOLD_ZERO, ids=len)
def test_zero_in_the_hull_is_found_and_proven(vectors):
    vectors = np.array(vectors, float)
    for point in (att.smallest_in_hull(vectors), att.smallest_in_hull(gram=vectors @ vectors.T)):
        assert point.contains_zero and point.certified
        assert np.linalg.norm(point.weights @ vectors) <= 1e-7 * np.abs(vectors).max()
        assert point.least_length == 0


def test_a_hull_near_zero_does_not_pass_for_one_that_holds_it():
    vectors = np.array([[1.0, 1e-5], [-1, 1e-5]])
    point = att.smallest_in_hull(vectors)
    assert point.certified and not point.contains_zero
    np.testing.assert_allclose(point.vector, [0, 1e-5], atol=1e-12)


def test_the_length_is_the_inverse_of_the_norm_of_the_max_margin_solution():
    vectors = family(15, 40, shift=2.0)
    W = att.separate(vectors).W
    np.testing.assert_allclose(att.smallest_in_hull(vectors).length * np.linalg.norm(W), 1, rtol=1e-10)


def test_a_batch_is_solved_as_its_members():
    batch = np.stack([[family(7, 5, seed), family(7, 5, seed, 2.0)] for seed in range(6)])
    together = att.smallest_in_hull(batch)
    assert together.weights.shape == (6, 2, 7) and together.length.shape == (6, 2)
    for index in np.ndindex(6, 2):
        np.testing.assert_allclose(together.weights[index], att.smallest_in_hull(batch[index]).weights)
    gram = np.einsum("...jd,...kd->...jk", batch, batch)
    np.testing.assert_allclose(att.smallest_in_hull(gram=gram).length, together.length, atol=1e-7)


def test_weights_that_are_not_the_best_are_not_certified():
    point = att.smallest_in_hull(family(20, 30))
    assert point.certified
    assert not replace(point, weights=np.full(20, 1 / 20)).certified
    assert not replace(point, weights=np.roll(point.weights, 1)).certified
    u = np.random.default_rng(0).standard_normal(20)
    projection = att.dual_cone_projection(u, family(20, 30))
    assert projection.certified
    assert not replace(projection, weights=projection.weights + 1e-3).certified
    assert not replace(projection, weights=np.maximum(u, 0)).certified
    assert not replace(projection, weights=u).certified
    assert not replace(projection, weights=projection.weights - 1e-12).certified  # v ≥ u is exact


def test_frank_and_wolfe_after_a_hundred_steps_are_not_certified():
    vectors = family(64, 200)
    G, point = vectors @ vectors.T, att.smallest_in_hull(vectors)
    weights = np.full(64, 1 / 64)
    for _ in range(100):
        t, best = int((G @ weights).argmin()), weights @ G @ weights
        a, c = G[t] @ weights, G[t, t]
        weights = weights + min(1.0, (best - a) / (best + c - 2 * a)) * (np.eye(64)[t] - weights)
    slow = replace(point, weights=weights)
    assert slow.length > 1.001 * point.length and not slow.certified and slow.least_length < point.length


def test_a_gram_matrix_in_single_precision_is_taken_as_it_is():
    vectors = family(30, 12).astype(np.float32)
    projection = att.dual_cone_projection(np.eye(30), gram=vectors @ vectors.T)
    assert (projection.weights >= np.eye(30)).all()
    assert projection.violation.max() < 1e-5 and projection.gap.max() < 1e-5


G = np.eye(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of both: none came"),
        ({"vectors": G, "gram": G}, "one of both: both came"),
        ({"vectors": np.ones(3)}, r"vectors has shape \(3,\)"),
        ({"vectors": np.ones((0, 3))}, r"vectors has shape \(0, 3\)"),
        ({"gram": np.ones((2, 3))}, "Pass a square matrix"),
        ({"gram": np.array([[1.0, np.nan], [0, 1]])}, "gram has a NaN or infinite entry"),
        ({"vectors": np.full((2, 2), np.inf)}, "vectors has a NaN or infinite entry"),
        ({"gram": -G}, "diagonal entry -1"),
        ({"gram": np.array([[1.0, 2.0], [2.0, 1.0]])}, "not semidefinite: at unit diagonal it has .* -1"),
        ({"gram": np.array([[1.0, 0.5], [0.0, 1.0]])}, "not symmetric"),
        ({"gram": np.array([[1.0, 0.5], [0.5, 0.0]])}, "a zero on its diagonal"),
    ],
)
def test_bad_vectors_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        att.smallest_in_hull(**arguments)


def test_bad_weights_are_named():
    with pytest.raises(ValueError, match=r"weights has shape \(2,\) but there are m=3"):
        att.dual_cone_projection(np.ones(2), G)
    with pytest.raises(ValueError, match="NaN"):
        att.dual_cone_projection([1.0, np.nan, 0.0], G)
    with pytest.raises(ValueError, match="leading axes"):
        att.dual_cone_projection(np.ones(3), gram=np.stack([G, G]))
    with pytest.raises(ValueError, match="needs the vectors themselves"):
        _ = att.smallest_in_hull(gram=G).vector
