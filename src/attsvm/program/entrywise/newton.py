"""A Newton step of the interior point, its unit balls, and products with rows in their structure, compiled.

Rows are A_j = δ_j z_jᵀ. structure: delta (k, d), sorted by query; queries (g, e); edges (g + 1,): where the
rows of each query begin and end; line (d,): scratch.
entries (9, N): W, M, V, U, |·|^(·−2), offset, dW, dM, scratch. pairs (4, 2N + k): a, b and their steps,
of the entries with sign +, with sign −, and of the rows.
vectors (7, k): bound, margin, ratio = s/λ, residual, column a = A U/√c, right, remainder. The slack s and the
multiplier λ of a row are its pair; a tied row has slack 0 and a multiplier of any sign.
Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import compiled, inner, with_blas
from attsvm.program.bounds import relative_gap
from attsvm.program.interior_engine import FLOOR

CROSS, CUBE, CURVED = 0, 1, 2
"""The balls of l1, l∞ and lp; see below."""


@compiled
def settle(kind, p, structure, entries, pairs, vectors):  # type: ignore[no-untyped-def]
    """M and the margins at W and λ; both of norm one if curved.

    Returns the divisor of W, Σ λ_j b_j, Σ |λ_j r_j| for the residuals r of the rows, and the relative
    duality gap: 1 while a margin is missing, ∞ where a number is not finite.
    """
    delta, queries, edges, line = structure
    w, M = entries[0], entries[1]
    bound, margin, ratio, residual = vectors[0], vectors[1], vectors[2], vectors[3]
    start = pairs.shape[1] - len(bound)
    slack, multipliers = pairs[0, start:], pairs[1, start:]
    combine(delta, queries, edges, line, multipliers, M)
    size = steep = 1.0
    if kind == CURVED:
        size, steep = rescale(w, M, entries[4], p)
    margins(delta, queries, edges, line, w, margin)
    least, off, value, short, top = np.inf, 0.0, 0.0, 0.0, 0.0
    for j in range(len(bound)):
        bound[j] /= size
        slack[j] /= size
        multipliers[j] /= steep
        ratio[j] = slack[j] / multipliers[j] if slack[j] > 0.0 else 0.0
        residual[j] = slack[j] + bound[j] - margin[j]
        short += abs(multipliers[j] * residual[j])
        value += multipliers[j] * bound[j]
        if bound[j] > top:
            top = bound[j]
        if bound[j] > 0.0:
            least = margin[j] / bound[j] if margin[j] < least * bound[j] else least
        elif -margin[j] > off or (slack[j] == 0.0 and margin[j] > off):
            off = abs(margin[j])  # no bound to be relative to
    upper = 1.0 if kind == CURVED else norm(w, kind == CUBE) * norm(M, kind == CROSS)
    gap = relative_gap(value, least, upper, off / top)
    # Comparisons with NaN are false: a margin that is NaN must not count as large enough.
    return size, value, short, gap if short < np.inf else np.inf


@compiled
def step(kind, p, tau, c, count, least, share, structure, entries, pairs, fixed, vectors, upper):  # type: ignore[no-untyped-def]
    """Predictor, corrector, and a step along it: W and all pairs move; returns τ and the step length of W.

    count: pairs that are not zero; least: the sum of their products below which the corrector does not aim;
    share: how far it may go towards the boundary.
    """
    target = dtau = primal = total = 0.0
    for j in range(pairs.shape[1]):
        total += pairs[0, j] * pairs[1, j]
    for refined in range(2):
        dtau = offset(kind, p, tau, c, target, refined, pairs, entries, fixed)
        dtau += respond(structure, entries, pairs, vectors, upper, c, target, refined)
        complete(kind, dtau, pairs, entries, fixed)
        primal, reached = travel(pairs, kind == CURVED, refined, share if refined else 1.0)
        target = min(total, max(total * (reached / total) ** 3, least)) / count
    for j in range(entries.shape[1]):
        entries[0, j] += primal * entries[6, j]
    return tau + primal * dtau, primal


@inner
def respond(structure, entries, pairs, vectors, upper, c, target, refined):  # type: ignore[no-untyped-def]
    """K x = r − A offset,  dM = Aᵀx,  dW = V ∘ dM + U t,  with one refinement; returns  t = aᵀx / √c."""
    delta, queries, edges, line = structure
    V, tilt, source, y, lift, image = entries[2], entries[3], entries[5], entries[6], entries[7], entries[8]
    margin, ratio, residual, column = vectors[1], vectors[2], vectors[3], vectors[4]
    right, remainder, root = vectors[5], vectors[6], np.sqrt(c)
    start = pairs.shape[1] - len(margin)
    slack, multipliers, ds, x = pairs[0, start:], pairs[1, start:], pairs[2, start:], pairs[3, start:]
    for j in range(len(x)):
        product = target - slack[j] * multipliers[j] - refined * ds[j] * x[j]
        ds[j] = product / multipliers[j] if slack[j] > 0.0 else 0.0
        right[j] = residual[j] + ds[j]
        x[j] = remainder[j] = 0.0
    for j in range(len(y)):
        y[j] = lift[j] = 0.0
    t = 0.0
    for turn in range(1 + refined):
        # dW and t are refined with x: new products with V, up to 1e13, would undo the refinement.
        margins(delta, queries, edges, line, y if turn else source, margin)
        for j in range(len(x)):
            right[j] -= margin[j] + ratio[j] * remainder[j]
            remainder[j] = right[j]
        solve_factored(upper, remainder)
        combine(delta, queries, edges, line, remainder, image)
        beyond = 0.0
        for j in range(len(x)):
            beyond += column[j] * remainder[j] / root
            x[j] += remainder[j]
        for j in range(len(y)):
            y[j] += V[j] * image[j] + beyond * tilt[j]
            lift[j] += image[j]
        t += beyond
    for j in range(len(x)):
        ds[j] -= ratio[j] * x[j]
    return t


@inner
def travel(pairs, curved, take, share):  # type: ignore[no-untyped-def]
    """The primal step, a share of the way to the boundary; the sum of products after it and the dual one.

    take: whether the pairs move.
    """
    a, b, da, db = pairs[0], pairs[1], pairs[2], pairs[3]
    shrink_a = shrink_b = share
    for j in range(len(a)):
        if a[j] > 0.0:
            if -da[j] > shrink_a * a[j]:
                shrink_a = -da[j] / a[j]
            if -db[j] > shrink_b * b[j]:
                shrink_b = -db[j] / b[j]
    if curved:  # it ties W to M: one length for both
        shrink_a = shrink_b = shrink_a if shrink_a > shrink_b else shrink_b
    total = 0.0
    for j in range(len(a)):
        x, y = a[j] + share / shrink_a * da[j], b[j] + share / shrink_b * db[j]
        total += x * y
        if take:
            a[j], b[j] = x, y
    return share / shrink_a, total


# ---------------------------------------------------------------------- products with rows


# NumPy's calls would take longer than small products do. Indices count from zero: a range that might start
# below zero would not vectorise.


@inner
def margins(delta, queries, edges, line, W, out):  # type: ignore[no-untyped-def]
    """δ_jᵀ W z_j: W (d e,) → out (k,)."""
    d, e = len(line), queries.shape[1]
    for g in range(len(queries)):
        for a in range(d):
            image = 0.0
            for b in range(e):
                image += W[a * e + b] * queries[g, b]
            line[a] = image
        for j in range(edges[g], edges[g + 1]):
            total = 0.0
            for a in range(d):
                total += delta[j, a] * line[a]
            out[j] = total


@inner
def combine(delta, queries, edges, line, multipliers, out):  # type: ignore[no-untyped-def]
    """Σ λ_j δ_j z_jᵀ: λ (k,) → out (d e,)."""
    d, e = len(line), queries.shape[1]
    for j in range(d * e):
        out[j] = 0.0
    for g in range(len(queries)):
        for a in range(d):
            line[a] = 0.0
        for j in range(edges[g], edges[g + 1]):
            for a in range(d):
                line[a] += multipliers[j] * delta[j, a]
        for a in range(d):
            for b in range(e):
                out[a * e + b] += line[a] * queries[g, b]


@with_blas
def gram(delta, queries, edges, V, column, diagonal, turned, between, scaled, out):  # type: ignore[no-untyped-def]
    """The upper triangle of  A diag(V) Aᵀ + a aᵀ + diag(θ):  V (d e,), a and θ (k,) → out (k, k).

    g² d e + k² d operations, instead of the k² d e of explicit features.
    turned (e, d), between (g, d), scaled (k, d): scratch.
    """
    (k, d), e = delta.shape, queries.shape[1]
    for g in range(len(queries)):
        for b in range(e):
            for a in range(d):
                turned[b, a] = V[a * e + b] * queries[g, b]
        np.dot(queries[g:], turned, between[g:])
        for h in range(g, len(queries)):
            for j in range(edges[h], edges[h + 1]):
                for a in range(d):
                    scaled[j, a] = between[h, a] * delta[j, a]
        np.dot(delta[edges[g] : edges[g + 1]], scaled.T, out[edges[g] : edges[g + 1]])
        for i in range(edges[g], edges[g + 1]):
            for j in range(k):
                out[i, j] += column[i] * column[j]
            out[i, i] += diagonal[i]


@inner
def solve_factored(upper, x):  # type: ignore[no-untyped-def]
    """x := (Uᵀ U)⁻¹ x."""
    for i in range(len(x)):
        x[i] /= upper[i, i]
        value, row, later = x[i], upper[i, i + 1 :], x[i + 1 :]
        for j in range(len(later)):
            later[j] -= value * row[j]
    for i in range(len(x) - 1, -1, -1):
        total, row, later = x[i], upper[i, i + 1 :], x[i + 1 :]
        for j in range(len(later)):
            total -= row[j] * later[j]
        x[i] = total / upper[i, i]


# ---------------------------------------------------------------------- the unit balls

#   l1:  W = part₊ − part₋,   slack = 1 ∓ M                     pairs (part, slack)
#   l∞:  slack = τ ∓ W,       part₊ − part₋ = M, Σ part = 1     pairs (slack, part), τ the norm
#   lp:  W = sign(M) |M|^(q−1),  1/p + 1/q = 1                  no pairs
#
# Each linearises to  dW = V ∘ dM + U dτ + offset  (U = 0 but for l∞). The lp ball linearises W as a function
# of M if p < 2, M as a function of W if p > 2: of the two, the one with a derivative at zero.


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
    """W and M to lp and lq norm one; bent: |M|^(q−2), or |W|^(p−2) if p > 2. Returns their norms.

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
    """The offset, and fixed (2N,): the step of part without dM and dτ; returns the term of dτ in it."""
    a, b, da, db = pairs[0], pairs[1], pairs[2], pairs[3]
    w, M, V, tilt, bent, out = entries[0], entries[1], entries[2], entries[3], entries[4], entries[5]
    N, constant = len(w), -1.0
    for j in range(N):
        if kind == CURVED:
            out[j] = M[j] * bent[j] - w[j] if p < 2.0 else V[j] * (M[j] - w[j] * bent[j])
            continue
        for side in range(2):
            i, sign = side * N + j, 1.0 - 2.0 * side
            product = target - a[i] * b[i] - refined * da[i] * db[i]
            if kind == CROSS:
                db[i] = 1.0 - sign * M[j] - b[i]
                fixed[i] = (product - a[i] * db[i]) / b[i]
            else:
                da[i] = tau - sign * w[j] - a[i]
                fixed[i] = (product - b[i] * da[i]) / a[i]
        out[j] = fixed[j] - fixed[N + j]
        if kind == CUBE:
            out[j] = V[j] * (M[j] - b[j] + b[N + j] - out[j])
            constant += fixed[j] + fixed[N + j] + b[j] + b[N + j] + tilt[j] / V[j] * out[j]
    if kind != CUBE:
        return 0.0
    for j in range(N):
        out[j] += constant / c * tilt[j]
    return constant / c


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
            remainder = M[j] + lift[j] - b[j] + b[N + j] - db[j] + db[N + j]
            if up > down:
                db[j] += remainder
            else:
                db[N + j] -= remainder
