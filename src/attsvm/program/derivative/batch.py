"""Many programs at once for layers: solved, with what a layer needs to know of every run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.program.conflict import explain
from attsvm.program.constraints import packed
from attsvm.program.derivative.gram import Cotangents
from attsvm.program.derivative.optimum import Optimum
from attsvm.program.derivative.polish import polished
from attsvm.program.derivative.pull_back import Derivative, norm_on
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Contradiction, NotSeparable, Solution

NAMED = 5
"""Runs that a message names, at most."""


class NotDifferentiable(UserWarning):
    """A solution has a kink, or is not unique: its gradient is that of one of the pieces that meet there."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Solutions of r programs and their derivative. axes (…): the runs as the user counts them."""

    solution: Solution
    axes: tuple[int, ...]

    @cached_property
    def derivative(self) -> Derivative:
        """The derivative of all runs; of a run that is not separable it means nothing."""
        return Derivative(Optimum.of(self.solution, self.multipliers, self.size), norm_on(self.solution))

    @cached_property
    def size(self) -> Float:
        """N(W) (r,)."""
        return np.asarray(self.solution.norm.value(self.solution.W))

    @cached_property
    def multipliers(self) -> Float:
        """The solver's multipliers (r, n, T)."""
        return self.solution.token_multipliers

    @property
    def separable(self) -> Bool:
        return np.reshape(self.solution.separable, -1)

    @property
    def results(self) -> tuple[Float | None, ...]:
        """W, N(W), 1/N(W), the multipliers (r, n, T) and ξ (r, n); NaN where a run is not separable."""
        W, multipliers = self.solution.W.copy(), self.multipliers.copy()  # a user may change them in place
        if not self.separable.all():
            W, multipliers = (np.where(self.separable[:, None, None], x, np.nan) for x in (W, multipliers))
        size = np.where(self.separable, self.size, np.nan)
        shortfall = None if self.solution.slack is None else self.derivative.rows.shortfall
        with np.errstate(divide="ignore"):
            return W, size, 1 / size, multipliers, shortfall

    @cached_property
    def support(self) -> Bool:
        """The active inequalities (r, n, T)."""
        return self.derivative.rows.active & ~self.derivative.optimum.tied & self.separable[:, None, None]

    @cached_property
    def regular(self) -> Bool:
        """Whether a run has a solution with a derivative (r,)."""
        return np.asarray(self.derivative.regular & self.separable)

    def pull_back(self, *bars: Float | None) -> Cotangents:
        """Cotangents of the data from those of `results`, in this order.

        Of a run that is not separable they are NaN, or zero if nothing depends on its results.
        """
        out = self.derivative.pull_back(*bars)
        for run in np.flatnonzero(~self.separable):
            depends = any((bar[run] != 0).any() for bar in bars if bar is not None)
            for array in out:
                array[run] = np.nan if depends else 0.0
        return out

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


def restored(
    tokens: Tokens,
    selected: Bool,
    required: Float,
    price: Float | None,
    norm: Norm,
    W: Float,
    multipliers: Float,
    separable: Bool,
    axes: tuple[int, ...],
) -> Batch:
    """A batch that was solved before, from its arrays; multipliers (r, n, T)."""
    rows = tokens.mask & (selected.argmax(-1)[..., None] != np.arange(tokens.T))
    packed_rows = packed(rows, multipliers)
    batch = Batch(Solution(tokens, selected, norm, W, packed_rows, required, separable, price), axes)
    batch.__dict__["multipliers"] = multipliers  # what its cached property would unpack again
    return batch


def solve_batch(
    keys: Float,
    queries: Float,
    mask: Bool,
    selected: Bool,
    required: Float,
    price: Float | None,
    norm: Norm,
    axes: tuple[int, ...],
) -> Batch:
    """Solve r programs: keys (r, n, T, d), queries (r, n, e), mask, selected (r, n, T), required (r, n)."""
    tokens = Tokens(keys, queries, mask=mask)
    solution = max_margin(tokens, selected, norm, required=required, slack=price)
    if not isinstance(solution, Solution):
        raise ValueError(f"norm is {norm}, a norm of several heads. Pass a norm of one weight.")
    return Batch(polished(solution), axes)
