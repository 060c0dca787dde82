"""Small programs of the nuclear and the spectral norm, in the one form whose central path is compiled.

    min cᵀy  with  S = [[I, C], [Cᵀ, I]] ⪰ 0,  l ≥ 0,   C and l linear in y
    S X = μ I,  l x = μ,  C*(2 X₁₂) + l* x = c           on the path, μ → 0

S and l follow y exactly, and X, x reach their equation with the first full step. In small programs the time
of the general path is spent in NumPy's calls.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.numbers.compiled import compiled, inner, inner_with_blas
from attsvm.program.bounds import relative_gap
from attsvm.program.rows import Rows

ROOM = 1.2
"""The nuclear slacks are the slacks of this multiple of the Frobenius solution."""

INSIDE, BELOW = 0.95, 0.5
"""Frobenius norm of the first C, and first spectral margin as a share of the largest one for that C."""

MOST = {1.0: 50_000, math.inf: 120_000}
"""Unknowns times rows of their linear maps, by exponent: beyond, BLAS on large blocks outweighs calls."""

STEPS, TURNS = 30, 4
"""Newton steps at most; solves with each factor, of which all but the first correct the second order."""

FIRST = 0.1
"""Share of the way to its target that the first step is expected to leave out."""

SHORT = 0.1
"""Step length below which the second order has misled."""

RIDGE = 2e-15
"""Share of the Newton matrix's diagonal, weighed against its largest entry, that is added to it: y need
not be unique, and a direction that nothing determines is then left alone."""

Maps = tuple[Float, Float, Float, Float]


def fits(w: int, d: int, e: int, norm: Norm) -> bool:
    """Whether a program of w rows and a weight (d, e) is solved faster here than by NumPy."""
    unknowns = w if norm.p == 1 else d * e + 1
    return capabilities_of(norm).acts_on == "singular values" and unknowns * (d * e + w) <= MOST[norm.p]


def solve_small(
    pool: Rows, norm: Norm, W: Float, multipliers: Float, goal: float
) -> tuple[Float, Float, float]:
    """W and λ of least norm, and a bound on their relative gap, from those of the Frobenius norm.

    W (d', e') with margins of at least b.
    """
    multipliers = multipliers / (multipliers @ pool.bound)  # then Σ λ_j A_j = W / ‖W‖²
    return (_nuclear if norm.p == 1 else _spectral)(pool, W, multipliers, goal)


def _nuclear(pool: Rows, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """The dual program:  max bᵀλ  with  ‖M‖ ≤ 1,  M = Σ λ_j A_j,  λ ≥ 0.

    y = l = λ,  C = M;   W = −2 X₁₂,  x = slack.
    """
    features, size = pool.dense, _length(W)
    slack = np.maximum(ROOM * (features @ W.ravel()) - pool.bound, 0.1)
    mean = size / (pool.d + pool.e + len(slack))
    # The first term has the norm INSIDE; the second makes all multipliers positive.
    extra = mean / slack
    multipliers = multipliers * (INSIDE * size) + extra
    multipliers *= INSIDE / (INSIDE + _length(extra @ features))
    both = np.concatenate([features, np.eye(len(slack))], axis=1)
    maps = pool.delta, pool.queries[pool.owner], both, -pool.bound
    start = multipliers, (multipliers @ features).reshape(W.shape), multipliers.copy()
    y, X, _ = _follow(maps, start, slack, (ROOM * W, mean), goal)
    W = -2 * X[: pool.d, pool.d :]
    least = ((features @ W.ravel()) / pool.bound).min()
    return W, y, float(relative_gap(y @ pool.bound, least, X.trace()))


def _spectral(pool: Rows, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """The program at margin γ:  max γ  with  ‖W‖ ≤ 1,  A W ≥ γ b.

    y = (W, γ),  C = W,  l = A W − γ b;   M = −2 X₁₂,  x = λ.
    """
    features, size = pool.dense, _length(W)
    C = W * (INSIDE / size)
    margins = features @ C.ravel()
    value = BELOW * float((margins / pool.bound).min())
    if not value > 0:  # rounding has left no margin to start from
        return W, multipliers, np.inf
    slack, mean = margins - value * pool.bound, value / (pool.d + pool.e + len(margins))
    left, right, both, price = _entries(C, len(margins))
    both[:-1, W.size :], both[-1, W.size :] = features.T, -pool.bound
    start = np.append(C, value), C, slack
    M, dual = W / size**2, multipliers + mean / slack
    y, X, x = _follow((left, right, both, price), start, dual, (M, mean), goal)
    best = float(((features @ y[:-1]) / pool.bound).min())
    inexact = x @ features + 2 * X[: pool.d, pool.d :].ravel()
    steepness = X.trace() + np.sqrt(min(W.shape)) * _length(inexact)
    return y[:-1].reshape(W.shape), x, float(relative_gap(x @ pool.bound / steepness, best, 1.0))


def _length(x: Float) -> float:
    """The Frobenius norm."""
    return math.sqrt(np.vdot(x, x))


def _entries(C: Float, w: int) -> Maps:
    """The maps of unknowns that are the entries of C and one more, without those of l."""
    d, e = C.shape
    left, right = np.zeros((d * e + 1, d)), np.zeros((d * e + 1, e))
    left[:-1].reshape(d, e, d)[...] = np.eye(d)[:, None]
    right[:-1].reshape(d, e, e)[...] = np.eye(e)
    both, price = np.zeros((d * e + 1, d * e + w)), np.zeros(d * e + 1)
    both.ravel()[: d * e * (d * e + w) : d * e + w + 1] = 1.0
    price[-1] = -1.0
    return left, right, both, price


def _follow(
    maps: Maps, start: tuple[Float, Float, Float], x: Float, corner: tuple[Float, float], goal: float
) -> tuple[Float, Float, Float]:
    """y, X and x at the end of the path from start = (y, C, l), x and X with −2 X₁₂ = corner."""
    y, C, l = start
    block, mean = corner
    (d, e), w, N = C.shape, len(l), len(y)
    S = np.eye(d + e)
    S[:d, d:], S[d:, :d] = C, C.T
    # Of all X with this corner, one of small trace: the columns of −block and of the unit matrix.
    width = math.sqrt(_length(block) / math.sqrt(4 * e))
    pair = np.concatenate([block / (-2 * width), width * np.eye(e)])
    X = pair @ pair.T + mean * np.eye(d + e)
    dS, dX, residual, U, scratch, turned = np.zeros((6, d + e, d + e))
    # Allocate zeros: BLAS computes 0 · old + product, and 0 · NaN is NaN.
    (dl, dx, pull), dy, flat = np.zeros((3, w)), np.zeros(N), np.zeros(d * e + w)
    H, image, work = np.zeros((N, N)), np.empty((d * e + w, N)), np.empty((4, d + e))
    room = dy, dS, dX, dl, dx, U, scratch, H, image, work, residual, pull, turned, flat
    follow(maps, (y, S, X, l, x), room, goal)
    return y, X, x


# ---------------------------------------------------------------------- compiled

# Cholesky factors in plain loops: of small matrices a call to LAPACK costs more than its work.


@inner
def factor(matrix, lower):  # type: ignore[no-untyped-def]
    """The lower factor of a matrix given by its lower triangle, maybe in its place; whether there is one."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            total = matrix[i, j]
            for l in range(j):
                total -= lower[i, l] * lower[j, l]
            if j < i:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = np.sqrt(total)
            else:
                return False
    return True


@inner
def substitute(lower, x):  # type: ignore[no-untyped-def]
    """x := (L Lᵀ)⁻¹ x."""
    for i in range(len(x)):
        total = x[i]
        for l in range(i):
            total -= lower[i, l] * x[l]
        x[i] = total / lower[i, i]
    for i in range(len(x) - 1, -1, -1):
        x[i] /= lower[i, i]
        for l in range(i):
            x[l] -= lower[i, l] * x[i]


@compiled
def follow(maps, point, room, goal):  # type: ignore[no-untyped-def]
    """Move point = (y, S, X, l, x) along the path; returns its relative gap.

    maps: left (N, d), right (N, e), both (N, d·e + w), c (N,): C = Σ y_i left_i right_iᵀ, and C and
    l together are bothᵀ y. room: memory for a step and the Newton system.
    The Newton matrix C*(X C(·) S⁻¹) + l* diag(x/l) l needs no eigenvalues.
    Reference: Helmberg, Rendl, Vanderbei, Wolkowicz 1996, "An interior-point method for
    semidefinite programming".
    """
    y, S, X, l, x = point
    dy, dS, dX, dl, dx, U, scratch, H = room[:8]
    size, share, gap = len(S), FIRST, np.inf
    for _ in range(STEPS):
        products = value = 0.0
        for i in range(size):
            for j in range(size):
                products += S[i, j] * X[i, j]
                scratch[i, j] = S[i, j]
        for j in range(len(l)):
            products += l[j] * x[j]
        for i in range(len(y)):
            value += y[i] * maps[3][i]
        gap = products / abs(value)
        if gap <= goal or not factor(scratch, scratch):
            break
        _invert(scratch, U)
        _newton_matrix(maps, X, U, l, x, room)
        if not factor(H, H):
            break
        # After a short step, aim at the centre; after a long one, at the boundary.
        target = share / (3.0 - 2.0 * share) * products / (size + len(l))
        for turns in (TURNS, 1):
            for i in range(size):
                for j in range(size):
                    dS[i, j] = dX[i, j] = 0.0
            for j in range(len(l)):
                dl[j] = dx[j] = 0.0
            for _ in range(turns):
                _direction(maps, point, target, room)
            dual, primal = _reach(l, dl, S, dS, scratch), _reach(x, dx, X, dX, scratch)
            if min(dual, primal) > SHORT:
                break
        if not min(dual, primal) > 0.0:
            break
        share = 1.0 - min(dual, primal)
        for i in range(len(y)):
            y[i] += dual * dy[i]
        for j in range(len(l)):
            l[j] += dual * dl[j]
            x[j] += primal * dx[j]
        for i in range(size):
            for j in range(size):
                S[i, j] += dual * dS[i, j]
                X[i, j] += primal * dX[i, j]
    return gap


@inner_with_blas
def _newton_matrix(maps, X, U, l, x, room):  # type: ignore[no-untyped-def]
    """H_ij = ⟨B_i, X B_j U⟩ + Σ x/l both_i both_j  for  B = [[0, left rightᵀ], [·, 0]]."""
    left, right, both = maps[:3]
    H, image, work = room[7:10]
    (N, d), e = left.shape, right.shape[1]
    for i in range(N):
        for a in range(d + e):
            work[0, a] = work[1, a] = work[2, a] = work[3, a] = 0.0
        for b in range(d):
            for a in range(d + e):
                work[0, a] += left[i, b] * X[b, a]
                work[1, a] += left[i, b] * U[b, a]
        for b in range(e):
            for a in range(d + e):
                work[2, a] += right[i, b] * X[d + b, a]
                work[3, a] += right[i, b] * U[d + b, a]
        for a in range(d):
            for b in range(e):
                total = work[0, a] * work[3, d + b] + work[2, a] * work[1, d + b]
                image[a * e + b, i] = total + work[1, a] * work[2, d + b] + work[3, a] * work[0, d + b]
        for j in range(len(l)):
            image[d * e + j, i] = both[i, d * e + j] * x[j] / l[j]
    np.dot(both, image, H)
    top = 0.0
    for i in range(N):
        top = max(top, H[i, i])
    for i in range(N):
        H[i, i] += RIDGE * np.sqrt(top * H[i, i])


@inner_with_blas
def _direction(maps, point, target, room):  # type: ignore[no-untyped-def]
    """The step with  S X → target · I − dX dS  and  l x → target − dl dx, from the one before.

    Newton's equation is that of the first order at a given right-hand side; H holds the factor.
    """
    X, l, x = point[2:]
    dy, dS, dX, dl, dx, U, scratch, H, _, _, residual, pull, turned, flat = room
    d, size = maps[0].shape[1], len(X)
    e = size - d
    np.dot(dX, dS, residual)
    for i in range(size):
        for j in range(size):
            residual[i, j] = -residual[i, j]
        residual[i, i] += target
    for j in range(len(l)):
        pull[j] = target - dl[j] * dx[j]
    np.dot(residual, U, scratch)
    for a in range(d):
        for b in range(e):
            flat[a * e + b] = scratch[a, d + b] + scratch[d + b, a]
    for j in range(len(l)):
        flat[d * e + j] = pull[j] / l[j]
    np.dot(maps[2], flat, dy)
    for i in range(len(dy)):
        dy[i] -= maps[3][i]
    substitute(H, dy)
    np.dot(dy, maps[2], flat)
    for a in range(d):
        for b in range(e):
            dS[a, d + b] = dS[d + b, a] = flat[a * e + b]
    np.dot(X, dS, scratch)
    for i in range(size):
        for j in range(size):
            scratch[i, j] = residual[i, j] - scratch[i, j]
    np.dot(scratch, U, turned)
    for i in range(size):
        for j in range(size):
            dX[i, j] = 0.5 * (turned[i, j] + turned[j, i]) - X[i, j]
    for j in range(len(l)):
        dl[j] = flat[d * e + j]
        dx[j] = (pull[j] - x[j] * dl[j]) / l[j] - x[j]


@inner
def _reach(l, dl, S, dS, work):  # type: ignore[no-untyped-def]
    """Step that keeps l and S positive: 1, or 90 to 99 % of the largest, which is known to a percent."""
    high, low = 1.2, 0.0
    for j in range(len(l)):
        if l[j] + high * dl[j] < 0.0:
            high = -l[j] / dl[j]
    trial = high
    for _ in range(8):
        for i in range(len(S)):
            for j in range(i + 1):
                work[i, j] = S[i, j] + trial * dS[i, j]
        if factor(work, work):
            low = trial
        else:
            high = trial
        if low == high:
            break
        trial = 0.5 * (low + high)
    return min(1.0, (0.9 + 0.09 * min(low, 1.0)) * low)


@inner
def _invert(L, U):  # type: ignore[no-untyped-def]
    """U = (L Lᵀ)⁻¹, all columns at once."""
    size = len(L)
    for i in range(size):
        for c in range(size):
            U[i, c] = i == c
        for j in range(i):
            for c in range(size):
                U[i, c] -= L[i, j] * U[j, c]
        for c in range(size):
            U[i, c] /= L[i, i]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            for c in range(size):
                U[i, c] -= L[j, i] * U[j, c]
        for c in range(size):
            U[i, c] /= L[i, i]
