"""From cotangents of a solution to cotangents of its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.numbers import Bool, Float
from attsvm.program.derivative import gram
from attsvm.program.derivative.active import ActiveRows, active_rows
from attsvm.program.derivative.gram import Cotangents
from attsvm.program.derivative.optimum import Optimum, read_only
from attsvm.program.solution import Solution

STRICT, INDEPENDENT = 1e-7, 1e-8
"""Strictness and pivot from which a solution is regular: there it has a derivative, and so around it."""


@dataclass(frozen=True, eq=False)
class Derivative:
    """The derivative of r solutions in their keys, queries, required margins and prices.

    Where `regular` is False the solution has a kink or is not unique: cotangents are then those of one of its
    pieces, with some rows left out if the active rows depend on each other.
    """

    optimum: Optimum
    norm: Norm = frobenius

    @classmethod
    def of(cls, solution: Solution) -> Derivative:
        """That of a solution, of one run or of many."""
        return cls(Optimum.of(solution), solution.norm)

    @cached_property
    def rows(self) -> ActiveRows:
        """The active rows of every run."""
        return active_rows(self.optimum)

    @property
    def strictness(self) -> Float:
        """How clearly every row is active or not (r,); 0 at a kink, ∞ where no row is an inequality."""
        return self.rows.strictness

    @cached_property
    def basis(self) -> tuple[Bool, Float]:
        """Active rows (r, n, T) that do not depend on others, and the least pivot of their matrix (r,)."""
        basis, pivot = np.zeros(self.optimum.pull.shape, bool), np.zeros(len(self.optimum.keys))
        gram.basis_of(self.optimum, self.rows, self._workspace, basis, pivot)
        return basis, pivot

    @property
    def pivot(self) -> Float:
        """How clearly the active rows are independent (r,); 0 where one depends on others, 1 of no rows."""
        return self.basis[1]

    @property
    def regular(self) -> Bool:
        """Whether W and multipliers have a derivative (r,)."""
        return (self.strictness > STRICT) & (self.pivot > INDEPENDENT)

    def pull_back(
        self, W: Float | None = None, norm: Float | None = None, multipliers: Float | None = None
    ) -> Cotangents:
        """Cotangents of the data from those of W (r, d, e), N(W) (r,) and the multipliers (r, n, T).

        The multipliers are those of `Solution`: λ_j = μ_j / N(W) of a hard margin, μ_j of a soft one.
        """
        optimum = self.optimum
        if not capabilities_of(self.norm).euclidean:
            if W is not None or multipliers is not None:
                raise NotImplementedError(
                    f"the derivative of W and of the multipliers in the norm {self.norm} is not available. "
                    "Use that of the norm or the margin, or solve with norm='frobenius'."
                )
            return self._of_value(np.zeros(len(optimum.W)) if norm is None else norm)
        W_bar = np.zeros(optimum.W.shape) if W is None else W
        pull_bar = np.zeros(optimum.pull.shape) if multipliers is None else multipliers * self.rows.active
        norm_bar = np.zeros(len(W_bar)) if norm is None else norm
        size = np.asarray(self.norm.value(optimum.W))
        inverse = np.divide(1.0, size, where=size > 0, out=np.zeros(size.shape))
        if multipliers is not None:
            hard = np.isinf(optimum.price).any(-1)
            share = np.einsum("rnt,rnt->r", pull_bar, optimum.pull) * inverse**2
            norm_bar = norm_bar - np.where(hard, share, 0.0)
            pull_bar = pull_bar * np.where(hard, inverse, 1.0)[:, None, None]
        if norm is not None or multipliers is not None:
            W_bar = W_bar + (norm_bar * inverse)[:, None, None] * optimum.W
        shapes = optimum.keys.shape, optimum.queries.shape, optimum.required.shape, optimum.price.shape
        out, pivot = Cotangents(*map(np.zeros, shapes)), np.zeros(len(W_bar))
        arrays = read_only(W_bar), read_only(pull_bar)
        gram.pull_back_runs(optimum, self.rows, self._workspace, *arrays, out, pivot)
        return out

    def _of_value(self, norm: Float) -> Cotangents:
        """dN = Σ λ_j (db_j − ⟨dA_j, W⟩), in every norm: cotangents of the data from those of N(W) (r,)."""
        optimum = self.optimum
        size = np.asarray(self.norm.value(optimum.W))
        share = np.divide(norm, size, where=size > 0, out=np.zeros(size.shape))
        change = share[:, None, None] * optimum.pull
        direction = np.matmul(optimum.queries, optimum.W.swapaxes(1, 2))
        keys = change[..., None] * direction[:, :, None, :]
        anchor = optimum.anchor[..., None, None]
        at_anchor = np.take_along_axis(keys, anchor, 2) - keys.sum(2, keepdims=True)
        np.put_along_axis(keys, np.broadcast_to(anchor, at_anchor.shape), at_anchor, 2)
        first = np.take_along_axis(optimum.keys, anchor, 2)
        delta = np.einsum("rnt,rntd->rnd", change, first - optimum.keys)
        queries = -np.matmul(delta, optimum.W)
        required = np.where(optimum.tied, 0.0, change).sum(-1)
        return Cotangents(keys, queries, required, np.zeros(required.shape))

    @property
    def _workspace(self) -> gram.Workspace:
        return gram.workspace(self.optimum, int(self.rows.active.sum((1, 2)).max(initial=0)))
