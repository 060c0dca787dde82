"""What a solution depends on: the slopes of its margin, and the changes that alter its support.

The slope of the norm needs the multipliers alone:  dN = Σ λ_j (db_j − ⟨dA_j, W⟩).

A losing token whose row is not active moves freely up to a plane: W stays until its margin is the required
one. A token in the support leaves it beyond the same plane of the weight that the program has without it. So
both distances are exact, however far they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.numbers import Bool, Float
from attsvm.program.constraints import Constraints
from attsvm.program.derivative.polish import at_vertices
from attsvm.program.derivative.pull_back import Derivative
from attsvm.program.solution import Solution
from attsvm.program.solve import solve

SHOWN = 8
"""Lines of each table."""

ZERO = 1e-8
"""Length of W z, per lengths of W and z, that is rounding: no move along it changes a margin."""


class SupportChange(NamedTuple):
    """Which token enters or leaves the support, and after how far a move."""

    example: int
    token: int
    change: Literal["enters", "leaves"]
    distance: float

    def __str__(self) -> str:
        return f"token {self.token} of example {self.example} {self.change} after {self.distance:.3g}"


def sensitivity(solution: Solution) -> Sensitivity:
    """How margin and support change with the data: slopes, and the nearest changes of the support.

    Of one hard margin: slopes and distances in every norm.
    """
    if solution.tokens.runs is not None:
        raise ValueError("with a runs axis, ask one run: sensitivity(solution.run(0))")
    if solution.slack is not None:
        raise NotImplementedError(
            "the sensitivity of a soft margin is not available. Pass slack=None, or take gradients of "
            "attsvm.torch.max_margin."
        )
    if not solution.separable:
        raise ValueError("this run is not separable: it has no margin. Ask a run that is.")
    solution = at_vertices(solution)
    derivative = Derivative.of(solution)
    slopes = derivative.pull_back(norm=np.ones(1))
    by_data = slopes.keys[0], slopes.queries[0], slopes.required[0]
    return Sensitivity(solution, *by_data, bool(derivative.regular[0]), derivative)


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """How the norm and the margin of a solution change with its data.

    norm_by_keys (n, T, d), norm_by_queries (n, e), norm_by_required (n,): the derivative of N(W).
    regular: whether all of it is a derivative: every row is clearly active or not, and no active row depends
        on others. Elsewhere the slopes are those of one side of a kink.

    `print` shows a table, `plot()` a figure. Distances need a solve for each token of the support, which the
    table does, too.
    """

    solution: Solution
    norm_by_keys: Float
    norm_by_queries: Float
    norm_by_required: Float
    regular: bool
    derivative: Derivative

    # ------------------------------------------------------------------ tokens

    @property
    def margin_by_token(self) -> Float:
        """|∂ margin/∂ x_it| (n, T): change of the margin per unit of length that a token moves, at most."""
        size = float(self.solution.norm.value(self.solution.W))
        return np.linalg.norm(self.norm_by_keys, axis=-1) / (size**2 if size > 0 else 1.0)

    @cached_property
    def support(self) -> Bool:
        """The losing tokens whose row is active (n, T)."""
        return self.derivative.rows.active[0] & ~self.derivative.optimum.tied[0]

    @cached_property
    def margin_without(self) -> Float:
        """The margin of the program without a token (n, T); ∞ if no row is left, NaN for selected tokens."""
        values = np.where(self._losing, float(self.solution.margin), np.nan)
        with np.errstate(divide="ignore"):
            for place, W in self._without.items():
                values[place] = np.divide(1.0, self.solution.norm.value(W))
        return values

    @cached_property
    def distance(self) -> Float:
        """How far a losing token must move to enter the support, or to leave it (n, T).

        The others stay. The shortest way is along W z to enter, against it to leave, where W is the weight of
        the program without the token. Exact where that W is the only one; else no token enters earlier. ∞: it
        never does. NaN for selected tokens and padding.
        """
        values = np.full(self._losing.shape, np.nan)
        values[self._losing] = self._to_plane(self.solution.W, *np.nonzero(self._losing))
        for (i, t), W in self._without.items():
            values[i, t] = self._to_plane(W, np.array([i]), np.array([t]))[0]
        return values

    def first_changes(self, count: int = SHOWN) -> list[SupportChange]:
        """The tokens that enter or leave the support after the shortest moves, nearest first."""
        places = np.argwhere(np.isfinite(self.distance))
        nearest = places[np.argsort(self.distance[*places.T], kind="stable")][:count].tolist()
        return [
            SupportChange(i, t, "leaves" if self.support[i, t] else "enters", float(self.distance[i, t]))
            for i, t in nearest
        ]

    # ------------------------------------------------------------------ parts

    @property
    def _queries(self) -> Float:
        return self.solution.tokens.queries

    @cached_property
    def _delta(self) -> Float:
        """x_anchor − x_t (n, T, d)."""
        keys, anchor = self.solution.tokens.in_memory().keys, self.derivative.optimum.anchor[0]
        return np.take_along_axis(keys, anchor[:, None, None], 1) - keys

    @cached_property
    def _losing(self) -> Bool:
        """The tokens with an inequality (n, T)."""
        return self.derivative.optimum.exists[0] & ~self.derivative.optimum.tied[0]

    def _to_plane(self, W: Float, example: NDArray[np.intp], token: NDArray[np.intp]) -> Float:
        """The distance (k,) of tokens from the plane on which W gives them their required margin."""
        queries, delta = self._queries[example], self._delta[example, token]
        along = queries @ W.T
        length, zero = np.linalg.norm(along, axis=-1), np.linalg.norm(queries, axis=-1) * np.linalg.norm(W)
        short = self.solution.required[example] - np.einsum("kd,kd->k", delta, along)
        far = np.full(len(short), np.inf)
        return np.divide(np.abs(short), length, where=length > ZERO * zero, out=far)

    @cached_property
    def _without(self) -> dict[tuple[int, int], Float]:
        """W of the program without each token of the support."""
        tokens = self.solution.tokens.in_memory()
        weights = {}
        for i, t in np.argwhere(self.support).tolist():
            mask = tokens.mask.copy()
            mask[i, t] = False
            fewer = Tokens(tokens.keys, tokens.queries, mask=mask)
            program = Constraints.of(fewer, self.solution.selected, self.solution.required)
            answer = solve(program, self.solution.norm)
            weights[i, t] = program.units.restored(answer.W, answer.multipliers)[0]
        return weights

    # ------------------------------------------------------------------ words and picture

    def role(self, example: int, token: int) -> str:
        """ "selected", "support", "inactive", or "padding"."""
        if self.solution.selected[example, token]:
            return "selected"
        if self.support[example, token]:
            return "support"
        return "inactive" if self._losing[example, token] else "padding"

    def steepest_examples(self, count: int = SHOWN) -> list[int]:
        """The examples whose required margin moves the norm most, first the steepest."""
        order = np.argsort(-self.norm_by_required, kind="stable")[:count].tolist()
        return [i for i in order if self.norm_by_required[i] > 0]

    def strongest(self, count: int = SHOWN) -> list[tuple[int, int]]:
        """Example and token of the tokens with the largest `margin_by_token`, largest first."""
        slope = self.margin_by_token
        order = np.argsort(-slope, axis=None, kind="stable")[:count]
        return [(int(k) // slope.shape[1], int(k) % slope.shape[1]) for k in order if slope.flat[k] > 0]

    def __repr__(self) -> str:
        return f"Sensitivity({self._first_line()})"

    def _first_line(self) -> str:
        kind = "" if self.regular else "; at a kink: slopes of one side"
        return f"{self.solution.norm} margin {self.solution.margin:.6g}{kind}"

    def __str__(self) -> str:
        return "\n".join([self._first_line(), *self._of_tokens(), *self._of_required()])

    def _of_tokens(self) -> Iterator[str]:
        yield "  example  token  role      margin per unit  support changes after"
        for i, t in self.strongest():
            far = self.distance[i, t]
            change = "–" if np.isnan(far) else f"{far:.3g} (leaves)" if self.support[i, t] else f"{far:.3g}"
            yield f"  {i:7d}  {t:5d}  {self.role(i, t):8s}  {self.margin_by_token[i, t]:15.3g}  {change}"
        changes = self.first_changes(self.distance.size)
        for kind in ("leaves", "enters"):
            nearest = next((change for change in changes if change.change == kind), None)
            if nearest is not None:
                yield f"  nearest: {nearest}"

    def _of_required(self) -> Iterator[str]:
        yield "  example  required  norm per unit"
        for i in self.steepest_examples():
            yield f"  {i:7d}  {self.solution.required[i]:8.3g}  {self.norm_by_required[i]:13.3g}"

    def plot(self) -> Any:
        """A matplotlib figure: tokens that move the margin, and changes of the support."""
        from attsvm.plotting.sensitivity import draw_sensitivity

        return draw_sensitivity(self)
