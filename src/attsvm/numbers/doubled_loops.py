"""Compiled sums, products and factors of doubled numbers: arrays hi and lo in, hi and lo out.

Each operation rounds as written here: no sum is reordered, no product fused.
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import exactly, exactly_inner

SPLITTER = 2.0**27 + 1.0


@exactly_inner
def _add_product(total, rest, a, a_low, b, b_low, sign):  # type: ignore[no-untyped-def]
    """total + rest + sign · (a + a_low)(b + b_low), the rounding of the larger parts gathered in rest."""
    a, a_low = sign * a, sign * a_low
    product = a * b
    big = SPLITTER * a
    a_high = big - (big - a)
    big = SPLITTER * b
    b_high = big - (big - b)
    a_rest, b_rest = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_rest + a_rest * b_high) + a_rest * b_rest
    new = total + product
    part = new - total
    rest += (total - (new - part)) + (product - part)
    return new, rest + (error + (a * b_low + a_low * b))


@exactly_inner
def _normal(total, rest):  # type: ignore[no-untyped-def]
    new = total + rest
    part = new - total
    return new, (total - (new - part)) + (rest - part)


@exactly_inner
def _quotient(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
    first = a / b
    total, rest = _normal(*_add_product(a, a_low, first, 0.0, b, b_low, -1.0))
    second = total / b
    total, rest = _normal(*_add_product(total, rest, second, 0.0, b, b_low, -1.0))
    first, second = _normal(first, second)
    return _normal(first, second + total / b)


@exactly
def product(a, a_low, b, b_low, out, out_low):  # type: ignore[no-untyped-def]
    """out += A B: (n, k), (k, m) → (n, m). Column by column the sums are independent, and so in vectors."""
    for i in range(out.shape[0]):
        for c in range(a.shape[1]):
            for j in range(out.shape[1]):
                out[i, j], out_low[i, j] = _add_product(
                    out[i, j], out_low[i, j], a[i, c], a_low[i, c], b[c, j], b_low[c, j], 1.0
                )
        for j in range(out.shape[1]):
            out[i, j], out_low[i, j] = _normal(out[i, j], out_low[i, j])


@exactly
def factor(matrix, low):  # type: ignore[no-untyped-def]
    """The lower Cholesky factor in the place of a matrix (N, N); whether there is one."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            total, rest = matrix[i, j], low[i, j]
            for c in range(j):
                total, rest = _add_product(
                    total, rest, matrix[i, c], low[i, c], matrix[j, c], low[j, c], -1.0
                )
            total, rest = _normal(total, rest)
            if j < i:
                matrix[i, j], low[i, j] = _quotient(total, rest, matrix[j, j], low[j, j])
            elif total > 0.0:
                first = np.sqrt(total)
                total, rest = _normal(*_add_product(total, rest, first, 0.0, first, 0.0, -1.0))
                matrix[i, i], low[i, i] = _normal(first, total / (2.0 * first))
            else:
                return False
    return True


@exactly
def substitute(lower, low, x, x_low):  # type: ignore[no-untyped-def]
    """X := (L Lᵀ)⁻¹ X, for X (N, k)."""
    N = len(lower)
    for k in range(x.shape[1]):
        for i in range(N):
            total, rest = x[i, k], x_low[i, k]
            for c in range(i):
                total, rest = _add_product(total, rest, lower[i, c], low[i, c], x[c, k], x_low[c, k], -1.0)
            total, rest = _normal(total, rest)
            x[i, k], x_low[i, k] = _quotient(total, rest, lower[i, i], low[i, i])
        for i in range(N - 1, -1, -1):
            total, rest = x[i, k], x_low[i, k]
            for c in range(i + 1, N):
                total, rest = _add_product(total, rest, lower[c, i], low[c, i], x[c, k], x_low[c, k], -1.0)
            total, rest = _normal(total, rest)
            x[i, k], x_low[i, k] = _quotient(total, rest, lower[i, i], low[i, i])
