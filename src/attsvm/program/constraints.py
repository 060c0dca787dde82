"""Tokens × selection → the rows of a program, kept in their structure.

Every row is a rank-one matrix δ zᵀ: the difference δ = x_a − x_t between the anchor of an example
(its first selected token) and another token, times the query. There is one row per token that is
neither masked nor the anchor, so whatever belongs to rows is an array (n, T): multipliers, margins.
With a runs axis all arrays carry it first. No d·e columns, no m × d matrix is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.program import passes
from attsvm.program.asked import as_required
from attsvm.selection import as_selected
from attsvm.token_arrays import TAME
from attsvm.tokens import Tokens

FEW_KEYS = 1 << 18
"""Entries of the keys up to which all differences are kept (2 MB): then no pass need be compiled."""

CHUNK = 1 << 21
"""Numbers in the largest temporary array of differences (16 MB)."""

FAR, LEAST = 10_000, 2.0**-900
"""More than any binary exponent; the least margin a row asks for, where the largest is near one."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """The rows  (x_a − x_t)ᵀ W z ≥ required  (= 0 where tied), one per active token.

    keys (…, n, T, d), queries (…, n, e): float64; where sizes are far from one, each example in units of
        its own, powers of two, so that no product over- or underflows. Keys may be Stored.
    anchor (…, n): index of the first selected token.
    active (…, n, T): rows that exist; tied (…, n, T): the active rows that are equalities.
    required (…, n): the margin each example asks for in these units, ≥ 0, the largest near one.
    price (…, n): what a unit costs that it falls short, in these units; ∞: it must not.
    asked (…, n): the same in the units of the tokens.
    exponent (…, n): a row here is 2^−exponent times the row of the tokens.
    unit (…): a weight here is 2^−unit times the weight of the tokens; see `weight` and `multipliers`.
    reach (…, n): no row of the example is longer, |x_a − x_t| |z| ≤ reach.
    """

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float
    price: Float
    asked: Float
    exponent: NDArray[np.int_]
    unit: NDArray[np.int_]
    reach: Float

    @classmethod
    def of(cls, tokens: Tokens, selected: ArrayLike, required: ArrayLike = 1.0) -> Constraints:
        """The constraints that put the selected tokens above the others."""
        chosen = as_selected(tokens, selected)
        keys, queries, exponent, reach = tokens.in_units
        anchor = chosen.argmax(-1)
        active = tokens.mask & (anchor[..., None] != np.arange(tokens.T))
        asked = as_required(tokens, required)
        scaled, unit = _near_one(asked, exponent)
        hard = np.full(asked.shape, np.inf)
        return cls(keys, queries, anchor, active, active & chosen, scaled, hard, asked, exponent, unit, reach)

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
    def m(self) -> NDArray[np.intp]:
        """Number of rows (…)."""
        return np.asarray(np.count_nonzero(self.active, axis=(-2, -1)))

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
    def relaxed(self) -> bool:
        """Whether some row does not ask for a margin: ties, and examples that ask for the order alone."""
        return bool(self.tied.any() or not self.required.min() > 0)

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
        if self.fits(FEW_KEYS):
            batch.__dict__["all_differences"] = self.all_differences[None]
        return batch

    def asking(self, required: Float) -> Constraints:
        """The same rows with other margins (…, n), which share what is known of them."""
        other = replace(self, required=required)
        for name in {"all_differences", "separating"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

    def _at(self, index: int | slice | NDArray[np.intp] | None) -> Constraints:
        return Constraints(*(getattr(self, name)[index] for name in _FIELDS))

    # ------------------------------------------------------------------ the linear map and its adjoint

    def chunks(self) -> Iterator[tuple[slice, Float]]:
        """Slices of examples and their differences x_a − x_t (…, chunk, T, d), in bounded memory."""
        size = max(1, CHUNK // max(1, self.keys.size // self.n))
        for start in range(0, self.n, size):
            part = slice(start, min(start + size, self.n))
            keys = self.keys[part] if self.stored else self.keys[..., part, :, :]
            index = self.anchor[..., part, None, None]
            yield part, np.take_along_axis(keys, index, axis=-2) - keys

    def margins(self, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z for every row: (…, d, e) → (…, n, T), zero where not active.

        Differences come first: subtracting logits would cancel when the keys share a large offset.
        """
        if self.stored:
            return self.some_margins(W, np.arange(self.n))
        directions = np.matmul(self.queries, np.swapaxes(W, -1, -2))
        if self.fits(FEW_KEYS):
            out = np.einsum("...td,...d->...t", self.all_differences, directions)
        else:
            out = np.empty(self.active.shape)
            passes.margins(*self._flat(directions), out.reshape(-1, self.T))
        return np.where(self.active, out, 0.0)

    def some_margins(self, W: Float, examples: NDArray[np.intp]) -> Float:
        """`margins` of some examples whose keys are stored elsewhere: (d, e), (k,) → (k, T); reads those."""
        own = self.anchor[examples], self.queries[examples]
        out = passes.stored_margins(cast(Any, self.keys), examples, *own, W)
        out[~self.active[examples]] = 0.0
        return out

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_it (x_a − x_t) zᵀ: (…, n, T) → (…, d, e), the adjoint of `margins`."""
        if self.stored:
            example, token = np.nonzero(multipliers)
            weighted = multipliers[example, token, None] * self.differences(example, token)
            return np.asarray(weighted.T @ self.queries[example])
        if self.fits(FEW_KEYS):
            out = np.einsum("...td,...t->...d", self.all_differences, multipliers)
        else:
            out = np.zeros((*self.active.shape[:-1], self.d))
            passes.sums(*self._flat(multipliers), out.reshape(-1, self.d))
        return np.asarray(np.matmul(np.swapaxes(out, -1, -2), self.queries))

    @property
    def stored(self) -> bool:
        """Whether the keys stay where they are, and only parts of them are read: for `Slacks` to know."""
        return isinstance(self.keys, Stored)

    @property
    def library(self) -> Any:
        """The library that holds the keys on a GPU, or None."""
        return getattr(self.keys, "library", None)

    def fits(self, most: float = np.inf) -> bool:
        """Whether the keys are in memory, and no more numbers than these."""
        return self.keys.size <= most and not self.stored

    @cached_property
    def all_differences(self) -> Float:
        """x_a − x_t of all rows (…, n, T, d). For small problems."""
        keys = self.keys.reshape(-1, self.T, self.d)
        anchors = keys[np.arange(len(keys)), self.anchor.reshape(-1)]
        return (anchors[:, None] - keys).reshape(self.keys.shape)

    def _flat(self, rows: Float) -> tuple[Float, NDArray[np.intp], Float]:
        """Keys, anchors and an array (…, n, ·) with runs and examples in one axis."""
        flat = np.ascontiguousarray(rows, dtype=np.float64).reshape(-1, rows.shape[-1])
        return self.flat_keys, np.ascontiguousarray(self.anchor).reshape(-1), flat

    @property
    def flat_keys(self) -> Float:
        """The keys with runs and examples in one axis, for compiled passes."""
        keys = self.keys.reshape(-1, self.T, self.d).view()
        keys.flags.writeable = False  # one kind of array, one compilation
        return keys

    def differences(self, example: NDArray[Any], token: NDArray[Any]) -> Float:
        """x_a − x_t of the named rows, without runs: (k,), (k,) → (k, d)."""
        return self.keys[example, self.anchor[example]] - self.keys[example, token]

    def unit_differences(self, example: NDArray[Any], token: NDArray[Any]) -> tuple[Float, Float]:
        """The same at length one (k, d), and their lengths (k,)."""
        if self.stored:
            return unit(self.differences(example, token))
        delta, length = np.empty((len(example), self.d)), np.empty(len(example))
        passes.unit_differences(self.flat_keys, self.anchor, example, token, delta, length)
        return delta, length

    # ------------------------------------------------------------------ the units of the tokens

    def weight(self, W: Float) -> Float:
        """The weight of the tokens from the weight of these rows."""
        return in_range("W", W, self.unit[..., None, None]) if self.unit.any() else W

    def multipliers(self, multipliers: Float) -> Float:
        """The multipliers of the tokens' rows from those of these rows (…, n, T)."""
        if not self.exponent.any():
            return multipliers
        return in_range("multipliers", multipliers, -self.exponent[..., None])

    def token_margins(self, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z of a weight in the units of the tokens: (…, d, e) → (…, n, T)."""
        if not self.exponent.any():
            return self.margins(W)
        size = np.frexp(np.abs(W).max((-2, -1)))[1]
        margins = self.margins(np.ldexp(W, -size[..., None, None]))
        return np.ldexp(margins, (self.exponent + size[..., None])[..., None])


_FIELDS = tuple(field.name for field in fields(Constraints))


def unit(vectors: Float) -> tuple[Float, Float]:
    """Vectors (k, ·) at length one, and their lengths (k,); zero stays zero."""
    length = np.sqrt(np.einsum("kd,kd->k", vectors, vectors))
    return vectors / np.where(length > 0, length, 1.0)[:, None], length


def in_range(name: str, array: Float, exponent: NDArray[np.int_]) -> Float:
    """array · 2^exponent, which must be a number of float64, with all its digits where it is largest."""
    with np.errstate(over="ignore", under="ignore"):
        out = np.ldexp(array, exponent)
    power = np.where(array != 0, np.frexp(array)[1] + exponent, 0)
    top = power.max((-2, -1), initial=-FAR, where=array != 0)
    wrong = (top > 1023) | ((top < -1000) & (top > -FAR))
    if wrong.any():
        size = round(0.30103 * int(np.asarray(top)[wrong].ravel()[0]))
        raise ValueError(
            f"the solution has {name} of size 1e{size}, and float64 holds 1e-300 to 1e308. Rescale the "
            "tokens: keys or queries k times as large make W 1/k times as large."
        )
    return np.asarray(out)


def _near_one(required: Float, exponent: NDArray[np.int_]) -> tuple[Float, NDArray[np.int_]]:
    """The required margins of the scaled rows, the largest of each run near one, and the unit of W.

    One that would vanish next to it still asks for something.
    """
    largest = required.max(-1)
    if not exponent.any() and (largest <= 2.0**TAME).all() and (largest >= 2.0**-TAME).all():
        return required, np.zeros(largest.shape, int)
    size = np.where(required > 0, np.frexp(required)[1] - 1 - exponent, -FAR)
    unit = size.max(-1)
    unit = np.where(unit > -FAR, unit, 0)
    shift = -exponent - unit[..., None]
    return np.where(required > 0, np.maximum(np.ldexp(required, shift), LEAST), 0.0), unit
