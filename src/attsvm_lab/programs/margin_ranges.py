"""Between which required margins of an example, the others fixed, the same rows stay active.

    K dμ = db,    dW = H Aᵀ dμ:    the system of the derivative is symmetric, and solves this one, too

In the Frobenius norm, l1 and l∞ the solutions of the same rows are a line, and its first event is the end of
the range. In lp and Schatten(p) norms they are a curve: Newton steps lead to its first event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attsvm.norms import Entrywise, Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.program.constraints import Constraints
from attsvm.program.derivative.one_run import Active, Local, Vertex, has_derivative, local
from attsvm.program.derivative.pull_back import Derivative
from attsvm.program.polish import System, linearisation
from attsvm.program.rows import Rows
from attsvm.program.sensitivity import sensitivity
from attsvm.program.solution import Solution

POINTS, CLOSE = 100, 1e-9
"""Points of a curve that are looked at, at most; and the last step, relative to the required margin."""

LONGEST, FAR = 0.5, 1e6
"""Longest step along a curve, relative to the margin there, and the largest margin that is looked at."""

NOBODY = (-1, -1)


class End(NamedTuple):
    """The end of a range: the required margin, and example and token of the row that enters or leaves there.

    −1 where none does: at 0, at ∞, or where an entry of W reaches zero (l1) or the largest one (l∞). NaN
    where the end was not found.
    """

    required: float
    example: int = -1
    token: int = -1


class RequiredRange(NamedTuple):
    """Between which required margins of an example, the others fixed, the same rows are active."""

    low: End
    high: End

    def __str__(self) -> str:
        return f"{self.low.required:.3g} to {self.high.required:.3g}"


def required_range(solution: Solution, example: int) -> RequiredRange:
    """Between which required margins of an example, the others fixed, the same rows stay active.

    Its `low` and `high` have the margin `required`, and `example` and `token` of the row that enters or
    leaves there: −1 where none does, at 0, at ∞, or where an entry of W reaches zero (l1) or N (l∞).
    """
    changes = sensitivity(solution)
    if not has_derivative(changes.derivative.norm):
        raise NotImplementedError(
            "the range of a required margin needs the derivative of W, and W of the norm "
            f"{solution.norm} has none. Use norm_by_required and distance, or norm='frobenius'."
        )
    if not changes.regular:
        raise ValueError(
            "the solution is not regular: at a kink the same rows are active for one required margin "
            "alone. Remove copies of tokens, or use distance."
        )
    n = len(solution.required)
    if not 0 <= example < n:
        raise IndexError(f"example {example} of {n} examples.")
    return _Around(changes.solution, changes.derivative).range(example)


@dataclass(frozen=True, eq=False)
class _Around:
    """The solutions around one, of which the same rows are active. W has a derivative there."""

    solution: Solution
    derivative: Derivative

    def range(self, example: int) -> RequiredRange:
        return RequiredRange(self._end(example, -1.0), self._end(example, 1.0))

    def _end(self, example: int, sign: float) -> End:
        """Above (sign 1) or below (sign −1) the required margin."""
        bound = float(self.solution.required[example])
        most, scale = bound if sign < 0 else np.inf, bound or float(self.solution.required.max())
        low, high, t, inside = 0.0, most, 0.0, self.active
        for _ in range(POINTS):
            active = self._at(example, sign * t, inside)
            if active is None:  # too far for Newton steps
                t = 0.5 * (low + t)
                continue
            step, name = self._next(active, example, sign, t)
            if self.straight:
                return (
                    End(bound + sign * min(t + step, most), *name)
                    if step < most * (1 - CLOSE)
                    else End(bound + sign * most)
                )
            if abs(step) <= CLOSE * scale:
                return End(bound + sign * (t + step), *name)
            if step > 0:
                low, inside = t, active
            else:
                high = t
            if low > FAR * scale or most - low <= CLOSE * scale:
                return End(bound + sign * most)
            t = min(t + step, low + LONGEST * (scale + sign * low))
            if not low < t < high:  # NaN, too
                t = 0.5 * (low + high)
        return End(np.nan)

    # ------------------------------------------------------------------ the line, or the curve

    @property
    def norm(self) -> Norm:
        """The norm; where it is Euclidean, by the name of one of entries."""
        norm = self.derivative.norm
        return Entrywise(2) if capabilities_of(norm).euclidean else norm

    @property
    def straight(self) -> bool:
        """Whether the solutions are a line."""
        return self.norm.p in (1, 2, np.inf)

    @cached_property
    def active(self) -> Active:
        return self.derivative.active(0)

    @cached_property
    def names(self) -> np.ndarray:
        """Example and token of the active rows (k, 2)."""
        return np.argwhere(self.derivative.rows.active[0])

    @cached_property
    def tied(self) -> np.ndarray:
        return self.derivative.optimum.tied[0][*self.names.T]

    @cached_property
    def inactive(self) -> tuple[np.ndarray, Float, Float]:
        """The other rows: example and token (j, 2), differences (j, d) and queries (j, e)."""
        optimum, active = self.derivative.optimum, self.derivative.rows.active[0]
        names = np.argwhere(optimum.exists[0] & ~active)
        example, token = names.T
        delta = optimum.keys[0, example, optimum.anchor[0, example]] - optimum.keys[0, example, token]
        return names, delta, optimum.queries[0, example]

    @cached_property
    def near(self) -> Local:
        return local(self.active, self.norm)

    def _at(self, example: int, change: float, start: Active) -> Active | None:
        """The solution of the same rows at another margin; None if Newton steps from `start` miss it."""
        if change == 0:
            return self.active
        required = self.solution.required.copy()
        required[example] += change
        program = Constraints.of(self.solution.tokens, self.solution.selected, required)
        rows, linearise = Rows.of(program, self.derivative.rows.active[0]), linearisation(self.norm)
        if linearise is None or len(rows) != len(start.pull):
            return None
        lam = start.pull * np.linalg.norm(start.delta, axis=1) * np.linalg.norm(start.queries, axis=1)
        margins = rows.margins(start.W)
        W = start.W * float(rows.bound @ margins / (margins @ margins))
        system = System.of(rows, np.ones(len(rows), bool), self.norm, linearise)
        point = None if system is None else system.solved(W, lam)
        if point is None:
            return None
        W, spread, _ = program.units.restored(point.W, rows.spread(point.multipliers / rows.length))
        pull, bound = spread[*self.names.T], np.where(self.tied, 0.0, required[self.names[:, 0]])
        pull *= float(self.norm.value(W)) ** 2 / float(pull @ bound)
        return replace(self.active, bound=bound, W=W, pull=pull)

    def _next(self, active: Active, example: int, sign: float, t: float) -> tuple[float, tuple[int, int]]:
        """The step to the first event that the slopes predict, and the name of its row.

        Negative behind an event; NaN if the slopes lead further away from it.
        """
        near = self.near if active is self.active else local(active, self.norm)
        names, delta, queries = self.inactive
        moves = sign * np.where(self.tied, 0.0, self.names[:, 0] == example)
        asked = sign * (names[:, 0] == example)
        q, P = near.change(np.zeros(active.W.shape), 0.0, moves)
        margins, rates = (np.einsum("jd,de,je->j", delta, X, queries) for X in (active.W, -P))
        events = [(margins - self.solution.required[names[:, 0]] - t * asked, rates - asked, names)]
        if isinstance(near, Vertex):  # multipliers stay in proportion
            room, rates = _of_entries(active.W, -P, float(moves @ active.pull) / near.size, self.norm)
            events.append((room, rates, np.full((len(room), 2), -1)))
        else:
            events.append((active.pull[~self.tied], q[~self.tied], self.names[~self.tied]))
        room, rates, names = (np.concatenate(arrays) for arrays in zip(*events, strict=True))
        falling = rates < 0
        if ((room < 0) & ~falling).any():
            return np.nan, NOBODY
        steps = np.divide(room, -rates, where=falling, out=np.full(len(room), np.inf))
        if not np.isfinite(steps).any():
            return np.inf, NOBODY
        first = int(steps.argmin())
        return float(steps[first]), (int(names[first, 0]), int(names[first, 1]))


def _of_entries(W: Float, W_rate: Float, rate: float, norm: Norm) -> tuple[Float, Float]:
    """How far the free entries of W are from another kind of entry, and how that changes; rate: of N(W).

    l1: entries that are not zero, from zero; l∞: entries below the largest one, from it.
    """
    size = np.abs(W)
    if norm.p == 1:
        free = size > CLOSE * size.max()
        return size[free], (np.sign(W) * W_rate)[free]
    free = size < (1 - CLOSE) * size.max()
    both = np.stack([W[free], -W[free]]), np.stack([W_rate[free], -W_rate[free]])
    return (size.max() - both[0]).ravel(), (rate - both[1]).ravel()
