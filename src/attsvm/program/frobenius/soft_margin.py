"""Soft margin, one hinge per example: an augmented Lagrangian with semismooth Newton steps.

    min ½‖W‖² + Σ_i C_i ξ_i  subject to  ⟨A_it, W⟩ ≥ b_i − ξ_i  (= 0 where tied),  ξ ≥ 0

At a weight W the multipliers are a projection, λ(W) = Π(λ' + σ (b − A W)), onto the allowed set
{λ ≥ 0, Σ_t λ_it ≤ C_i}. The inner problem finds W = Σ λ(W)_j A_j by Newton steps on the rows that are
free to move; the outer one moves the centre λ' to λ and raises σ, until the gap closes.
Reference: Li, Sun and Toh 2018, "A highly efficient semismooth Newton augmented Lagrangian method".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner
from attsvm.numbers.linear import Cholesky
from attsvm.program.frobenius.packed import Packed
from attsvm.program.rows import Candidate, Rows
from attsvm.program.working_set import SATISFIED, Stage

GOOD = 1e-12
"""Gap relative to ½‖W‖², and error of a tie, at which to stop."""

STAGES = (1e-1, 1e-2, 1e-4)
"""The same while rows are sought: a crude W violates nearly the same ones."""

NEAR = 1.2
"""Margin, in units of the required one, beyond which a row without a multiplier leaves the pool."""

OUTER, INNER, PATIENCE = 60, 30, 10
"""Moves of the centre in all, Newton steps between two, and moves without a smaller gap."""

FIRST_SIGMA, SIGMA_GROWTH, LARGEST_SIGMA = 10.0, 5.0, 1e9
"""σ per squared length of a row: at first, its growth, and the most that rounding allows."""

LEAST_SHARE, MOST_SHARE = 1e-3, 1e3
"""σ, at first at least and later at most, as shares of C per mean shortfall. With a smaller one the
multipliers of examples that fall short would take dozens of moves from zero to C."""

ABSURD = 1e16
"""C per mean shortfall and squared length of a row, beyond which σ follows the rows alone."""

OPEN = 1e-10
"""A larger gap is tried once more with a σ that follows the rows alone at first."""

ROUNDING = 1e-12
"""Shortfall of a margin, relative to the required one, that is not meant."""

EXACT_STEPS = 3
"""Solves of the linear system that ends the method; all but the first refine it."""

SHARE = 0.01
"""An inner problem is solved when its contribution to the gap, ½‖W − Σ λ_j A_j‖², is below this share."""

DIRECT = 500
"""Free rows, or unknowns, up to which a Cholesky factor is faster than conjugate gradients."""

LARGEST_FACTOR = 4000
"""Free rows up to which a Cholesky factor is the way out when conjugate gradients fail (128 MB)."""

DENSE = 1 << 22
"""Largest number of entries of the free rows in one dense matrix."""

CG_STEPS, CG_SHARE = 150, 0.02
"""Conjugate-gradient steps of a Newton step, and the share of the gradient that they may leave."""


class SoftMargin:
    """An engine for pools that follow one another: each begins at the answer of the one before.

    count: how many rows the program has.
    """

    def __init__(self, count: int) -> None:
        self.previous: tuple[Float, Float] | None = None
        self.stages, self.count = iter(STAGES), count

    def __call__(self, pool: Rows) -> Stage:
        rows, multipliers, allowed = Hinged(pool), np.zeros(len(pool)), np.zeros(pool.n)
        W: Float = np.zeros((pool.d, pool.e))
        lam: Float = multipliers
        incomplete = len(pool) < self.count
        goal = next(self.stages, GOOD) if incomplete else GOOD
        if (rows.hinges.required * rows.hinges.price).any():  # else W = 0 costs nothing
            start = self.previous and (self.previous[0], rows.rows.pick(self.previous[1]))
            W, lam, gap = _AugmentedLagrangian(rows, start).solve(goal, incomplete)
            if start and gap > goal:  # with a large C the answer of the previous pool may be a bad start
                cold = _AugmentedLagrangian(rows, None).solve(goal, incomplete)
                W, lam, gap = cold if cold[2] < gap else (W, lam, gap)
            if gap > max(goal, OPEN):  # prices that differ much need a smaller σ first
                slow = _AugmentedLagrangian(rows, None, cautious=True).solve(goal, incomplete)
                W, lam, _ = slow if slow[2] < gap else (W, lam, gap)
        allowed[rows.example[rows.starts]] = rows.most(rows.required - rows.margins(W))
        self.previous = W, rows.rows.spread(lam)
        multipliers[rows.order] = lam
        retained = None
        if goal > GOOD:  # later a row that left might join again and again
            retained = pool.tied | (multipliers > 0) | (pool.margins(W) <= NEAR * pool.bound)
        return Stage(Candidate(W, multipliers), goal == GOOD, retained, allowed)


@dataclass
class _Best:
    """The pair with the smallest gap so far."""

    W: Float
    multipliers: Float
    gap: float = np.inf
    age: int = 0

    def offer(self, W: Float, multipliers: Float, gap: float) -> None:
        self.age += 1
        if gap < 0.5 * self.gap:
            self.age = 0
        if gap < self.gap:
            self.W, self.multipliers, self.gap = W, multipliers, gap


class _AugmentedLagrangian:
    """State: W (d, e) and its margins (k,); the centre λ' (k,) and σ.

    unit: mean squared length of a row; start: a W and multipliers to start from; cautious: σ follows the
    rows alone, not C.
    """

    def __init__(self, rows: Hinged, start: tuple[Float, Float] | None, cautious: bool = False) -> None:
        self.rows, self.price, free = rows, rows.hinges.price, ~rows.tied
        self.unit = max(float((rows.length[free] ** 2).sum()) / max(int(free.sum()), 1), 1e-300)
        self.W, self.centre = (self._start(), 0.0 * rows.length) if start is None else start
        self.margins = rows.margins(self.W)
        # More than ten times C of σ would let every multiplier jump from end to end.
        short = float(np.abs(rows.required - self.margins)[free].mean())
        leap = float(self.price.max()) / max(short, 1e-300)
        heeded = 0.0 if cautious or leap > ABSURD / self.unit else leap
        self.sigma = min(max(FIRST_SIGMA / self.unit, LEAST_SHARE * heeded), 10 * leap)
        self.largest_sigma = max(LARGEST_SIGMA / self.unit, MOST_SHARE * heeded)

    def _start(self) -> Float:
        """The best multiple of Σ_i C_i (mean row of example i)."""
        rows = self.rows
        share = self.price / np.maximum(rows.total(np.ones(len(rows.length))), 1)
        W = rows.combine(np.where(rows.tied, 0.0, share[rows.group]))
        margins = rows.margins(W)
        size = max(float(np.abs(margins).max()), 1e-300)
        scales = np.append(np.ldexp(1.0 / size, np.arange(-8, 12)), 0.0)
        return W * min(scales[scales <= 1.0].tolist(), key=lambda a: self._primal(a * W, a * margins))

    # ------------------------------------------------------------------ values

    def _multipliers(self, margins: Float) -> Float:
        """λ(W) of a weight with these margins."""
        out = np.empty(margins.shape)
        project(self.rows.hinges, self.centre, self.sigma, margins, out)
        return out

    def _primal(self, W: Float, margins: Float) -> float:
        return 0.5 * float(np.vdot(W, W)) + float(self.price @ self.rows.most(self.rows.required - margins))

    def _gap(self, multipliers: Float, residual: float) -> tuple[float, float]:
        """Primal less dual value; and the same as if C_i were at most twice Σ_t λ_it.

            residual + Σ_i (C_i − Σ_t λ_it) ξ_i + Σ_it λ_it (⟨A_it, W⟩ − b_i + ξ_i)

        residual: ½‖W − Σ λ_j A_j‖². No term is negative and nothing cancels: with a small C both values
        are nearly Σ C_i b_i. The second number does not explode with a C that is larger than needed.
        """
        rows, required = self.rows, self.rows.hinges.required
        least = rows.least(self.margins)
        short = required - least
        short[short <= ROUNDING * required] = 0.0
        level = np.where(short > 0, least, required)
        paid = ~rows.tied & (multipliers > 0)
        idle = float(multipliers[paid] @ (self.margins - level[rows.group])[paid])
        total = rows.total(multipliers)
        room = np.maximum(self.price - total, 0.0)  # less than nothing is rounding
        closed = residual + idle
        return closed + float(room @ short), closed + float(np.minimum(room, total) @ short)

    def _cancelling(self, multipliers: Float) -> float:
        """½(Σ_j |λ_j| |A_j|)², with a mean length: what ½‖W‖² would be if no rows cancelled."""
        return 0.5 * self.unit * float(np.abs(multipliers).sum()) ** 2

    # ------------------------------------------------------------------ the two loops

    def solve(self, goal: float, incomplete: bool) -> tuple[Float, Float, float]:
        """W, λ and the gap: move the centre until the gap is closed or stops shrinking.

        incomplete: see `_lifted`.
        """
        best = _Best(self.W, self.centre)
        for _ in range(OUTER):
            self.margins = self.rows.margins(self.W)  # afresh: sums of steps gather rounding
            multipliers, gap, settled = self._inner()
            if not settled:  # σ is too large for this centre
                self.sigma /= SIGMA_GROWTH
                continue
            tie = float(np.abs(self.margins).max(initial=0.0, where=self.rows.tied))
            best.offer(self.W, multipliers, max(gap, tie))
            if best.gap <= goal or best.age >= PATIENCE:
                break
            self.centre = multipliers
            self.sigma = min(self.sigma * SIGMA_GROWTH, self.largest_sigma)
        W, multipliers = self._exact(best.W, best.multipliers) if goal <= GOOD else (best.W, best.multipliers)
        return self._lifted(W, incomplete), multipliers, best.gap

    def _exact(self, W: Float, multipliers: Float) -> tuple[Float, Float]:
        """The pair with the free rows at their margins, W = Σ λ_j A_j, where that has a smaller gap.

        With a large C the multipliers cancel, and the residual of a Newton step is a large share of W.
        """
        rows, best = self.rows, self._gap_of(W, multipliers)
        rows.hinges.reached[:] = rows.total(multipliers) >= (1 - ROUNDING) * self.price
        free, lam = FreeRows(rows, rows.tied | (multipliers > 0)), multipliers.copy()
        for _ in range(EXACT_STEPS):
            change = free.exact(rows.combine(lam))
            if change is None:
                break
            lam[free.at] += change
            if (lam[~rows.tied] < 0).any():
                break
            combined = rows.combine(lam)
            gap = self._gap_of(combined, lam)
            if gap < best:
                W, multipliers, best = combined, lam.copy(), gap
        return W, multipliers

    def _gap_of(self, W: Float, multipliers: Float) -> float:
        """Primal less dual value of a pair."""
        self.margins = self.rows.margins(W)
        return self._gap(multipliers, 0.5 * float(np.square(W - self.rows.combine(multipliers)).sum()))[0]

    def _lifted(self, W: Float, incomplete: bool) -> Float:
        """The weight, a little longer where examples fall short by no more than rounding.

        With a large C even rounding would be paid for. incomplete: rows outside may fall short by SATISFIED.
        """
        bounded = self.rows.required > 0
        least = float((self.rows.margins(W)[bounded] / self.rows.required[bounded]).min())
        if not least >= 1 - ROUNDING:
            return W
        return W / min(least, 1.0, 1.0 - SATISFIED * incomplete)

    def _inner(self) -> tuple[Float, float, bool]:
        """Newton steps to W = Σ λ(W)_j A_j: the multipliers, the relative gap, and whether it settled."""
        multipliers = self._multipliers(self.margins)
        for _ in range(INNER):
            gradient = self.W - self.rows.combine(multipliers)
            residual = 0.5 * float(np.vdot(gradient, gradient))
            gap, measured = self._gap(multipliers, residual)
            size, cancelling = 0.5 * float(np.vdot(self.W, self.W)), self._cancelling(multipliers)
            if residual <= max(SHARE * measured, 1e-3 * GOOD * size, 1e-28 * cancelling):
                # What cancels excuses a gap by its rounding, and never one of the size of the value.
                scale = min(1e-3 * cancelling, self._primal(self.W, self.margins))
                return multipliers, gap / max(size, scale, 1e-300), True
            free = self.rows.tied | (multipliers > 0)
            step = FreeRows(self.rows, free).direction(gradient, self.sigma)
            multipliers = self._move(gradient, step)
        return multipliers, np.inf, False

    def _move(self, gradient: Float, step: Float) -> Float:
        """Move along the step to near the minimum of the inner objective; return the multipliers there.

        Margins are linear in W, so one pass over the data serves the whole search; the slope is
        increasing and piecewise linear, so regula falsi finds its zero.
        """
        moved = self.rows.margins(step)
        first, linear = float(np.vdot(gradient, step)), float(np.vdot(self.W, step))
        square = float(np.vdot(step, step))
        low, low_slope, high, high_slope, length = 0.0, first, 1.0, np.inf, 1.0
        for _ in range(30):
            multipliers = self._multipliers(self.margins + length * moved)
            slope = linear + length * square - float(np.vdot(multipliers, moved))
            if abs(slope) <= 0.5 * abs(first) or (length == 1.0 and slope <= 0):
                break
            if slope > 0:
                high, high_slope = length, slope
            else:
                low, low_slope = length, slope
            rise = high_slope - low_slope
            share = -low_slope / rise if rise > 0 else 0.5
            length = low + (high - low) * min(max(share, 0.1), 0.9)
        self.W, self.margins = self.W + length * step, self.margins + length * moved
        return multipliers


# ---------------------------------------------------------------------- Newton steps


class FreeRows:
    """The rows with a multiplier inside its limits: B = δ zᵀ, less their mean where Σ_t λ_it = C_i.

    At a limit the multipliers of an example move only with sum zero. Projecting the rows of the example on
    these moves subtracts the mean of their differences.
    """

    def __init__(self, rows: Hinged, free: Bool) -> None:
        loose = free & ~rows.tied
        # A single multiplier at its limit cannot move at all.
        fixed = rows.hinges.reached & (np.add.reduceat(loose, rows.starts, dtype=int) == 1)
        self.at = at = np.flatnonzero(free & ~(loose & fixed[rows.group]))
        self.count = len(at)
        groups, owner = np.unique(rows.group[at], return_inverse=True)
        first = np.searchsorted(owner, np.arange(len(groups)))
        used = np.zeros((len(groups), int(np.bincount(owner, minlength=1).max())), bool)
        used[owner, np.arange(len(at)) - first[owner]] = True
        delta, bound = np.zeros((*used.shape, rows.rows.d)), np.zeros(used.shape, bool)
        delta[used] = rows.rows.delta[at] * rows.length[at, None]
        bound[used] = (loose & rows.hinges.reached[rows.group])[at]
        mean = (bound[:, None, :] @ delta) / np.maximum(bound.sum(1), 1)[:, None, None]
        delta -= bound[..., None] * mean
        self.packed = Packed(delta, rows.rows.queries[rows.rows.owner[rows.starts[groups]]], used)
        # At the limit C the rows of an example share one unknown margin: their differences have target 0.
        self.target = np.where(bound[used], 0.0, rows.required[at])

    def exact(self, W: Float) -> Float | None:
        """By how much the multipliers of the free rows change (count,) until  B W = target; None if too many.

        The change of least length moves the multipliers of an example at its limit by a sum of zero.
        """
        if not 0 < self.count <= DIRECT or self.count * W.size > DENSE:
            return None
        owner = np.nonzero(self.packed.used)[0]
        B = self.packed.delta[self.packed.used][:, :, None] * self.packed.queries[owner][:, None, :]
        B = B.reshape(self.count, -1)
        return np.asarray(np.linalg.lstsq(B @ B.T, self.target - B @ W.ravel(), rcond=None)[0])

    def direction(self, gradient: Float, sigma: float) -> Float:
        """−(I + σ Bᵀ B)⁻¹ g: (d, e) → (d, e)."""
        if self.count == 0:
            return -gradient
        if gradient.size <= min(DIRECT, self.count):
            return -self._by_unknowns(gradient, sigma)
        # With u = (1/σ + B Bᵀ)⁻¹ B g the answer is g − Bᵀ u.
        u, solved = None, False
        if self.count > DIRECT:
            u, solved = self._iterated(gradient, sigma)
        if u is None or (not solved and self.count <= LARGEST_FACTOR):
            u = self._factored(gradient, sigma)
        return self.packed.combine(u) - gradient

    @property
    def _factors(self) -> tuple[Float, Float]:
        """δ and z of the rows, one after the other."""
        packed = self.packed
        return packed.delta[packed.used], packed.queries[np.nonzero(packed.used)[0]]

    def _factored(self, gradient: Float, sigma: float) -> Float:
        """u by a Cholesky factor of the matrix of the free rows."""
        delta, queries = self._factors
        gram = (delta @ delta.T) * (queries @ queries.T)
        gram.flat[:: len(gram) + 1] += 1 / sigma
        return self.packed.pack(_solve(gram, self.packed.margins(gradient)[self.packed.used]))

    def _by_unknowns(self, gradient: Float, sigma: float) -> Float:
        """The matrix I + σ Bᵀ B (d·e, d·e) itself."""
        delta, queries = self._factors
        unknowns = gradient.size
        matrix = np.zeros((unknowns, unknowns))
        size = max(1, DENSE // unknowns)
        for start in range(0, len(delta), size):
            chunk = slice(start, start + size)
            B = (delta[chunk, :, None] * queries[chunk, None, :]).reshape(-1, unknowns)
            matrix += B.T @ B
        matrix *= sigma
        matrix.flat[:: unknowns + 1] += 1.0
        return _solve(matrix, gradient.ravel()).reshape(gradient.shape)

    def _iterated(self, gradient: Float, sigma: float) -> tuple[Float, bool]:
        """u by conjugate gradients, and whether it is good enough; memory linear in the free rows.

        A residual r of u leaves σ Bᵀ r of the gradient.
        """
        packed = self.packed
        squares = float(np.einsum("gkd,gkd->gk", packed.delta, packed.delta).max())
        squares *= float(np.einsum("ge,ge->g", packed.queries, packed.queries).max())
        goal = CG_SHARE * float(np.linalg.norm(gradient)) / (sigma * np.sqrt(squares))
        right, ridge = packed.margins(gradient), 1e-12 * squares
        return packed.solve(1 / sigma, right, np.zeros_like(right), goal, CG_STEPS, ridge)


def _solve(matrix: Float, right: Float) -> Float:
    """Cholesky; the gradient's own direction where rounding leaves no factor."""
    try:
        return Cholesky(matrix.copy).solve(right)
    except np.linalg.LinAlgError:
        return right / np.diagonal(matrix).max()


# ---------------------------------------------------------------------- one hinge per example


class Hinged:
    """The rows of a pool, k of g examples, at their own lengths; the rows of an example are neighbours.

    order (k,): their places in the pool; starts (g,): the first row of each example; group (k,): which of
    the g; required (k,): the margin of each row; hinges: margins and prices of the examples.
    """

    def __init__(self, rows: Rows) -> None:
        self.order = np.argsort(rows.example, kind="stable")
        self.rows = rows.some(self.order)
        self.length, self.tied, self.example = self.rows.length, self.rows.tied, self.rows.example
        first = np.diff(self.example, prepend=-1) > 0
        self.starts, self.group = np.flatnonzero(first), np.cumsum(first) - 1
        self.required = self.rows.bound * self.length
        edges = np.append(self.starts, len(rows))
        largest, reached = self.most(self.required), np.zeros(len(self.starts), bool)
        self.hinges = Hinges(edges, largest, self.rows.price[self.starts], self.tied, reached)

    def margins(self, W: Float) -> Float:
        """(d, e) → (k,)."""
        return self.length * self.rows.margins(W)

    def combine(self, multipliers: Float) -> Float:
        """(k,) → (d, e)."""
        return self.rows.combine(multipliers * self.length)

    def most(self, values: Float) -> Float:
        """The largest value of an inequality of each example, zero at least: (k,) → (g,)."""
        return np.asarray(np.maximum.reduceat(np.where(self.tied, 0.0, np.maximum(values, 0.0)), self.starts))

    def least(self, values: Float) -> Float:
        """The least value of an inequality of each example, ∞ where it has none: (k,) → (g,)."""
        return np.asarray(np.minimum.reduceat(np.where(self.tied, np.inf, values), self.starts))

    def total(self, values: Float) -> Float:
        """The sum over the inequalities of each example: (k,) → (g,)."""
        return np.asarray(np.add.reduceat(np.where(self.tied, 0.0, values), self.starts))


class Hinges(NamedTuple):
    """The required margins (g,) and the prices C (g,) of g examples, whose rows lie between edges (g + 1,).

    tied (k,): rows that are equalities; reached (g,): examples whose Σ_t λ_it the last projection set to C_i.
    """

    edges: NDArray[np.intp]
    required: Float
    price: Float
    tied: Bool
    reached: Bool


@compiled
def project(hinges: Hinges, centre: Float, sigma: float, margins: Float, out: Float) -> None:
    """λ = Π(λ' + σ (b − m)) for every example: centre λ' (k,), margins m (k,) → out (k,).

        λ_t = max(x_t − τ, 0),   x = λ' − σ (m − least m),   τ the least number with Σ_t λ_t ≤ C

    and τ ≥ −σ (b − least m), which is zero before the shift by the least margin. The shift keeps the
    digits of m where b is much larger. On ties λ = λ' − σ m.
    Reference: Michelot 1986, "A finite algorithm for finding the projection of a point".
    """
    for i in range(len(hinges.price)):
        start, stop, least = hinges.edges[i], hinges.edges[i + 1], np.inf
        for j in range(start, stop):
            out[j] = 0.0
            if hinges.tied[j]:
                out[j] = centre[j] - sigma * margins[j]
            else:
                least = min(least, margins[j])
        if least == np.inf:
            continue
        for j in range(start, stop):
            if not hinges.tied[j]:
                out[j] = centre[j] - sigma * (margins[j] - least)
        _lower(hinges, i, -sigma * (hinges.required[i] - least), out)


@inner
def _lower(hinges: Hinges, i: int, threshold: float, x: Float) -> None:
    """Subtract from the inequality entries of example i the least τ ≥ threshold that C allows."""
    start, stop, price = hinges.edges[i], hinges.edges[i + 1], hinges.price[i]
    hinges.reached[i], counted = False, stop - start + 1
    while True:  # the threshold only grows, so entries only leave: at most as many rounds as rows
        total, count = 0.0, 0
        for j in range(start, stop):
            if not hinges.tied[j] and x[j] > threshold:
                total += x[j] - threshold
                count += 1
        if count == counted or total <= price:
            break
        counted, hinges.reached[i] = count, True
        threshold += (total - price) / count
    scale = price / total if hinges.reached[i] and total > 0 else 1.0  # exactly C, whatever the rounding
    for j in range(start, stop):
        if not hinges.tied[j]:
            x[j] = max(x[j] - threshold, 0.0) * scale
