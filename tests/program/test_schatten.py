"""Laws shared by the nuclear and the spectral program, and the parts of their common engine."""

import math

import numpy as np
import pytest

from attsvm import Tokens
from attsvm.norms import Schatten
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius.route import solve_frobenius
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows, Span
from attsvm.program.schatten import compiled_path, interior_point, route as schatten, staged
from attsvm.program.schatten.interior_point import Scaling
from attsvm.program.solve import by_engines

NORMS = pytest.mark.parametrize("norm", [Schatten(1), Schatten(math.inf)], ids=str)
TIGHT = 5e-9
"""The engines aim at a gap of 4e-10; a certificate needs 1e-8."""
ORACLE = 1e-6
"""Accuracy of the general solver."""


def planted(shape, seed=0, shift=0.1):
    """Random tokens (n, T, d, e) whose best token under a planted weight is pushed ahead."""
    n, T, d, e = shape
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, e))
    directions = queries @ rng.standard_normal((e, d))
    scores = np.einsum("ntd,nd->nt", keys, directions)
    best = scores.argmax(1)
    keys[np.arange(n), best] += shift * directions
    return Tokens(keys, queries), np.arange(T) == best[:, None], np.argsort(-scores, axis=1)


def oracle(tokens, selected, norm, required=1.0):
    """The optimal value by cvxpy and Clarabel."""
    cvxpy = pytest.importorskip("cvxpy")
    rows = Constraints.of(tokens, selected, required)
    example, token = np.nonzero(rows.active)
    delta, queries = rows.differences(example, token), rows.queries[example]
    features = (delta[:, :, None] * queries[:, None, :]).reshape(len(delta), -1)
    W = cvxpy.Variable((rows.d, rows.e))
    margins, tied = features @ cvxpy.vec(W, order="C"), rows.tied[example, token]
    constraints = [margins[~tied] >= rows.bound[example, token][~tied]]
    constraints += [margins[tied] == 0] if tied.any() else []
    size = cvxpy.normNuc(W) if norm.p == 1 else cvxpy.sigma_max(W)
    return cvxpy.Problem(cvxpy.Minimize(size), constraints).solve(solver="CLARABEL")


@pytest.fixture(params=[True, False], ids=["compiled", "NumPy"])
def path(request, monkeypatch):
    """Both implementations of the central path, whatever the size."""
    if not request.param:
        monkeypatch.setattr(compiled_path, "MOST", {1.0: 0, np.inf: 0})


@pytest.mark.parametrize("norm", [Schatten(1), Schatten(2), Schatten(3), Schatten(math.inf)], ids=str)
@pytest.mark.parametrize("required", [[1.0, 1, 1], [3.0, 1, 0.5, 2], [1.0, 0, 0]], ids=str)
def test_rows_on_the_diagonal_cost_the_length_of_their_margins(norm, required):
    """Rows W_ii ≥ required_i: the diagonal of a matrix is no longer, as a vector in lp, than the matrix."""
    n = len(required)
    keys = np.stack([np.eye(n), np.zeros((n, n))], axis=1)
    solution = max_margin(Tokens(keys, np.eye(n)), np.zeros(n, int), norm, required=required)
    assert solution.certified
    assert norm.value(solution.W) == pytest.approx(np.linalg.norm(required, norm.p), rel=TIGHT)


@NORMS
@pytest.mark.parametrize("shape", [(1, 2, 3, 2), (4, 5, 6, 3), (3, 4, 2, 7), (9, 7, 5, 5), (25, 9, 4, 4)])
def test_the_value_is_that_of_a_general_solver(norm, shape, path):
    tokens, selected, _ = planted(shape)
    solution = max_margin(tokens, selected, norm)
    assert solution.certificate.worst < TIGHT
    assert norm.value(solution.W) == pytest.approx(oracle(tokens, selected, norm), rel=ORACLE)


def small_program(norm, goal):
    """Rows of one small program, and what the compiled path says of it: W, multipliers (n, T), gap."""
    tokens, selected, _ = planted((6, 5, 4, 5))
    rows = Constraints.of(tokens, selected)
    first = solve_frobenius(rows)
    span = Span.of(rows)
    pool = Rows.of(rows).within(span)
    start = span.reduce(first.W), pool.pick(first.multipliers) * pool.length
    W, multipliers, gap = compiled_path.solve_small(pool, norm, *start, goal)
    return rows, span.expand(W), pool.spread(multipliers / pool.length), gap


@NORMS
@pytest.mark.parametrize("goal", [1e-1, 1e-4, 1e-9])
def test_the_compiled_path_bounds_its_gap_wherever_it_stops(norm, goal):
    rows, W, multipliers, bound = small_program(norm, goal)
    upper = norm.value(W) / rows.margins(W)[rows.separating].min()
    lower = (multipliers * rows.bound).sum() / norm.dual.value(rows.combine(multipliers))
    assert -1e-12 < 1 - lower / upper < bound + 1e-12
    assert bound < 3 * goal


@NORMS
def test_what_the_compiled_path_cannot_finish_is_solved_by_the_other(norm, monkeypatch):
    tokens, selected, _ = planted((6, 5, 4, 5))
    monkeypatch.setattr(compiled_path, "follow", lambda *anything: None)
    assert small_program(norm, 1e-9)[-1] > 0.1
    assert max_margin(tokens, selected, norm).certificate.worst < TIGHT


@NORMS
def test_tied_tokens_share_their_logit_at_the_least_norm(norm):
    tokens, selected, order = planted((5, 5, 6, 5))
    selected[[0, 2], order[[0, 2], 1]] = True
    solution = max_margin(tokens, selected, norm)
    assert solution.certificate.worst < TIGHT
    assert norm.value(solution.W) == pytest.approx(oracle(tokens, selected, norm), rel=ORACLE)


@NORMS
def test_repeated_ties_change_nothing(norm):
    tokens, selected, order = planted((4, 5, 6, 5))
    selected[0, order[0, 1]] = True
    value = norm.value(max_margin(tokens, selected, norm).W)
    doubled = Tokens(np.tile(tokens.keys, (1, 2, 1)), tokens.queries)
    twice = max_margin(doubled, np.tile(selected, (1, 2)), norm)
    assert twice.certificate.worst < TIGHT
    assert norm.value(twice.W) == pytest.approx(value, rel=TIGHT)


@NORMS
@pytest.mark.parametrize("required", [[1, 0, 0, 1, 0], [0.1, 1, 10, 3, 0.5]], ids=["zeros", "mixed"])
def test_each_example_may_require_its_own_margin(norm, required):
    tokens, selected, _ = planted((5, 6, 5, 4))
    solution = max_margin(tokens, selected, norm, required=required)
    value = oracle(tokens, selected, norm, np.array(required, float))
    assert solution.certificate.worst < TIGHT
    assert norm.value(solution.W) == pytest.approx(value, rel=ORACLE)


@NORMS
def test_masked_tokens_and_zero_queries_ask_for_nothing(norm):
    tokens, selected, _ = planted((6, 7, 5, 4))
    mask = selected | (np.random.default_rng(1).random(selected.shape) < 0.6)
    fewer = max_margin(Tokens(tokens.keys, tokens.queries, mask=mask), selected, norm)
    keys = np.concatenate([tokens.keys, tokens.keys])
    silent = Tokens(keys, np.vstack([tokens.queries, 0 * tokens.queries]), mask=np.vstack([mask, mask]))
    required = np.repeat([1.0, 0.0], 6)
    more = max_margin(silent, np.vstack([selected, selected]), norm, required=required)
    assert fewer.certificate.worst < TIGHT and more.certificate.worst < TIGHT
    assert norm.value(more.W) == pytest.approx(norm.value(fewer.W), rel=TIGHT)
    assert norm.value(fewer.W) < norm.value(max_margin(tokens, selected, norm).W)


@NORMS
def test_the_pool_finds_the_answer_of_all_rows(norm, monkeypatch):
    tokens, selected, _ = planted((30, 12, 8, 8))
    small = max_margin(tokens, selected, norm)
    monkeypatch.setattr(staged, "SMALL_POOL", 10_000)
    everything = max_margin(tokens, selected, norm)
    assert small.certificate.worst < TIGHT and everything.certificate.worst < TIGHT
    assert norm.value(small.W) == pytest.approx(norm.value(everything.W), rel=TIGHT)


@NORMS
@pytest.mark.parametrize("stages", [((0.1, 0.05), (1e-2, 0.01)), ((0.3, 0.02),)], ids=["some", "most"])
def test_a_pool_that_dropped_needed_rows_is_repaired(norm, stages, monkeypatch):
    tokens, selected, _ = planted((30, 12, 8, 8))
    monkeypatch.setattr(staged, "SMALL_POOL", 20)
    monkeypatch.setattr(schatten, "STAGES", stages)
    assert max_margin(tokens, selected, norm).certificate.worst < TIGHT


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_wide_program_is_solved_in_the_span_of_few_rows(share, monkeypatch):
    tokens, selected, _ = planted((8, 25, 150, 20), shift=0.5)
    sizes, solve = [], staged.advance
    monkeypatch.setattr(schatten, "SHARE", share)
    monkeypatch.setattr(
        staged, "advance", lambda form, *rest: sizes.append(form.pool.d) or solve(form, *rest)
    )
    assert max_margin(tokens, selected, Schatten(1)).certificate.worst < TIGHT
    assert max(sizes) < 150


@NORMS
def test_a_contradiction_is_answered_with_its_proof(norm):
    tokens, selected, order = planted((4, 5, 6, 4))
    twin = Tokens(np.vstack([tokens.keys, tokens.keys[:1]]), np.vstack([tokens.queries, tokens.queries[:1]]))
    rows = Constraints.of(twin, np.vstack([selected, np.arange(5) == order[0, 1]]))
    answer = by_engines(rows, norm)
    assert not answer.separable
    assert (answer.multipliers >= 0).all() and (answer.multipliers * rows.bound).sum() > 0
    assert np.abs(rows.combine(answer.multipliers)).max() < 1e-12 * answer.multipliers.max()


@NORMS
@pytest.mark.parametrize("tie", [1e-2, 1e-4, 1e-6])
def test_near_ties_are_solved(norm, tie, path):
    tokens, selected, order = planted((4, 5, 5, 5))
    keys = tokens.keys.copy()
    keys[0, order[0, 1]] = keys[0, order[0, 0]] - tie * keys[0, order[0, 2]]
    solution = max_margin(Tokens(keys, tokens.queries), selected, norm)
    assert solution.certificate.worst < 1e-8
    assert norm.value(solution.W) > 0.01 / tie


@NORMS
def test_a_shrunk_weight_and_another_norm_are_rejected(norm):
    tokens, selected, _ = planted((6, 6, 6, 6))
    solution = max_margin(tokens, selected, norm)
    rows, dual = solution.constraints, solution.token_multipliers
    other = max_margin(tokens, selected, Schatten(2)).W
    assert solution.certified
    assert verbs_gap(rows, norm, 0.9 * solution.W, dual) > 1e-2
    assert verbs_gap(rows, norm, other, dual) > 1e-3


def verbs_gap(rows, norm, W, multipliers):
    from attsvm.program.certificate import certify

    return certify(rows, norm, W, multipliers).worst


def test_near_ties_need_a_step_without_second_order(monkeypatch):
    tokens, selected, order = planted((8, 3, 9, 6), seed=24, shift=0.0)
    keys, best, each = tokens.keys.copy(), order[:, 0], np.arange(8)
    noise = 1e-7 * np.random.default_rng(24).standard_normal((8, 9))
    keys[each, np.where(best == 0, 1, 0)] = keys[each, best] + noise
    near = Tokens(keys, tokens.queries)
    rows, norm = Constraints.of(near, selected), Schatten(math.inf)
    first = solve_frobenius(rows)
    monkeypatch.setattr(compiled_path, "MOST", {1.0: 0, np.inf: 0})
    assert schatten.solve_schatten(rows, norm, lambda: first).gap <= 1e-8
    monkeypatch.setattr(interior_point, "SHORT", 0.0)
    assert schatten.solve_schatten(rows, norm, lambda: first).gap > 1e-8


def test_an_inexact_system_is_refined_and_an_exact_one_solved_once():
    matrix, calls = np.diag([1.0, 2.0]), []

    def solver(share):
        return lambda right: calls.append(1) or share * right / np.diagonal(matrix)

    right = np.array([3.0, 4.0])
    exact, rough = (interior_point.Refined(solver(s), matrix.__matmul__) for s in (1.0, 1 - 1e-6))
    assert np.allclose(matrix @ rough(right), right, rtol=1e-11, atol=0)
    assert len(calls) == 2
    assert np.allclose(matrix @ exact(right), right, rtol=1e-15)
    assert len(calls) == 3


def test_the_scaling_makes_both_matrices_the_same_diagonal():
    rng = np.random.default_rng(0)
    P, Q = (X @ X.T + np.eye(7) for X in rng.standard_normal((2, 7, 7)))
    scaling = Scaling.of(P, Q)
    forward, backward, expected = scaling.forward, scaling.backward, np.diag(scaling.values)
    assert np.allclose(backward.T @ P @ backward, expected)
    assert np.allclose(forward.T @ Q @ forward, expected)
    assert not np.allclose(backward.T @ Q @ backward, expected)
