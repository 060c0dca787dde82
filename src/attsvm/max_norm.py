"""The max-norm γ₂ of a weight and its dual norm: two small semidefinite programs, each with both bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from attsvm.numbers import Float

GOAL, STEPS, PATIENCE = 5e-11, 100, 8
"""Relative width at which a bracket is narrow enough; steps at most, in all and without a better bound."""

BOUNDARY, AIM, FAR = 0.95, 0.1, 10.0
"""Share of the way to the boundary that a step goes, part of the products that it aims at, and how far from
their aim a product counts as it is."""

EPSILON = 2.0**-53

KEPT, PAIRS = 16, 1 << 16
"""Brackets that are remembered, and numbers in the products that one makes at once."""


@dataclass(frozen=True)
class MaxNorm:
    """The max-norm γ₂: how long the longest rows of two factors of W must be.

        γ₂(W) = min max_i |k_i| max_j |q_j|  over  K Qᵀ = W

    No orthogonal matrix leaves it alone, and it has no exponent: p is NaN. Of a vector it is the largest
    entry. `value` is the upper end of `bracket`: it belongs to factors that were found. NumPy arrays only.
    Reference: Srebro and Shraibman 2005, "Rank, trace-norm and max-norm".
    """

    p = float("nan")

    @property
    def dual(self) -> DualMaxNorm:
        return DualMaxNorm()

    def bracket(self, W: Any) -> tuple[float, float]:
        """Bounds on γ₂ of one matrix (d, e) that rounding cannot break, some 1e-11 of it apart."""
        return _factored(_one(W))[:2]

    def value(self, W: Any) -> Any:
        return _each(lambda M: _factored(M)[1], W, np.nan)

    def steepest(self, G: Any) -> Any:
        return _each(lambda M: _correlated(M)[2], G, np.full(np.shape(_matrix(G))[-2:], np.nan))

    def __str__(self) -> str:
        return "max-norm"


@dataclass(frozen=True)
class DualMaxNorm:
    """The dual norm of the max-norm.

        γ₂*(G) = max ⟨G, K Qᵀ⟩,  all |k_i|, |q_j| ≤ 1   =   min ½ tr D,  D diagonal,  [[0, G], [Gᵀ, 0]] ⪯ D

    Reference: Linial and Shraibman 2009, "Lower bounds in communication complexity based on factorization".
    """

    p = float("nan")

    @property
    def dual(self) -> MaxNorm:
        return MaxNorm()

    def bracket(self, G: Any) -> tuple[float, float]:
        """Bounds on γ₂* of one matrix (d, e) that rounding cannot break."""
        return _correlated(_one(G))[:2]

    def value(self, G: Any) -> Any:
        return _each(lambda M: _correlated(M)[1], G, np.nan)

    def steepest(self, W: Any) -> Any:
        return _each(lambda M: _factored(M)[2], W, np.full(np.shape(_matrix(W))[-2:], np.nan))

    def __str__(self) -> str:
        return "dual max-norm"


Bracket = tuple[float, float, Float]
"""A lower and an upper bound on a norm of a matrix, and what attains the lower at dual norm one."""


Solver = Callable[[Float], Bracket]


def _trimmed(solver: Solver) -> Solver:
    """A solver for any matrix of finite numbers from one for entries near one and no zero row or column.

    It remembers a few: a certificate asks twice for each norm.
    """

    @lru_cache(maxsize=KEPT)
    def remembered(data: bytes, shape: tuple[int, int]) -> Bracket:
        W = np.frombuffer(data).reshape(shape)
        at, out = np.ix_(W.any(1), W.any(0)), np.zeros(W.shape)
        if not W.any():
            return 0.0, 0.0, out
        power = int(np.frexp(np.abs(W).max())[1])
        lower, upper, out[at] = solver(np.ldexp(W, -power)[at])
        out.flags.writeable = False
        return float(np.ldexp(lower, power)), float(np.ldexp(upper, power)), out

    return lambda W: remembered(np.ascontiguousarray(W).tobytes(), W.shape)


def _narrowed(best: Bracket, found: Bracket) -> Bracket:
    lower = found if found[0] > best[0] else best
    return lower[0], min(best[1], found[1]), lower[2]


# ---------------------------------------------------------------------- γ₂


@_trimmed
def _factored(W: Float) -> Bracket:
    """γ₂(W) as the largest f(c) over c = (a, b) ≥ 0 with Σ c = 2,  f(c) = ‖diag(a)^½ W diag(b)^½‖_*.

    f is concave, and its gradient is half the squared length of the rows of K and Q, the balanced factors at
    c: where c is positive they are equally long in the end, and elsewhere shorter. An interior point on
    c (τ − ∇f(c)) = μ,  which falls only where that nearly holds: f bends sharply where some a and b vanish.
    """
    d, c = len(W), np.full(sum(W.shape), 2.0 / sum(W.shape))
    best: Bracket = (0.0, np.inf, np.zeros(W.shape))
    tau, mu, since = 0.0, 0.0, 0
    for _ in range(STEPS):
        root = np.sqrt(c)
        U, sigma, Vt = np.linalg.svd(root[:d, None] * W * root[d:], full_matrices=False)
        before, best = best, _narrowed(best, _at(W, root, U, sigma, Vt))
        since = since + 1 if best[:2] == before[:2] else 0
        if best[1] - best[0] <= GOAL * best[1] or since > PATIENCE:
            break
        X = np.vstack([U, Vt.T])
        rows = (X * X) @ sigma / (2 * c)
        tau = tau or 1.1 * float(rows.max())
        products = c * (tau - rows)
        mu = mu or float(products.mean())
        mu *= AIM if np.abs(products - mu).max() <= mu / 2 else 1.0
        matrix = _bend(X, sigma, d)
        np.einsum("ii->i", matrix)[:] += np.clip(products, mu / FAR, mu * FAR)
        step, along = np.linalg.solve(matrix, np.stack([mu - products, c], 1)).T
        dtau = float(c @ step) / float(c @ along)
        step = step - dtau * along
        length = min(1.0, BOUNDARY / max(float(-step.min()), BOUNDARY))
        c, tau = c * (1 + length * step), tau + length * dtau
        c *= 2 / c.sum()
    return best


def _at(W: Float, root: Float, U: Float, sigma: Float, Vt: Float) -> Bracket:
    """What c says: below, f(c); above, the longest rows of K and Q, with room in them for E = W − K Qᵀ.

    E goes into further columns: beside the rows that are shorter than the longest, [K, α E] [Q, 1/α]ᵀ costs
    no more than E² per room. Rows where c is tiny follow from the other factor, or they would be noise.
    """
    d, n = len(W), len(root)
    half = np.sqrt(sigma)
    K, Q = U * half / root[:d, None], Vt.T * half / root[d:, None]
    tiny, over = root**2 < 1e-3 / n, 1 / np.where(half > 0, half, np.inf)
    K[tiny[:d]] = (W[tiny[:d]] * root[d:]) @ Vt.T * over
    Q[tiny[d:]] = (W[:, tiny[d:]] * root[:d, None]).T @ U * over
    E, count = W - K @ Q.T, (n + 8) * EPSILON
    rounding = np.linalg.norm(count * (np.abs(K) @ np.abs(Q).T + np.abs(W)))
    long, wide = (K * K).sum(1), (Q * Q).sum(1)
    top = float(np.sqrt(long.max() * wide.max()))
    above, beside = (np.maximum(top * (1 - x / x.max()), 1e-13 * top) for x in (long, wide))
    own = above[:, None] >= beside
    extra = (((E * own) ** 2).sum(1) / above).max() + (((E * ~own) ** 2).sum(0) / beside).max()
    lower = float(sigma.sum() / (root @ root) * 2) * (1 - 8 * n * len(sigma) ** 0.5 * EPSILON)
    upper = float(top * (1 + 1e-13) + extra + rounding) * (1 + count)
    return lower, upper, (root[:d, None] * U) @ (Vt * root[d:])


def _bend(X: Float, sigma: Float, d: int) -> Float:
    """−∇²f in units of c: ½ Σ_ij σ_i σ_j / (σ_i + σ_j) (x_i x_iᵀ) ∘ (x_j x_jᵀ), negative between a and b.

    The weights of the pairs are Σ_q s_q s_qᵀ, and few s_q exceed rounding: the eigenvalues of such a matrix
    fall fast. Each of them adds the squared entries of X diag(s_q) Xᵀ, one product for all pairs.
    """
    real = sigma > EPSILON * sigma[0]
    X, sigma = X[:, real], sigma[real]
    sizes, vectors = np.linalg.eigh(sigma[:, None] * sigma / (2 * (sigma[:, None] + sigma)))
    large = sizes > len(sizes) * EPSILON * sizes[-1]
    shares, some = (vectors[:, large] * np.sqrt(sizes[large])).T, max(1, PAIRS // len(X) ** 2)
    out = np.zeros((len(X), len(X)))
    for q in range(0, len(shares), some):
        products = (shares[q : q + some, None] * X) @ X.T
        out += np.einsum("qij,qij->ij", products, products)
    out[:d, d:] *= -1
    out[d:, :d] *= -1
    return out


# ---------------------------------------------------------------------- γ₂*


@_trimmed
def _correlated(G: Float) -> Bracket:
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
            best = _narrowed(best, _between(G, X, y))
            if best[1] - best[0] <= GOAL * best[1]:
                break
            of_X, of_Z = _unrooted(X), _unrooted(np.diag(y) - C)
            inverse = of_Z.T @ of_Z
            dy = np.linalg.solve(inverse * X, mu * np.diagonal(inverse) - 1)
            dX = mu * inverse - inverse @ (dy[:, None] * X) - X
            dX = (dX + dX.T) / 2
            primal, dual = _inside(of_X @ dX @ of_X.T), _inside((of_Z * dy) @ of_Z.T)
        except np.linalg.LinAlgError:  # rounding has reached the boundary of the cone
            break
        X, y = X + primal * dX, y + dual * dy
        # A long step deserves a bolder aim.
        mu = float(np.vdot(X, np.diag(y) - C)) / n * (AIM if min(primal, dual) > 0.8 else 0.5)
    return best


def _between(G: Float, X: Float, y: Float) -> Bracket:
    """What X and y say: below, the correlations in X; above, C ⪯ s diag(y), s the largest singular value."""
    d = len(G)
    root, count = np.sqrt(y), 8 * sum(G.shape) * min(G.shape) ** 0.5 * EPSILON
    s = np.linalg.svd(G / 2 / root[:d, None] / root[d:], compute_uv=False)[0]
    W = X[:d, d:] / float(np.diagonal(X).max())
    return float(np.vdot(G, W)) * (1 - count), float(s * y.sum()) * (1 + count), W


# ---------------------------------------------------------------------- details


def _unrooted(X: Float) -> Float:
    """L⁻¹ for X = L Lᵀ; LinAlgError where X is not positive definite."""
    lower, failed = dpotrf(X, lower=1)
    found, singular = dtrtri(lower, lower=1)
    if failed or singular:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    return np.asarray(found)


def _inside(step: Float) -> float:
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


def _one(W: Any) -> Float:
    matrix = _matrix(W)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"a bracket is that of one matrix (d, e) of finite numbers, not {matrix.shape}.")
    return matrix


def _each(norm: Callable[[Float], Any], W: Any, unknown: Any) -> Any:
    """A function of every matrix (…, d, e); unknown where an entry is not finite."""
    array = _matrix(W)
    shape = array.shape[:-2]
    flat = array.reshape(-1, *array.shape[-2:])
    found = [norm(M) if np.isfinite(M).all() else unknown for M in flat]
    out = np.reshape(found, (*shape, *np.shape(unknown)))
    return out.reshape(np.shape(W)) if np.ndim(unknown) else out
