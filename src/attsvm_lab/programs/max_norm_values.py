"""The values of the max-norm γ₂ and of its dual: two small semidefinite programs, each with both bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from attsvm.numbers import Float

GOAL, STEPS, PATIENCE = 5e-11, 100, 8
"""Relative width at which a bracket is narrow enough; most steps in all, and most without a better bound."""

BOUNDARY, REDUCTION, FAR = 0.95, 0.1, 10.0
"""Share of the way to the boundary that a step goes; factor by which the barrier parameter μ falls; products
count in Newton's matrix between μ/FAR and μ·FAR."""

EPSILON = 2.0**-53

CACHED, BLOCK = 16, 1 << 16
"""Brackets in the cache; numbers in a block of products."""


Bracket = tuple[float, float, Float]
"""A lower and an upper bound on a norm of a matrix, and a matrix of dual norm one that attains the lower."""


Solver = Callable[[Float], Bracket]


def _scaled_and_cached(solver: Solver) -> Solver:
    """A solver for any finite matrix, from one for entries near one and no zero row or column.

    The cache serves certificates, which evaluate each norm twice.
    """

    @lru_cache(maxsize=CACHED)
    def cached(data: bytes, shape: tuple[int, int]) -> Bracket:
        W = np.frombuffer(data).reshape(shape)
        nonzero, attaining = np.ix_(W.any(1), W.any(0)), np.zeros(W.shape)
        if not W.any():
            return 0.0, 0.0, attaining
        power = int(np.frexp(np.abs(W).max())[1])
        lower, upper, attaining[nonzero] = solver(np.ldexp(W, -power)[nonzero])
        attaining.flags.writeable = False
        return float(np.ldexp(lower, power)), float(np.ldexp(upper, power)), attaining

    return lambda W: cached(np.ascontiguousarray(W).tobytes(), W.shape)


def _tighter(best: Bracket, bracket: Bracket) -> Bracket:
    lower = bracket if bracket[0] > best[0] else best
    return lower[0], min(best[1], bracket[1]), lower[2]


# ---------------------------------------------------------------------- γ₂


@_scaled_and_cached
def factorised(W: Float) -> Bracket:
    """γ₂(W) as the largest f(c) over c = (a, b) ≥ 0 with Σ c = 2,  f(c) = ‖diag(a)^½ W diag(b)^½‖_*.

    f is concave. Its gradient is half the squared length of the rows of K and Q, the balanced factors at c.
    At the optimum rows with positive c are equally long, and the others are shorter. The interior point
    solves c (τ − ∇f(c)) = μ, and reduces μ only near a solution: f bends sharply where some a and b vanish.
    """
    d, c = len(W), np.full(sum(W.shape), 2.0 / sum(W.shape))
    best: Bracket = (0.0, np.inf, np.zeros(W.shape))
    tau, mu, stalled = 0.0, 0.0, 0
    for _ in range(STEPS):
        root = np.sqrt(c)
        U, sigma, Vt = np.linalg.svd(root[:d, None] * W * root[d:], full_matrices=False)
        previous, best = best, _tighter(best, _bracket_at(W, root, U, sigma, Vt))
        stalled = stalled + 1 if best[:2] == previous[:2] else 0
        if best[1] - best[0] <= GOAL * best[1] or stalled > PATIENCE:
            break
        X = np.vstack([U, Vt.T])
        rows = (X * X) @ sigma / (2 * c)
        tau = tau or 1.1 * float(rows.max())
        products = c * (tau - rows)
        mu = mu or float(products.mean())
        mu *= REDUCTION if np.abs(products - mu).max() <= mu / 2 else 1.0
        matrix = _negative_hessian(X, sigma, d)
        np.einsum("ii->i", matrix)[:] += np.clip(products, mu / FAR, mu * FAR)
        step, per_tau = np.linalg.solve(matrix, np.stack([mu - products, c], 1)).T
        dtau = float(c @ step) / float(c @ per_tau)
        step = step - dtau * per_tau
        length = min(1.0, BOUNDARY / max(float(-step.min()), BOUNDARY))
        c, tau = c * (1 + length * step), tau + length * dtau
        c *= 2 / c.sum()
    return best


def _bracket_at(W: Float, root: Float, U: Float, sigma: Float, Vt: Float) -> Bracket:
    """Lower bound: f(c). Upper bound: the longest rows of K and Q, plus what the error E = W − K Qᵀ costs.

    E goes into further columns, [K, α E] [Q, 1/α]ᵀ. Beside a row that is shorter than the longest by some
    room, E costs at most E² / room. Where c is tiny, a row is computed from the other factor: divided by the
    root of c it would be rounding noise.
    """
    d, n = len(W), len(root)
    sigma_root = np.sqrt(sigma)
    K, Q = U * sigma_root / root[:d, None], Vt.T * sigma_root / root[d:, None]
    tiny, inverse_root = root**2 < 1e-3 / n, 1 / np.where(sigma_root > 0, sigma_root, np.inf)
    K[tiny[:d]] = (W[tiny[:d]] * root[d:]) @ Vt.T * inverse_root
    Q[tiny[d:]] = (W[:, tiny[d:]] * root[:d, None]).T @ U * inverse_root
    E, count = W - K @ Q.T, (n + 8) * EPSILON
    rounding = np.linalg.norm(count * (np.abs(K) @ np.abs(Q).T + np.abs(W)))
    squares_K, squares_Q = (K * K).sum(1), (Q * Q).sum(1)
    top = float(np.sqrt(squares_K.max() * squares_Q.max()))
    room_K, room_Q = (np.maximum(top * (1 - x / x.max()), 1e-13 * top) for x in (squares_K, squares_Q))
    in_K = room_K[:, None] >= room_Q
    extra = (((E * in_K) ** 2).sum(1) / room_K).max() + (((E * ~in_K) ** 2).sum(0) / room_Q).max()
    lower = float(sigma.sum() / (root @ root) * 2) * (1 - 8 * n * len(sigma) ** 0.5 * EPSILON)
    upper = float(top * (1 + 1e-13) + extra + rounding) * (1 + count)
    return lower, upper, (root[:d, None] * U) @ (Vt * root[d:])


def _negative_hessian(X: Float, sigma: Float, d: int) -> Float:
    """−∇²f in units of c: ½ Σ_ij σ_i σ_j / (σ_i + σ_j) (x_i x_iᵀ) ∘ (x_j x_jᵀ), negative between a and b.

    The weights of the pairs (i, j) are Σ_q s_q s_qᵀ with few terms above rounding: the eigenvalues of such a
    matrix fall fast. A term adds the squared entries of X diag(s_q) Xᵀ, one product for all pairs.
    """
    nonzero = sigma > EPSILON * sigma[0]
    X, sigma = X[:, nonzero], sigma[nonzero]
    sizes, vectors = np.linalg.eigh(sigma[:, None] * sigma / (2 * (sigma[:, None] + sigma)))
    large = sizes > len(sizes) * EPSILON * sizes[-1]
    terms, block = (vectors[:, large] * np.sqrt(sizes[large])).T, max(1, BLOCK // len(X) ** 2)
    out = np.zeros((len(X), len(X)))
    for q in range(0, len(terms), block):
        products = (terms[q : q + block, None] * X) @ X.T
        out += np.einsum("qij,qij->ij", products, products)
    out[:d, d:] *= -1
    out[d:, :d] *= -1
    return out


# ---------------------------------------------------------------------- γ₂*


@_scaled_and_cached
def correlated(G: Float) -> Bracket:
    """γ₂*(G) as  max ⟨C, X⟩,  X ⪰ 0 with ones on its diagonal,  or  min Σ y,  C ⪯ diag(y).

    C = ½ [[0, G], [Gᵀ, 0]].

    Reference: Helmberg, Rendl, Vanderbei, Wolkowicz 1996, "An interior-point method for semidefinite
    programming".
    """
    d, n = len(G), sum(G.shape)
    C = np.zeros((n, n))
    C[:d, d:], C[d:, :d] = G / 2, G.T / 2
    sums = np.abs(C).sum(1)
    X, y = np.eye(n), 1.1 * sums + 1e-3 * sums.max()
    best: Bracket = (0.0, np.inf, np.zeros(G.shape))
    mu = float(y.mean()) / 2
    for _ in range(STEPS):
        try:
            best = _tighter(best, _dual_bracket_at(G, X, y))
            if best[1] - best[0] <= GOAL * best[1]:
                break
            root_X, root_Z = _inverse_cholesky(X), _inverse_cholesky(np.diag(y) - C)
            inverse = root_Z.T @ root_Z
            dy = np.linalg.solve(inverse * X, mu * np.diagonal(inverse) - 1)
            dX = mu * inverse - inverse @ (dy[:, None] * X) - X
            dX = (dX + dX.T) / 2
            primal, dual = _step_length(root_X @ dX @ root_X.T), _step_length((root_Z * dy) @ root_Z.T)
        except np.linalg.LinAlgError:  # rounding has reached the boundary of the cone
            break
        X, y = X + primal * dX, y + dual * dy
        # After a long step, reduce the barrier parameter faster.
        mu = float(np.vdot(X, np.diag(y) - C)) / n * (REDUCTION if min(primal, dual) > 0.8 else 0.5)
    return best


def _dual_bracket_at(G: Float, X: Float, y: Float) -> Bracket:
    """Lower bound: the correlations in X. Upper bound: C ⪯ s diag(y), with the largest singular value s."""
    d = len(G)
    root, count = np.sqrt(y), 8 * sum(G.shape) * min(G.shape) ** 0.5 * EPSILON
    s = np.linalg.svd(G / 2 / root[:d, None] / root[d:], compute_uv=False)[0]
    W = X[:d, d:] / float(np.diagonal(X).max())
    return float(np.vdot(G, W)) * (1 - count), float(s * y.sum()) * (1 + count), W


# ---------------------------------------------------------------------- details


def _inverse_cholesky(X: Float) -> Float:
    """L⁻¹ for X = L Lᵀ; LinAlgError where X is not positive definite."""
    lower, failed = dpotrf(X, lower=1)
    inverse, singular = dtrtri(lower, lower=1)
    if failed or singular:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    return np.asarray(inverse)


def _step_length(step: Float) -> float:
    """A share of the largest α with 1 + α step ⪰ 0, at most 1."""
    least = float(np.linalg.eigvalsh(step)[0])
    return 1.0 if least >= 0 else min(1.0, -BOUNDARY / least)


def _matrix(W: Any) -> Float:
    if not isinstance(W, (np.ndarray, np.generic, list, tuple, float, int)):
        raise TypeError(
            f"the max-norm computes with NumPy arrays, not with {type(W).__name__}. Train K and Q by "
            "steepest(LongestRow(), lr): such steps make the max-norm of K Qᵀ small."
        )
    array = np.asarray(W, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def finite_matrix(W: Any) -> Float:
    """W as one matrix (d, e) of finite numbers; ValueError for anything else."""
    matrix = _matrix(W)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"a bracket is that of one matrix (d, e) of finite numbers, not {matrix.shape}.")
    return matrix


def of_each(function: Callable[[Float], Any], W: Any, matrices: bool = False) -> Any:
    """A number, or a matrix (d, e), for every matrix (…, d, e); NaN where an entry is not finite."""
    array = _matrix(W)
    shape = array.shape[-2:] if matrices else ()
    undefined = np.full(shape, np.nan)
    stack = array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])
    results = [function(M) if np.isfinite(M).all() else undefined for M in stack]
    out = np.reshape(results, (*array.shape[:-2], *shape))
    return out.reshape(np.shape(W)) if matrices else out
