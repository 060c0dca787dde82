"""L-BFGS for many functions at once: every pass over the data gives each of them one evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.probe.data.arithmetic import Device, Host
from attsvm.probe.fitting.curvature import solve
from attsvm.probe.fitting.objective import Evaluation
from attsvm.progress import Line

MEMORY, TRIALS = 12, 15
"""Pairs (step, change of the gradient) that are remembered; steps tried along one direction."""

DECREASE, CURVATURE = 1e-4, 0.9
"""Wolfe's constants."""

NEAR, AGED = 2e-2, 20
"""Largest partial derivative at which a search for the optimum asks for the curvature; passes until again."""

STALE = 8
"""A search ends after so many steps that lower neither the slope nor, as far as can be told, the value."""

NUMBERS = [
    "active",
    "value",
    "held_out",
    "steps",
    "slope",
    "least",
    "stale",
    "along",
    "step",
    "low",
    "high",
    "trials",
    "age",
]
"""What a search knows of every function (K,)."""

Evaluate = Callable[[Any, NDArray[np.intp]], Evaluation]


class Found(NamedTuple):
    """Stationary points (K, D) and their gradients; value, held_out, steps, slope (largest partial
    derivative), each (K,)."""

    points: Any
    gradient: Any
    value: Float
    held_out: Float
    steps: NDArray[np.intp]
    slope: Float
    memory: Memory


@dataclass(frozen=True)
class Stop:
    """A search ends after so many steps (and twice as many passes), or when every partial derivative is below
    the tolerance, or when a step lowers the function by less than the share `enough`."""

    steps: int
    tolerance: float
    enough: float = 0.0


@dataclass
class Memory:
    """Pairs s, y of the last steps, (K, D) each, and s·y (K,); a pair that does nothing has s·y = 0."""

    steps: list[Any] = field(default_factory=list)
    changes: list[Any] = field(default_factory=list)
    inner: list[Float] = field(default_factory=list)

    def take(self, place: Any, which: NDArray[np.intp]) -> Memory:
        """Of some functions; place: which, where the arithmetic is."""
        steps, changes = ([each[place] for each in pairs] for pairs in (self.steps, self.changes))
        return Memory(steps, changes, [each[which] for each in self.inner])

    def push(self, step: Any, change: Any, inner: Float) -> None:
        for pairs, new in ((self.steps, step), (self.changes, change), (self.inner, inner)):
            pairs.append(new)
            del pairs[:-MEMORY]

    def add(self, where: Host | Device, curvature: Any) -> None:
        """Every function got a diagonal (K, D) more of curvature."""
        more = [curvature * s for s in self.steps]
        self.changes = [y + c for y, c in zip(self.changes, more, strict=True)]
        known = [where.numpy((s * c).sum(1)) for s, c in zip(self.steps, more, strict=True)]
        self.inner = [np.where(i > 0, i + k, 0.0) for i, k in zip(self.inner, known, strict=True)]


def minimise(where: Host | Device, evaluate: Evaluate, points: Any, *, steps: int, tolerance: float) -> Found:
    """Minimise K functions from points (K, D), until every partial derivative is below the tolerance.

    evaluate(points, which): the functions with these numbers. A function is also done when its precision
    tells no step along its direction from the others.
    """
    search = Search(where, points, evaluate(points, np.arange(len(points))), Stop(steps, tolerance))
    with Line() as line:
        while not search.over:
            search.take(evaluate(search.trial(), search.active))
            slope = search.slope.max(initial=0.0)
            line.show(f"fitting: pass {search.passes}, derivatives up to {slope:.0e} of {tolerance:.0e}")
    return search.found()


class Search:
    """K line searches in step: `trial` says where to evaluate the active ones, `take` goes on from there.

    now: the evaluation at the points (K, D); memory: pairs of an earlier search.
    Arrays are of the active functions, but for latest (K,): the last held-out loss of all.
    """

    def __init__(
        self, where: Host | Device, points: Any, now: Evaluation, stop: Stop, memory: Memory | None = None
    ) -> None:
        self.where, self.stop, K = where, stop, len(points)
        self.active, self.memory, self.passes = np.arange(K), memory or Memory(), 1
        self.points, self.gradient = points, now.gradient
        self.value, self.held_out, self.steps = now.value.copy(), now.held_out.copy(), np.zeros(K, int)
        self.latest = now.held_out.copy()
        self.slope = self._largest(now.gradient)
        self.done: list[tuple[Any, ...]] = []
        eps = float(np.finfo(np.float32 if "32" in str(where.dtype) else np.float64).eps)
        self.noise = max(16 * eps, 1e-12)  # relative error of a value: its products are in this precision
        self.direction, self.along, self.step = -now.gradient, np.zeros(K), np.ones(K)
        self.least, self.stale = self.slope.copy(), np.zeros(K, int)
        self.low, self.high, self.trials = np.zeros(K), np.full(K, np.inf), np.zeros(K, int)
        self.curvature: list[Any] = [None] * K  # factors of the matrices that are known
        self.age = np.full(K, AGED)
        self._learn(now, np.ones(K, bool))
        self._turn(np.ones(K, bool))
        self.drop(self.slope <= stop.tolerance)

    @property
    def over(self) -> bool:
        return not len(self.active) or self.passes >= 2 * self.stop.steps

    @property
    def _known(self) -> Bool:
        """Whose curvature is known (K,)."""
        return np.array([each is not None for each in self.curvature], bool)

    def trial(self) -> Any:
        """The next points of the active functions."""
        return self.points + self._times(self.step, self.direction)

    def take(self, now: Evaluation) -> None:
        """One pass: every active function was evaluated at its trial point."""
        trial = self.trial()
        self.passes += 1
        along = self._dot(now.gradient, self.direction)
        rise = now.value - self.value
        doubt = self.noise * np.maximum(np.abs(self.value), 1e-300)
        fell = rise <= DECREASE * self.step * self.along
        # Near the optimum values are equal to rounding; slopes still tell (Hager & Zhang 2005).
        flat = (rise <= doubt) & (along <= (1 - 2 * DECREASE) * -self.along)
        short = (fell | flat) & (along < CURVATURE * self.along)
        accepted = (fell | flat) & ~short & np.isfinite(now.value)
        self._bracket(accepted, short, rise)
        keep = self.where.put(accepted)[:, None]
        gradient = self.where.xp.where(keep, now.gradient, self.gradient)
        change = gradient - self.gradient
        moved = self._times(self.step, self.direction)
        inner = self._dot(moved, change)
        self.memory.push(moved, change, np.maximum(inner, 0.0))
        self.points, self.gradient = self.where.xp.where(keep, trial, self.points), gradient
        self.value, self.held_out = (
            np.where(accepted, new, old)
            for new, old in ((now.value, self.value), (now.held_out, self.held_out))
        )
        self.steps = self.steps + accepted
        self.slope = np.where(accepted, self._largest(now.gradient), self.slope)
        nothing = accepted & (-rise <= doubt) & (self.slope >= self.least)
        self.stale = np.where(accepted & ~nothing, 0, self.stale + nothing)
        self.least = np.minimum(self.least, self.slope)
        little = accepted & (self.stop.enough > 0) & (-rise <= self.stop.enough * np.abs(self.value))
        lost = ~accepted & (self.trials >= TRIALS)
        self._learn(now, accepted)
        self._turn(accepted)
        over = (self.slope <= self.stop.tolerance) | little | lost | (self.stale >= STALE)
        self.latest[self.active] = self.held_out
        self.drop(over | (self.steps >= self.stop.steps))

    def _learn(self, now: Evaluation, accepted: Bool) -> None:
        """Near the optimum, the curvature is computed instead of guessed from many steps."""
        self.age = self.age + 1
        if self.stop.enough or now.curvature is None:
            return
        due, known = accepted & (self.slope <= NEAR) & (self.age > AGED), self._known
        due &= known | (np.cumsum(due & ~known) <= now.known - known.sum())
        which = np.flatnonzero(due)
        if not len(which):
            return
        for i, factor in zip(which.tolist(), now.curvature(which), strict=True):
            self.curvature[i] = factor
        self.age[which] = 0
        self.memory.inner = [np.where(due, 0.0, inner) for inner in self.memory.inner]

    def _bracket(self, accepted: Bool, short: Bool, rise: Float) -> None:
        """The next step of those that were not accepted: longer, or between a short one and a long one."""
        t, long = self.step, ~accepted & ~short
        self.low, self.high = np.where(short, t, self.low), np.where(long, t, self.high)
        with np.errstate(all="ignore"):
            bend = rise - t * self.along
            parabola = np.where(bend > 0, -self.along * t**2 / (2 * bend), t / 2)
        width = np.where(np.isinf(self.high), 0.0, self.high) - self.low
        inside = np.clip(np.nan_to_num(parabola), self.low + 0.1 * width, self.high - 0.1 * width)
        middle = self.low + 0.5 * width
        shut = np.where(short | (self.trials > 4), middle, inside)
        self.step = np.where(accepted, t, np.where(np.isinf(self.high), 4 * t, shut))
        self.trials = self.trials + 1

    def _turn(self, which: Bool) -> None:
        """New directions where a step was accepted: minus the known inverse Hessian times the gradient."""
        if not which.any():
            return
        direction, known = self._newton()
        along = self._dot(direction, self.gradient)
        size = np.sqrt(self._dot(self.gradient, self.gradient))
        uphill = ~(along < 0)
        if uphill.any():
            known = known & ~uphill
            direction = self.where.xp.where(self.where.put(uphill)[:, None], -self.gradient, direction)
            along = np.where(uphill, -(size**2), along)
        first = np.where(known, 1.0, np.minimum(1.0, 1 / np.maximum(size, 1e-300)))
        self.direction = self.where.xp.where(self.where.put(which)[:, None], direction, self.direction)
        self.along, self.step = np.where(which, along, self.along), np.where(which, first, self.step)
        self.low, self.high = np.where(which, 0.0, self.low), np.where(which, np.inf, self.high)
        self.trials = np.where(which, 0, self.trials)

    def _newton(self) -> tuple[Any, Bool]:
        """The two loops of L-BFGS (K, D), and which functions have a pair (K,)."""
        q, pairs, m = -self.gradient, [], self.memory
        scale, known = np.ones(len(self.active)), np.zeros(len(self.active), bool)
        for s, y, inner in zip(reversed(m.steps), reversed(m.changes), reversed(m.inner), strict=True):
            inverse = np.divide(1.0, inner, out=np.zeros_like(inner), where=inner > 0)
            latest = ~known & (inner > 0)
            if latest.any():
                scale = np.where(latest, inner / np.where(latest, self._dot(y, y), 1.0), scale)
                known = known | latest
            part = inverse * self._dot(s, q)
            q = q - self._times(part, y)
            pairs.append((s, y, inverse, part))
        exact = self._known
        q, known = self._times(np.where(exact, 1.0, scale), q), known | exact
        if exact.any():
            q = solve(self.curvature, q)
        for s, y, inverse, part in reversed(pairs):
            q = q + self._times(part - inverse * self._dot(y, q), s)
        return q, known

    # ------------------------------------------------------------------ vectors

    def _dot(self, a: Any, b: Any) -> Float:
        return self.where.numpy((a * b).sum(1))

    def _times(self, number: Float, a: Any) -> Any:
        return self.where.put(number)[:, None] * a

    def _largest(self, a: Any) -> Float:
        return self.where.numpy(self.where.xp.amax(abs(a), 1))

    # ------------------------------------------------------------------ those that are done

    def drop(self, over: Bool) -> None:
        """Leave the active functions that are over."""
        if not over.any():
            return
        self._leave(over)
        on = np.flatnonzero(~over)
        keep = self.where.put(on)
        for name in ("points", "gradient", "direction"):
            setattr(self, name, getattr(self, name)[keep])
        for name in NUMBERS:
            setattr(self, name, getattr(self, name)[on])
        self.memory = self.memory.take(keep, on)
        self.curvature = [self.curvature[i] for i in on.tolist()]

    def _leave(self, over: Bool) -> None:
        which = np.flatnonzero(over)
        place = self.where.put(which)
        numbers = (each[which] for each in (self.value, self.held_out, self.steps, self.slope))
        vectors = (self.points[place], self.gradient[place])
        self.done.append((self.active[which], *vectors, *numbers, self.memory.take(place, which)))

    def found(self) -> Found:
        if len(self.active):
            self._leave(np.ones(len(self.active), bool))
        xp = self.where.xp
        order = np.argsort(np.concatenate([each[0] for each in self.done]))
        place = self.where.put(order)
        points, gradient = (xp.concatenate([each[i] for each in self.done])[place] for i in (1, 2))
        numbers = [np.concatenate([each[i] for each in self.done])[order] for i in range(3, 7)]
        value, held_out, steps, slope = numbers
        memory = self._joined([each[7] for each in self.done], place, order)
        return Found(points, gradient, value, held_out, steps, slope, memory)

    def _joined(self, parts: list[Memory], place: Any, order: NDArray[np.intp]) -> Memory:
        """The last pairs of all functions, aligned at the end."""
        depth = min(len(part.steps) for part in parts)

        def last(name: str, xp: Any, place: Any) -> list[Any]:
            columns = [getattr(part, name)[len(part.steps) - depth :] for part in parts]
            return [xp.concatenate(each)[place] for each in zip(*columns, strict=True)]

        steps, changes = (last(name, self.where.xp, place) for name in ("steps", "changes"))
        return Memory(steps, changes, last("inner", np, order))
