"""Some rows of a program in doubled numbers, each near length one, and the way back: rounding to float64.

Rounding a weight moves every margin by up to ε ‖W‖, which is a large share of a small margin; rounding
multipliers moves Σ λ_j A_j. Both are known only up to a factor, and each factor near one rounds differently:
of some thousand factors, the one with the smallest loss is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Rows

FAR = 10_000

ENTRIES = 1 << 24
"""Entries of the dense rows at most (512 MB in doubled numbers, with temporary arrays)."""

TRIED = ((1, 0.0, 2e-12), (4096, 5e-11, 5e-12), (4096, 6e-9, 1e-9), (1 << 17, 6e-9, 1e-9))
"""Rounds of rounding: how many factors, how far from one, and the loss at which to stop."""

CHUNK = 1 << 21
"""Numbers that are rounded at once."""


class NoAnswer(ArithmeticError):
    """Extended precision has no answer: the program is too large for it, or has no W."""


@dataclass(frozen=True)
class DoubledRows:
    """k rows A (k, d·e), bounds (k,), ties (k,), their examples (k,), and their places among all rows (k,).

    measure (k,): the margin to which a shortfall is relative: the bound; where that is zero, the largest
        required margin, which may be many powers of two away in the units of the row.
    power (k,): a row here is 2^−power times that of the program; unit: a weight here is 2^−unit times.
    """

    A: Doubled
    bound: Float
    measure: Float
    tied: Bool
    example: NDArray[np.intp]
    place: NDArray[np.intp]
    power: NDArray[np.int_]
    unit: int

    @classmethod
    def of(cls, program: Constraints, rows: Rows) -> DoubledRows:
        """The same rows from the keys, whose differences are exact; zero rows are left out.

        Raises NoAnswer where there are too many, none requires a margin, or a zero row does.
        """
        if len(rows) * program.d * program.e > ENTRIES:
            raise NoAnswer
        example, token = rows.example, rows.token
        delta = Doubled.difference(
            program.keys[example, program.anchor[example]], program.keys[example, token]
        )
        queries = program.queries[example]
        lifted, low = _lift(delta.hi), _lift(queries)
        delta = Doubled(np.ldexp(delta.hi, -lifted[:, None]), np.ldexp(delta.lo, -lifted[:, None]))
        A = (delta[:, :, None] * np.ldexp(queries, -low[:, None])[:, None, :]).reshape(
            len(example), program.d * program.e
        )
        live = A.hi.any(1)
        bound, tied = program.bound[example, token], program.tied[example, token]
        if (bound[~live] > 0).any() or not (bound > 0).any():
            raise NoAnswer
        power = lifted + low
        size = np.where(bound > 0, np.frexp(bound)[1] - power, -FAR)[live]
        unit = int(size.max(initial=-FAR))
        bound = np.ldexp(bound, np.clip(-power - unit, -2000, 2000))
        largest = program.units.largest_required(example, power + unit)
        measure = np.where(bound > 0, bound, np.maximum(largest, np.finfo(float).tiny))
        place = np.flatnonzero(live)
        return cls(A[live], bound[live], measure[live], tied[live], example[live], place, power[live], unit)

    def __len__(self) -> int:
        return len(self.bound)

    def weight(self, W: Float) -> Float:
        """The weight of the program from the weight here."""
        return np.ldexp(W, self.unit)

    def multipliers(self, multipliers: Float, rows: Rows) -> Float:
        """The multipliers of the rows in the program from those here (k,), zero for those left out."""
        out = np.zeros(len(rows))
        out[self.place] = np.ldexp(multipliers, -self.power)
        return out


def _lift(vectors: Float) -> NDArray[np.int_]:
    """Binary exponent of the largest entry of each vector."""
    return np.frexp(np.abs(vectors).max(-1))[1]


# ---------------------------------------------------------------------- rounded to float64


def rounded_weight(W: Doubled, pool: DoubledRows) -> Float:
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

    return _least_loss(loss, len(bound))


def rounded_soft_weight(W: Doubled, pool: DoubledRows, slack: Float) -> Float:
    """A float64 weight near W (D,) of least cost ½‖W‖² + Σ_i max_t C_it (b − margin)_it; slack (k,): C."""
    margins, free = pool.A @ W, ~pool.tied
    over = margins - pool.bound
    membership = pool.example[free] == np.unique(pool.example)[:, None]

    def cost(W: Float, short: Float) -> Float:
        paid = np.maximum(short[:, free], 0.0) * slack[free]
        each = np.where(membership, paid[:, None, :], 0.0).max(-1, initial=0.0)
        return np.asarray(0.5 * (W * W).sum(-1) + each.sum(-1))

    least = float(cost(W.hi[None], -over.hi[None])[0])

    def loss(factor: Float) -> tuple[Float, Float]:
        scaled = W * (1.0 + factor)[:, None]
        short = scaled.lo @ pool.A.hi.T - np.multiply.outer(factor, margins.hi) - over.hi
        off = (np.abs(short[:, pool.tied]) / pool.measure[pool.tied]).max(-1, initial=0.0)
        return np.maximum(cost(scaled.hi, short) / least - 1.0, off), scaled.hi

    return _least_loss(loss, len(pool) * len(membership))


def rounded_multipliers(lam: Doubled, pool: DoubledRows) -> Float:
    """Float64 multipliers near a multiple of λ (k,): ‖Σ λ_j A_j‖ ≤ 1, Σ λ_j b_j as large as can be."""
    A, bound = pool.A, pool.bound
    M = A.T @ lam
    steepness = float(np.linalg.norm(M.hi))
    lam, M = lam / steepness, M / steepness
    value = float((lam * bound).sum().hi)

    def loss(factor: Float) -> tuple[Float, Float]:
        scaled = lam * (1.0 - factor)[:, None]
        image = (M * (1.0 - factor)[:, None]).hi - scaled.lo @ A.hi
        steep = np.linalg.norm(image, axis=-1)
        gained = 1.0 - factor - scaled.lo @ bound / value
        return np.maximum(1.0 - gained / np.maximum(steep, 1.0), steep - 1.0), scaled.hi

    rounded = _least_loss(loss, len(bound))
    return np.where(pool.tied, rounded, np.maximum(rounded, 0.0))


def _least_loss(loss: Callable[[Float], tuple[Float, Float]], width: int) -> Float:
    """The rounded numbers of the factor with the least loss; of the factor one where every loss is NaN."""
    random, least, best = np.random.default_rng(0), np.inf, loss(np.zeros(1))[1][0]
    for count, spread, tolerance in TRIED:
        factors = random.uniform(0.0, spread, count)
        for chunk in np.array_split(factors, -(-count * max(width, 1) // CHUNK)):
            losses, rounded = loss(chunk)
            at = int(np.argmin(np.where(np.isnan(losses), np.inf, losses)))
            if losses[at] < least:
                least, best = float(losses[at]), rounded[at]
            if least <= tolerance:
                return best
    return best


def _smallest(x: Doubled) -> tuple[Float, Float]:
    at = int(np.argmin(x.hi))
    return x.hi[at], x.lo[at]
