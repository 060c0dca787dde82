"""From cotangents of a solution to cotangents of its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import read_only
from attsvm.program.derivative import gram
from attsvm.program.derivative.active import ActiveRows, active_rows
from attsvm.program.derivative.gram import Cotangents
from attsvm.program.derivative.one_run import Active, Local, has_derivative, local
from attsvm.program.derivative.optimum import Optimum, times_power
from attsvm.program.derivative.tolerances import TOLERANCES

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


def norm_on(solution: Solution) -> Norm:
    """The norm of a solution; of vectors, the one of its names that may have a derivative."""
    norm, (d, e) = solution.norm, solution.W.shape[-2:]
    if min(d, e) > 1:
        return norm
    traits = capabilities_of(norm)
    return (traits.on_column if e == 1 else traits.on_row) or norm


@dataclass(frozen=True, eq=False)
class Derivative:
    """The derivative of r solutions in their keys, queries, required margins and prices.

    Where `regular` is False the solution has a kink or is not unique: cotangents are then those of one of its
    pieces, with some rows left out if the active rows depend on each other.
    """

    optimum: Optimum
    norm: Norm

    @classmethod
    def of(cls, solution: Solution) -> Derivative:
        """That of a solution, of one run or of many."""
        size = np.asarray(solution.norm.value(solution.W))
        return cls(Optimum.of(solution, solution.token_multipliers, size), norm_on(solution))

    # ------------------------------------------------------------------ whether there is one

    @property
    def strictness(self) -> Float:
        """How clearly every row is active or not (r,); 0 at a kink, ∞ where no row is an inequality."""
        if self._euclidean or not has_derivative(self.norm):
            return self.rows.strictness
        return np.minimum(self.rows.strictness, [run.strictness for run in self.local])

    @property
    def pivot(self) -> Float:
        """How clearly the active rows are independent (r,); 0 where one depends on others, 1 of no rows."""
        if self._euclidean or not has_derivative(self.norm):
            return self.basis[1]
        return np.array([run.pivot for run in self.local])

    @property
    def regular(self) -> Bool:
        """Whether W and multipliers have a derivative (r,); in a norm where W has none, whether N(W) has."""
        return (self.strictness > TOLERANCES.strict) & (self.pivot > TOLERANCES.independent)

    @cached_property
    def rows(self) -> ActiveRows:
        """The active rows of every run."""
        return active_rows(self.optimum)

    @property
    def shortfall(self) -> Float:
        """ξ (r, n), by the classification of rows."""
        return times_power(self.rows.shortfall, self.optimum.units.required)

    @cached_property
    def basis(self) -> tuple[Bool, Float]:
        """Active rows (r, n, T) that do not depend on others; the least pivot of their Gram matrix (r,)."""
        basis, pivot = np.zeros(self.optimum.pull.shape, bool), np.zeros(len(self.optimum.keys))
        gram.basis_of(self.optimum, self.rows, self._workspace, basis, pivot)
        return basis, pivot

    @cached_property
    def local(self) -> list[Local]:
        """The solutions near that of each run, in a norm that is not Euclidean."""
        return [local(self.active(run), self.norm) for run in range(len(self.optimum.keys))]

    def active(self, run: int) -> Active:
        """The active rows of one run."""
        optimum, (example, token) = self.optimum, np.nonzero(self.rows.active[run])
        delta = optimum.keys[run, example, optimum.anchor[run, example]] - optimum.keys[run, example, token]
        tied, pull = (array[run, example, token] for array in (optimum.tied, optimum.pull))
        bound = np.where(tied, 0.0, optimum.required[run, example])
        return Active(delta, optimum.queries[run, example], example, bound, pull, optimum.W[run])

    # ------------------------------------------------------------------ the derivative

    def pull_back(
        self,
        W: Float | None = None,
        norm: Float | None = None,
        margin: Float | None = None,
        multipliers: Float | None = None,
        shortfall: Float | None = None,
    ) -> Cotangents:
        """Cotangents of the data from those of W (r, d, e), N(W), 1/N(W) (r,), λ (r, n, T) and ξ (r, n).

        The multipliers are those of `Solution`: λ_j = μ_j / N(W) of a hard margin, μ_j of a soft one.
        """
        bars, units, soft = (W, norm, margin, multipliers, shortfall), self.optimum.units, self._soft
        if not any(exponents.any() for exponents in units):
            return self._pull_back(*bars)
        of_multipliers = units.weight - units.rows if soft else -units.rows
        powers = units.weight, units.weight, -units.weight, of_multipliers, units.required
        near = (None if x is None else times_power(x, k) for x, k in zip(bars, powers, strict=True))
        powers_of_data = -units.keys, -units.queries, -units.required, units.rows - units.weight
        return Cotangents(*map(times_power, self._pull_back(*near), powers_of_data))

    def _pull_back(
        self,
        W: Float | None,
        norm: Float | None,
        margin: Float | None,
        multipliers: Float | None,
        shortfall: Float | None,
    ) -> Cotangents:
        """The same for the optimum, in its units."""
        optimum, soft = self.optimum, self._soft
        P, change = np.zeros(optimum.W.shape), np.zeros(optimum.pull.shape)
        norm_bar = np.zeros(len(P)) if norm is None else norm
        if margin is not None:
            norm_bar = norm_bar - margin * self._inverse_size**2
        W_bar = np.zeros(P.shape) if W is None else W
        pull_bar: Float = np.zeros(change.shape)
        if multipliers is not None:
            pull_bar = multipliers * self.rows.active
            if not soft:
                pull_bar *= self._inverse_size[:, None, None]
                norm_bar = norm_bar - np.einsum("rnt,rnt->r", pull_bar, optimum.pull) * self._inverse_size
        if shortfall is not None:
            W_bar = W_bar - self._of_shortfall(shortfall, change)
        if W is None and multipliers is None and not soft:
            # dN = Σ λ_j (db_j − ⟨dA_j, W⟩), in every norm.
            change = (norm_bar * self._inverse_size)[:, None, None] * optimum.pull
        elif self._euclidean:
            if norm_bar.any():
                W_bar = W_bar + (norm_bar * self._inverse_size)[:, None, None] * optimum.W
            bars = read_only(W_bar), read_only(pull_bar)
            gram.solve_runs(optimum, self.rows, self._workspace, *bars, change, P)
        elif has_derivative(self.norm):
            for run, near in enumerate(self.local):
                active = self.rows.active[run]
                change[run][active], P[run] = near.change(W_bar[run], norm_bar[run], pull_bar[run][active])
        else:
            raise NotImplementedError(
                f"the derivative of W and of the multipliers in the norm {self.norm} is not available. "
                "Use that of the norm or the margin, or solve with norm='frobenius'."
            )
        shapes = optimum.keys.shape, optimum.queries.shape, optimum.required.shape, optimum.price.shape
        out, sums = Cotangents(*map(np.zeros, shapes)), np.empty((4, optimum.keys.shape[-1]))
        gram.spread(optimum, self.rows, sums, read_only(pull_bar), change, P, out)
        return out

    def _of_shortfall(self, bar: Float, change: Float) -> Float:
        """ξ_i = b_i − ⟨A_j, W⟩ of the reference j of an example that falls short; no other ξ changes.

        Σ ξ̄_i A_j (r, d, e); ξ̄ is added to the change of the references.
        """
        keys, queries, reference = self.optimum.keys, self.optimum.queries, self.rows.reference
        run, example = np.nonzero(reference >= 0)
        token, bars = reference[run, example], bar[run, example]
        delta = keys[run, example, self.optimum.anchor[run, example]] - keys[run, example, token]
        change[run, example, token] += bars
        out = np.zeros(self.optimum.W.shape)
        np.add.at(out, run, (bars[:, None] * delta)[:, :, None] * queries[run, example][:, None])
        return out

    @property
    def _soft(self) -> bool:
        """Whether examples may fall short, at a price."""
        return bool(np.isfinite(self.optimum.price).any())

    @property
    def _euclidean(self) -> bool:
        return capabilities_of(self.norm).euclidean

    @cached_property
    def _inverse_size(self) -> Float:
        """1/N(W) (r,), 0 where W is zero."""
        size = self.optimum.size
        return np.divide(1.0, size, where=size > 0, out=np.zeros(size.shape))

    @property
    def _workspace(self) -> gram.Workspace:
        return gram.workspace(self.optimum, int(self.rows.active.sum((1, 2)).max(initial=0)))
