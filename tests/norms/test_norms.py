"""Laws that every norm obeys, for all norms at once, in NumPy and in JAX."""

import math

import jax
import numpy as np
import pytest

from attsvm.norms import (
    Entrywise,
    LongestRow,
    Norm,
    RowWise,
    Schatten,
    frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)
from attsvm.norms.names import as_norm

pytestmark = pytest.mark.quick

EXPONENTS = (1, 1.01, 1.5, 2, 3, 100, math.inf)
ALL_NORMS = [kind(p) for kind in (Entrywise, Schatten, RowWise) for p in EXPONENTS]
ROUNDING = 1e-11  # p = 1.01 raises rounding errors to the power q = 101
SCALES = (1e-150, 1e-20, 1.0, 1e20, 1e150)


def matrices(seed, shape=(5, 4, 6)):
    return np.random.default_rng(seed).standard_normal(shape)


def inner(A, B):
    return (A * B).sum((-2, -1))


every_norm = pytest.mark.parametrize("norm", ALL_NORMS, ids=repr)


@every_norm
def test_the_dual_of_the_dual_is_the_norm(norm):
    W = matrices(0)
    np.testing.assert_allclose(norm.dual.dual.value(W), norm.value(W), rtol=ROUNDING)


@pytest.mark.parametrize("norm", ALL_NORMS, ids=repr)
def test_nothing_has_no_length(norm):
    for shape in ((0, 2), (2, 0), (0, 0), (3, 0, 2), (0, 2, 2)):
        np.testing.assert_array_equal(norm.value(np.zeros(shape)), np.zeros(shape[:-2]))
    assert norm.value(np.eye(2)) > 0


@every_norm
def test_hoelder_is_an_equality_at_the_steepest_direction(norm):
    G = matrices(1)
    np.testing.assert_allclose(inner(G, norm.steepest(G)), norm.dual.value(G), rtol=ROUNDING)


@every_norm
def test_hoelder_is_strict_at_the_steepest_direction_of_another_norm(norm):
    G = matrices(1)
    other = Entrywise(1.3) if isinstance(norm, Schatten) else Schatten(1.3)
    direction = other.steepest(G)
    assert (inner(G, direction) < 0.999 * norm.dual.value(G) * norm.value(direction)).all()


@every_norm
def test_the_steepest_direction_has_norm_one(norm):
    np.testing.assert_allclose(norm.value(norm.steepest(matrices(2))), 1, rtol=ROUNDING)


@every_norm
def test_no_direction_of_norm_one_climbs_faster(norm):
    G, others = matrices(3), matrices(4)
    others = others / norm.value(others)[:, None, None]
    assert (inner(G, others) <= inner(G, norm.steepest(G)) * (1 + ROUNDING)).all()


@every_norm
def test_a_zero_gradient_has_no_direction(norm):
    assert (norm.steepest(np.zeros((2, 3, 4))) == 0).all()
    assert (norm.value(np.zeros((2, 3, 4))) == 0).all()


@every_norm
def test_norms_are_homogeneous_from_1e_minus_150_to_1e150(norm):
    W, scale = matrices(5), np.array(SCALES)[:, None, None, None]
    np.testing.assert_allclose(norm.value(scale * W), scale[..., 0, 0] * norm.value(W), rtol=ROUNDING)
    # Signs and largest entries do not change: the direction must not either.
    np.testing.assert_allclose(norm.steepest(scale * W), [norm.steepest(W)] * len(SCALES), atol=1e-12)


@every_norm
def test_norms_survive_entries_of_very_different_size(norm):
    W = np.diag([1e-150, 1.0, 1e150])
    assert np.isfinite(norm.value(W))
    assert norm.value(W) >= 1e150 * (1 - ROUNDING)
    assert np.isfinite(norm.steepest(W)).all()


@every_norm
def test_batches_equal_one_by_one(norm):
    W = matrices(6)
    np.testing.assert_allclose(norm.value(W), [norm.value(w) for w in W], rtol=1e-14)
    np.testing.assert_allclose(norm.steepest(W), [norm.steepest(w) for w in W], atol=1e-13)


@every_norm
def test_the_triangle_inequality_holds(norm):
    A, B = matrices(9, (2, 200, 3, 3))
    assert (norm.value(A + B) <= (norm.value(A) + norm.value(B)) * (1 + ROUNDING)).all()


@pytest.mark.parametrize("p", EXPONENTS)
def test_schatten_norms_do_not_see_rotations(p):
    W = matrices(7)[0]
    U = np.linalg.qr(matrices(8, (4, 4)))[0]
    np.testing.assert_allclose(Schatten(p).value(U @ W), Schatten(p).value(W), rtol=ROUNDING)
    np.testing.assert_allclose(Schatten(p).steepest(U @ W), U @ Schatten(p).steepest(W), atol=1e-11)


@pytest.mark.parametrize("p", [1, 1.5, 3, math.inf])
def test_entrywise_norms_see_rotations_but_not_permutations(p):
    W = matrices(7)[0]
    U = np.linalg.qr(matrices(8, (4, 4)))[0]
    assert abs(Entrywise(p).value(U @ W) / Entrywise(p).value(W) - 1) > 1e-3
    np.testing.assert_allclose(Entrywise(p).value(W[::-1]), Entrywise(p).value(W), rtol=1e-14)


def test_schatten_two_is_frobenius():
    W = matrices(9)
    np.testing.assert_array_equal(Schatten(2).value(W), frobenius.value(W))
    np.testing.assert_array_equal(Schatten(2).steepest(W), frobenius.steepest(W))


@pytest.mark.parametrize(("norm", "order"), [(nuclear, "nuc"), (spectral, 2), (frobenius, "fro")], ids=str)
def test_matrix_norms_agree_with_numpy(norm, order):
    W = matrices(10)
    np.testing.assert_allclose(norm.value(W), np.linalg.norm(W, order, axis=(1, 2)), rtol=1e-13)


@pytest.mark.parametrize("p", EXPONENTS)
def test_entrywise_norms_of_a_vector_agree_with_numpy(p):
    w = matrices(11).ravel()
    np.testing.assert_allclose(Entrywise(p).value(w), np.linalg.norm(w, p), rtol=1e-12)


def test_the_ends_are_exact():
    G = np.array([[3.0, -5.0], [0.0, 5.0]])
    np.testing.assert_array_equal(linf.steepest(G), [[1, -1], [0, 1]])
    np.testing.assert_array_equal(l1.steepest(G), [[0, -1], [0, 0]])  # the first largest
    np.testing.assert_allclose(spectral.steepest(np.diag([4.0, 2.0, 0.0])), np.diag([1, 1, 0]), atol=1e-15)
    np.testing.assert_allclose(nuclear.steepest(np.diag([4.0, 2.0])), np.diag([1, 0]), atol=1e-15)


def test_rounding_noise_is_not_blown_up_by_the_spectral_direction():
    u, v = matrices(12, (2, 6))
    direction = spectral.steepest(np.outer(u, v) * 1e-3)
    assert np.linalg.matrix_rank(direction) == 1


@every_norm
def test_norms_compute_in_jax_as_in_numpy(norm):
    G = matrices(13)
    with jax.enable_x64(True):
        both = jax.jit(jax.vmap(lambda G: (norm.value(G), norm.steepest(G))))
        value, direction = map(np.asarray, both(G))
    np.testing.assert_allclose(value, norm.value(G), rtol=1e-12)
    np.testing.assert_allclose(direction, norm.steepest(G), atol=1e-11)


def test_both_classes_are_norms_and_print_their_names():
    assert all(isinstance(norm, Norm) for norm in ALL_NORMS)
    assert [str(x) for x in (l1, linf, frobenius, nuclear, spectral)] == [
        "l1",
        "l∞",
        "Frobenius",
        "nuclear",
        "spectral",
    ]


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, "two"])
def test_exponents_below_one_are_refused(p):
    with pytest.raises(ValueError, match=r"a norm needs p in \[1, ∞\]"):
        Entrywise(p)
    with pytest.raises(ValueError, match=r"a norm needs p in \[1, ∞\]"):
        Schatten(p)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (3, TypeError, r"norm is 3. Pass attsvm.Entrywise\(3\)"),
        (None, TypeError, r"norm is None. Pass .*attsvm.Schatten\(p\).*or a name: frobenius, nuclear"),
        ("l2", ValueError, "no norm 'l2'. Pass frobenius, nuclear, "),
        (Entrywise, TypeError, "or a name: frobenius"),
    ],
)
def test_what_is_no_norm_is_answered_with_those_there_are(wrong, error, said):
    with pytest.raises(error, match=said):
        as_norm(wrong)
    assert as_norm(nuclear) is nuclear and as_norm("Nuclear") is nuclear


def test_the_longest_row_has_its_own_words_and_normalises_every_row():
    G = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    assert LongestRow().value(G) == 5 and LongestRow().dual.value(G) == 7
    np.testing.assert_allclose(LongestRow().steepest(G), [[0.6, 0.8], [0, 0], [0, -1]])
    np.testing.assert_allclose(LongestRow().dual.steepest(G), [[0.6, 0.8], [0, 0], [0, 0]])
    assert [str(RowWise(p)) for p in (1, 2, math.inf)] == ["sum of rows", "Frobenius", "longest row"]
    np.testing.assert_allclose(RowWise(3).value(G[:, 1]), Entrywise(3).value(G[:, 1]))
