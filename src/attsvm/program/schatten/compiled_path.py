"""The central path of a small program, compiled: there NumPy's calls, the general path's too, are the time.

    min cᵀy  with  S = [[I, C], [Cᵀ, I]] ⪰ 0,  l ≥ 0,   C and l linear in y
    S X = μ I,  l x = μ,  C*(2 X₁₂) + l* x = c           on the path, μ → 0

S and l follow y exactly, and X, x reach their equation with the first full step.
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import compiled, inner
from attsvm.program.schatten.cholesky import factor, substitute

STEPS, TURNS = 30, 4
"""Newton steps at most; solves with each factor, of which all but the first correct the second order."""

FIRST = 0.1
"""Part of the way to its aim that the first step is expected to leave out."""

SHORT = 0.1
"""Step length below which the second order has misled."""

RIDGE = 2e-15
"""Part of the Newton matrix's diagonal, weighed against its largest entry, that is added to it: y need
not be unique, and a direction that nothing determines is then left alone."""


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
    dy, dS, dX, dl, dx, U, some, H = room[:8]
    size, share, gap = len(S), FIRST, np.inf
    for _ in range(STEPS):
        products = value = 0.0
        for i in range(size):
            for j in range(size):
                products += S[i, j] * X[i, j]
                some[i, j] = S[i, j]
        for j in range(len(l)):
            products += l[j] * x[j]
        for i in range(len(y)):
            value += y[i] * maps[3][i]
        gap = products / abs(value)
        if gap <= goal or not factor(some, some):
            break
        _invert(some, U)
        _newton_matrix(maps, X, U, l, x, room)
        if not factor(H, H):
            break
        # A short step aims at the centre, a long one at the boundary.
        target = share / (3.0 - 2.0 * share) * products / (size + len(l))
        for turns in (TURNS, 1):
            for i in range(size):
                for j in range(size):
                    dS[i, j] = dX[i, j] = 0.0
            for j in range(len(l)):
                dl[j] = dx[j] = 0.0
            for _ in range(turns):
                _direction(maps, point, target, room)
            dual, primal = _reach(l, dl, S, dS, some), _reach(x, dx, X, dX, some)
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


@inner
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


@inner
def _direction(maps, point, target, room):  # type: ignore[no-untyped-def]
    """The step with  S X → target · I − dX dS  and  l x → target − dl dx, from the one before.

    Newton's equation is that of the first order at a given right-hand side; H holds the factor.
    """
    X, l, x = point[2:]
    dy, dS, dX, dl, dx, U, some, H, _, _, aim, pull, other, flat = room
    d, size = maps[0].shape[1], len(X)
    e = size - d
    np.dot(dX, dS, aim)
    for i in range(size):
        for j in range(size):
            aim[i, j] = -aim[i, j]
        aim[i, i] += target
    for j in range(len(l)):
        pull[j] = target - dl[j] * dx[j]
    np.dot(aim, U, some)
    for a in range(d):
        for b in range(e):
            flat[a * e + b] = some[a, d + b] + some[d + b, a]
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
    np.dot(X, dS, some)
    for i in range(size):
        for j in range(size):
            some[i, j] = aim[i, j] - some[i, j]
    np.dot(some, U, other)
    for i in range(size):
        for j in range(size):
            dX[i, j] = 0.5 * (other[i, j] + other[j, i]) - X[i, j]
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
