"""The norm that a norm of the factors implies is the least over all factors."""

import numpy as np
import pytest

from attsvm.norms import (
    Entrywise,
    LongestRow,
    RowWise,
    Schatten,
    frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)
from attsvm.norms.factored import Factored

pytestmark = pytest.mark.quick

ROUNDING = 1e-10


def test_the_longest_rows_of_two_factors_imply_the_max_norm():
    W = np.random.default_rng(0).standard_normal((4, 3))
    implied = Factored(LongestRow())
    assert implied.closed is None and implied.named == "max-norm" and "max-norm" in implied.words
    with pytest.raises(ValueError, match=r"attsvm_lab\.programs"):
        implied.value(W)
    assert not Factored(LongestRow(), factors=3).named and not Factored(RowWise(3)).named
    assert Factored(LongestRow(), factors=3).closed is None and Factored(RowWise(3)).closed is None
    assert Factored(RowWise(2)).closed == nuclear


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 4, np.inf])
def test_balanced_factors_attain_the_norm_of_a_product_and_no_others_are_smaller(p):
    rng = np.random.default_rng(0)
    W, F = rng.standard_normal((4, 3)), Factored(Schatten(p))
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    K, Q = U * np.sqrt(sigma), Vt.T * np.sqrt(sigma)
    product = Schatten(p).value(K) * Schatten(p).value(Q)
    assert abs(product - F.value(W)) < ROUNDING * product
    for _ in range(50):
        turn = rng.standard_normal((3, 3))
        other = Schatten(p).value(K @ turn) * Schatten(p).value(Q @ np.linalg.inv(turn).T)
        assert other >= F.value(W) * (1 - ROUNDING)
    assert Factored(Schatten(p), factors=3).value(W) > 0 and F.exponent == p / 2


@pytest.mark.parametrize("p", [1, 2, 3, 8, np.inf])
def test_the_norm_of_a_product_of_diagonals_is_that_of_half_p(p):
    rng = np.random.default_rng(1)
    w, F = rng.standard_normal(6), Factored(Entrywise(p), diagonal=True)
    root = np.sqrt(np.abs(w))
    assert abs(Entrywise(p).value(root) ** 2 - F.value(w)) < ROUNDING * F.value(w)
    for _ in range(50):
        k = np.exp(rng.standard_normal(6))
        assert Entrywise(p).value(k) * Entrywise(p).value(w / k) >= F.value(w) * (1 - ROUNDING)
    if p >= 2:
        assert abs(F.closed.value(w) - F.value(w)) < ROUNDING * F.value(w)


def test_more_factors_divide_the_exponent_further():
    assert Factored(spectral, factors=5).closed == spectral
    assert Factored(Schatten(6), factors=3).closed == Schatten(2)
    assert Factored(Entrywise(6), factors=4, diagonal=True).closed == Entrywise(1.5)
    assert Factored(frobenius, factors=3).closed is None  # Schatten 2/3


@pytest.mark.parametrize(
    ("norm", "words"),
    [(linf, "1.7823 γ₂"), (l1, "rank-one pieces"), (Entrywise(3), "no closed form that we know")],
)
def test_where_there_is_no_closed_form_the_words_say_what_is_known(norm, words):
    F = Factored(norm)
    assert words in F.words and F.closed is None
    with pytest.raises(ValueError, match="no closed form"):
        F.value(np.eye(2))


@pytest.mark.parametrize("factors", [1, 0, 2.0, True])
def test_a_number_of_factors_that_is_none_is_refused(factors):
    with pytest.raises(ValueError, match="an integer from 2 on"):
        Factored(spectral, factors=factors)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("norm", [frobenius, spectral, Schatten(3)], ids=str)
def test_the_value_of_what_is_not_finite_is_nan_and_of_nothing_zero(norm, diagonal):
    own = Factored(norm, diagonal=diagonal)
    one = np.array([1.0, 2.0]) if diagonal else np.array([[1.0, 2.0], [0.0, 1.0]])
    bad = one.copy()
    bad.flat[0] = np.nan
    found = own.value(np.stack([one, bad]))
    assert found[0] == own.value(one) > 0 and np.isnan(found[1]) and np.isnan(own.value(bad))
    for shape in ((0,), (3, 0)) if diagonal else ((0, 0), (2, 0), (3, 0, 2)):
        assert (own.value(np.zeros(shape)) == np.zeros(shape[: -1 if diagonal else -2])).all()
    with pytest.raises(ValueError, match=r"W has shape \(\). Pass \(…, d"):
        own.value(None)
    for wrong in (1j * one, [[1.0, 2.0], [3.0]], [["a", "b"]]):
        with pytest.raises(ValueError, match=r"W is not an array of real numbers \(…, d"):
            own.value(wrong)


@pytest.mark.parametrize(
    ("p", "r"),
    [((3, 6), 2), ((1.5, 3), 1), ((np.inf, 4), 4), ((2, np.inf), 2), ((8, 8, 4), 2), ((3, 3), 1.5)],
)
def test_a_norm_for_each_factor_implies_the_harmonic_sum(p, r):
    F = Factored(tuple(map(Schatten, p)))
    assert (F.closed, F.factors) == (Schatten(r), len(p))
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((4, 4)) for _ in p]
    product = np.linalg.multi_dot(factors)
    bound = np.prod([Schatten(q).value(X) for q, X in zip(p, factors, strict=True)])
    assert F.value(product) <= bound
    U, sizes, Vt = np.linalg.svd(product)  # the shares of the singular values that attain it
    shares = [np.diag(sizes ** (r / q)) for q in p]
    shares[0], shares[-1] = U @ shares[0], shares[-1] @ Vt
    assert np.allclose(np.linalg.multi_dot(shares), product)
    attained = np.prod([Schatten(q).value(X) for q, X in zip(p, shares, strict=True)])
    assert F.value(product) == pytest.approx(attained, rel=1e-12)
    assert F.value(product) < 0.99 * Factored(Schatten(min(p)), len(p)).value(product) or len(set(p)) == 1


def test_factors_whose_harmonic_sum_is_below_one_have_no_program():
    F = Factored((Schatten(2), Schatten(1.5)))
    assert F.closed is None and "quasi-norm" in F.words and "N_2(W_2)" in F.words
    assert Factored((Schatten(4), LongestRow())).closed is None
