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
from attsvm.program.derivative.optimum import Optimum

if TYPE_CHECKING:
    from attsvm.program.solution import Solution

STRICT, INDEPENDENT = 1e-7, 1e-8
"""Strictness and pivot from which a solution is regular: there it has a derivative, and so around it."""


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
        return (self.strictness > STRICT) & (self.pivot > INDEPENDENT)

    @cached_property
    def rows(self) -> ActiveRows:
        """The active rows of every run."""
        return active_rows(self.optimum)

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
        self, W: Float | None = None, norm: Float | None = None, multipliers: Float | None = None
    ) -> Cotangents:
        """Cotangents of the data from those of W (r, d, e), N(W) (r,) and the multipliers (r, n, T).

        The multipliers are those of `Solution`: λ_j = μ_j / N(W) of a hard margin, μ_j of a soft one.
        """
        optimum = self.optimum
        norm_bar: Float = np.zeros(len(optimum.W)) if norm is None else norm
        if W is None and multipliers is None:
            return self._of_value(norm_bar)
        if not (self._euclidean or has_derivative(self.norm)):
            raise NotImplementedError(
                f"the derivative of W and of the multipliers in the norm {self.norm} is not available. "
                "Use that of the norm or the margin, or solve with norm='frobenius'."
            )
        W_bar = np.zeros(optimum.W.shape) if W is None else W
        pull_bar: Float = np.zeros(optimum.pull.shape)
        if multipliers is not None:
            pull_bar = multipliers * self.rows.active
            hard = np.isinf(optimum.price).any(-1)
            share = np.einsum("rnt,rnt->r", pull_bar, optimum.pull) * self._inverse_size**2
            norm_bar = norm_bar - np.where(hard, share, 0.0)
            pull_bar = pull_bar * np.where(hard, self._inverse_size, 1.0)[:, None, None]
        if not self._euclidean:
            return self._one_by_one(W_bar, norm_bar, pull_bar)
        if norm_bar.any():
            W_bar = W_bar + (norm_bar * self._inverse_size)[:, None, None] * optimum.W
        shapes = optimum.keys.shape, optimum.queries.shape, optimum.required.shape, optimum.price.shape
        out, pivot = Cotangents(*map(np.zeros, shapes)), np.zeros(len(W_bar))
        arrays = read_only(W_bar), read_only(pull_bar)
        gram.pull_back_runs(optimum, self.rows, self._workspace, *arrays, out, pivot)
        return out

    def _of_value(self, norm: Float) -> Cotangents:
        """dN = Σ λ_j (db_j − ⟨dA_j, W⟩), in every norm: cotangents of the data from those of N(W) (r,)."""
        change = (norm * self._inverse_size)[:, None, None] * self.optimum.pull
        if np.isfinite(self.optimum.price).any():
            return self.pull_back((norm * self._inverse_size)[:, None, None] * self.optimum.W)
        return self._spread(change, np.zeros(self.optimum.W.shape))

    def _one_by_one(self, W_bar: Float, norm_bar: Float, pull_bar: Float) -> Cotangents:
        """Run by run, in a norm that is not Euclidean."""
        change, P = np.zeros(self.optimum.pull.shape), np.zeros(self.optimum.W.shape)
        for run, near in enumerate(self.local):
            active = self.rows.active[run]
            change[run][active], P[run] = near.change(W_bar[run], norm_bar[run], pull_bar[run][active])
        return self._spread(change, P)

    def _spread(self, change: Float, P: Float) -> Cotangents:
        """Ā_j = μ_j P − q_j W as cotangents of keys, queries and required margins; change (r, n, T): q."""
        optimum = self.optimum
        pull = np.where(self.rows.active, optimum.pull, 0.0)
        W_z, P_z = (np.matmul(optimum.queries, X.swapaxes(1, 2))[:, :, None] for X in (optimum.W, P))
        keys = change[..., None] * W_z - pull[..., None] * P_z
        anchor = optimum.anchor[..., None, None]
        at_anchor = np.take_along_axis(keys, anchor, 2) - keys.sum(2, keepdims=True)
        np.put_along_axis(keys, np.broadcast_to(anchor, at_anchor.shape), at_anchor, 2)
        delta = np.take_along_axis(optimum.keys, anchor, 2) - optimum.keys
        pulled, changed = (np.einsum("rnt,rntd->rnd", x, delta) for x in (pull, change))
        queries = np.matmul(pulled, P) - np.matmul(changed, optimum.W)
        required = np.where(optimum.tied, 0.0, change).sum(-1)
        return Cotangents(keys, queries, required, np.zeros(required.shape))

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
