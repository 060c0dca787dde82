"""The interior point of `polyhedral` for tiny problems, compiled: there NumPy's calls outweigh the work.

Same variables, same equations; the rows are dense features (k, N) with N = d e.
"""

from __future__ import annotations

import numpy as np

from attsvm.program.compiled import compiled, inner

STEPS, GOAL = 60, 1e-10
"""Newton steps at most, and the relative gap at which they end."""


@compiled
def newton_steps(F, b, open_, state, best, tau, cube):  # type: ignore[no-untyped-def]
    """Improve state = (part, slack, W, λ, s) until the gap is small; returns the gap reached, or 1.0.

    F (k, N), b (k,), open (k,): 1.0 for inequalities. part, slack (2, N), W (N,), λ and s (k,), all
    but W and the λ of ties positive, norms near one. cube: the l∞ norm, else l1; tau: the norm of W.
    best: W (N,) and λ (k,) of the smallest gap, out.
    """
    part, slack, w, lam = state[:4]
    (k, N), gap, M = F.shape, 1.0, np.empty(F.shape[1])
    margins, residual, ratio, a, L = np.empty(k), np.empty(k), np.empty(k), np.empty(k), np.empty((k, k))
    ahead = (np.empty((2, N)), np.empty((2, N)), np.empty(N), np.empty(k), np.empty(k))
    final = (np.empty((2, N)), np.empty((2, N)), np.empty(N), np.empty(k), np.empty(k))
    memory = (np.empty((2, N)), np.empty(N), np.empty(N), np.empty(k), np.empty(k), np.empty((N, k)))
    system = (F, L, np.empty(N), np.empty(N), a, ratio, open_, M, residual)
    for _ in range(STEPS):
        times(F, w, margins)
        sums(F, lam, M)
        gap = _keep(_gap(margins, b, open_, w, lam, M, cube), gap, w, lam, best)
        total, rough, pairs = _products(state, b, open_, margins, ratio, residual)
        c = _weights(part, slack, cube, system[2], system[3])
        times(F, system[3], a)
        if gap < GOAL or not _factor(F, system[2], a, c, ratio, L, memory[5]):
            break
        target = 0.0
        for refined in range(2):  # look ahead; then aim at the centre, with the error of that step
            step = final if refined else ahead  # a literal True would compile the callee once more
            dtau = _direction(system, state, cube, tau, c, target, ahead, step, refined, memory)
            primal, dual = _longest(state, step, open_, cube, 0.995 if refined else 1.0)
            if refined:
                _move(state, step, cube, primal, dual)
                tau += primal * dtau
            else:
                reached = _after(state, step, open_, cube, primal, dual)
                target = min(total, max(total * (reached / total) ** 3, rough)) / pairs
    return gap


@inner
def _keep(now, gap, w, lam, best):  # type: ignore[no-untyped-def]
    """Copy the point if it is the best so far; the smaller gap."""
    if now < gap:
        for j in range(len(w)):
            best[0][j] = w[j]
        for j in range(len(lam)):
            best[1][j] = lam[j]
    return min(now, gap)


@inner
def _products(state, b, open_, margins, ratio, residual):  # type: ignore[no-untyped-def]
    """Fill s/λ and the shortfall of each row. The sum of complementary products, its floor, their number."""
    part, slack, w, lam, s = state
    total = short = value = 0.0
    pairs = 2.0 * len(w)
    for j in range(len(b)):
        ratio[j] = s[j] * open_[j] / lam[j]
        residual[j] = s[j] * open_[j] + b[j] - margins[j]
        total += lam[j] * s[j] * open_[j]
        short += abs(lam[j] * residual[j])
        value += lam[j] * b[j]
        pairs += open_[j]
    for j in range(len(w)):
        total += part[0, j] * slack[0, j] + part[1, j] * slack[1, j]
    return total, max(short, 1e-13 * value), pairs


@inner
def times(F, x, out):  # type: ignore[no-untyped-def]
    """out = F x."""
    for i in range(F.shape[0]):
        total = 0.0
        for l in range(F.shape[1]):
            total += F[i, l] * x[l]
        out[i] = total


@inner
def sums(F, y, out):  # type: ignore[no-untyped-def]
    """out = Fᵀ y."""
    for l in range(F.shape[1]):
        out[l] = 0.0
    for i in range(F.shape[0]):
        weight = y[i]
        for l in range(F.shape[1]):
            out[l] += weight * F[i, l]


@inner
def _norm(x, largest):  # type: ignore[no-untyped-def]
    """The l∞ norm, or the l1 norm."""
    top = total = 0.0
    for j in range(len(x)):
        top = max(top, abs(x[j]))
        total += abs(x[j])
    return top if largest else total


@inner
def _weights(part, slack, cube, V, tilt):  # type: ignore[no-untyped-def]
    """V, the direction of τ, and its stiffness (1 and no direction for l1)."""
    c = 0.0
    for j in range(len(V)):
        up, down = part[0, j] / slack[0, j], part[1, j] / slack[1, j]
        V[j] = 1.0 / (up + down) if cube else up + down
        tilt[j] = V[j] * (up - down) if cube else 0.0
        c += 4.0 * up * V[j] * down
    return c if cube else 1.0


@inner
def _factor(F, V, a, c, ratio, L, scaled):  # type: ignore[no-untyped-def]
    """Cholesky factor of F diag(V) Fᵀ + a aᵀ/c + diag(ratio) in L; whether it exists."""
    for i in range(len(L)):
        for l in range(len(V)):
            scaled[l, i] = F[i, l] * V[l]
    np.dot(F, scaled, L)
    for i in range(len(L)):
        for j in range(i + 1):
            L[i, j] += a[i] * a[j] / c
        L[i, i] += ratio[i]
    return _cholesky(L)


@inner
def _direction(system, state, cube, tau, c, target, before, step, refined, memory):  # type: ignore[no-untyped-def]
    """Fill step = d(part, slack, W, λ, s), as the balls of `polyhedral` do; returns dτ.

    The second-order terms of before count when refined.
    """
    F, _, V, tilt, _, ratio, open_, M, residual = system
    part, slack, w, lam, s = state
    dpart, dslack, dw, dlam, ds = step
    fixed, offset, dM, right, shift, _ = memory
    lean = -1.0
    for j in range(len(w)):
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
    for j in range(len(w)):
        offset[j] += lean * tilt[j]
    times(F, offset, shift)
    for j in range(len(s)):
        second = before[3][j] * before[4][j] if refined else 0.0
        ds[j] = (target - lam[j] * s[j] - second) * open_[j] / lam[j]
        right[j] = residual[j] - shift[j] + ds[j]
    t = lean + _respond(system, c, right, dlam, dw, refined, shift, dM)
    sums(F, dlam, dM)
    for j in range(len(s)):
        ds[j] -= ratio[j] * dlam[j]
    for j in range(len(w)):
        _complete(part, slack, dpart, dslack, fixed, V, M, dM, dw, j, cube, offset[j], t)
    return t


@inner
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


@inner
def _respond(system, c, right, x, y, refined, rest, more):  # type: ignore[no-untyped-def]
    """x, y of `WorkingRows.newton` into place, refined once if asked; returns t. Scratch: rest, more."""
    F, L, V, tilt, a, ratio = system[:6]
    t = 0.0
    for j in range(len(x)):
        x[j], rest[j] = 0.0, right[j]
    for j in range(len(y)):
        y[j] = 0.0
    for turn in range(1 + refined):
        if turn:
            times(F, y, rest)
            for j in range(len(x)):
                rest[j] = right[j] - rest[j] - ratio[j] * x[j]
        _solve(L, rest)
        sums(F, rest, more)
        beyond = 0.0
        for j in range(len(x)):
            beyond += a[j] * rest[j] / c
            x[j] += rest[j]
        for j in range(len(y)):
            y[j] += V[j] * more[j] + beyond * tilt[j]
        t += beyond
    return t


@inner
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


@inner
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


@inner
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


@inner
def _gap(margins, b, open_, w, lam, M, cube):  # type: ignore[no-untyped-def]
    least, off = np.inf, 0.0
    for j in range(len(b)):
        if b[j] > 0:
            least = min(least, margins[j] / b[j])
        else:
            off = max(off, -margins[j] if open_[j] > 0 else abs(margins[j]))
    if not least > 0:
        return 1.0
    lower, top = 0.0, 0.0
    for j in range(len(b)):
        lower += lam[j] * b[j]
        top = max(top, b[j])
    lower /= _norm(M, not cube)
    return max(1.0 - lower * least / _norm(w, cube), off / top)


@inner
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


@inner
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
