"""Tokens × selection → the rows of a program, kept in their structure.

Every row is a rank-one matrix δ zᵀ: the difference δ = x_a − x_t between the anchor of an example
(its first selected token) and another token, times the query. There is one row per token that is
neither masked nor the anchor, so whatever belongs to rows is an array (n, T): multipliers, margins.
With a runs axis all arrays carry it first. No d·e columns, no m × d matrix is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.program import passes
from attsvm.tokens import Bool, Float, Tokens, as_required, as_selected

SMALL = 1 << 18
"""Entries of the keys up to which all differences are kept (2 MB): then no pass need be compiled."""

CHUNK = 1 << 21
"""Numbers in the largest temporary array of differences (16 MB)."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """The rows  (x_a − x_t)ᵀ W z ≥ required  (= 0 where tied), one per active token.

    keys (…, n, T, d), queries (…, n, e): float64, scaled by powers of two to a largest entry near
        one, so that no product over- or underflows; `unscale` undoes it for a W.
    anchor (…, n): index of the first selected token.
    active (…, n, T): rows that exist; tied (…, n, T): the active rows that are equalities.
    required (…, n): the margin each example asks for, ≥ 0.
    """

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float
    exponent: NDArray[np.int_]

    @classmethod
    def of(cls, tokens: Tokens, selected: ArrayLike, required: ArrayLike = 1.0) -> Constraints:
        """The constraints that put the selected tokens above the others."""
        chosen = as_selected(tokens, selected)
        keys, key_exponent = _unit(tokens.keys, tokens.key_size)
        queries, query_exponent = _unit(tokens.queries, tokens.query_size)
        anchor = chosen.argmax(-1)
        active = tokens.mask & (anchor[..., None] != np.arange(tokens.T))
        asked = as_required(tokens, required)
        exponent = key_exponent + query_exponent
        return cls(keys, queries, anchor, active, active & chosen, asked, exponent)

    # ------------------------------------------------------------------ sizes and views

    @property
    def n(self) -> int:
        return self.keys.shape[-3]

    @property
    def T(self) -> int:
        return self.keys.shape[-2]

    @property
    def d(self) -> int:
        return self.keys.shape[-1]

    @property
    def e(self) -> int:
        return self.queries.shape[-1]

    @property
    def runs(self) -> int | None:
        return self.keys.shape[0] if self.keys.ndim == 4 else None

    @property
    def selected(self) -> Bool:
        """The selection (…, n, T): the anchors, and the tokens tied to them."""
        return self.tied | (self.anchor[..., None] == np.arange(self.T))

    @cached_property
    def bound(self) -> Float:
        """Right-hand side per row (…, n, T): required, and 0 where tied or not active."""
        return self.separating * self.required[..., None]

    @cached_property
    def separating(self) -> Bool:
        """The inequality rows (…, n, T)."""
        return self.active > self.tied

    def run(self, index: int) -> Constraints:
        """The constraints of one run."""
        return self._at(index)

    def part(self, runs: slice | NDArray[np.intp]) -> Constraints:
        """The constraints of some runs."""
        return self._at(runs)

    def as_batch(self) -> Constraints:
        """One problem as a batch of one, which shares what is known of the rows."""
        batch = self._at(None)
        if self._small:
            batch.__dict__["all_differences"] = self.all_differences[None]
        return batch

    def _at(self, index: int | slice | NDArray[np.intp] | None) -> Constraints:
        return Constraints(*(getattr(self, name)[index] for name in _FIELDS))

    # ------------------------------------------------------------------ the linear map and its adjoint

    def chunks(self) -> Iterator[tuple[slice, Float]]:
        """Slices of examples and their differences x_a − x_t (…, chunk, T, d), in bounded memory."""
        size = max(1, CHUNK // max(1, self.keys[..., 0, :, :].size))
        for start in range(0, self.n, size):
            part = slice(start, min(start + size, self.n))
            keys = self.keys[..., part, :, :]
            index = self.anchor[..., part, None, None]
            yield part, np.take_along_axis(keys, index, axis=-2) - keys

    def margins(self, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z for every row: (…, d, e) → (…, n, T), zero where not active.

        Differences come first: subtracting logits would cancel when the keys share a large offset.
        """
        directions = np.matmul(self.queries, np.swapaxes(W, -1, -2))
        if self._small:
            out = np.einsum("...td,...d->...t", self.all_differences, directions)
        else:
            out = np.empty(self.active.shape)
            passes.margins(*self._flat(directions), out.reshape(-1, self.T))
        return np.where(self.active, out, 0.0)

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_it (x_a − x_t) zᵀ: (…, n, T) → (…, d, e), the adjoint of `margins`."""
        if self._small:
            out = np.einsum("...td,...t->...d", self.all_differences, multipliers)
        else:
            out = np.zeros((*self.active.shape[:-1], self.d))
            passes.sums(*self._flat(multipliers), out.reshape(-1, self.d))
        return np.asarray(np.matmul(np.swapaxes(out, -1, -2), self.queries))

    @property
    def _small(self) -> bool:
        return self.keys.size <= SMALL

    @cached_property
    def all_differences(self) -> Float:
        """x_a − x_t of all rows (…, n, T, d). For small problems."""
        keys = self.keys.reshape(-1, self.T, self.d)
        anchors = keys[np.arange(len(keys)), self.anchor.reshape(-1)]
        return (anchors[:, None] - keys).reshape(self.keys.shape)

    def _flat(self, rows: Float) -> tuple[Float, NDArray[np.intp], Float]:
        """Keys, anchors and an array (…, n, ·) with runs and examples in one axis."""
        keys = self.keys.reshape(-1, self.T, self.d).view()
        keys.flags.writeable = False  # one kind of array, one compilation
        flat = np.ascontiguousarray(rows, dtype=np.float64).reshape(-1, rows.shape[-1])
        return keys, np.ascontiguousarray(self.anchor).reshape(-1), flat

    def differences(self, example: NDArray[Any], token: NDArray[Any]) -> Float:
        """x_a − x_t of the named rows, without runs: (k,), (k,) → (k, d)."""
        return self.keys[example, self.anchor[example]] - self.keys[example, token]

    # ------------------------------------------------------------------ scale

    def unscale(self, W: Float) -> Float:
        """The weight of the original tokens from the weight of the scaled ones."""
        return np.ldexp(W, -self.exponent[..., None, None]) if self.exponent.any() else W

    def scale(self, W: Float) -> Float:
        """The inverse of `unscale`."""
        return np.ldexp(W, self.exponent[..., None, None]) if self.exponent.any() else W


_FIELDS = tuple(field.name for field in fields(Constraints))


def _unit(array: Float, size: Float) -> tuple[Float, NDArray[np.int_]]:
    """The array in float64 times a power of two per run that brings its largest entry near one.

    Sizes within 2^±8 stay as they are: no copy of large data that needs none.
    """
    exponent = np.asarray(np.frexp(size)[1])  # 0 for size 0
    exponent = exponent * (np.abs(exponent) > 8)
    wide = np.ascontiguousarray(array, dtype=np.float64)
    if not exponent.any():
        return wide, exponent
    axes = array.ndim - exponent.ndim
    return np.ldexp(wide, -exponent.reshape(exponent.shape + (1,) * axes)), exponent
