"""One Newton step of the interior point, compiled, in three calls with the Cholesky factor between them.

rows (a tuple): columns (d, k), queries, edges: see `products`; slack and multipliers (k,), views of the ends of the
pairs a and b; bound, margin, ratio = s/λ, residual, column = A U, right, rest (k,).
entries (a tuple): w, M, V, tilt = U, bent, offset, fixed: see `ball`.
A tied row has slack 0 and a multiplier of any sign.
Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

import numpy as np

from attsvm.program.compiled import compiled, inner
from attsvm.program.entrywise.ball import CROSS, CUBE, CURVED, complete, norm, offset, rescale, weights
from attsvm.program.entrywise.products import combine, gram, margins, solve

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


@compiled
def settle(kind, p, structure, entries, rows):  # type: ignore[no-untyped-def]
    """M and the margins at W and λ; both of norm one if curved.

    Returns what W was multiplied by, Σ λ_j b_j, and the relative duality gap: 1 while a margin is missing.
    """
    columns, queries, edges = structure
    w, M, V, tilt, bent, out, fixed = entries
    slack, multipliers, bound, margin, ratio, residual, column, right, rest = rows
    combine(columns, queries, edges, multipliers, M)
    size = steep = 1.0
    if kind == CURVED:
        size, steep = rescale(w, M, bent, p)
    margins(columns, queries, edges, w, margin)
    least, off, value, top = np.inf, 0.0, 0.0, 0.0
    for j in range(len(slack)):
        bound[j] /= size
        slack[j] /= size
        multipliers[j] /= steep
        value += multipliers[j] * bound[j]
        if bound[j] > top:
            top = bound[j]
        if bound[j] > 0.0:
            least = margin[j] / bound[j] if margin[j] < least * bound[j] else least
        elif -margin[j] > off or (slack[j] == 0.0 and margin[j] > off):
            off = abs(margin[j])  # nothing to scale by: it counts as it is
    upper = 1.0 if kind == CURVED else norm(w, kind == CUBE) * norm(M, kind == CROSS)
    gap = 1.0 - value * least / upper if least > 0.0 else 1.0
    return size, value, gap if gap > off / top else off / top


@compiled
def linearise(kind, p, structure, pairs, entries, rows, matrix):  # type: ignore[no-untyped-def]
    """V, the border and the lower triangle of  K = A diag(V) Aᵀ + a aᵀ/c + diag(s/λ).

    Returns c and Σ |λ_j r_j|, where r is what the rows miss.
    """
    columns, queries, edges = structure
    w, M, V, tilt, bent, out, fixed = entries
    slack, multipliers, bound, margin, ratio, residual, column, right, rest = rows
    c = weights(kind, p, pairs[0], pairs[1], bent, V, tilt)
    short = 0.0
    for j in range(len(slack)):
        ratio[j] = slack[j] / multipliers[j] if slack[j] > 0.0 else 0.0
        residual[j] = slack[j] + bound[j] - margin[j]
        short += abs(multipliers[j] * residual[j])
    gram(columns, queries, edges, V, ratio, rest, matrix)
    if kind == CUBE:
        margins(columns, queries, edges, tilt, column)
        for i in range(len(slack)):
            for j in range(i + 1):
                matrix[i, j] += column[i] * column[j] / c
    return c, short


@compiled
def advance(kind, p, tau, c, least, structure, pairs, entries, rows, moves, lower):  # type: ignore[no-untyped-def]
    """One predictor-corrector step; least: the sum of products to aim at, at least. Returns its length and dτ."""
    a, b, da, db = pairs
    y, lift, more, ds, x = moves
    total = pairs_left = target = primal = t = 0.0
    for j in range(len(a)):
        total += a[j] * b[j]
        pairs_left += 1.0 if a[j] > 0.0 else 0.0
    for refined in range(2):  # look ahead; then aim at the centre, with the error of that step
        t = offset(kind, p, tau, c, target, refined, pairs, entries)
        t += respond(structure, entries, c, rows, moves, lower, target, refined)
        complete(kind, t, pairs, entries, y, lift)
        primal, after = travel(a, b, da, db, kind == CURVED, refined)
        if not refined:
            share = after / total
            target = total * share * share * share
            target = target if target > least else least
            target = (target if target < total else total) / pairs_left
    w = entries[0]
    for j in range(len(w)):
        w[j] = w[j] + primal * y[j] if kind != CROSS else a[j] - a[len(w) + j]
    return primal, t


@inner
def respond(structure, entries, c, rows, moves, lower, target, refined):  # type: ignore[no-untyped-def]
    """K x = r − A offset,  y = V ∘ Aᵀx + U t,  lift = Aᵀx,  refined once if asked; ds, and t = aᵀx / c."""
    columns, queries, edges = structure
    w, M, V, tilt, bent, source, fixed = entries
    slack, multipliers, bound, margin, ratio, residual, column, right, rest = rows
    y, lift, more, ds, x = moves
    for j in range(len(x)):
        wanted = target - slack[j] * multipliers[j] - (ds[j] * x[j] if refined else 0.0)
        ds[j] = wanted / multipliers[j] if slack[j] > 0.0 else 0.0
        right[j] = residual[j] + ds[j]
        x[j] = rest[j] = 0.0
    for j in range(len(y)):
        y[j] = lift[j] = 0.0
    t = 0.0
    for turn in range(1 + refined):
        # y and t are refined with x: new products with V, up to 1e13, would undo the refinement.
        margins(columns, queries, edges, y if turn else source, margin)
        for j in range(len(x)):
            right[j] -= margin[j] + ratio[j] * rest[j]
            rest[j] = right[j]
        solve(lower, rest)
        combine(columns, queries, edges, rest, more)
        beyond = 0.0
        for j in range(len(x)):
            beyond += column[j] * rest[j] / c
            x[j] += rest[j]
        for j in range(len(y)):
            y[j] += V[j] * more[j] + beyond * tilt[j]
            lift[j] += more[j]
        t += beyond
    for j in range(len(x)):
        ds[j] -= ratio[j] * x[j]
    return t


@inner
def travel(a, b, da, db, curved, take):  # type: ignore[no-untyped-def]
    """The primal step to the boundary, or nearly so if taken; the sum of products after it and the dual step."""
    share = BOUNDARY if take else 1.0
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
