"""How a run leaves a stop of low rank: the power with which spare parts of W grow, and the steps it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

import attsvm as att
from attsvm.comparison.kkt import KKTPoint
from attsvm.numbers import Float

LARGEST_LOG = 700.0
"""Beyond it, e^x is no float64."""

SPARE = 1e-2
"""Entries of a diagonal below this share of the largest are spare, as kkt_point has it."""

TINY = float(np.finfo(float).tiny)


def leaving_exponent(point: KKTPoint) -> float:
    """The N with which spare singular values of W grow relative to the others beside a stop: ‖(K, Q)‖^N.

        Π (1 + N/p_i)^(1 − 1/p_i) = pull

    It is 2 (pull − 1) under gradient descent, and NaN where the norm of W is not nuclear or l1, r ≠ 1.
    Normalised steps of one length have ‖(K, Q)‖ ∝ t.
    Reference: docs/law_of_halves_proofs.md, Theorem 5.
    """
    powers, pull = np.array(point.powers), point.pull
    if len(powers) < 2 or point.norm.p != 1 or not np.all(np.isfinite(powers)):
        return float("nan")
    if len(powers) == 2 and powers[0] == powers[1]:
        return 2 * (pull - 1)
    if pull <= 0:
        return float(-powers.min())

    def excess(N: float) -> float:
        return float(((1 - 1 / powers) * np.log1p(N / powers)).sum() - np.log(pull))

    low, high = -powers.min(), 1.0
    while excess(high) < 0:
        high *= 2
    return float(brentq(excess, low * (1 - 1e-12), high))


def steps_to_leave(path: att.Path, point: KKTPoint) -> float:
    """More steps of one length until a run has left a stop: ∞ if nothing spare is growing, NaN if not known.

    Where r = 1, until the spare direction of the largest pull is as large as the used ones. Where two
    factors have one p > 2, until it has half of the size at which it ends, y* in Lemma 7.
    path: the run that `kkt_point` judged, of one head.
    """
    if point.status == "limit":
        return float("inf")
    growing, exponent, powers = _growing_part(path, point), leaving_exponent(point), point.powers
    if growing == 0:
        return float("inf")
    if np.isfinite(exponent):
        growth = -np.log(growing) / exponent if exponent > 0 else np.inf
    elif len(set(powers)) == 1 and len(powers) == 2 and 2 < powers[0] < np.inf:
        a = (powers[0] - 2) / (powers[0] - 1)
        share = growing ** (a / 2) / max(point.pull, TINY) ** (1 / (powers[0] - 1))
        growth = np.log(max(2 - 2 * share, 1.0)) / a
    else:
        return float("nan")
    return max(0.0, float(point.index[-1] * np.expm1(growth))) if growth < LARGEST_LOG else float("inf")


def _growing_part(path: att.Path, point: KKTPoint) -> float:
    """The part of W in the spare direction of the largest pull, over its smallest used singular value."""
    M = _combined(path, point.multipliers)
    if path.K is None or path.Q is None:  # diagonals
        w, pulls = np.diagonal(path.final), np.abs(np.diagonal(M))
        used = np.abs(w) > SPARE * np.abs(w).max()
        return float(abs(w[np.where(used, -1.0, pulls).argmax()]) / np.abs(w[used]).min())
    of_K, of_Q = (att.Schatten(p) for p in point.powers)
    K, Q = path.K[-1] / of_K.value(path.K[-1]), path.Q[-1] / of_Q.value(path.Q[-1])
    left, sizes, right = np.linalg.svd(K @ Q.T)
    U, V = left[:, : point.rank], right[: point.rank].T
    beyond = M - U @ (U.T @ M)
    outwards, _, along = np.linalg.svd(beyond - (beyond @ V) @ V.T)
    # By the factors, where W itself has lost it in rounding. In one norm K and Q grow together,
    # and their difference decays.
    a, b = outwards[:, 0] @ K, along[0] @ Q
    part = ((a + b) ** 2).sum() / 4 if of_K == of_Q else np.linalg.norm(a) * np.linalg.norm(b)
    return float(
        part / sizes[point.rank - 1]
    )  # of equal norms K and Q grow together; their difference decays


def _combined(path: att.Path, multipliers: Any) -> Float:
    """M = Σ λ_it (x_iα − x_it) z_iᵀ, (d, e)."""
    tokens, first = path.tokens.in_memory(), path.selected.argmax(-1)
    coefficients = -multipliers
    coefficients[np.arange(tokens.n), first] += multipliers.sum(-1)
    return np.asarray(np.einsum("nt,ntd,ne->de", coefficients, tokens.keys, tokens.queries))
