"""Kinds of attention and clipped logits: the claims hold, their broken twins do not."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm_lab.claims import clipped_logits
from attsvm_lab.claims.instances import equal_losers
from tests.lab.claims.agreement import check, each_claim

SOLVERS = 1e-6
"""Agreement of HiGHS with cvxpy's default solver, which stops at about 1e-8."""

ARRIVED = 3e-4
"""What a clipped run has left to go: at most 6e-5; a step of another norm moves it by 1e-3 and more."""


@each_claim("attention_kinds", "clipped_logits")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


@pytest.mark.parametrize("size", [(1, 2, 1), (2, 3, 3), (4, 3, 3), (6, 4, 5)], ids=str)
def test_the_best_gap_per_logit_is_certified_and_cvxpys(size):
    cvxpy = pytest.importorskip("cvxpy", reason="needs attsvm[test]")
    tokens, _ = equal_losers(*size, seed=3)
    program = clipped_logits.best_gap(tokens)
    W, gap = cvxpy.Variable((tokens.d, tokens.queries.shape[1])), cvxpy.Variable()
    logits = [tokens.keys[i] @ W @ tokens.queries[i] for i in range(tokens.n)]
    limits = [cvxpy.abs(row) <= 1 for row in logits]
    optimum = cvxpy.Problem(cvxpy.Maximize(gap), limits + [row[0] - row[1:] >= gap for row in logits]).solve()
    if optimum > SOLVERS:  # else the selection is not separable, and the best gap is zero
        assert program.certified and program.gap == pytest.approx(optimum, rel=SOLVERS)
        assert not replace(program, gap=0.99 * program.gap).certified


@pytest.mark.parametrize("lr", [0.01, 1.0])
def test_where_a_clipped_run_ends_a_step_of_its_own_norm_changes_nothing_at_any_length(lr):
    tokens, _ = equal_losers(2, 3, 4, seed=0)
    batch = clipped_logits.Batch.of([tokens])
    W = clipped_logits.clipped(batch, "GD", limit=3.0)

    def after(direction):
        moved = W + lr * direction(batch.descent(W))
        return moved * 3.0 / batch.logits(moved).max()

    assert np.abs(after(clipped_logits.normalised) - W).max() <= ARRIVED
    assert np.abs(after(clipped_logits.polar) - W).max() > ARRIVED
