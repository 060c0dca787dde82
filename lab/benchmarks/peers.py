"""The general solvers, each given the prebuilt features A of  min N(w)  s.t.  A w ≥ 1.

Every peer is a pair of steps: `prepare` builds what the solver wants in memory and is not timed,
the function that it returns is. That function gives w, or None when it finds no solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from attsvm.norms import Entrywise, Norm

Solve = Callable[[], np.ndarray | None]
Prepare = Callable[[np.ndarray, tuple[int, int], Norm], Solve]

TIGHT = 1e-8
"""Accuracy asked of first-order and interior-point peers: that of our certificate."""


def daqp(A: np.ndarray, shape: tuple[int, int], norm: Norm) -> Solve:
    """Dual active set in C."""
    import daqp

    m, k = A.shape
    hessian, zero = np.eye(k), np.zeros(k)
    lower, upper, sense = np.ones(m), np.full(m, 1e30), np.zeros(m, np.int32)

    def solve() -> np.ndarray | None:
        w, _, flag, _ = daqp.solve(hessian, zero, A, upper, lower, sense, iter_limit=1_000_000)
        return w if flag == 1 else None

    return solve


def quadprog(A: np.ndarray, shape: tuple[int, int], norm: Norm) -> Solve:
    """Goldfarb and Idnani's dual method."""
    import quadprog

    hessian, zero, ones = np.eye(A.shape[1]), np.zeros(A.shape[1]), np.ones(len(A))
    columns = np.asfortranarray(A.T)

    def solve() -> np.ndarray | None:
        try:
            return quadprog.solve_qp(hessian, zero, columns, ones)[0]
        except ValueError:  # "constraints are inconsistent, no solution"
            return None

    return solve


def cvxopt(A: np.ndarray, shape: tuple[int, int], norm: Norm) -> Solve:
    """The interior point of the papers' notebooks."""
    from cvxopt import matrix, solvers

    solvers.options["show_progress"] = False
    k = A.shape[1]
    matrices = matrix(np.eye(k)), matrix(np.zeros(k)), matrix(-A), matrix(-np.ones(len(A)))

    def solve() -> np.ndarray | None:
        try:
            answer = solvers.qp(*matrices)
        except (ValueError, ArithmeticError):  # "domain error" on data without a solution
            return None
        return np.asarray(answer["x"]).ravel() if answer["status"] == "optimal" else None

    return solve


def nnls(A: np.ndarray, shape: tuple[int, int], norm: Norm) -> Solve:
    """Least distance programming by nonnegative least squares (SciPy)."""
    from scipy.optimize import nnls

    stacked = np.vstack([A.T, np.ones(len(A))])
    target = np.zeros(len(stacked))
    target[-1] = 1.0

    def solve() -> np.ndarray | None:
        u, distance = nnls(stacked, target, maxiter=100 * len(A))
        if distance < 1e-12:  # the origin is in the hull: no solution, and w would be noise
            return None
        r = stacked @ u - target
        return -r[:-1] / r[-1]

    return solve


def cvxpy_with(solver: str, **options: float | str) -> Prepare:
    """cvxpy with one of its solvers: the stacked matrix, compilation included, as its users pay it."""

    def prepare(A: np.ndarray, shape: tuple[int, int], norm: Norm) -> Solve:
        import cvxpy as cp

        def solve() -> np.ndarray | None:
            W = cp.Variable(shape)
            w = cp.vec(W, order="C")
            problem = cp.Problem(cp.Minimize(_objective(cp, norm, W, w)), [A @ w >= 1])
            problem.solve(solver=solver, **options)
            return None if W.value is None else W.value.ravel()

        return solve

    return prepare


def _objective(cp, norm: Norm, W, w):  # type: ignore[no-untyped-def]
    if isinstance(norm, Entrywise):
        if norm.p == 2:
            return cp.sum_squares(w)
        return cp.norm(w, norm.p if math.isfinite(norm.p) else "inf")
    return {1.0: cp.normNuc, math.inf: cp.sigma_max}[norm.p](W)


PEERS: dict[str, Prepare] = {
    "daqp": daqp,
    "quadprog": quadprog,
    "cvxopt": cvxopt,
    "nnls": nnls,
    "Clarabel": cvxpy_with("CLARABEL"),
    "SCS": cvxpy_with("SCS", eps=TIGHT, max_iters=1_000_000),
    "HiGHS": cvxpy_with("HIGHS"),
    "Moreau": cvxpy_with("MOREAU", device="cpu"),
}


# ---------------------------------------------------------------------- soft margins, one row per example


def liblinear(A: np.ndarray, price: float) -> Solve:
    """LIBLINEAR's dual coordinate descent; half of the rows are negated, because it requires two classes."""
    from sklearn.svm import LinearSVC

    labels = np.where(np.arange(len(A)) % 2, 1.0, -1.0)
    features = labels[:, None] * A
    svm = LinearSVC(loss="hinge", C=price, fit_intercept=False, tol=TIGHT, max_iter=10_000_000)

    def solve() -> np.ndarray:
        return svm.fit(features, labels).coef_[0]

    return solve


def soft_cvxpy_with(solver: str, **options: float | str) -> Callable[[np.ndarray, float], Solve]:
    """The linear SVM without intercept in cvxpy."""

    def prepare(A: np.ndarray, price: float) -> Solve:
        import cvxpy as cp

        def solve() -> np.ndarray | None:
            w = cp.Variable(A.shape[1])
            objective = 0.5 * cp.sum_squares(w) + price * cp.sum(cp.pos(1 - A @ w))
            cp.Problem(cp.Minimize(objective)).solve(solver=solver, **options)
            return w.value

        return solve

    return prepare


SOFT_PEERS: dict[str, Callable[[np.ndarray, float], Solve]] = {
    "liblinear": liblinear,
    "Clarabel": soft_cvxpy_with("CLARABEL"),
    "SCS": soft_cvxpy_with("SCS", eps=TIGHT, max_iters=1_000_000),
    "Moreau": soft_cvxpy_with("MOREAU", device="cpu"),
}
