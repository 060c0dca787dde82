"""W to the last digits: against Newton's method in 200 digits."""

import warnings
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

import attsvm as att
from attsvm.norms import Entrywise, Schatten
from attsvm.program import polish
from attsvm.program.constraints import Constraints
from attsvm.program.polish import ROUNDED, polished
from attsvm.program.schatten.curved import of_power
from attsvm.program.solve import by_engines

LAST_DIGITS = 1e-12
"""Relative error of W: a hundred times the rounding that is measured."""
ACTIVE = 1e-9
EXPONENTS = (1.1, 1.5, 3.0, 8.0)
SMOOTH = [Entrywise(p) for p in EXPONENTS] + [Schatten(p) for p in EXPONENTS]


def drawn(seed, n=3, T=4, d=3):
    rng = np.random.default_rng(seed)
    keys, queries, W = (rng.standard_normal(s) for s in ((n, T, d), (n, d), (d, d)))
    return att.Tokens(keys, queries), np.einsum("ntd,de,ne->nt", keys, W, queries).argmax(1)


def unpolished(tokens, selected, norm):
    program = Constraints.of(tokens, selected)
    return program, by_engines(program, norm)


DIGITS = 200
"""A product of rank two has a third singular value of 1e-200, whose seventh root passes for zero."""


def rows_of(solution):
    """The active rows as vectors without rounding, and their multipliers for min N(W)^p / p."""
    keys, queries = solution.tokens.keys, solution.tokens.queries
    first, rows, heavy = solution.selected.argmax(1), [], solution.token_multipliers > ACTIVE
    for i, t in zip(*np.nonzero(heavy), strict=True):
        delta = [mp.mpf(x) - mp.mpf(y) for x, y in zip(keys[i, first[i]], keys[i, t], strict=True)]
        rows.append([x * mp.mpf(z) for x in delta for z in queries[i]])
    size = float(solution.norm.value(solution.W))
    return mp.matrix(rows), solution.token_multipliers[heavy] * size ** (solution.norm.p - 1)


def of_entries(M, p):
    return mp.matrix([mp.sign(m) * abs(m) ** (1 / (mp.mpf(p) - 1)) for m in M])


def of_singular_values(M, p):
    d = int(len(M) ** 0.5)
    U, s, Vt = mp.svd_r(mp.matrix(d, d) + mp.matrix([[M[i * d + j] for j in range(d)] for i in range(d)]))
    W = U * mp.diag([x ** (1 / (mp.mpf(p) - 1)) for x in s]) * Vt
    return mp.matrix([W[i, j] for i in range(d) for j in range(d)])


def slope(M, norm):
    """The derivative of W in M, in float64: it only steers the steps."""
    with np.errstate(all="ignore"):
        return _slope(norm, 1 / (norm.p - 1), np.array([float(m) for m in M]))


def _slope(norm, r, M):
    if isinstance(norm, Entrywise):
        return np.diag(r * np.abs(M) ** (r - 1))
    d = int(M.size**0.5)
    U, s, Vt = np.linalg.svd(M.reshape(d, d))
    if r > 1:
        image = of_power((U, s, Vt), r)
        return np.stack([image(x.reshape(d, d)).ravel() for x in np.eye(M.size)], 1)
    root = (U * s**r) @ Vt
    inverse = of_power(np.linalg.svd(root), norm.p - 1)
    return np.linalg.inv(np.stack([inverse(x.reshape(d, d)).ravel() for x in np.eye(M.size)], 1))


def exact(solution):
    """W (d, e) of the active rows: residuals in 200 digits, steps in float64."""
    image = of_entries if isinstance(solution.norm, Entrywise) else of_singular_values
    with mp.workdps(DIGITS):
        A, mu = rows_of(solution)
        multipliers, rows = mp.matrix(mu.tolist()), np.array(A.tolist(), float)
        for _ in range(12):
            M = A.T * multipliers
            W = image(M, solution.norm.p)
            residual = mp.matrix([1] * len(rows)) - A * W
            if mp.norm(residual) < 1e-25:
                return np.array([float(w) for w in W]).reshape(solution.W.shape)
            step = np.linalg.solve(rows @ slope(M, solution.norm) @ rows.T, [float(x) for x in residual])
            multipliers += mp.matrix(step.tolist())
    raise AssertionError("the oracle did not converge")


def error(W, oracle):
    return float(np.abs(W - oracle).max() / np.abs(oracle).max())


@pytest.mark.parametrize("norm", SMOOTH, ids=str)
def test_W_is_right_to_the_last_digits(norm):
    before = []
    for seed in range(3):
        tokens, selected = drawn(seed)
        solution = att.max_margin(tokens, selected, norm)
        oracle = exact(solution)
        assert solution.certified and error(solution.W, oracle) < LAST_DIGITS
        program, answer = unpolished(tokens, selected, norm)
        W, _, _ = program.units.restored(answer.W, answer.multipliers, np.True_)
        before.append(error(W, oracle))
    assert max(before) > LAST_DIGITS  # what the interior point leaves


@pytest.mark.parametrize("norm", [Entrywise(1.5), Entrywise(3), Schatten(1.5), Schatten(3)], ids=str)
def test_one_row_has_a_closed_form(norm):
    delta, z = np.array([3.0, -4.0, 0.5]), np.array([1.0, 2.0])
    keys = np.stack([delta, np.zeros(3)])[None]
    W = att.max_margin(att.Tokens(keys, z[None]), [0], norm).W
    row, q = np.outer(delta, z), norm.p / (norm.p - 1)
    closed = row / (delta @ delta * z @ z)
    if isinstance(norm, Entrywise):
        closed = np.sign(row) * np.abs(row) ** (q - 1) / (np.abs(row) ** q).sum()
    np.testing.assert_allclose(W, closed, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("norm", [Entrywise(1.2), Entrywise(4), Schatten(1.2), Schatten(4)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_gets_worse(norm, seed):
    """Copies, ties and examples that require no margin: where rows depend on each other, too."""
    tokens, selected = drawn(seed, T=5, d=4)
    keys = np.concatenate([tokens.keys, tokens.keys[:, :1]], 1)
    chosen = np.eye(5, dtype=bool)[selected]
    chosen = np.concatenate([chosen, chosen[:, :1]], 1)
    program = Constraints.of(att.Tokens(keys, tokens.queries), chosen, np.array([1.0, 0.0, 2.0]))
    answer = by_engines(program, norm)
    assert polished(program, norm, answer).gap <= max(answer.gap, ROUNDED)


def test_an_answer_far_from_the_solution_stays_as_it_is():
    program, answer = unpolished(*drawn(0), Entrywise(3))
    assert polished(program, Entrywise(3), answer) is not answer
    wrong = replace(answer, multipliers=np.roll(answer.multipliers, 1, axis=1) * program.active)
    assert polished(program, Entrywise(3), wrong) is wrong
    none = replace(answer, W=0 * answer.W)
    assert polished(program, Entrywise(3), none) is none
    for norm in (att.l1, att.linf, att.nuclear, att.spectral):  # their solutions have corners
        assert polished(program, norm, answer) is answer


def test_a_polished_answer_that_is_worse_is_refused(monkeypatch):
    program, answer = unpolished(*drawn(1), Schatten(3))
    monkeypatch.setattr(polish.System, "solved", lambda self, W, lam: polish.Candidate(1.01 * W + 1e-3, lam))
    assert polished(program, Schatten(3), answer) is answer


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales_change_no_digit(scale):
    tokens, selected = drawn(2)
    scaled = att.Tokens(scale * tokens.keys, tokens.queries)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for norm in (Entrywise(1.5), Schatten(3)):
            W = att.max_margin(tokens, selected, norm).W
            assert error(att.max_margin(scaled, selected, norm).W * scale, W) < LAST_DIGITS


@pytest.mark.parametrize("shape", [(300, 6, 12, 1), (300, 8, 4, 4)], ids=str)
def test_frobenius_solutions_of_growing_pools_meet_their_rows_exactly(shape):
    n, T, d, e = shape
    rng = np.random.default_rng(0)
    keys, queries, W = (rng.standard_normal(s) for s in ((n, T, d), (n, e), (d, e)))
    queries = queries if e > 1 else np.ones((n, 1))
    selected = np.einsum("ntd,de,ne->nt", keys, W, queries).argmax(1)
    solution = att.max_margin(att.Tokens(keys, queries), selected)
    margins = solution.constraints.margins(solution.W)
    np.testing.assert_allclose(margins[solution.token_multipliers > ACTIVE], 1, rtol=1e-13)
