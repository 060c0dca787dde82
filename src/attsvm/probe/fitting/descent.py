"""L-BFGS for many functions at once: every pass over the data gives each of them one evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Bool, Float, Index
from attsvm.probe.data.arithmetic import Arithmetic
from attsvm.probe.fitting.curvature import newton_steps
from attsvm.probe.fitting.functions import Functions, Memory, Numbers, Pair, Vectors
from attsvm.probe.fitting.objective import Evaluation

TRIALS = 15
"""Steps tried along one direction."""

DECREASE, CURVATURE = 1e-4, 0.9
"""Wolfe's constants."""

NEAR, AGED = 2e-2, 20
"""Largest partial derivative at which a search for the optimum asks for the curvature; passes until again."""

STALE = 8
"""A search ends after so many steps that lower neither the slope nor, as far as can be told, the value."""

RACE, AHEAD, FAR = 5, 0.95, 0.8
"""After so many passes a rival goes on below this share of what it is to beat; alone below the second."""

Evaluate = Callable[[Array, Index], Evaluation]


@dataclass(frozen=True)
class Stop:
    """A search ends after so many steps (and twice as many passes), or when every partial derivative is below
    the tolerance, or when a step lowers the function by less than the share `enough`."""

    steps: int
    tolerance: float
    enough: float = 0.0


def minimise(
    where: Arithmetic,
    evaluate: Evaluate,
    points: Array,
    *,
    steps: int,
    tolerance: float,
    rivals: Sequence[tuple[int, int]] = (),
) -> Functions:
    """Minimise K functions from points (K, D), until every partial derivative is below the tolerance.

    evaluate(points, which): the functions with these numbers. A function is also done when its precision
    tells no step along its direction from the others.
    rivals: pairs (first, second) of starts of one function. After a few passes the second goes on only if it
    is ahead, and the first is given up if it is far behind; the value of what was given up is infinite.
    """
    given_up = list[int]()
    search = Search(where, points, evaluate(points, np.arange(len(points))), Stop(steps, tolerance))
    with ProgressLine() as line:
        while not search.over:
            search.advance(evaluate(search.trial(), search.active))
            if rivals and search.passes == RACE + 1:
                value = search.found().numbers.value
                given_up = [b for a, b in rivals if value[b] > AHEAD * value[a]]
                given_up += [a for a, b in rivals if value[b] < FAR * value[a]]
                search.drop(np.isin(search.active, given_up))
            slope = search.numbers.slope.max(initial=0.0)
            line.show(f"fitting: pass {search.passes}, derivatives up to {slope:.0e} of {tolerance:.0e}")
    found = search.found()
    found.numbers.value[given_up] = np.inf
    return found


class Tried(NamedTuple):
    """Of a step of each function (K,): whether it is accepted, or too short; by how much the value rose, and
    what its rounding may be."""

    accepted: Bool
    short: Bool
    rise: Float
    doubt: Float


class Search:
    """K line searches in step: `trial` says where to evaluate the active ones, `advance` goes on from there.

    now: the evaluation at the points (K, D); memory: pairs of an earlier search.
    Everything is of the active functions, but for latest (K,): the last held-out loss of all.
    """

    def __init__(
        self, where: Arithmetic, points: Array, now: Evaluation, stop: Stop, memory: Memory | None = None
    ) -> None:
        self.where, self.stop, self.passes, K = where, stop, 1, len(points)
        eps = float(np.finfo(np.float32 if "32" in str(where.dtype) else np.float64).eps)
        self.noise = max(16 * eps, 1e-12)  # relative error of a value: its products are in this precision
        slope, none = self._largest(now.gradient), np.zeros(K, int)
        self.numbers = Numbers(
            np.arange(K), now.value.copy(), now.held_out.copy(), steps=none, slope=slope,
            least=slope.copy(), stale=none, learned=np.full(K, -AGED),
            along=np.zeros(K), step=np.ones(K), low=np.zeros(K), high=np.full(K, np.inf), trials=none,
        )  # fmt: skip
        self.vectors = Vectors(points, now.gradient, -now.gradient)
        self.memory, self.done, self.latest = memory or Memory(), list[Functions](), now.held_out.copy()
        self.curvature: list[Array] = [None] * K  # factors of the matrices that are known
        self._learn(now, np.ones(K, bool))
        self._turn(np.ones(K, bool))
        self.drop(self.numbers.slope <= stop.tolerance)

    @property
    def active(self) -> Index:
        return self.numbers.which

    @property
    def _now(self) -> Functions:
        return Functions(self.numbers, self.vectors, self.memory)

    @property
    def over(self) -> bool:
        return not len(self.active) or self.passes >= 2 * self.stop.steps

    @property
    def _known(self) -> Bool:
        """Whose curvature is known (K,)."""
        return np.array([each is not None for each in self.curvature], bool)

    def trial(self) -> Array:
        """The next points of the active functions."""
        return self.vectors.points + self._times(self.numbers.step, self.vectors.direction)

    def advance(self, now: Evaluation) -> None:
        """One pass: every active function was evaluated at its trial point."""
        trial, tried = self.trial(), self._judged(now)
        self.passes += 1
        self._bracket(tried)
        self._move(trial, now, tried)
        self._learn(now, tried.accepted)
        self._turn(tried.accepted)
        self.latest[self.active] = self.numbers.held_out
        self.drop(self._ended(tried))

    def _judged(self, now: Evaluation) -> Tried:
        """Wolfe's conditions at the trial points."""
        n = self.numbers
        along = self._dot(now.gradient, self.vectors.direction)
        rise = now.value - n.value
        doubt = self.noise * np.maximum(np.abs(n.value), 1e-300)
        fell = rise <= DECREASE * n.step * n.along
        # Near the optimum values are equal to rounding; slopes still tell (Hager & Zhang 2005).
        flat = (rise <= doubt) & (along <= (1 - 2 * DECREASE) * -n.along)
        short = (fell | flat) & (along < CURVATURE * n.along)
        return Tried((fell | flat) & ~short & np.isfinite(now.value), short, rise, doubt)

    def _bracket(self, tried: Tried) -> None:
        """The next step of those that were not accepted: longer, or between a short one and a long one."""
        n, (accepted, short, rise, _) = self.numbers, tried
        t, long = n.step, ~accepted & ~short
        low, high = np.where(short, t, n.low), np.where(long, t, n.high)
        with np.errstate(all="ignore"):
            bend = rise - t * n.along
            parabola = np.where(bend > 0, -n.along * t**2 / (2 * bend), t / 2)
        width = np.where(np.isinf(high), 0.0, high) - low
        inside = np.clip(np.nan_to_num(parabola), low + 0.1 * width, high - 0.1 * width)
        shut = np.where(short | (n.trials > 4), low + 0.5 * width, inside)
        step = np.where(accepted, t, np.where(np.isinf(high), 4 * t, shut))
        self.numbers = n._replace(low=low, high=high, step=step, trials=n.trials + 1)

    def _move(self, trial: Array, now: Evaluation, tried: Tried) -> None:
        """To the trial points that are accepted; what the gradient did on the way is remembered."""
        n, v, accepted = self.numbers, self.vectors, tried.accepted
        keep = self.where.put(accepted)[:, None]
        gradient = self.where.xp.where(keep, now.gradient, v.gradient)
        step, change = self._times(n.step, v.direction), gradient - v.gradient
        self.memory = self.memory.push(Pair.of(step, change, np.maximum(self._dot(step, change), 0.0)))
        self.vectors = v._replace(points=self.where.xp.where(keep, trial, v.points), gradient=gradient)
        slope = np.where(accepted, self._largest(now.gradient), n.slope)
        nothing = accepted & (-tried.rise <= tried.doubt) & (slope >= n.least)
        self.numbers = n._replace(
            value=np.where(accepted, now.value, n.value),
            held_out=np.where(accepted, now.held_out, n.held_out),
            steps=n.steps + accepted,
            slope=slope,
            least=np.minimum(n.least, slope),
            stale=np.where(accepted & ~nothing, 0, n.stale + nothing),
        )

    def _ended(self, tried: Tried) -> Bool:
        """Which functions are done, or cannot go on."""
        n, enough = self.numbers, self.stop.enough
        little = tried.accepted & (enough > 0) & (-tried.rise <= enough * np.abs(n.value))
        lost = ~tried.accepted & (n.trials >= TRIALS)
        over = (n.slope <= self.stop.tolerance) | little | lost | (n.stale >= STALE)
        return over | (n.steps >= self.stop.steps)

    def _learn(self, now: Evaluation, accepted: Bool) -> None:
        """Near the optimum, the curvature is computed instead of guessed from many steps."""
        if self.stop.enough or now.curvature is None:
            return
        n, known = self.numbers, self._known
        due = accepted & (n.slope <= NEAR) & (self.passes - n.learned > AGED)
        due &= known | (np.cumsum(due & ~known) <= now.known - known.sum())
        which = np.flatnonzero(due)
        if not len(which):
            return
        for i, factor in zip(which.tolist(), now.curvature(which), strict=True):
            self.curvature[i] = factor
        self.numbers = n._replace(learned=np.where(due, self.passes, n.learned))
        self.memory = self.memory.forget(due)

    def _turn(self, which: Bool) -> None:
        """New directions where a step was accepted: minus the known inverse Hessian times the gradient."""
        if not which.any():
            return
        n, v, (direction, known) = self.numbers, self.vectors, self._newton()
        along = self._dot(direction, v.gradient)
        size = np.sqrt(self._dot(v.gradient, v.gradient))
        uphill = ~(along < 0)
        if uphill.any():
            known = known & ~uphill
            direction = self.where.xp.where(self.where.put(uphill)[:, None], -v.gradient, direction)
            along = np.where(uphill, -(size**2), along)
        first = np.where(known, 1.0, np.minimum(1.0, 1 / np.maximum(size, 1e-300)))
        turned = self.where.xp.where(self.where.put(which)[:, None], direction, v.direction)
        self.vectors = v._replace(direction=turned)
        self.numbers = n._replace(
            along=np.where(which, along, n.along),
            step=np.where(which, first, n.step),
            low=np.where(which, 0.0, n.low),
            high=np.where(which, np.inf, n.high),
            trials=np.where(which, 0, n.trials),
        )

    def _newton(self) -> tuple[Array, Bool]:
        """The two loops of L-BFGS (K, D), and which functions have a pair (K,)."""
        q, used = -self.vectors.gradient, []
        scale, known = np.ones(len(self.active)), np.zeros(len(self.active), bool)
        for s, y, inner, inverse in reversed(self.memory.pairs):
            latest = ~known & (inner > 0)
            if latest.any():
                scale = np.where(latest, inner / np.where(latest, self._dot(y, y), 1.0), scale)
                known = known | latest
            part = inverse * self._dot(s, q)
            q = q - self._times(part, y)
            used.append((s, y, inverse, part))
        exact = self._known
        q, known = self._times(np.where(exact, 1.0, scale), q), known | exact
        if exact.any():
            q = newton_steps(self.curvature, q)
        for s, y, inverse, part in reversed(used):
            q = q + self._times(part - inverse * self._dot(y, q), s)
        return q, known

    # ------------------------------------------------------------------ vectors

    def _dot(self, a: Array, b: Array) -> Float:
        return self.where.numpy((a * b).sum(1))

    def _times(self, number: Float, a: Array) -> Array:
        return self.where.put(number)[:, None] * a

    def _largest(self, a: Array) -> Float:
        return self.where.numpy(self.where.xp.amax(abs(a), 1))

    # ------------------------------------------------------------------ those that are done

    def drop(self, over: Bool) -> None:
        """Leave the active functions that are over."""
        if not over.any():
            return
        on = np.flatnonzero(~over)
        self.done.append(self._now.take(self.where, np.flatnonzero(over)))
        self.numbers, self.vectors, self.memory = self._now.take(self.where, on)
        self.curvature = [self.curvature[i] for i in on.tolist()]

    def found(self) -> Functions:
        """All functions, where they are now."""
        return Functions.joined(self.where, [*self.done, self._now] if len(self.active) else self.done)
