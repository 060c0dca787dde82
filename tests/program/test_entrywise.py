"""The lp programs: agreement with cvxpy, extremes of p, ties, bounds of zero, and ugly rows."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise
from attsvm.program import interior_engine
from attsvm.program.constraints import Constraints
from attsvm.program.entrywise import newton
from attsvm.program.entrywise.interior_point import EntrywisePoint
from attsvm.program.frobenius.route import solve_frobenius
from attsvm.program.interior_engine import length
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.rows import Rows
from attsvm.program.solution import NotSeparable
from tests.program.cases import ranked

EXPONENTS = [1.01, 1.1, 1.5, 1.75, 3, 10, 100]
ORACLE = 1e-6
"""Relative accuracy of cvxpy's power-cone reformulation."""


def oracle(solution):
    """The same program, row by row, in cvxpy."""
    rows = solution.constraints
    W = cp.Variable(solution.W.shape)
    meets = []
    for i, t in zip(*np.nonzero(rows.active), strict=True):
        margin = (rows.keys[i, rows.anchor[i]] - rows.keys[i, t]) @ W @ rows.queries[i]
        meets.append(margin == 0 if rows.tied[i, t] else margin >= rows.required[i])
    problem = cp.Problem(cp.Minimize(cp.norm(cp.vec(W, order="C"), solution.norm.p)), meets)
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("p", [1.1, 1.5, 3, 10])
def test_the_norm_agrees_with_cvxpy(p):
    solution = max_margin(*ranked(), Entrywise(p))
    assert solution.certified
    assert 1 / solution.margin == pytest.approx(oracle(solution), rel=ORACLE)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("seed", range(3))
def test_every_exponent_is_certified_with_a_digit_to_spare(p, seed):
    solution = max_margin(*ranked(6, 8, 7, 6, seed), Entrywise(p))
    assert solution.certificate.worst < 1e-9


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_solution_of_another_exponent_is_rejected(p):
    solution = max_margin(*ranked(), Entrywise(p))
    other = max_margin(*ranked(), Entrywise(2 * p))
    assert not type(solution)(**(vars_of(solution) | {"W": other.W})).certified


def vars_of(solution):
    names = ("tokens", "selected", "norm", "W", "multipliers", "required", "separable")
    return {name: getattr(solution, name) for name in names}


def test_one_row_has_the_closed_form_of_the_dual_norm():
    row = np.array([[3.0, -4.0, 1.0]])
    solution = separate(row, Entrywise(3))
    assert solution.margin == pytest.approx(Entrywise(1.5).value(row[0]), rel=1e-12)


@pytest.mark.parametrize("p", [1.01, 1.5, 3, 100])
def test_tied_tokens_and_bounds_of_zero_agree_with_cvxpy(p):
    tokens, best = ranked(4, 5, 6, 3, seed=1)
    selected = np.arange(5) == best[:, None]
    selected[0, (best[0] + 1) % 5] = True
    solution = max_margin(tokens, selected, Entrywise(p), required=[1.0, 0.0, 2.0, 0.0])
    assert solution.certificate.worst < 1e-9
    if 1.1 < p < 50:
        assert 1 / solution.margin == pytest.approx(oracle(solution), rel=ORACLE)


@pytest.mark.parametrize("p", [1, 1.1, 3, np.inf])
def test_a_small_problem_ends_where_one_that_starts_from_the_frobenius_solution_does(p, monkeypatch):
    cold = max_margin(*ranked(6, 6, 6, 5, seed=6), Entrywise(p))
    monkeypatch.setattr(interior_engine, "FEW_ROWS", 0)
    warm = max_margin(*ranked(6, 6, 6, 5, seed=6), Entrywise(p))
    assert cold.margin == pytest.approx(warm.margin, rel=1e-9)
    assert cold.margin != pytest.approx(max_margin(*ranked(6, 6, 6, 5, seed=6)).margin, rel=1e-3)


@pytest.mark.parametrize("p", [1.1, 3])
def test_masked_duplicate_and_dependent_rows_change_nothing(p):
    tokens, best = ranked(4, 4, 5, 1, seed=2)
    keys = np.concatenate([tokens.keys, tokens.keys[:, :2], 9 * tokens.keys], axis=1)
    mask = np.arange(10) < 6
    doubled = Tokens(keys, tokens.queries, mask=np.broadcast_to(mask, (4, 10)))
    keep = best >= 2  # a copy of the selected token would have to lose to itself
    keys, queries = doubled.keys[keep], doubled.queries[keep]
    plain = max_margin(Tokens(tokens.keys[keep], queries), best[keep], Entrywise(p))
    ugly = max_margin(Tokens(keys, queries, mask=doubled.mask[keep]), best[keep], Entrywise(p))
    assert ugly.certified
    np.testing.assert_allclose(ugly.W, plain.W, atol=1e-5 * np.abs(plain.W).max())


def test_vacuous_zero_rows_are_ignored_and_impossible_ones_are_named():
    tokens, best = ranked(3, 4, 4, 2, seed=3)
    keys = np.array(tokens.keys)
    keys[0, (best[0] + 1) % 4] = keys[0, best[0]]
    twin = Tokens(keys, tokens.queries)
    assert max_margin(twin, best, Entrywise(1.5), required=[0.0, 1.0, 1.0]).certified
    with pytest.raises(NotSeparable):
        max_margin(twin, best, Entrywise(1.5))


@pytest.mark.parametrize("p", [1.1, 1.5, 3])
def test_rows_outside_the_first_working_set_join(p):
    tokens, best = ranked(60, 12, 8, 1, seed=4)
    solution = max_margin(tokens, best, Entrywise(p))
    assert solution.certificate.worst < 1e-9
    assert solution.support.sum() <= 8


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (40, 4, 3, 2), (30, 5, 4, 1)], ids=str)
def test_products_in_their_structure_are_those_of_explicit_features(shape):
    rows, rng = Rows.of(Constraints.of(*ranked(*shape))), np.random.default_rng(0)
    features, k, structure = (
        rows.dense,
        len(rows),
        (rows.delta, rows.queries, np.append(rows.starts, len(rows))),
    )
    V, theta, line = rng.random(features.shape[1]), rng.random(k), np.empty(rows.d)
    matrix, margins, total = np.empty((k, k)), np.empty(k), np.empty(len(V))
    scratch = (np.zeros((count, rows.d)) for count in (rows.e, len(rows.queries), k))
    newton.gram(*structure, V, theta, 2 * theta, *scratch, matrix)
    newton.margins.py_func(*structure, line, V, margins)
    newton.combine.py_func(*structure, line, theta, total)
    expected = (features * V) @ features.T + np.outer(theta, theta) + 2 * np.diag(theta)
    np.testing.assert_allclose(np.triu(matrix), np.triu(expected), atol=1e-13)
    np.testing.assert_allclose(margins, features @ V, atol=1e-13)
    np.testing.assert_allclose(total, theta @ features, atol=1e-13)


@pytest.mark.parametrize("p", [1, 1.01, 2, 100, np.inf])
def test_the_length_of_a_step_is_the_norm(p):
    x = np.random.default_rng(0).standard_normal((4, 3))
    assert length(1e200 * x, p) == pytest.approx(float(Entrywise(p).value(1e200 * x)), rel=1e-14)
    assert length(np.zeros((4, 3)), p) == 0
    assert length(x, p) != pytest.approx(float(Entrywise(4).value(x)), rel=1e-3)


@pytest.mark.parametrize("p", [1, 1.5, 3, np.inf])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2)], ids=str)
@pytest.mark.parametrize("together", [True, False], ids=["equal tokens", "zero queries"])
def test_rows_that_are_zero_take_no_place_in_the_pool(p, shape, together):
    tokens, best = ranked(40, 5, *shape, seed=5)
    few, keys, queries = np.arange(40) < 6, np.array(tokens.keys), np.array(tokens.queries)
    selected = np.arange(5) == best[:, None]
    if together:
        keys[~few], selected[~few] = keys[~few, :1], True
    else:
        queries[~few] = 0.0
    solution = max_margin(Tokens(keys, queries), selected, Entrywise(p), required=1.0 * (few | together))
    plain = max_margin(Tokens(keys[few], queries[few]), best[few], Entrywise(p))
    assert solution.certified
    assert solution.margin == pytest.approx(plain.margin, rel=1e-8)


@pytest.mark.parametrize("p", [1.5, 3])
def test_rows_that_ask_for_the_order_alone_leave_room_for_those_with_a_margin(p):
    tokens, best = ranked(80, 4, 3, 1, seed=6)
    keys = np.concatenate([tokens.keys, 1e-3 * tokens.keys])
    twice = Tokens(keys, np.tile(tokens.queries, (2, 1)))
    asked = np.repeat([1.0, 0.0], 80)
    solution = max_margin(twice, np.tile(best, 2), Entrywise(p), required=asked)
    assert solution.certified
    assert solution.margin == pytest.approx(max_margin(tokens, best, Entrywise(p)).margin, rel=1e-8)


@pytest.mark.parametrize("p", [1, 1.5, 3, np.inf])
def test_what_is_not_a_number_is_no_gap(p):
    tokens, best = ranked()
    program = Constraints.of(tokens, best)
    start, rows = solve_frobenius(program), Rows.of(program)
    run = EntrywisePoint(rows, Entrywise(p), (1.0, 0.0), start)
    run.p = run.goal
    run.entries[0, 0] = np.nan
    run._settle()
    assert run.gap == np.inf
