"""Independent answers: the programs written for general solvers, and proofs checked in plain NumPy."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
from scipy.optimize import linprog, nnls

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm
from attsvm.program.constraints import Constraints

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def dense(rows: Constraints) -> Rows:
    """The rows of a program written out (m, d e), their bounds (m,), and which are tied (m,)."""
    example, token = np.nonzero(rows.active)
    delta = rows.differences(example, token)
    features = np.einsum("md,me->mde", delta, rows.queries[example]).reshape(len(example), -1)
    return features, rows.bound[rows.active], rows.tied[rows.active]


def rows_of(tokens: Tokens, selected: np.ndarray, required: float | np.ndarray = 1.0) -> Rows:
    """Every constraint as a dense row: A (m, d e), b (m,), tied (m,), by example, then token."""
    chosen = np.asarray(selected)
    if chosen.dtype != bool:
        chosen = chosen[:, None] == np.arange(tokens.T)
    asked = np.broadcast_to(required, (tokens.n,))
    A, b, tied = [], [], []
    for i in range(tokens.n):
        first = int(np.flatnonzero(chosen[i])[0])
        for t in np.flatnonzero(tokens.mask[i]):
            if t != first:
                delta = tokens.keys[i, first].astype(float) - tokens.keys[i, t]
                A.append(np.outer(delta, tokens.queries[i]).ravel())
                b.append(0.0 if chosen[i, t] else asked[i])
                tied.append(bool(chosen[i, t]))
    return np.array(A), np.array(b), np.array(tied)


def smallest(
    tokens: Tokens, selected: np.ndarray, norm: Norm, required: float | np.ndarray = 1.0
) -> tuple[float, np.ndarray]:
    """The program as a cvxpy user writes it, solved by Clarabel: the least norm and a W."""
    A, b, tied = rows_of(tokens, selected, required)
    W = cp.Variable((tokens.d, tokens.e))
    w = cp.vec(W, order="C")
    limits = [A[~tied] @ w >= b[~tied]]
    if tied.any():
        limits.append(A[tied] @ w == 0)
    objective, more = _objective(norm, W, w)
    problem = cp.Problem(cp.Minimize(objective), limits + more)
    value = problem.solve(solver=cp.CLARABEL)
    return float(value), W.value


def _objective(norm: Norm, W: cp.Variable, w: cp.Expression) -> tuple[cp.Expression, list[cp.Constraint]]:
    """The norm, and the constraints on further variables that it needs."""
    if isinstance(norm, Entrywise):
        return cp.norm(w, norm.p if math.isfinite(norm.p) else "inf"), []
    if norm.p in (1, math.inf):
        return {1.0: cp.normNuc, math.inf: cp.sigma_max}[norm.p](W), []
    return _semidefinite(norm.p, W)


def _semidefinite(p: float, W: cp.Variable) -> tuple[cp.Expression, list[cp.Constraint]]:
    """Schatten(4/3), by Hölder's inequality min ½ (tr P + ‖R‖_F) over [[P, W], [Wᵀ, R]] ⪰ 0.

    Schatten(4) in the same way: ½ (‖P‖ + ‖R‖_F), where ‖P‖ is the largest eigenvalue.
    """
    d, e = W.shape
    block = cp.Variable((d + e, d + e), PSD=True)
    P, R = block[:d, :d], block[d:, d:]
    first = {4 / 3: cp.trace, 4.0: cp.lambda_max}[p](P)
    return 0.5 * (first + cp.norm(R, "fro")), [block[:d, d:] == W]


def least_squares_solution(A: np.ndarray, b: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """min ‖w‖₂ s.t. A w ≥ b (= 0 where tied), to rounding: Lawson and Hanson's least distance."""
    both = np.vstack([A, -A[tied]])
    asked = np.concatenate([b, np.zeros(int(tied.sum()))])
    E = np.vstack([both.T, asked])
    target = np.zeros(len(E))
    target[-1] = 1.0
    u, _ = nnls(E, target, maxiter=100 * len(asked))
    r = E @ u - target
    return -r[:-1] / r[-1]


def feasible(A: np.ndarray, b: np.ndarray, tied: np.ndarray) -> bool:
    """Whether A w ≥ b (= 0 where tied) has a solution, by the HiGHS simplex method."""
    answer = linprog(
        np.zeros(A.shape[1]),
        A_ub=-A[~tied],
        b_ub=-b[~tied],
        A_eq=A[tied] if tied.any() else None,
        b_eq=b[tied] if tied.any() else None,
        bounds=(None, None),
        method="highs-ds",
    )
    if answer.status not in (0, 2):
        raise RuntimeError(f"HiGHS: {answer.message}")
    return answer.status == 0


def farkas_residual(rows: Rows, multipliers: np.ndarray) -> float:
    """‖Σ λ_j A_j‖ / Σ λ_j b_j: zero proves that no W exists; ∞ if λ is no proof at all.

    The multipliers of inequalities must not be negative, and Σ λ_j b_j must be positive.
    """
    A, b, tied = rows
    total = float(multipliers @ b)
    if not np.isfinite(multipliers).all() or (multipliers[~tied] < 0).any() or total <= 0:
        return math.inf
    return float(np.linalg.norm(multipliers @ A) / total)
