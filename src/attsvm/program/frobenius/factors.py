"""Compiled linear algebra of the active rows: A_S = Rᵀ Q[:q], Q orthonormal, R upper triangular.

Q (k, k) holds a basis of their span in its first q rows, so that every loop runs along memory; q is the
number of active rows, often far fewer than k.
Functions take the arrays they need and no more, because a call copies the header of every array. Inner
loops run over whole rows in functions of their own, where the compiler sees that they do not overlap.
Reference: Goldfarb and Idnani 1983, "A numerically stable dual method for quadratic programs".
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Float
from attsvm.numbers.compiled import inner

REORTHOGONALISE = 0.5
"""Part of |a|² that must be left after a projection; otherwise it is repeated. Rounding in what is left grows
by 1/√part, so that a small part lets the basis lose its orthogonality a little more with every exchange.
Reference: Daniel, Gragg, Kaufman, Stewart 1976, "Reorthogonalization and stable algorithms"."""


@inner
def dot(a: Float, b: Float) -> float:
    """aᵀb."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@inner
def add(out: Float, factor: float, a: Float) -> None:
    """out += factor · a."""
    for i in range(out.size):
        out[i] += factor * a[i]


@inner
def rotate(a: Float, b: Float, c: float, t: float) -> None:
    """a, b = c a + t b, c b − t a."""
    for i in range(a.size):
        a[i], b[i] = c * a[i] + t * b[i], c * b[i] - t * a[i]


@inner
def split(Q: Float, a: Float, q: int, v: Float, part: Float, outside: Float, floor: float) -> float:
    """a = Σ_{i < q} v_i Q_i + outside, and |outside|²: Gram–Schmidt, repeated while much is taken off.

    floor: |outside|² below which nothing is left; part: scratch.
    """
    for i in range(len(a)):  # as a whole it would compile for seconds
        outside[i] = a[i]
    v[:q] = 0.0
    before = dot(a, a)
    while True:
        for i in range(q):
            part[i] = dot(Q[i], outside)
        for i in range(q):
            v[i] += part[i]
            add(outside, -part[i], Q[i])
        after = dot(outside, outside)
        if after > REORTHOGONALISE * before or after <= floor:
            return after
        before = after


@inner
def solve_upper(R: Float, v: Float, q: int, out: Float) -> None:
    """out[:q] with R[:q, :q] out = v[:q]."""
    for i in range(q - 1, -1, -1):
        out[i] = (v[i] - dot(R[i, i + 1 : q], out[i + 1 : q])) / R[i, i]


@inner
def solve_lower(R: Float, q: int, y: Float) -> None:
    """In place, y[:q] with R[:q, :q]ᵀ y = y."""
    for i in range(q):
        y[i] /= R[i, i]
        add(y[i + 1 : q], -y[i], R[i, i + 1 : q])


@inner
def extend(Q: Float, R: Float, v: Float, q: int, outside: Float, size: float) -> None:
    """Let the row a = Σ v_i Q_i + outside become active; size = |outside|."""
    for i in range(outside.size):
        Q[q, i] = outside[i] / size
    for i in range(q):
        R[i, q] = v[i]
    R[q, q] = size


@inner
def drop(Q: Float, R: Float, v: Float, q: int, place: int) -> None:
    """Let one active row become inactive, by rotations; v = Q a is carried along.

    Q[q − 1] leaves the basis: the part v[q − 1] Q[q − 1] of a lies outside then.
    """
    for i in range(q):
        for l in range(max(place, i - 1), q - 1):
            R[i, l] = R[i, l + 1]
    for i in range(place, q - 1):
        size = np.sqrt(R[i, i] * R[i, i] + R[i + 1, i] * R[i + 1, i])
        c, t = R[i, i] / size, R[i + 1, i] / size
        rotate(R[i, i : q - 1], R[i + 1, i : q - 1], c, t)
        rotate(Q[i], Q[i + 1], c, t)
        v[i], v[i + 1] = c * v[i] + t * v[i + 1], c * v[i + 1] - t * v[i]
