"""The Frobenius algorithms: each one alone, against each other, and against general solvers."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius as norm
from attsvm.program.certificate import certify_scaled
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius import contradiction, interior_point as interior, pivoting, route as frobenius
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows
from attsvm.program.solve import refined
from tests.program.oracles import dense

GAP = 1e-9
"""An order below the certified 1e-8, so that the certificate never hovers at its limit."""

RESIDUAL = 1e-11
"""Farkas: |Σ λ_j A_j| relative to Σ λ_j b_j; rounding is about 1e-15 per row."""


def planted(n, T, d, e, seed=0, ties=0.0, zeros=0.0, masked=0.0, spread=0.0):
    """Separable by construction: a random W ranks the selected token first, tied tokens equal."""
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, e))
    sides = queries @ rng.standard_normal((d, e)).T
    first = np.einsum("ntd,nd->nt", keys, sides).argmax(1)
    chosen = first[:, None] == np.arange(T)
    for i in np.flatnonzero(rng.random(n) < ties):
        t = (first[i] + 1) % T
        gap = (keys[i, first[i]] - keys[i, t]) @ sides[i]
        keys[i, t] += gap / (sides[i] @ sides[i]) * sides[i]
        chosen[i, t] = True
    mask = chosen | (rng.random((n, T)) >= masked)
    required = np.where(rng.random(n) < zeros, 0.0, 1.0)
    keys *= np.exp(spread * rng.standard_normal((n, 1, 1)))
    return Constraints.of(Tokens(keys, queries, mask=mask), chosen, required)


def worst(rows, answer):
    return certify_scaled(rows, norm, answer.W, answer.multipliers).worst


def at_length_one(rows):
    """All rows at length one, the largest bound one."""
    unit = Rows.of(rows)
    return replace(unit, bound=unit.bound / unit.bound.max())


def is_farkas(rows, lam):
    total = (lam * rows.bound).sum()
    signs = (lam[rows.separating] >= 0).all() and not lam[~rows.active].any()
    return signs and np.linalg.norm(rows.combine(lam)) <= RESIDUAL * total


VARIANTS = {
    "plain": {},
    "tied": {"ties": 0.3},
    "relaxed": {"zeros": 0.5},
    "masked": {"masked": 0.5},
    "everything": {"ties": 0.3, "zeros": 0.3, "masked": 0.3},
    "scales": {"spread": 2.0},
}
SHAPES = [(60, 12, 20, 16), (25, 16, 40, 6), (80, 16, 10, 12)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_certified_below_the_target(shape, variant):
    rows = planted(*shape, seed=1, **VARIANTS[variant])
    answer = refined(rows, norm, frobenius.solve_frobenius(rows))
    assert worst(rows, answer) <= GAP


@pytest.mark.parametrize("variant", VARIANTS)
def test_pivoting_and_the_interior_point_find_the_same_weight(variant):
    rows = planted(30, 12, 14, 12, seed=2, **VARIANTS[variant])
    unit = at_length_one(rows)
    one, two = pivoting.solve_by_pivoting(unit), interior.solve_by_interior_point(unit)
    cosine = (one.W * two.W).sum() / np.linalg.norm(one.W) / np.linalg.norm(two.W)
    assert 1 - cosine <= 1e-9
    assert worst(rows, Rows.of(rows).at_margin_one(one, norm)) <= GAP
    assert worst(rows, Rows.of(rows).at_margin_one(two, norm)) <= GAP


def test_conjugate_gradients_agree_with_cholesky(monkeypatch):
    unit = at_length_one(planted(40, 10, 20, 18, seed=3, ties=0.2))
    exact = pivoting.solve_by_pivoting(unit)
    monkeypatch.setattr(pivoting, "DIRECT", 0)
    iterative = pivoting.solve_by_pivoting(unit)
    assert np.linalg.norm(exact.W - iterative.W) <= 1e-10 * np.linalg.norm(exact.W)


@pytest.mark.parametrize("variant", ["plain", "everything"])
def test_the_norm_is_that_of_a_general_solver(variant):
    rows = planted(12, 8, 6, 5, seed=4, **VARIANTS[variant])
    features, bound, tied = dense(rows)
    w = cp.Variable(features.shape[1])
    limits = [features[~tied] @ w >= bound[~tied]]
    limits += [features[tied] @ w == 0] if tied.any() else []
    program = cp.Problem(cp.Minimize(cp.norm(w)), limits)
    program.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_feas=1e-10, tol_gap_abs=1e-10)
    answer = frobenius.solve_frobenius(rows)
    W, *_ = rows.units.restored(answer.W, answer.multipliers)
    assert np.linalg.norm(W) == pytest.approx(program.value, rel=1e-7)  # Clarabel's accuracy


def test_an_answer_for_other_rows_is_not_certified():
    rows = planted(60, 12, 20, 16, seed=5)
    assert worst(rows, frobenius.solve_frobenius(planted(60, 12, 20, 16, seed=6))) > 1e-3


def test_unused_and_duplicate_rows_do_not_disturb():
    rows = planted(40, 12, 16, 12, seed=7)
    twice = Tokens(np.concatenate([rows.keys] * 3), np.concatenate([rows.queries] * 3))
    once, thrice = frobenius.solve_frobenius(rows), Constraints.of(twice, np.tile(rows.anchor, 3))
    answer = frobenius.solve_frobenius(thrice)
    assert worst(thrice, answer) <= GAP
    cosine = (once.W * answer.W).sum() / np.linalg.norm(once.W) / np.linalg.norm(answer.W)
    assert 1 - cosine <= 1e-12


def test_a_zero_query_asks_for_nothing_when_nothing_is_required():
    rows = planted(60, 12, 20, 16, seed=8)
    queries = rows.queries.copy()
    queries[3] = 0
    required = np.where(np.arange(60) == 3, 0.0, 1.0)
    rows = Constraints.of(Tokens(rows.keys, queries), rows.anchor, required)
    assert worst(rows, frobenius.solve_frobenius(rows)) <= GAP


# ---------------------------------------------------------------------- contradictions


def contradictory(kind, n=50, T=16, d=20):
    """A separable problem with one contradiction planted among its last examples."""
    rows = planted(n, T, d, d, seed=9)
    keys, queries, first = rows.keys.copy(), rows.queries.copy(), rows.anchor.copy()
    mask = np.ones((n, T), bool)
    if kind == "identical tokens":
        keys[-1, (first[-1] + 1) % T] = keys[-1, first[-1]]
    elif kind == "opposite orders":
        keys[-1], queries[-1], first[-1] = keys[0], -2 * queries[0], first[0]
        mask[-1] = np.isin(np.arange(T), [first[0], (first[0] + 1) % T])
    else:  # three examples want a > b, b > c and c > a
        for k, (a, b) in enumerate([(0, 1), (1, 2), (2, 0)], start=1):
            keys[-k], queries[-k], first[-k] = keys[0], queries[0], a
            mask[-k] = np.isin(np.arange(T), [a, b])
    return Constraints.of(Tokens(keys, queries, mask=mask), first)


@pytest.mark.parametrize(
    ("kind", "length"), [("identical tokens", 1), ("opposite orders", 2), ("circle of three", 3)]
)
def test_a_planted_contradiction_is_named_by_its_fewest_rows(kind, length):
    rows = contradictory(kind)
    answer = frobenius.solve_frobenius(rows)
    assert not answer.separable
    assert is_farkas(rows, answer.multipliers)
    assert np.count_nonzero(answer.multipliers) == length


def test_the_same_data_without_the_contradiction_is_separable():
    assert frobenius.solve_frobenius(planted(50, 16, 20, 20, seed=9)).separable


@pytest.mark.parametrize("seed", range(3))
def test_random_selections_of_too_many_tokens_have_a_proof(seed):
    rng = np.random.default_rng(seed)
    tokens = Tokens(rng.standard_normal((90, 16, 8)), rng.standard_normal((90, 8)))
    rows = Constraints.of(tokens, rng.integers(16, size=90))
    answer = frobenius.solve_frobenius(rows)
    assert not answer.separable
    assert is_farkas(rows, answer.multipliers)
    assert np.count_nonzero(answer.multipliers) <= 8 * 8 + 1


@pytest.mark.parametrize("large", [False, True], ids=["loops", "large"])
def test_the_verdict_is_that_of_a_linear_program(large, monkeypatch):
    if large:
        monkeypatch.setattr(frobenius, "GRAM_ROWS", 0)
    rng = np.random.default_rng(10)
    for _ in range(60):
        shape = [(5, 6, 3), (8, 4, 3)][rng.integers(2)]
        n, T, d = shape
        tokens = Tokens(rng.standard_normal((n, T, d)), rng.standard_normal((n, d)))
        rows = Constraints.of(tokens, rng.integers(T, size=n))
        features, bound, _ = dense(rows)
        plan = linprog(np.zeros(d * d), A_ub=-features, b_ub=-bound, bounds=(None, None))
        answer = frobenius.solve_frobenius(rows)
        assert answer.separable == (plan.status == 0)
        assert worst(rows, answer) <= GAP if answer.separable else is_farkas(rows, answer.multipliers)


def test_a_candidate_that_is_no_contradiction_is_refused():
    unit = at_length_one(planted(20, 6, 8, 8, seed=11))
    assert not contradiction.is_proof(unit, np.ones(len(unit)))
    assert contradiction.ray(unit, np.ones(len(unit))) is None


def test_a_contradiction_of_long_rows_is_found_in_a_sketch_of_them(monkeypatch):
    rows = at_length_one(contradictory("circle of three", 30, 6, 12))
    monkeypatch.setattr(contradiction, "DENSE", 0)
    assert contradiction._coordinates(rows.some(np.arange(9))).shape == (9, 38)
    proof = contradiction.ray(rows, np.ones(len(rows)))
    assert not proof.separable
    assert contradiction.is_proof(rows, proof.multipliers)
    assert contradiction.ray(rows.some(np.arange(20)), np.ones(20)) is None


def test_nearly_opposite_rows_are_not_called_a_contradiction():
    rows = planted(50, 16, 20, 20, seed=12)
    keys, queries, first = rows.keys.copy(), rows.queries.copy(), rows.anchor.copy()
    keys[-1], first[-1] = keys[0], (first[0] + 1) % 16
    queries[-1] = queries[0] + 1e-5 * queries[1]
    tokens = Tokens(keys, queries)
    solution = max_margin(tokens, first)
    assert solution.certified
    assert solution.margin < 1e-3


def test_a_small_vocabulary_in_a_wide_space_is_solved_in_its_span():
    rng = np.random.default_rng(0)
    words = rng.standard_normal((20, 100))
    keys = words[rng.integers(20, size=(120, 5))]
    logits = np.einsum("ntd,de,ne->nt", keys, rng.standard_normal((100, 100)), keys[:, -1])
    same = (keys[:, :, None] == np.take_along_axis(keys, logits.argmax(1)[:, None, None], 1)[:, None]).all(-1)
    rows = Constraints.of(Tokens(keys, keys[:, -1]), same[:, :, 0])
    assert worst(rows, frobenius.solve_frobenius(rows)) <= GAP
