"""Many programs at once for layers: solved, with what a layer needs to know of every run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.program.conflict import explain
from attsvm.program.constraints import packed
from attsvm.program.derivative.arguments import AnyArray, Choice, Data
from attsvm.program.derivative.optimum import Optimum
from attsvm.program.derivative.polish import at_vertices
from attsvm.program.derivative.pull_back import Derivative, norm_on
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Contradiction, NotSeparable, Solution

NAMED = 5
"""Runs that a message names, at most."""


class NotDifferentiable(UserWarning):
    """A solution has a kink, or is not unique: its gradient is that of one of the pieces that meet there."""


class Results(NamedTuple):
    """W (…, d, e), norm and margin (…,), multipliers (…, n, T); ξ (…, n) of a soft margin, or None."""

    W: AnyArray
    norm: AnyArray
    margin: AnyArray
    multipliers: AnyArray
    shortfall: AnyArray


class Measured(NamedTuple):
    """regular, strictness, pivot (…,), support (…, n, T): see the results of a layer."""

    regular: AnyArray
    strictness: AnyArray
    pivot: AnyArray
    support: AnyArray


@dataclass(frozen=True, eq=False)
class Batch:
    """Solutions of r programs and their derivative.

    multipliers (r, n, T): those of the solution; axes (…): the runs as the user counts them.
    """

    solution: Solution
    multipliers: Float
    axes: tuple[int, ...]

    @cached_property
    def derivative(self) -> Derivative:
        """The derivative of all runs; of a run that is not separable it means nothing."""
        return Derivative(Optimum.of(self.solution, self.multipliers, self.size), norm_on(self.solution))

    @cached_property
    def size(self) -> Float:
        """N(W) (r,)."""
        return np.asarray(self.solution.norm.value(self.solution.W))

    @property
    def separable(self) -> Bool:
        """(r,)."""
        return np.reshape(self.solution.separable, -1)

    def over_axes(self, x: NDArray[Any]) -> NDArray[Any]:
        """A copy of an array (r, …) with the axes of the user, who may change it."""
        return np.array(x, order="C").reshape((*self.axes, *x.shape[1:]))

    @property
    def results(self) -> Results:
        """The results, NaN where a run is not separable."""
        W, multipliers, size = self.solution.W, self.multipliers, self.size
        if not self.separable.all():
            W, multipliers = (np.where(self.separable[:, None, None], x, np.nan) for x in (W, multipliers))
            size = np.where(self.separable, size, np.nan)
        with np.errstate(divide="ignore"):
            results = W, size, 1 / size, multipliers
        shortfall = None if self.solution.slack is None else self.over_axes(self.derivative.shortfall)
        return Results._make((*map(self.over_axes, results), shortfall))

    @property
    def measured(self) -> Measured:
        rows, tied = self.derivative.rows, self.derivative.optimum.tied
        support = rows.active & ~tied & self.separable[:, None, None]
        parts = self.derivative.strictness, self.derivative.pivot
        return Measured(*map(self.over_axes, (self.regular, *parts, support)))

    @cached_property
    def regular(self) -> Bool:
        """Whether a run has a solution with a derivative (r,)."""
        return np.asarray(self.derivative.regular & self.separable)

    def pull_back(self, bars: Results) -> Data:
        """Cotangents of the data from those of the results; None: nothing depends on it.

        Of a run that is not separable they are NaN, or zero if nothing depends on its results.
        """
        axes = len(self.axes)
        flat = [None if x is None else _flat(x, x.ndim - axes, np.float64) for x in bars]
        out = self.derivative.pull_back(*flat)
        for run in np.flatnonzero(~self.separable):
            depends = any((bar[run] != 0).any() for bar in flat if bar is not None)
            for array in out:
                array[run] = np.nan if depends else 0.0
        return Data(*(x.reshape((*self.axes, *x.shape[1:])) for x in out))

    def check(self, unseparable: str, degenerate: str) -> None:
        """Raise or warn as the options ask."""
        if unseparable == "raise" and not self.separable.all():
            raise NotSeparable(self._contradiction)
        if degenerate != "flag" and not self.regular.all():
            message = self._kinks()
            if degenerate == "raise":
                raise NotDifferentiable(message)
            warnings.warn(NotDifferentiable(message), stacklevel=3)

    def _contradiction(self) -> Contradiction:
        """Why the first run that cannot be separated cannot be, and which these runs are."""
        runs = np.flatnonzero(~self.separable)
        solution = self.solution.run(int(runs[0]))
        contradiction = partial(explain, solution.constraints, solution.norm)(solution.token_multipliers)
        if self.axes:
            first = f"{self._names(runs)} not separable. The first of them: "
            contradiction = replace(contradiction, message=first + contradiction.message)
        return contradiction

    def _kinks(self) -> str:
        runs = np.flatnonzero(~self.regular & self.separable)
        subject = f"{self._names(runs)} not regular" if self.axes else "the solution is not regular"
        worst = f"strictness {self.derivative.strictness[runs].min(initial=np.inf):.1e}"
        worst += f", least pivot {self.derivative.pivot[runs].min(initial=1.0):.1e}"
        return (
            f"{subject} ({worst}): active rows depend on each other, or one is active without a multiplier. "
            "The gradient is that of one side of a kink. Remove copies of tokens, or pass degenerate='flag'."
        )

    def _names(self, runs: NDArray[np.intp]) -> str:
        """ "2 of 9 runs (3 and 5) are": the runs by their indices."""
        places = [np.unravel_index(int(k), self.axes) for k in runs[:NAMED]]
        names = [str(p[0]) if len(p) == 1 else str(tuple(map(int, p))) for p in places]
        more = ", …" if len(runs) > NAMED else ""
        verb = "is" if len(runs) == 1 else "are"
        return f"{len(runs)} of {len(self.separable)} runs ({', '.join(names)}{more}) {verb}"


def solve_batch(data: Data, choice: Choice, norm: Norm) -> Batch:
    """Solve the programs of arrays of the host."""
    tokens, selected, required, price = _program(data, choice)
    solution = at_vertices(max_margin(tokens, selected, norm, required=required, slack=price))
    return Batch(solution, solution.token_multipliers, data.keys.shape[:-3])


def restored(data: Data, choice: Choice, norm: Norm, W: Float, multipliers: Float, separable: Bool) -> Batch:
    """A batch that was solved before, from its arrays (…)."""
    tokens, selected, required, price = _program(data, choice)
    rows = tokens.mask & (selected.argmax(-1)[..., None] != np.arange(tokens.T))
    W, multipliers = (_flat(x, 2, np.float64) for x in (W, multipliers))
    flags = np.reshape(separable, -1)
    solution = Solution(tokens, selected, norm, W, packed(rows, multipliers), required, flags, price)
    return Batch(solution, multipliers, data.keys.shape[:-3])


def _program(data: Data, choice: Choice) -> tuple[Tokens, Bool, Float, Float | None]:
    """Tokens, selection, required margins and prices with one axis of runs."""
    keys, queries, required = (_flat(x, k, np.float64) for x, k in zip(data[:3], (3, 2, 1), strict=True))
    selected, mask = (_flat(x, 2, np.bool_) for x in choice)
    price = None if data.price is None else _flat(data.price, 1, np.float64)
    return Tokens(keys, queries, mask=mask), selected, required, price


def _flat(x: AnyArray, axes_of_one: int, dtype: type) -> NDArray[Any]:
    """An array with one axis of runs before the last axes of one program."""
    array: NDArray[Any] = np.asarray(x, dtype)
    return array.reshape(-1, *array.shape[array.ndim - axes_of_one :])
