"""The interior point of `polyhedral` for tiny problems, compiled: there NumPy's calls outweigh the work.

Same variables, same equations; the rows are dense features (k, N) with N = d e.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from attsvm.tokens import Float

STEPS, GOAL = 60, 1e-10
"""Newton steps at most, and the relative gap at which they end."""


@njit(cache=True)
def interior_point(F: Float, bound: Float, open_: Float, W: Float, multipliers: Float, cube: bool):  # type: ignore[no-untyped-def]
    """Smallest W with F W ≥ bound (= where open is 0): the l∞ norm if cube, else l1.

    F (k, N), bound (k,), open (k,) 1.0 for inequalities, W (N,) with positive margins, multipliers
    (k,). Returns W, multipliers and the relative gap reached, 1.0 if there was no progress.
    """
    k, N = F.shape
    part, slack, w = np.empty((2, N)), np.empty((2, N)), W.copy()
    lam, s, b = multipliers.copy(), np.empty(k), bound.copy()
    size, tau = _start(F, open_, cube, part, slack, w, lam, s, b)
    ahead = (np.zeros((2, N)), np.zeros((2, N)), np.zeros(N), np.zeros(k), np.zeros(k))
    step = (np.zeros((2, N)), np.zeros((2, N)), np.zeros(N), np.zeros(k), np.zeros(k))
    best_w, best_lam, gap = w.copy(), lam.copy(), 1.0
    V, tilt, L, ratio, residual = np.empty(N), np.empty(N), np.empty((k, k)), np.empty(k), np.empty(k)
    pairs = open_.sum() + 2 * N
    for _ in range(STEPS):
        M = np.dot(lam, F)
        margins = np.dot(F, w)
        total = short = value = 0.0
        for j in range(k):
            ratio[j] = s[j] * open_[j] / lam[j]
            residual[j] = s[j] * open_[j] + b[j] - margins[j]
            total += lam[j] * s[j] * open_[j]
            short += abs(lam[j] * residual[j])
            value += lam[j] * b[j]
        c = _weights(part, slack, cube, V, tilt)
        for j in range(N):
            total += part[0, j] * slack[0, j] + part[1, j] * slack[1, j]
        a = np.dot(F, tilt)
        if not _factor(F, V, a, c, ratio, L):
            break
        mu = total / pairs
        state = (part, slack, w, lam, s, M, residual, tau)
        system = (F, L, V, tilt, a, c, ratio, open_)
        _direction(system, state, cube, 0.0, ahead, ahead, False)
        primal, dual = _longest(state, ahead, open_, cube, 1.0)
        reached = _after(state, ahead, open_, cube, primal, dual) / pairs
        least = max(short, 1e-13 * value) / pairs
        target = min(mu, max(mu * (reached / mu) ** 3, least))
        dtau = _direction(system, state, cube, target, ahead, step, True)
        primal, dual = _longest(state, step, open_, cube, 0.995)
        tau += primal * dtau
        _move(state, step, cube, primal, dual)
        now = _gap(np.dot(F, w), b, open_, w, lam, np.dot(lam, F), cube)
        if now < gap:
            best_w, best_lam, gap = w.copy(), lam.copy(), now
        if gap < GOAL:
            break
    for j in range(N):
        best_w[j] *= size
    return best_w, best_lam, gap


@njit(cache=True)
def _norm(x, largest):  # type: ignore[no-untyped-def]
    out = 0.0
    for value in x:
        out = max(out, abs(value)) if largest else out + abs(value)
    return out


@njit(cache=True)
def _start(F, open_, cube, part, slack, w, lam, s, b):  # type: ignore[no-untyped-def]
    """Norms one, and everything a tenth away from its boundary; returns the scale of W and τ."""
    size, steep = _norm(w, cube), _norm(np.dot(lam, F), not cube)
    value = top = 0.0
    for j in range(len(w)):
        w[j] /= size
    for j in range(len(b)):
        b[j] /= size
        lam[j] /= steep
        value += lam[j] * b[j]
        top = max(top, b[j])
    margins = np.dot(F, w)
    for j in range(len(b)):
        s[j] = 1.0
        if open_[j] > 0:
            s[j] = max(margins[j] - b[j], 0.1 * top)
            lam[j] = max(lam[j], 0.1 * value / len(b) / s[j])
    M = np.dot(lam, F)
    x = M if cube else w
    room, tau = 0.1 * _norm(x, False) / len(x), 1.1 * _norm(w, True)
    for j in range(len(w)):
        part[0, j], part[1, j] = max(x[j], 0.0) + room, max(-x[j], 0.0) + room
        slack[0, j] = tau - w[j] if cube else max(1.0 - M[j], 0.1)
        slack[1, j] = tau + w[j] if cube else max(1.0 + M[j], 0.1)
    return size, tau


@njit(cache=True)
def _weights(part, slack, cube, V, tilt):  # type: ignore[no-untyped-def]
    """V, the direction of τ, and its stiffness (1 and no direction for l1)."""
    c = 0.0
    for j in range(len(V)):
        up, down = part[0, j] / slack[0, j], part[1, j] / slack[1, j]
        V[j] = 1.0 / (up + down) if cube else up + down
        tilt[j] = V[j] * (up - down) if cube else 0.0
        c += 4.0 * up * V[j] * down
    return c if cube else 1.0


@njit(cache=True)
def _factor(F, V, a, c, ratio, L):  # type: ignore[no-untyped-def]
    """Cholesky factor of F diag(V) Fᵀ + a aᵀ/c + diag(ratio) in L; whether it exists."""
    scaled = np.empty((len(V), len(L)))
    for i in range(len(L)):
        for l in range(len(V)):
            scaled[l, i] = F[i, l] * V[l]
    np.dot(F, scaled, L)
    for i in range(len(L)):
        for j in range(i + 1):
            L[i, j] += a[i] * a[j] / c
        L[i, i] += ratio[i]
    return _cholesky(L)


@njit(cache=True)
def _direction(system, state, cube, target, before, step, refined):  # type: ignore[no-untyped-def]
    """Fill step = d(part, slack, W, λ, s), as the balls of `polyhedral` do; returns dτ.

    The second-order terms of before count when refined.
    """
    F, _, V, tilt, _, c, ratio, open_ = system
    part, slack, w, lam, s, M, residual, tau = state
    dpart, dslack, dw, dlam, ds = step
    k, N = F.shape
    fixed, offset, right, lean = np.empty((2, N)), np.empty(N), np.empty(k), -1.0
    for j in range(N):
        for side in range(2):
            sign = 1.0 - 2.0 * side
            outside = (tau - sign * w[j] if cube else 1.0 - sign * M[j]) - slack[side, j]
            second = before[0][side, j] * before[1][side, j] if refined else 0.0
            fixed[side, j] = (target - second - part[side, j] * outside) / slack[side, j] - part[side, j]
            dslack[side, j] = outside
        offset[j] = fixed[0, j] - fixed[1, j]
        if cube:
            offset[j] = V[j] * (M[j] - part[0, j] + part[1, j] - offset[j])
            lean += fixed[0, j] + fixed[1, j] + part[0, j] + part[1, j] + tilt[j] / V[j] * offset[j]
    lean = lean / c if cube else 0.0
    for j in range(N):
        offset[j] += lean * tilt[j]
    shift = np.dot(F, offset)
    for j in range(k):
        second = before[3][j] * before[4][j] if refined else 0.0
        ds[j] = (target - lam[j] * s[j] - second) * open_[j] / lam[j]
        right[j] = residual[j] - shift[j] + ds[j]
    t = _respond(system, right, dlam, dw, refined)
    dM = np.dot(dlam, F)
    for j in range(k):
        ds[j] -= ratio[j] * dlam[j]
    for j in range(N):
        _complete(part, slack, dpart, dslack, fixed, V, M, dM, dw, j, cube, offset[j], lean + t)
    return lean + t


@njit(cache=True)
def _complete(part, slack, dpart, dslack, fixed, V, M, dM, dw, j, cube, offset, dtau):  # type: ignore[no-untyped-def]
    """The ball's own steps at entry j, from y (in dw) and dM."""
    up, down = part[0, j] / slack[0, j], part[1, j] / slack[1, j]
    if not cube:
        dpart[0, j] = fixed[0, j] + up / V[j] * dw[j]
        dpart[1, j] = fixed[1, j] - down / V[j] * dw[j]
        dslack[0, j] -= dM[j]
        dslack[1, j] += dM[j]
        dw[j] = dpart[0, j] - dpart[1, j]
        return
    dw[j] += offset
    dpart[0, j] = fixed[0, j] - up * (dtau - dw[j])
    dpart[1, j] = fixed[1, j] - down * (dtau + dw[j])
    dslack[0, j] += dtau - dw[j]
    dslack[1, j] += dtau + dw[j]
    rest = M[j] + dM[j] - part[0, j] + part[1, j] - dpart[0, j] + dpart[1, j]
    if up > down:
        dpart[0, j] += rest
    else:
        dpart[1, j] -= rest


@njit(cache=True)
def _respond(system, right, x, y, refined):  # type: ignore[no-untyped-def]
    """x, y of `WorkingRows.newton` into place, refined once if asked; returns t."""
    F, L, V, tilt, a, c, ratio, _ = system
    x[:], y[:], t, rest = 0.0, 0.0, 0.0, right.copy()
    for _ in range(2 if refined else 1):
        _solve(L, rest)
        more, beyond = np.dot(rest, F), np.dot(a, rest) / c
        for j in range(len(x)):
            x[j] += rest[j]
        for j in range(len(y)):
            y[j] += V[j] * more[j] + beyond * tilt[j]
        t += beyond
        shift = np.dot(F, y)
        for j in range(len(x)):
            rest[j] = right[j] - shift[j] - ratio[j] * x[j]
    return t


@njit(cache=True)
def _longest(state, step, open_, cube, share):  # type: ignore[no-untyped-def]
    """Primal and dual step to the given share of the boundary."""
    of_part = of_slack = of_s = of_lam = 0.0
    for j in range(len(step[2])):
        for side in range(2):
            of_part = max(of_part, -step[0][side, j] / state[0][side, j])
            of_slack = max(of_slack, -step[1][side, j] / state[1][side, j])
    for j in range(len(open_)):
        of_s = max(of_s, -step[4][j] / state[4][j])
        of_lam = max(of_lam, -open_[j] * step[3][j] / state[3][j])
    primal = max(of_slack if cube else of_part, of_s)
    dual = max(of_part if cube else of_slack, of_lam)
    return min(1.0, share / max(primal, 1e-300)), min(1.0, share / max(dual, 1e-300))


@njit(cache=True)
def _after(state, step, open_, cube, primal, dual):  # type: ignore[no-untyped-def]
    """Sum of the complementary products after a step."""
    on_part, on_slack = (dual, primal) if cube else (primal, dual)
    total = 0.0
    for j in range(len(step[2])):
        for side in range(2):
            x = state[0][side, j] + on_part * step[0][side, j]
            total += x * (state[1][side, j] + on_slack * step[1][side, j])
    for j in range(len(open_)):
        total += open_[j] * (state[3][j] + dual * step[3][j]) * (state[4][j] + primal * step[4][j])
    return total


@njit(cache=True)
def _move(state, step, cube, primal, dual):  # type: ignore[no-untyped-def]
    on_part, on_slack = (dual, primal) if cube else (primal, dual)
    for j in range(len(step[2])):
        for side in range(2):
            state[0][side, j] += on_part * step[0][side, j]
            state[1][side, j] += on_slack * step[1][side, j]
        state[2][j] += primal * step[2][j]
    for j in range(len(step[3])):
        state[3][j] += dual * step[3][j]
        state[4][j] += primal * step[4][j]


@njit(cache=True)
def _gap(margins, b, open_, w, lam, M, cube):  # type: ignore[no-untyped-def]
    least, off = np.inf, 0.0
    for j in range(len(b)):
        if b[j] > 0:
            least = min(least, margins[j] / b[j])
        else:
            off = max(off, -margins[j] if open_[j] > 0 else abs(margins[j]))
    if not least > 0:
        return 1.0
    lower = np.dot(lam, b) / _norm(M, not cube)
    return max(1.0 - lower * least / _norm(w, cube), off / _norm(b, True))


@njit(cache=True)
def _cholesky(A):  # type: ignore[no-untyped-def]
    """Lower factor in place; whether A was positive."""
    for j in range(len(A)):
        for i in range(j, len(A)):
            total = A[i, j]
            for l in range(j):
                total -= A[i, l] * A[j, l]
            if i == j:
                if not total > 0:
                    return False
                A[j, j] = np.sqrt(total)
            else:
                A[i, j] = total / A[j, j]
    return True


@njit(cache=True)
def _solve(L, x):  # type: ignore[no-untyped-def]
    """x := (L Lᵀ)⁻¹ x."""
    for i in range(len(x)):
        for l in range(i):
            x[i] -= L[i, l] * x[l]
        x[i] /= L[i, i]
    for i in range(len(x) - 1, -1, -1):
        x[i] /= L[i, i]
        for l in range(i):
            x[l] -= L[i, l] * x[i]
