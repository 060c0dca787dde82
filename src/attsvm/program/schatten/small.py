"""Small programs of both norms in the one form whose central path is compiled."""

from __future__ import annotations

import math

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.program.bounds import apart
from attsvm.program.rows import Rows
from attsvm.program.schatten.compiled_path import follow

ROOM = 1.2
"""The nuclear slacks are those of this multiple of the Frobenius solution."""

INSIDE, BELOW = 0.95, 0.5
"""Frobenius norm of the first C, and first spectral margin as a part of what that C allows."""

MOST = 60_000
"""Unknowns times rows of their linear maps: beyond, BLAS on large blocks outweighs NumPy's calls."""

Maps = tuple[Float, Float, Float, Float]


def fits(w: int, d: int, e: int, norm: Norm) -> bool:
    """Whether a program of w rows and a weight (d, e) is solved faster here than by NumPy."""
    unknowns = w if norm.p == 1 else d * e + 1
    return capabilities_of(norm).acts_on == "singular values" and unknowns * (d * e + w) <= MOST


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
    features, size = pool.dense, _size(W)
    slack = np.maximum(ROOM * (features @ W.ravel()) - pool.bound, 0.1)
    mean = size / (pool.d + pool.e + len(slack))
    # The first part has the norm INSIDE; the second makes all multipliers positive.
    rest = mean / slack
    multipliers = multipliers * (INSIDE * size) + rest
    multipliers *= INSIDE / (INSIDE + _size(rest @ features))
    both = np.concatenate([features, np.eye(len(slack))], axis=1)
    maps = pool.delta, pool.queries[pool.owner], both, -pool.bound
    start = multipliers, (multipliers @ features).reshape(W.shape), multipliers.copy()
    y, X, _ = _follow(maps, start, slack, (ROOM * W, mean), goal)
    W = -2 * X[: pool.d, pool.d :]
    least = ((features @ W.ravel()) / pool.bound).min()
    return W, y, float(apart(y @ pool.bound, least, X.trace()))


def _spectral(pool: Rows, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """The program at margin γ:  max γ  with  ‖W‖ ≤ 1,  A W ≥ γ b.

    y = (W, γ),  C = W,  l = A W − γ b;   M = −2 X₁₂,  x = λ.
    """
    features, size = pool.dense, _size(W)
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
    steepness = X.trace() + np.sqrt(min(W.shape)) * _size(inexact)
    return y[:-1].reshape(W.shape), x, float(apart(x @ pool.bound / steepness, best, 1.0))


def _size(x: Float) -> float:
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
    held, mean = corner
    (d, e), w, N = C.shape, len(l), len(y)
    S = np.eye(d + e)
    S[:d, d:], S[d:, :d] = C, C.T
    # Of all X with this corner, one of small trace: the columns of −held and of the unit matrix.
    width = math.sqrt(_size(held) / math.sqrt(4 * e))
    pair = np.concatenate([held / (-2 * width), width * np.eye(e)])
    X = pair @ pair.T + mean * np.eye(d + e)
    dS, dX, aim, U, some, other = np.zeros((6, d + e, d + e))
    # Zeros: a product adds to 0 times what was there, which may be NaN.
    (dl, dx, pull), dy, flat = np.zeros((3, w)), np.zeros(N), np.zeros(d * e + w)
    H, image, work = np.zeros((N, N)), np.empty((d * e + w, N)), np.empty((4, d + e))
    room = dy, dS, dX, dl, dx, U, some, H, image, work, aim, pull, other, flat
    follow(maps, (y, S, X, l, x), room, goal)
    return y, X, x
