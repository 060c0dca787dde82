"""The programs of Schatten(p) between the nuclear and the spectral one, and the derivative they rest on."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from attsvm import Tokens, frobenius
from attsvm.norms import Schatten
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.rows import Rows
from attsvm.program.schatten.curved import of_power, of_root, power
from attsvm.program.solution import NotSeparable
from tests.program.oracles import least_squares_solution, rows_of
from tests.program.test_schatten import planted

EXPONENTS = (1.25, 1.5, 3, 4, 8)
EACH = 30
ORACLE = 1e-6
"""Accuracy of the general solver."""
TIGHT = 1e-8


def drawn(seed):
    """A small program: now and then with ties, a required margin of zero, a repeated token, a null space."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.integers(low, 6)) for low in (1, 2, 2, 2))
    if seed % 3 == 0:  # wide enough that any tie has a solution
        shape = (*shape[:2], shape[1] + 1, shape[0] + 1)
    tokens, selected, order = planted(shape, seed)
    required = np.ones(shape[0])
    if seed % 3 == 0 and shape[1] > 2:
        selected[0, order[0, 1]] = True
    if seed % 4 == 1:
        required[1:] = rng.choice([0.0, 0.1, 3.0], shape[0] - 1)
    keys = np.concatenate([tokens.keys, tokens.keys[:, :1]], 1) if seed % 5 == 2 else tokens.keys
    chosen = np.concatenate([selected, selected[:, :1]], 1) if seed % 5 == 2 else selected
    return Tokens(keys * 10.0 ** (seed % 7 - 3), tokens.queries), chosen, required


def by_descent(tokens, selected, p, required):
    """The least Σ σ^p / p over the rows by SciPy's sequential quadratic programs, from the shortest W."""
    A, b, tied = rows_of(tokens, selected, required)
    live = A.any(1)
    A, b, tied = A[live], b[live], tied[live]
    unit, shape = np.linalg.norm(A, axis=1), (tokens.d, tokens.e)
    A, b = A / unit[:, None], b / unit
    w = least_squares_solution(A, b, tied)
    size = float(np.linalg.norm(w))

    def loss(w):
        U, sigma, Vt = np.linalg.svd(w.reshape(shape), full_matrices=False)
        return (sigma**p).sum() / p, ((U * sigma ** (p - 1)) @ Vt).ravel()

    limits = [{"type": "ineq", "fun": lambda w: A[~tied] @ w - b[~tied] / size, "jac": lambda _: A[~tied]}]
    if tied.any():
        limits.append({"type": "eq", "fun": lambda w: A[tied] @ w, "jac": lambda _: A[tied]})
    options = {"maxiter": 3_000, "ftol": 1e-16}
    found = minimize(loss, w / size, jac=True, method="SLSQP", constraints=limits, options=options)
    return size * (p * found.fun) ** (1 / p)


@pytest.mark.parametrize("p", EXPONENTS)
def test_the_value_is_that_of_a_general_solver(p):
    for seed in range(EACH):
        tokens, selected, required = drawn(seed)
        solution = max_margin(tokens, selected, Schatten(p), required=required)
        assert solution.certificate.worst < TIGHT, seed
        value = by_descent(tokens, selected, p, required)
        assert Schatten(p).value(solution.W) == pytest.approx(value, rel=ORACLE), seed


def by_cvxpy(tokens, selected, p, required):
    """Schatten 4 and 8 as semidefinite programs: the least ‖X‖_F with X ⪰ WᵀW, and with X ⪰ Y², Y ⪰ WᵀW."""
    cvxpy = pytest.importorskip("cvxpy")
    A, b, tied = rows_of(tokens, selected, required)
    unit = np.abs(A).max()
    W, eye = cvxpy.Variable((tokens.d, tokens.e)), np.eye(tokens.e)
    X = cvxpy.Variable((tokens.e, tokens.e), symmetric=True)
    limits = [cvxpy.bmat([[X, W.T], [W, np.eye(tokens.d)]]) >> 0]
    margins = (A / unit) @ cvxpy.vec(W, order="C")
    limits += [margins[~tied] >= b[~tied]] + ([margins[tied] == 0] if tied.any() else [])
    if p == 8:
        Y, X = X, cvxpy.Variable((tokens.e, tokens.e), symmetric=True)
        limits.append(cvxpy.bmat([[X, Y], [Y, eye]]) >> 0)
    least = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(X, "fro")), limits).solve(solver="CLARABEL")
    return float(least) ** (2 / p) / unit


@pytest.mark.parametrize("p", [4, 8])
def test_the_value_is_that_of_a_semidefinite_program(p):
    others = []
    for seed in range(0, EACH, 5):
        tokens, selected, required = drawn(seed)
        own, other = (max_margin(tokens, selected, n, required=required) for n in (Schatten(p), frobenius))
        found = by_cvxpy(tokens, selected, p, required)
        assert Schatten(p).value(own.W) == pytest.approx(found, rel=ORACLE), seed
        others.append(Schatten(p).value(other.W) / found)
    assert max(others) > 1.01  # the shortest W in another norm is longer in this one


@pytest.mark.parametrize("p", EXPONENTS)
def test_the_solution_of_a_neighbouring_exponent_is_rejected(p):
    tokens, selected, required = drawn(7)
    solution = max_margin(tokens, selected, Schatten(p), required=required)
    other = max_margin(tokens, selected, Schatten(1.1 * p), required=required)
    assert solution.certified and other.certified
    assert not replace(solution, W=other.W).certified
    assert not replace(solution, multipliers=other.multipliers).certified
    assert not replace(solution, W=(1 - 1e-6) * solution.W).certified


@pytest.mark.parametrize("p", [1 + 1e-9, 1.001, 1.05, 1.999, 2.001, 20, 1000, 1e9])
def test_exponents_near_one_two_and_infinity_are_certified(p):
    for seed in range(4):
        tokens, selected, _ = planted((5, 5, 4, 5), seed)
        assert max_margin(tokens, selected, Schatten(p)).certificate.worst < TIGHT, seed


def test_the_best_norm_falls_from_the_nuclear_to_the_spectral_one():
    tokens, selected, _ = planted((6, 5, 5, 4))
    exponents = (1, 1 + 1e-9, 1.2, 1.5, 2, 3, 8, 1e9, math.inf)
    values = [Schatten(p).value(max_margin(tokens, selected, Schatten(p)).W) for p in exponents]
    assert all(a > (1 + 1e-3) * b for a, b in pairwise(values[1:-1]))
    assert values[0] == pytest.approx(values[1], rel=TIGHT)
    assert values[-1] == pytest.approx(values[-2], rel=TIGHT)
    assert values[4] == pytest.approx(frobenius.value(max_margin(tokens, selected).W), rel=TIGHT)


@pytest.mark.parametrize("p", EXPONENTS)
def test_rows_on_the_diagonal_ask_for_a_vector(p):
    required = np.array([3.0, 1.0, 0.5, 2.0])
    keys = np.stack([np.eye(4), np.zeros((4, 4))], axis=1)
    solution = max_margin(Tokens(keys, np.eye(4)), np.zeros(4, int), Schatten(p), required=required)
    assert solution.certificate.gap < 1e-9
    # The norm sees an error ε of the least entry, a sixth of the largest, as ε/6^(p − 1): p = 8, ε/280,000.
    assert np.allclose(solution.W, np.diag(required), rtol=0, atol=5e-5 if p > 2 else 1e-8)


@pytest.mark.parametrize("p", EXPONENTS)
def test_of_vectors_it_is_the_length(p):
    rows = np.random.default_rng(0).standard_normal((3, 5))
    assert np.allclose(separate(rows, Schatten(p)).W, separate(rows).W, atol=1e-9)


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_contradiction_is_raised_with_its_proof(p):
    tokens, selected, order = planted((4, 5, 6, 4))
    twin = Tokens(np.vstack([tokens.keys, tokens.keys[:1]]), np.vstack([tokens.queries, tokens.queries[:1]]))
    with pytest.raises(NotSeparable) as error:
        max_margin(twin, np.vstack([selected, np.arange(5) == order[0, 1]]), Schatten(p))
    rows = Constraints.of(twin, np.vstack([selected, np.arange(5) == order[0, 1]]))
    lam = np.zeros(rows.active.shape)
    lam[rows.active] = error.value.multipliers
    assert (lam * rows.bound).sum() > 0 and np.abs(rows.combine(lam)).max() < 1e-12 * lam.max()


@pytest.mark.parametrize("p", [1.25, 8])
def test_runs_are_solved_each_and_a_hopeless_one_is_marked(p):
    problems = [planted((3, 4, 3, 3), seed) for seed in range(3)]
    keys, queries = (np.stack([getattr(x[0], name) for x in problems]) for name in ("keys", "queries"))
    keys[1, 0, 1:] = keys[1, 0, :1]
    chosen = np.stack([x[1] for x in problems])
    together = max_margin(Tokens(keys, queries), chosen, Schatten(p))
    assert together.separable.tolist() == [True, False, True]
    alone = max_margin(problems[2][0], problems[2][1], Schatten(p))
    assert np.allclose(together.W[2], alone.W, atol=1e-7) and together.certificate.worst[[0, 2]].max() < TIGHT


@pytest.mark.parametrize("p", [1.25, 8])
def test_rows_join_the_pool_until_none_is_violated(p):
    tokens, selected, _ = planted((40, 12, 6, 5))
    solution = max_margin(tokens, selected, Schatten(p))
    assert solution.certificate.rows == 440 and solution.certificate.worst < TIGHT
    few = max_margin(Tokens(tokens.keys[:10], tokens.queries[:10]), selected[:10], Schatten(p)).W
    assert Schatten(p).value(solution.W) > 1.01 * Schatten(p).value(few)


@pytest.mark.parametrize("p", [1.25, 8])
def test_keys_in_a_file_give_the_same_weight(p, tmp_path):
    tokens, selected, _ = planted((30, 8, 5, 4))
    np.save(tmp_path / "keys.npy", tokens.keys)
    stored = Tokens(np.load(tmp_path / "keys.npy", mmap_mode="r"), tokens.queries)
    there, here = (max_margin(x, selected, Schatten(p)) for x in (stored, tokens))
    assert there.certified and np.allclose(there.W, here.W, atol=1e-6)


@pytest.mark.parametrize("p", [1.25, 8])
@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_units_do_not_matter(p, scale):
    tokens, selected, _ = planted((4, 5, 4, 4))
    solution = max_margin(Tokens(scale * tokens.keys, tokens.queries), selected, Schatten(p))
    plain = max_margin(tokens, selected, Schatten(p))
    assert solution.certified
    assert np.allclose(scale * solution.W, plain.W, atol=1e-6 * np.abs(plain.W).max())


def test_a_soft_margin_is_refused_in_words():
    tokens, selected, _ = planted((4, 5, 4, 4))
    with pytest.raises(ValueError, match=r"slack needs the Frobenius .* but norm is Schatten 3"):
        max_margin(tokens, selected, Schatten(3), slack=1.0)


# ---------------------------------------------------------------------- derivatives of singular values


def decomposed(shape, low=None):
    W = np.random.default_rng(3).standard_normal(shape)
    if low is not None:
        U, _, Vt = np.linalg.svd(W, full_matrices=False)
        W = (U * low) @ Vt
    return W, np.linalg.svd(W)


@pytest.mark.parametrize("r", [1.5, 4.0])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)], ids=str)
def test_the_derivative_of_a_power_is_that_of_differences(shape, r):
    W, singular = decomposed(shape)
    X, h = np.random.default_rng(4).standard_normal(shape), 1e-6
    apart = power(np.linalg.svd(W + h * X), r) - power(np.linalg.svd(W - h * X), r)
    assert np.allclose(of_power(singular, r)(X), apart / (2 * h), atol=1e-7)
    assert not np.allclose(of_power(singular, r + 0.01)(X), apart / (2 * h), atol=1e-4)
    assert np.allclose(of_root(singular, r, 0.0)(of_power(singular, r)(X)), X, atol=1e-9)


def test_singular_values_that_are_equal_nearly_equal_or_zero_do_no_harm():
    _, singular = decomposed((4, 4), np.array([1.0, 1.0, 1.0 - 1e-13, 0.0]))
    X = np.random.default_rng(4).standard_normal((4, 4))
    _, close = decomposed((4, 4), np.array([1.0, 1.0 - 1e-9, 1.0 - 2e-9, 1e-9]))
    with np.errstate(divide="ignore"):  # the logarithm of a ratio that is zero
        assert np.allclose(of_power(singular, 3.5)(X), of_power(close, 3.5)(X), atol=1e-7)


def test_the_gram_matrix_is_that_of_the_images():
    tokens, selected, _ = planted((4, 4, 5, 3))
    rows = Rows.of(Constraints.of(tokens, selected))
    paired = of_power(decomposed((5, 3))[1], 2.5)
    images = np.stack([paired(row.reshape(5, 3)).ravel() for row in rows.dense])
    lower = np.tril_indices(len(rows))
    assert np.allclose(paired.gram(rows)[lower], (rows.dense @ images.T)[lower])
    assert not np.allclose(paired.gram(rows)[lower], rows.gram[lower])
