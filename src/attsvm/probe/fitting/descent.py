"""L-BFGS for many functions at once: every pass over the data gives each of them one evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Bool, Float, Index
from attsvm.numbers.threads import single_thread
from attsvm.probe.data.backends import Backend
from attsvm.probe.fitting.objective import Evaluation
from attsvm.probe.fitting.tolerances import TOLERANCES

Evaluate = Callable[[Array, Index], Evaluation]


@dataclass(frozen=True)
class Stop:
    """A search ends after so many steps (or twice as many passes), or if no partial derivative is above the
    tolerance, or if a step lowers the function by at most the share least_decrease."""

    steps: int
    tolerance: float
    least_decrease: float = 0.0


class Scalars(NamedTuple):
    """The numbers of each function in a search, (K,) each.

    place: among all functions; value, held_out; steps taken; slope: largest partial derivative.
    lowest_slope so far; stale: steps since that or the value fell; curvature_pass: in which the curvature was
    computed. directional: derivative along the direction; step: the next one to try; low, high: a step that
    was too short, and one that was too long; trials: steps tried along the direction.
    """

    place: Index
    value: Float
    held_out: Float
    steps: Index
    slope: Float
    lowest_slope: Float
    stale: Index
    curvature_pass: Index
    directional: Float
    step: Float
    low: Float
    high: Float
    trials: Index


class Vectors(NamedTuple):
    """The vectors of each function, (K, D) each, on the backend."""

    points: Array
    gradient: Array
    direction: Array


class CurvaturePair(NamedTuple):
    """A step s and the change y of the gradient, (K, D) each; inner: s·y (K,), 0 where a pair is unused."""

    step: Array
    change: Array
    inner: Float


Pairs = Sequence[CurvaturePair]
"""The pairs of the last steps, the latest one last."""


class SearchState(NamedTuple):
    """Some or all functions of a search."""

    scalars: Scalars
    vectors: Vectors
    pairs: Pairs

    def take(self, backend: Backend, index: Index) -> SearchState:
        place = backend.put(index)
        return SearchState(
            Scalars._make(numbers[index] for numbers in self.scalars),
            Vectors._make(vectors[place] for vectors in self.vectors),
            [CurvaturePair(s[place], y[place], inner[index]) for s, y, inner in self.pairs],
        )

    @classmethod
    def joined(cls, backend: Backend, groups: Sequence[SearchState]) -> SearchState:
        """All groups in the order of their functions, with the latest pairs that every group has."""
        join, depth = backend.xp.concatenate, min(len(group.pairs) for group in groups)
        scalars = Scalars._make(map(np.concatenate, zip(*(group.scalars for group in groups), strict=True)))
        vectors = Vectors._make(map(join, zip(*(group.vectors for group in groups), strict=True)))
        latest = (group.pairs[len(group.pairs) - depth :] for group in groups)
        steps = (zip(*pairs, strict=True) for pairs in zip(*latest, strict=True))
        pairs = [CurvaturePair(join(s), join(y), np.concatenate(inner)) for s, y, inner in steps]
        return cls(scalars, vectors, pairs).take(backend, np.argsort(scalars.place))


def add_curvature(backend: Backend, pairs: Pairs, diagonal: Array) -> Pairs:
    """The pairs after a diagonal (K, D) was added to the Hessian of every function."""
    changes = [diagonal * s for s, _, _ in pairs]
    return [
        CurvaturePair(s, y + change, np.where(inner > 0, inner + backend.numpy((s * change).sum(1)), 0.0))
        for (s, y, inner), change in zip(pairs, changes, strict=True)
    ]


def minimise(
    backend: Backend,
    evaluate: Evaluate,
    points: Array,
    *,
    steps: int,
    tolerance: float,
    rivals: Sequence[tuple[int, int]] = (),
    metric: Array | None = None,
) -> SearchState:
    """Minimise K functions from points (K, D), until every partial derivative is below the tolerance.

    evaluate(points, index): the functions with these numbers. A search also ends when rounding hides the
    differences between the steps along its direction.
    rivals: pairs (first, second) of starts of one function. After a few passes the second goes on only if it
    is ahead, and the first is given up if it is far behind. The value of a start given up is infinite.
    metric: as of `LineSearches`.
    """
    given_up = list[int]()
    first = evaluate(points, np.arange(len(points)))
    search = LineSearches(backend, points, first, Stop(steps, tolerance), metric=metric)
    with ProgressLine() as line:
        while not search.finished:
            search.advance(evaluate(search.trial(), search.active))
            if rivals and search.passes == TOLERANCES.rival_passes + 1:
                value = search.result().scalars.value
                given_up = [b for a, b in rivals if value[b] > TOLERANCES.rival_stays * value[a]]
                given_up += [a for a, b in rivals if value[b] < TOLERANCES.rival_wins * value[a]]
                search.retire(np.isin(search.active, given_up))
            slope = search.scalars.slope.max(initial=0.0)
            line.show(f"fitting: pass {search.passes}, derivatives up to {slope:.0e} of {tolerance:.0e}")
    result = search.result()
    result.scalars.value[given_up] = np.inf
    return result


class StepTest(NamedTuple):
    """Of a step of each function (K,): whether it is accepted, or too short; the rise of the value, and the
    rounding error of that rise."""

    accepted: Bool
    short: Bool
    rise: Float
    rounding: Float


class LineSearches:
    """K line searches side by side: evaluate the active functions at `trial()`, then call `advance`.

    evaluation: at the points (K, D); pairs: of an earlier search. metric (K, D): a diagonal, up to a factor
    the inverse of the curvature before any step has shown it; None: ones.
    held_out (K,): the latest held-out loss of all functions. All other state is of the active functions only.
    """

    def __init__(
        self,
        backend: Backend,
        points: Array,
        evaluation: Evaluation,
        stop: Stop,
        pairs: Pairs = (),
        metric: Array | None = None,
    ) -> None:
        self.metric = metric
        self.backend, self.stop, self.passes, K = backend, stop, 1, len(points)
        eps = float(np.finfo(np.float32 if "32" in str(backend.dtype) else np.float64).eps)
        self.noise = max(16 * eps, 1e-12)  # relative error of a value: its products are in this precision
        slope, none = self._largest(evaluation.gradient), np.zeros(K, int)
        self.scalars = Scalars(
            np.arange(K), evaluation.value.copy(), evaluation.held_out.copy(), steps=none, slope=slope,
            lowest_slope=slope.copy(), stale=none, curvature_pass=np.full(K, -TOLERANCES.newton_passes),
            directional=np.zeros(K), step=np.ones(K), low=np.zeros(K), high=np.full(K, np.inf), trials=none,
        )  # fmt: skip
        downhill = -self._in_metric(evaluation.gradient)
        self.vectors = Vectors(points, evaluation.gradient, downhill)
        self.pairs, self.retired = pairs, list[SearchState]()
        self.held_out = evaluation.held_out.copy()
        self.curvature: list[Array] = [None] * K  # factors of the matrices that were computed
        self._compute_curvature(evaluation, np.ones(K, bool))
        self._choose_directions(np.ones(K, bool))
        self.retire(self.scalars.slope <= stop.tolerance)

    @property
    def active(self) -> Index:
        return self.scalars.place

    @property
    def _state(self) -> SearchState:
        return SearchState(self.scalars, self.vectors, self.pairs)

    @property
    def finished(self) -> bool:
        return not len(self.active) or self.passes >= 2 * self.stop.steps

    @property
    def _has_curvature(self) -> Bool:
        """Functions whose curvature was computed (K,)."""
        return np.array([factor is not None for factor in self.curvature], bool)

    def trial(self) -> Array:
        """The next points of the active functions."""
        return self.vectors.points + self._times(self.scalars.step, self.vectors.direction)

    def advance(self, evaluation: Evaluation) -> None:
        """One pass: every active function was evaluated at its trial point."""
        trial, test = self.trial(), self._test_steps(evaluation)
        self.passes += 1
        self._bracket(test)
        self._accept(trial, evaluation, test)
        self._compute_curvature(evaluation, test.accepted)
        self._choose_directions(test.accepted)
        self.held_out[self.active] = self.scalars.held_out
        self.retire(self._finished(test))

    def _test_steps(self, evaluation: Evaluation) -> StepTest:
        """Wolfe's conditions at the trial points."""
        n = self.scalars
        directional = self._dot(evaluation.gradient, self.vectors.direction)
        rise = evaluation.value - n.value
        rounding = self.noise * np.maximum(np.abs(n.value), 1e-300)
        fell = rise <= TOLERANCES.decrease * n.step * n.directional
        # Near the optimum values are equal to rounding; slopes still differ (Hager & Zhang 2005).
        flat = (rise <= rounding) & (directional <= (1 - 2 * TOLERANCES.decrease) * -n.directional)
        short = (fell | flat) & (directional < TOLERANCES.curvature * n.directional)
        return StepTest((fell | flat) & ~short & np.isfinite(evaluation.value), short, rise, rounding)

    def _bracket(self, test: StepTest) -> None:
        """The next step where none was accepted: longer, or between a step too short and one too long."""
        n, (accepted, short, rise, _) = self.scalars, test
        t, long = n.step, ~accepted & ~short
        low, high = np.where(short, t, n.low), np.where(long, t, n.high)
        with np.errstate(all="ignore"):
            excess = rise - t * n.directional
            parabola = np.where(excess > 0, -n.directional * t**2 / (2 * excess), t / 2)
        width = np.where(np.isinf(high), 0.0, high) - low
        interpolated = np.clip(np.nan_to_num(parabola), low + 0.1 * width, high - 0.1 * width)
        inside = np.where(short | (n.trials > 4), low + 0.5 * width, interpolated)
        step = np.where(accepted, t, np.where(np.isinf(high), 4 * t, inside))
        self.scalars = n._replace(low=low, high=high, step=step, trials=n.trials + 1)

    def _accept(self, trial: Array, evaluation: Evaluation, test: StepTest) -> None:
        """Go to the trial points that are accepted, and remember the step and the change of the gradient."""
        n, v, accepted = self.scalars, self.vectors, test.accepted
        moves = self.backend.put(accepted)[:, None]
        gradient = self.backend.xp.where(moves, evaluation.gradient, v.gradient)
        step, change = self._times(n.step, v.direction), gradient - v.gradient
        pair = CurvaturePair(step, change, np.maximum(self._dot(step, change), 0.0))
        self.pairs = [*self.pairs, pair][-TOLERANCES.remembered_steps :]
        self.vectors = v._replace(points=self.backend.xp.where(moves, trial, v.points), gradient=gradient)
        slope = np.where(accepted, self._largest(evaluation.gradient), n.slope)
        no_progress = accepted & (-test.rise <= test.rounding) & (slope >= n.lowest_slope)
        self.scalars = n._replace(
            value=np.where(accepted, evaluation.value, n.value),
            held_out=np.where(accepted, evaluation.held_out, n.held_out),
            steps=n.steps + accepted,
            slope=slope,
            lowest_slope=np.minimum(n.lowest_slope, slope),
            stale=np.where(accepted & ~no_progress, 0, n.stale + no_progress),
        )

    def _finished(self, test: StepTest) -> Bool:
        """Functions whose search has converged, or cannot go on."""
        n, least = self.scalars, self.stop.least_decrease
        small_decrease = test.accepted & (least > 0) & (-test.rise <= least * np.abs(n.value))
        no_step = ~test.accepted & (n.trials >= TOLERANCES.tried_steps)
        converged = (n.slope <= self.stop.tolerance) | small_decrease
        return converged | no_step | (n.stale >= TOLERANCES.stale_steps) | (n.steps >= self.stop.steps)

    def _compute_curvature(self, evaluation: Evaluation, accepted: Bool) -> None:
        """Near the optimum, compute the curvature: L-BFGS would need many steps to learn it."""
        if self.stop.least_decrease or evaluation.curvature is None:
            return
        n, computed = self.scalars, self._has_curvature
        due = accepted & (n.slope <= TOLERANCES.newton_slope)
        due &= self.passes - n.curvature_pass > TOLERANCES.newton_passes
        due &= computed | (np.cumsum(due & ~computed) <= evaluation.curvature_limit - computed.sum())
        index = np.flatnonzero(due)
        if not len(index):
            return
        for i, factor in zip(index.tolist(), evaluation.curvature(index), strict=True):
            self.curvature[i] = factor
        self.scalars = n._replace(curvature_pass=np.where(due, self.passes, n.curvature_pass))
        self.pairs = [pair._replace(inner=np.where(due, 0.0, pair.inner)) for pair in self.pairs]

    def _choose_directions(self, accepted: Bool) -> None:
        """New directions where a step was accepted: minus inverse Hessian times gradient."""
        if not accepted.any():
            return
        n, v, (direction, has_pair) = self.scalars, self.vectors, self._two_loops()
        directional = self._dot(direction, v.gradient)
        steepest = -self._in_metric(v.gradient)
        size = np.sqrt(-self._dot(v.gradient, steepest))
        uphill = ~(directional < 0)
        if uphill.any():
            has_pair = has_pair & ~uphill
            direction = self.backend.xp.where(self.backend.put(uphill)[:, None], steepest, direction)
            directional = np.where(uphill, -(size**2), directional)
        first = np.where(has_pair, 1.0, np.minimum(1.0, 1 / np.maximum(size, 1e-300)))
        turned = self.backend.xp.where(self.backend.put(accepted)[:, None], direction, v.direction)
        self.vectors = v._replace(direction=turned)
        self.scalars = n._replace(
            directional=np.where(accepted, directional, n.directional),
            step=np.where(accepted, first, n.step),
            low=np.where(accepted, 0.0, n.low),
            high=np.where(accepted, np.inf, n.high),
            trials=np.where(accepted, 0, n.trials),
        )

    def _two_loops(self) -> tuple[Array, Bool]:
        """The two loops of L-BFGS (K, D), and which functions have a pair (K,)."""
        q, used = -self.vectors.gradient, []
        scale, has_pair = np.ones(len(self.active)), np.zeros(len(self.active), bool)
        for s, y, inner in reversed(self.pairs):
            latest = ~has_pair & (inner > 0)
            if latest.any():
                size = self._dot(y, self._in_metric(y))
                scale = np.where(latest, inner / np.where(latest, size, 1.0), scale)
                has_pair = has_pair | latest
            inverse = np.divide(1.0, inner, out=np.zeros_like(inner), where=inner > 0)
            alpha = inverse * self._dot(s, q)
            q = q - self._times(alpha, y)
            used.append((s, y, inverse, alpha))
        exact = self._has_curvature
        if self.metric is not None:
            q = self.backend.xp.where(self.backend.put(exact)[:, None], q, self._in_metric(q))
        q, has_pair = self._times(np.where(exact, 1.0, scale), q), has_pair | exact
        if exact.any():
            q = newton_steps(self.curvature, q)
        for s, y, inverse, alpha in reversed(used):
            q = q + self._times(alpha - inverse * self._dot(y, q), s)
        return q, has_pair

    # ------------------------------------------------------------------ vectors

    def _in_metric(self, a: Array) -> Array:
        return a if self.metric is None else self.metric * a

    def _dot(self, a: Array, b: Array) -> Float:
        return self.backend.numpy((a * b).sum(1))

    def _times(self, number: Float, a: Array) -> Array:
        return self.backend.put(number)[:, None] * a

    def _largest(self, a: Array) -> Float:
        return self.backend.numpy(self.backend.xp.amax(abs(a), 1))

    # ------------------------------------------------------------------ finished searches

    def retire(self, finished: Bool) -> None:
        """Take these functions out of the active ones."""
        if not finished.any():
            return
        active = np.flatnonzero(~finished)
        self.retired.append(self._state.take(self.backend, np.flatnonzero(finished)))
        self.scalars, self.vectors, self.pairs = self._state.take(self.backend, active)
        self.curvature = [self.curvature[i] for i in active.tolist()]
        self.metric = None if self.metric is None else self.metric[self.backend.put(active)]

    def result(self) -> SearchState:
        """The state of all functions."""
        groups = [*self.retired, self._state] if len(self.active) else self.retired
        return SearchState.joined(self.backend, groups)


def newton_steps(factors: Sequence[Float | None], vectors: Float) -> Float:
    """H⁻¹ v of every function that has a Cholesky factor of H; the others (None) keep v; vectors (K, D)."""
    steps = vectors.copy()
    with single_thread():
        for step, factor in zip(steps, factors, strict=True):
            if factor is not None:
                trsv = get_blas_funcs("trsv", [factor])  # four times as fast as potrs with one vector
                half = trsv(factor, step.astype(factor.dtype), lower=True)
                step[:] = trsv(factor, half, lower=True, trans=1, overwrite_x=True)
    return steps
