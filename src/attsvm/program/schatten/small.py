"""Small programs of both norms in the one form whose central path is compiled."""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm
from attsvm.program.schatten.compiled_path import follow
from attsvm.program.schatten.pool import Pool
from attsvm.tokens import Float

ROOM = 1.2
"""The nuclear slacks are those of this multiple of the Frobenius solution."""

INSIDE, BELOW = 0.8, 0.5
"""Norm of the first C, and first margin of the spectral program as a part of what that C allows."""

MOST = 20_000
"""Unknowns times rows of their linear maps: beyond, BLAS on large blocks outweighs NumPy's calls."""

Maps = tuple[Float, Float, Float, Float]
Point = tuple[Float, Float, Float, Float, Float]


def fits(w: int, d: int, e: int, norm: Norm) -> bool:
    """Whether a program of w rows and a weight (d, e) is solved faster here than by NumPy."""
    unknowns = w if norm.p == 1 else d * e + 1
    return unknowns * (d * e + w) <= MOST


def solve(pool: Pool, norm: Norm, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """W and λ of least norm, and a bound on their relative gap, from those of the Frobenius norm.

    W (d', e') with margins of at least b.
    """
    multipliers = multipliers / (multipliers @ pool.bound)  # then Σ λ_j A_j = W / ‖W‖²
    return (_nuclear if norm.p == 1 else _spectral)(pool, W, multipliers, goal)


def _nuclear(pool: Pool, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """W and λ of least nuclear norm, and a bound on their relative gap, from the Frobenius ones.

    max bᵀλ  with  ‖M‖ ≤ 1,  M = Σ λ_j A_j,  λ ≥ 0:      y = l = λ,  C = M,  W = −2 X₁₂,  x = slack
    """
    features, w = _features(pool), len(pool.bound)
    slack = np.maximum(ROOM * (features @ W.ravel()) - pool.bound, 0.1)
    left, sigma, right = np.linalg.svd(W, full_matrices=False)
    mean = sigma.sum() / 2 / (pool.d + pool.e + w)
    # M = W / ‖W‖²: its norm becomes INSIDE, and what more positive multipliers add is bounded.
    rest = mean / slack
    multipliers = multipliers * (INSIDE * (sigma @ sigma) / sigma[0]) + rest
    multipliers *= INSIDE / (INSIDE + np.linalg.norm(rest @ features))
    C = (multipliers @ features).reshape(W.shape)
    point = _point(multipliers.copy(), C, multipliers, slack, (left, ROOM * sigma, right), mean)
    maps = pool.delta, pool.queries[pool.owner], np.hstack([features, np.eye(w)]), -pool.bound
    follow(maps, point, rooms(maps, point), goal)
    y, _, X, _, _ = point
    W = -2 * X[: pool.d, pool.d :]
    least = ((features @ W.ravel()) / pool.bound).min()
    return W, y, 1 - float(y @ pool.bound * least / X.trace())


def _spectral(pool: Pool, W: Float, multipliers: Float, goal: float) -> tuple[Float, Float, float]:
    """W and λ of least spectral norm, and a bound on their relative gap, from the Frobenius ones.

    max γ  with  ‖W‖ ≤ 1,  A W ≥ γ b:      y = (W, γ),  C = W,  l = A W − γ b,  M = −2 X₁₂,  x = λ
    """
    features, (w, entries) = _features(pool), (len(pool.bound), W.size)
    left, sigma, right = np.linalg.svd(W, full_matrices=False)
    C = W * (INSIDE / sigma[0])
    margins = features @ C.ravel()
    value = BELOW * float((margins / pool.bound).min())
    mean = value / (pool.d + pool.e + w)
    slack = margins - value * pool.bound
    shrunk = left, sigma / (sigma @ sigma), right
    point = _point(np.append(C, value), C, slack, multipliers + mean / slack, shrunk, mean)
    both = np.zeros((entries + 1, entries + w))
    np.fill_diagonal(both, 1.0)
    both[:-1, entries:], both[-1] = features.T, 0.0
    both[-1, entries:] = -pool.bound
    rows = np.vstack([np.repeat(np.eye(pool.d), pool.e, axis=0), np.zeros(pool.d)])
    columns = np.vstack([np.tile(np.eye(pool.e), (pool.d, 1)), np.zeros(pool.e)])
    price = np.zeros(entries + 1)
    price[-1] = -1
    maps = rows, columns, both, price
    follow(maps, point, rooms(maps, point), goal)
    y, _, X, _, x = point
    best = float(((features @ y[:-1]) / pool.bound).min())
    inexact = x @ features + 2 * X[: pool.d, pool.d :].ravel()
    steepness = X.trace() + np.sqrt(min(W.shape)) * np.linalg.norm(inexact)
    return y[:-1].reshape(W.shape), x, 1 - float(x @ pool.bound * best / steepness)


def rooms(maps: Maps, point: Point) -> tuple[Float, ...]:
    """Memory for `follow`: a step, what it aims at, S⁻¹, the Newton matrix and its image."""
    y, S, _, l, _ = point
    N, columns, size = len(y), maps[2].shape[1], len(S)
    dS, dX, aim, U, some, other = np.zeros((6, size, size))
    # Zeros: a product adds to 0 times what was there, which may be NaN.
    (dl, dx, pull), dy, flat = np.empty((3, len(l))), np.zeros((1, N)), np.zeros(columns)
    H, image, work = np.zeros((N, N)), np.empty((columns, N)), np.empty((4, size))
    return dy, dS, dX, dl, dx, aim, pull, U, some, H, image, work, other, flat


def _features(pool: Pool) -> Float:
    rows = pool.delta[:, :, None] * pool.queries[pool.owner][:, None, :]
    return rows.reshape(len(rows), -1)


def _point(y: Float, C: Float, l: Float, x: Float, polar: tuple[Float, Float, Float], mean: float) -> Point:
    """S from C; X so that −2 X₁₂ is the matrix with the given polar factors, moved to the path."""
    d, size = len(C), sum(C.shape)
    S = np.eye(size)
    S[:d, d:], S[d:, :d] = C, C.T
    left, sigma, right = polar
    pair = np.vstack([left, -right.T])
    X = (pair * (sigma / 2)) @ pair.T + mean * np.linalg.inv(S)
    return y, S, (X + X.T) / 2, l, x
