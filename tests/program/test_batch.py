"""Small matrix problems in compiled loops: many runs at once, each verdict right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius as norm
from attsvm.program import polish, solve
from attsvm.program.certificate import certify_scaled
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision import route
from attsvm.program.frobenius import gram
from attsvm.program.frobenius.dense import solve_rows, solve_runs_dense as exact
from attsvm.program.frobenius.gram import solve_runs_by_gram
from attsvm.program.frobenius.route import GRAM_ROWS, solve_frobenius
from attsvm.program.max_margin import max_margin
from attsvm.program.solve import refined
from tests.program.oracles import dense

GAP = 1e-9
"""An order below the certified 1e-8."""


def random_runs(runs, n, T, d, e, seed=0):
    rng = np.random.default_rng(seed)
    tokens = Tokens(rng.standard_normal((runs, n, T, d)), rng.standard_normal((runs, n, e)))
    return tokens, rng.integers(T, size=(runs, n))


def gaps(rows, answer):
    solved = refined(rows, norm, answer)
    return certify_scaled(rows, norm, solved.W, solved.multipliers).worst


def residuals(rows, answer):
    lam = answer.multipliers
    size = np.linalg.norm(rows.combine(lam), axis=(-2, -1))
    return size / (lam * rows.bound).sum((-2, -1))


@pytest.mark.parametrize("shape", [(5, 6, 3, 3), (8, 4, 3, 3)], ids=str)
def test_near_the_threshold_each_verdict_is_that_of_a_linear_program(shape):
    rows = Constraints.of(*random_runs(150, *shape))
    answer = solve_frobenius(rows)
    expected = []
    for k in range(150):
        features, bound, _ = dense(rows.run(k))
        plan = linprog(np.zeros(features.shape[1]), A_ub=-features, b_ub=-bound, bounds=(None, None))
        expected.append(plan.status == 0)
    assert 10 < sum(expected) < 140  # both verdicts occur
    assert np.array_equal(answer.separable, expected)
    assert gaps(rows, answer)[answer.separable].max() <= GAP
    assert residuals(rows, answer)[~answer.separable].max() <= 1e-11
    assert (answer.multipliers >= 0).all()


def test_the_loops_agree_with_orthogonal_factors_of_the_rows(monkeypatch):
    monkeypatch.setattr(gram, "solve_runs_dense", lambda _: pytest.fail("not solved by the loops"))
    rows = Constraints.of(*random_runs(40, 6, 8, 10, 10, seed=1))
    answer = solve_runs_by_gram(rows)
    assert (answer.gap <= gram.GAP).all()
    for k in range(40):
        point = solve_rows(*dense(rows.run(k)))
        W = answer.W[k].ravel()
        assert W @ point.w == pytest.approx(np.linalg.norm(W) * np.linalg.norm(point.w), rel=1e-12)


def test_ties_zeros_masks_and_duplicates_are_certified_in_one_batch():
    rng = np.random.default_rng(2)
    tokens, first = random_runs(200, 4, 6, 7, 5, seed=2)
    keys = tokens.keys.copy()
    chosen = first[..., None] == np.arange(6)
    chosen[::2, 0, 0] = True
    keys[1::2, :, 4] = keys[1::2, :, 5]
    mask = chosen | (rng.random(chosen.shape) < 0.8)
    required = np.where(rng.random((200, 4)) < 0.3, 0.0, 1.0)
    rows = Constraints.of(Tokens(keys, tokens.queries, mask=mask), chosen, required)
    answer = solve_frobenius(rows)
    zero_row = ~answer.separable & (np.count_nonzero(answer.multipliers, axis=(-2, -1)) == 1)
    assert answer.separable.sum() > 100
    assert zero_row.sum() > 10  # the selected token has a double
    assert gaps(rows, answer)[answer.separable].max() <= GAP
    assert residuals(rows, answer)[~answer.separable].max() <= 1e-11


def test_a_run_alone_gives_the_answer_it_gives_in_the_batch():
    tokens, first = random_runs(6, 6, 8, 10, 10, seed=3)
    together = max_margin(tokens, first)
    alone = max_margin(tokens.run(4), first[4])
    assert np.array_equal(together.W[4], alone.W)
    assert together.certified.all()


def test_what_the_gram_matrix_cannot_see_is_left_to_an_exact_method(monkeypatch):
    tokens, first = random_runs(3, 6, 8, 10, 10, seed=4)
    keys, queries = tokens.keys.copy(), tokens.queries.copy()
    keys[1, 1], first[1, 1] = keys[1, 0], (first[1, 0] + 1) % 8
    queries[1, 1] = queries[1, 0] + 1e-7 * queries[1, 2]
    rows = Constraints.of(Tokens(keys, queries), first)
    unseen, exact = [], gram.solve_runs_dense
    monkeypatch.setattr(gram, "solve_runs_dense", lambda runs: unseen.extend(runs.keys) or exact(runs))
    solution = max_margin(Tokens(keys, queries), first)
    assert len(unseen) == 1
    assert np.array_equal(unseen[0], rows.keys[1])
    assert solution.separable.all()
    assert solution.certificate.worst.max() <= 1e-10


def test_larger_runs_are_solved_too():
    rows = Constraints.of(*random_runs(3, 30, 15, 24, 24, seed=5))
    assert rows.n * (rows.T - 1) > GRAM_ROWS
    answer = solve_frobenius(rows)
    assert gaps(rows, answer).max() <= GAP


def test_runs_that_ask_for_nothing_have_weight_zero():
    tokens, first = random_runs(2, 3, 4, 5, 5, seed=6)
    solution = max_margin(tokens, first, required=np.array([[0.0] * 3, [1.0] * 3]))
    assert not solution.W[0].any()
    assert solution.certified.all()


@pytest.mark.parametrize("e", [1, 10])
def test_small_problems_come_with_the_required_margins(e):
    tokens, _ = random_runs(30, 6, 8, 10, e, seed=7)
    best = np.argmax(np.einsum("rntd,rn->rnt", tokens.keys[..., :1], tokens.queries[..., 0]), axis=-1)
    rows = Constraints.of(tokens, best, required=np.arange(1, 7) / 4)
    for k in range(30):
        alone, answer = rows.run(k), solve_frobenius(rows.run(k))
        ratio = (alone.margins(answer.W) / np.where(alone.bound > 0, alone.bound, np.nan))[alone.bound > 0]
        shrunk = certify_scaled(alone, norm, 0.9 * answer.W, answer.multipliers)
        assert ratio.min() == pytest.approx(1, rel=1e-11)
        assert norm.dual.value(alone.combine(answer.multipliers)) == pytest.approx(1, rel=1e-11)
        assert shrunk.primal > 0.09


def order_alone(keys, queries, first):
    return keys, queries, first, np.where(np.arange(keys.shape[1]) % 3 == 0, 0.0, 1.0)


def tied(keys, queries, first):
    T = keys.shape[2]
    return keys, queries, (first[..., None] == np.arange(T)) | (np.arange(T) == T - 1), 1.0


def copies(keys, queries, first):
    keys[:, :, 1] = keys[:, :, -1]
    return keys, queries, np.zeros_like(first), 1.0


def near_copies(keys, queries, first):
    keys[:, :, 1] = keys[:, :, -1] * (1 + 1e-7)
    return keys, queries, np.zeros_like(first), 1.0


def equal_examples(keys, queries, first):
    keys[:, 1::2], queries[:, 1::2] = keys[:, :1], queries[:, :1]
    first[:, 1::2] = first[:, :1]
    return keys, queries, first, 1.0


@pytest.mark.parametrize("shape", [(6, 8, 10, 10), (1, 3, 4, 4), (2, 2, 5, 5)], ids=str)
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("change", [order_alone, tied, copies, near_copies, equal_examples])
def test_no_run_of_a_common_batch_is_solved_alone(change, size, shape, monkeypatch):
    tokens, first = random_runs(20, *shape, seed=8)
    keys, queries, selected, required = change(size * tokens.keys, tokens.queries.copy(), first.copy())
    monkeypatch.setattr(gram, "solve_runs_dense", lambda _: pytest.fail("by the dual active set"))
    monkeypatch.setattr(solve, "_refined_run", lambda *_, **__: pytest.fail("refined alone"))
    solution = max_margin(Tokens(keys, queries), selected, required=required)
    rows = solution.constraints
    assert solution.certificate.worst.max() <= GAP
    assert solution.separable.all()
    for k in range(3):
        scaled = np.ldexp(solution.W[k], -rows.units.unit[k])
        expected = solve_rows(*dense(rows.run(k))).w
        assert scaled.ravel() == pytest.approx(expected, rel=1e-6, abs=1e-6 * np.linalg.norm(expected))


def test_runs_that_contradict_themselves_are_not_solved_by_the_gram_matrix(monkeypatch):
    tokens, first = random_runs(3, 4, 5, 6, 6, seed=9)
    keys, queries = tokens.keys.copy(), tokens.queries.copy()
    keys[1, 1], queries[1, 1], first[1, 1] = keys[1, 0], queries[1, 0], (first[1, 0] + 1) % 5
    rows, alone = Constraints.of(Tokens(keys, queries), first), []
    monkeypatch.setattr(gram, "solve_runs_dense", lambda runs: alone.append(runs) or exact(runs))
    assert solve_runs_by_gram(rows).separable.tolist() == [True, False, True]
    assert len(alone[0].keys) == 1


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_run_of_nearly_opposed_rows_needs_no_extended_precision(orthogonal, monkeypatch):
    (tokens, _), W = random_runs(3, 6, 8, 10, 1), np.random.default_rng(1).standard_normal((10, 1))
    keys, queries = tokens.keys.copy(), tokens.queries
    best = np.einsum("rntd,de,rne->rnt", keys, W, queries).argmax(-1)
    along, across = np.random.default_rng(0).standard_normal((2, 10))
    for i, sign in enumerate((1, -1)):  # their weight is thousands long, and so is the bound on its rounding
        row = (sign * along + 3e-4 * across) * np.sign(queries[0, i, 0])
        keys[0, i, (best[0, i] + 1) % 8] = keys[0, i, best[0, i]] - row
    if not orthogonal:
        monkeypatch.setattr(polish, "on_active_rows", lambda program, answer: None)
    calls, extended = [], route.solve_in_extended_precision
    monkeypatch.setattr(
        route, "solve_in_extended_precision", lambda *a, **k: calls.append(1) or extended(*a, **k)
    )
    solution = max_margin(Tokens(keys, queries), best)
    assert solution.certified.all()
    assert bool(calls) != orthogonal
