"""The l1 and l∞ programs: agreement with an independent LP solver, ties and ugly rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from attsvm.data.tokens import Tokens
from attsvm.norms import l1, linf
from attsvm.program import interior_engine
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.solution import NotSeparable
from tests.program.cases import ranked

NORMS = [l1, linf]


def oracle(rows, norm):
    """The least norm by HiGHS, variables (W, bound on each entry or one on all)."""
    example, token = np.nonzero(rows.active)
    delta = rows.differences(example, token)
    A = np.einsum("kd,ke->kde", delta, rows.queries[example]).reshape(len(delta), -1)
    size, tied = A.shape[1], rows.tied[rows.active]
    caps = np.eye(size) if norm == l1 else np.ones((size, 1))
    pad = np.zeros((len(A), caps.shape[1]))
    upper = np.block([[-A[~tied], pad[~tied]], [np.eye(size), -caps], [-np.eye(size), -caps]])
    right = np.concatenate([-rows.bound[rows.active][~tied], np.zeros(2 * size)])
    equal = np.hstack([A, pad])[tied]
    cost = np.concatenate([np.zeros(size), np.ones(caps.shape[1])])
    return linprog(cost, upper, right, equal, np.zeros(len(equal)), bounds=(None, None)).fun


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_norm_agrees_with_a_simplex_method(norm, seed):
    solution = max_margin(*ranked(6, 6, 6, 5, seed), norm)
    assert solution.certificate.worst < 1e-9
    assert 1 / solution.margin == pytest.approx(oracle(solution.constraints, norm), rel=1e-8)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_solution_of_the_other_norm_is_rejected(norm):
    solution = max_margin(*ranked(), norm)
    other = max_margin(*ranked(), linf if norm == l1 else l1)
    assert not replace(solution, W=other.W).certified
    assert not replace(solution, multipliers=other.multipliers).certified


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("rows_without_a_start", [0, 100])
def test_tied_tokens_and_bounds_of_zero_agree_with_a_simplex_method(norm, rows_without_a_start, monkeypatch):
    monkeypatch.setattr(interior_engine, "FEW_ROWS", rows_without_a_start)
    tokens, best = ranked(4, 5, 6, 3, seed=1)
    selected = np.arange(5) == best[:, None]
    selected[0, (best[0] + 1) % 5] = True
    solution = max_margin(tokens, selected, norm, required=[1.0, 0.0, 2.0, 0.0])
    assert solution.certificate.worst < 1e-9
    assert 1 / solution.margin == pytest.approx(oracle(solution.constraints, norm), rel=1e-8)


def test_one_row_has_the_closed_forms():
    row = np.array([[3.0, -4.0, 1.0]])
    np.testing.assert_allclose(separate(row, l1).W[:, 0], [0, -0.25, 0], atol=1e-9)
    np.testing.assert_allclose(separate(row, linf).W[:, 0], [0.125, -0.125, 0.125], atol=1e-9)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_vector_problem_with_many_examples_needs_few_rows(norm):
    solution = max_margin(*ranked(200, 10, 12, 1, seed=2), norm)
    assert solution.certificate.worst < 1e-9
    assert solution.support.sum() <= 12


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_contradiction_is_an_answer_with_its_proof(norm):
    tokens, best = ranked(3, 4, 4, 2, seed=4)
    twice = Tokens(np.concatenate([tokens.keys] * 2), np.concatenate([tokens.queries] * 2))
    with pytest.raises(NotSeparable) as proof:
        max_margin(twice, np.concatenate([best, (best + 1) % 4]), norm)
    assert proof.value.residual < 1e-9


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 2, 3, 1), (2, 2, 1, 4), (3, 4, 5, 1)], ids=str)
def test_the_smallest_shapes_are_certified(norm, shape):
    assert max_margin(*ranked(*shape, seed=5), norm).certificate.worst < 1e-9


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
def test_nearly_opposite_rows_are_solved_as_far_as_double_precision_goes(norm, distance):
    rows = np.array([[1.0, 0.3, 0.2], [-1.0, -0.3, -0.2 + distance], [0.5, 1.0, 0.1]])
    solution = separate(rows, norm)
    assert solution.certificate.gap < max(5e-9, 1e-14 / distance)
