"""From doubled numbers to float64 without losing a certificate.

Rounding a weight moves every margin by up to ε ‖W‖, which is a large part of a small margin; rounding
multipliers moves Σ λ_j A_j. Both are known up to a factor only, and each factor near one rounds differently:
among some thousand of them one is kind to all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.extended_precision.pool import Pool

TRIED = ((1, 0.0, 2e-12), (4096, 5e-11, 5e-12), (4096, 6e-9, 1e-9), (1 << 17, 6e-9, 1e-9))
"""Rounds: how many factors are tried, how far from one, and the loss that is good enough to stop there."""

CHUNK = 1 << 21


def weight(W: Doubled, pool: Pool) -> Float:
    """A float64 weight near a multiple of W (D,) that violates the rows as little as possible."""
    A, bound, tied, unit = pool.A, pool.bound, pool.tied, pool.measure
    margins = A @ W
    least = Doubled(*_smallest((margins / np.where(bound > 0, bound, 1.0))[bound > 0]))
    W, margins = W / least, margins / least
    over = (margins - bound) / unit

    def loss(factor: Float) -> tuple[Float, Float]:
        scaled = W * (1.0 + factor)[:, None]
        error = scaled.lo @ A.hi.T / unit
        change = error - np.multiply.outer(factor, margins.hi / unit)
        short = np.where(tied, np.abs(change - over.hi), change - over.hi).max(1, initial=0.0)
        return factor + short, scaled.hi

    return _kindest(loss, len(bound))


def soft_weight(W: Doubled, pool: Pool, slack: Float) -> Float:
    """A float64 weight near W (D,) of least cost ½‖W‖² + Σ_i max_t C_it (b − margin)_it; slack (k,): C."""
    margins, free = pool.A @ W, ~pool.tied
    over = margins - pool.bound
    own = pool.example[free] == np.unique(pool.example)[:, None]

    def cost(W: Float, short: Float) -> Float:
        paid = np.maximum(short[:, free], 0.0) * slack[free]
        each = np.where(own, paid[:, None, :], 0.0).max(-1, initial=0.0)
        return np.asarray(0.5 * (W * W).sum(-1) + each.sum(-1))

    least = float(cost(W.hi[None], -over.hi[None])[0])

    def loss(factor: Float) -> tuple[Float, Float]:
        scaled = W * (1.0 + factor)[:, None]
        short = scaled.lo @ pool.A.hi.T - np.multiply.outer(factor, margins.hi) - over.hi
        off = (np.abs(short[:, pool.tied]) / pool.measure[pool.tied]).max(-1, initial=0.0)
        return np.maximum(cost(scaled.hi, short) / least - 1.0, off), scaled.hi

    return _kindest(loss, len(pool) * len(own))


def multipliers(
    lam: Doubled, A: Doubled, bound: Float, tied: Bool, norm: Norm, shape: tuple[int, int]
) -> Float:
    """Float64 multipliers near a multiple of λ (k,): N*(Σ λ_j A_j) ≤ 1, Σ λ_j b_j as large as can be."""
    M = A.T @ lam
    steepness = float(norm.dual.value(M.hi.reshape(shape)))
    lam, M = lam / steepness, M / steepness
    value = float((lam * bound).sum().hi)

    def loss(factor: Float) -> tuple[Float, Float]:
        scaled = lam * (1.0 - factor)[:, None]
        image = (M * (1.0 - factor)[:, None]).hi - scaled.lo @ A.hi
        steep = norm.dual.value(image.reshape(-1, *shape))
        gained = 1.0 - factor - scaled.lo @ bound / value
        return np.maximum(1.0 - gained / np.maximum(steep, 1.0), steep - 1.0), scaled.hi

    # One value of the max-norm is a program: nobody waits for thousands, and float64 is not better than it.
    found = lam.hi if capabilities_of(norm).acts_on == "factors" else _kindest(loss, len(bound))
    return np.where(tied, found, np.maximum(found, 0.0))


def _kindest(loss: Callable[[Float], tuple[Float, Float]], width: int) -> Float:
    """The rounded numbers of the factor with the least loss; where none has one, those of the factor one."""
    random, best, kept = np.random.default_rng(0), np.inf, loss(np.zeros(1))[1][0]
    for count, spread, good in TRIED:
        factors = random.uniform(0.0, spread, count)
        for part in np.array_split(factors, -(-count * max(width, 1) // CHUNK)):
            lost, rounded = loss(part)
            at = int(np.argmin(np.where(np.isnan(lost), np.inf, lost)))
            if lost[at] < best:
                best, kept = float(lost[at]), rounded[at]
            if best <= good:
                return kept
    return kept


def _smallest(x: Doubled) -> tuple[Float, Float]:
    at = int(np.argmin(x.hi))
    return x.hi[at], x.lo[at]
