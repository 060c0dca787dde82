"""The unit balls, compiled: what an interior point must know about the l1, l∞ and lp norms.

    l1:  W = part₊ − part₋,   slack = 1 ∓ M              pairs (part, slack)
    l∞:  slack = τ ∓ W,       part₊ − part₋ = M, Σ part = 1     pairs (slack, part), τ the norm
    lp:  W = sign(M) |M|^(q−1),  1/p + 1/q = 1           no pairs

Each linearises to  dW = V ∘ dM + U dτ + offset  (U = 0 but for l∞). The lp ball linearises W as a function
of M if p < 2, M as a function of W if p > 2: of the two, the one with a derivative at zero.

entries (9, N): W, M, V, U, |·|^(·−2), offset, dW, dM, scratch. pairs (4, 2N + k): a, b and their steps,
of the entries with sign +, with sign −, and of the rows.
"""

from __future__ import annotations

from attsvm.numbers.compiled import compiled, inner

CROSS, CUBE, CURVED = 0, 1, 2
"""The balls of l1, l∞ and lp."""

FLOOR = 1e-10
"""Least curvature of |W|^p, p > 2, relative to that of an entry 1: it vanishes at W = 0."""


@inner
def norm(x, largest):  # type: ignore[no-untyped-def]
    """The l∞ norm, or the l1 norm."""
    top = total = 0.0
    for j in range(len(x)):
        size = abs(x[j])
        total += size
        if size > top:
            top = size
    return top if largest else total


@inner
def rescale(w, M, bent, p):  # type: ignore[no-untyped-def]
    """W and M to lp and lq norm one; bent: |M|^(q−2), or |W|^(p−2) if p > 2. Returns what they were.

    As at the solution: radial errors of |W|^p would shrink slowly.
    """
    q = p / (p - 1.0)
    top_w, top_m, of_w, of_m = norm(w, True), norm(M, True), 0.0, 0.0
    for j in range(len(w)):
        x, y = abs(w[j]) / top_w, abs(M[j]) / top_m
        if p < 2.0:
            bent[j] = y ** (q - 2.0)
            of_w += x**p
            of_m += bent[j] * y * y
        else:
            bent[j] = x ** (p - 2.0)
            of_w += bent[j] * x * x
            of_m += y**q
    size, steep = of_w ** (1.0 / p), of_m ** (1.0 / q)
    unit = steep ** (q - 2.0) if p < 2.0 else size ** (p - 2.0)
    for j in range(len(w)):
        w[j] /= size * top_w
        M[j] /= steep * top_m
        bent[j] /= unit
    return size * top_w, steep * top_m


@compiled
def weights(kind, p, pairs, entries):  # type: ignore[no-untyped-def]
    """Fill V, and for l∞ U = tilt; returns the stiffness of τ (1 where there is none)."""
    a, b, V, tilt, bent = pairs[0], pairs[1], entries[2], entries[3], entries[4]
    N, c = len(V), 1.0 if kind != CUBE else 0.0
    for j in range(N):
        if kind == CURVED:
            V[j] = bent[j] / (p - 1.0) if p < 2.0 else 1.0 / ((p - 1.0) * bent[j] + FLOOR)
        elif kind == CROSS:
            V[j] = a[j] / b[j] + a[N + j] / b[N + j]
        else:
            up, down = b[j] / a[j], b[N + j] / a[N + j]
            V[j] = 1.0 / (up + down)
            tilt[j] = V[j] * (up - down)
            c += 4.0 * up * V[j] * down
    return c


@inner
def offset(kind, p, tau, c, target, refined, pairs, entries, fixed):  # type: ignore[no-untyped-def]
    """The offset, and fixed (2N,): the step of part without dM and dτ; returns the share of dτ in it."""
    a, b, da, db = pairs[0], pairs[1], pairs[2], pairs[3]
    w, M, V, tilt, bent, out = entries[0], entries[1], entries[2], entries[3], entries[4], entries[5]
    N, lean = len(w), -1.0
    for j in range(N):
        if kind == CURVED:
            out[j] = M[j] * bent[j] - w[j] if p < 2.0 else V[j] * (M[j] - w[j] * bent[j])
            continue
        for side in range(2):
            i, sign = side * N + j, 1.0 - 2.0 * side
            wanted = target - a[i] * b[i] - refined * da[i] * db[i]
            if kind == CROSS:
                db[i] = 1.0 - sign * M[j] - b[i]
                fixed[i] = (wanted - a[i] * db[i]) / b[i]
            else:
                da[i] = tau - sign * w[j] - a[i]
                fixed[i] = (wanted - b[i] * da[i]) / a[i]
        out[j] = fixed[j] - fixed[N + j]
        if kind == CUBE:
            out[j] = V[j] * (M[j] - b[j] + b[N + j] - out[j])
            lean += fixed[j] + fixed[N + j] + b[j] + b[N + j] + tilt[j] / V[j] * out[j]
    if kind != CUBE:
        return 0.0
    for j in range(N):
        out[j] += lean / c * tilt[j]
    return lean / c


@inner
def complete(kind, dtau, pairs, entries, fixed):  # type: ignore[no-untyped-def]
    """The steps of the ball's pairs, from  dW = V ∘ dM + U t  and dM; then dW has its offset too."""
    a, b, da, db = pairs[0], pairs[1], pairs[2], pairs[3]
    M, V, out, y, lift = entries[1], entries[2], entries[5], entries[6], entries[7]
    N = len(y)
    for j in range(N):
        if kind == CROSS:
            da[j] = fixed[j] + a[j] / b[j] / V[j] * y[j]
            da[N + j] = fixed[N + j] - a[N + j] / b[N + j] / V[j] * y[j]
            db[j] -= lift[j]
            db[N + j] += lift[j]
        y[j] += out[j]
        if kind == CUBE:
            up, down = b[j] / a[j], b[N + j] / a[N + j]
            db[j] = fixed[j] - up * (dtau - y[j])
            db[N + j] = fixed[N + j] - down * (dtau + y[j])
            da[j] += dtau - y[j]
            da[N + j] += dtau + y[j]
            # The stiffer side would amplify rounding in dW: it follows from part₊ − part₋ = M instead.
            rest = M[j] + lift[j] - b[j] + b[N + j] - db[j] + db[N + j]
            if up > down:
                db[j] += rest
            else:
                db[N + j] -= rest
