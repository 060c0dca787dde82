"""Tokens × selection → the rows of a program, in their structure.

Every row is a rank-one matrix δ zᵀ: the difference δ = x_a − x_t between the anchor of an example
(its first selected token) and another token, times the query. There is one row per token that is
neither masked nor the anchor, so an array over rows has shape (n, T): multipliers, margins.
With a runs axis all arrays carry it first. No d·e columns, no m × d matrix is ever stored.

The compiled passes below read the keys once, without a copy, whatever their precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens
from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import BRAIN, HALF, SCALE, compiled, shifted
from attsvm.numbers.stored import ComputesMargins, Stored
from attsvm.numbers.threads import in_threads
from attsvm.program.units import Units, near_one, proportional

FEW_KEYS = 1 << 18
"""Entries of the keys up to which all differences are stored (2 MB): then no pass need be compiled."""

CHUNK = 1 << 21
"""Numbers in the largest temporary array of differences (16 MB)."""

TINY = 1e-140
"""A row shorter than this is zero: its square has no digits left."""

DEPENDENT = 1e-12
"""A row of length one this close to the span of others depends on them."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """The rows  (x_a − x_t)ᵀ W z ≥ required  (= 0 where tied), one per active token.

    keys (…, n, T, d), queries (…, n, e): float64; where sizes are far from one, each example is multiplied
        by a power of two, so that no product over- or underflows. Keys may be Stored.
    anchor (…, n): index of the first selected token.
    active (…, n, T): rows that exist; tied (…, n, T): the active rows that are equalities.
    required (…, n): the margin that each example requires of the scaled rows, ≥ 0, the largest near one;
        0 where no token loses.
    reach (…, n): no row of the example is longer, |x_a − x_t| |z| ≤ reach.
    units: of rows, margins, weights and prices.
    """

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float
    reach: Float
    units: Units

    @classmethod
    def of(
        cls, tokens: Tokens, selected: ArrayLike, required: Float | float = 1.0, slack: Float | None = None
    ) -> Constraints:
        """The constraints that put the selected tokens above the others.

        required, slack (…, n): checked by `as_required` and `as_slack`.
        """
        selection = as_selected(tokens, selected)
        keys, queries, exponent, reach = tokens.in_units
        anchor = selection.argmax(-1)
        active = tokens.mask & (anchor[..., None] != np.arange(tokens.T))
        # No row requires the margin of an example without a losing token: it sets no unit of other rows.
        competing = (tokens.mask & ~selection).any(-1)
        margins = np.where(competing, required, 0.0)
        scaled, unit = near_one(margins, exponent)
        hard = np.full(margins.shape, np.inf)
        units = Units(margins, hard if slack is None else slack, exponent, unit, np.zeros_like(unit))
        program = cls(keys, queries, anchor, active, active & selection, scaled, reach, units)
        return program._changed(units=proportional(units, scaled, program.longest)) if units.soft else program

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
    def separating(self) -> Bool:
        """The inequality rows (…, n, T)."""
        return self.active > self.tied

    @cached_property
    def bound(self) -> Float:
        """Right-hand side per row (…, n, T): required, and 0 where tied or not active."""
        return self.separating * self.required[..., None]

    @cached_property
    def relaxed(self) -> bool:
        """Whether some row requires no margin: ties, and examples that require the order alone."""
        return bool(self.tied.any() or (self.separating.any(-1) & ~(self.required > 0)).any())

    @property
    def longest(self) -> Float:
        """An upper bound on the length of the rows of each example (…, n), tight where the keys are few."""
        if self.stored or self.n * self.T * self.d > FEW_KEYS:
            return self.reach
        return np.linalg.norm(self.all_differences, axis=-1).max(-1) * np.linalg.norm(self.queries, axis=-1)

    # ------------------------------------------------------------------ fewer runs, fewer examples

    def run(self, index: int) -> Constraints:
        """The constraints of one run."""
        return self._at(index)

    def subset(self, runs: slice | NDArray[np.intp]) -> Constraints:
        """The constraints of several runs."""
        return self._at(runs)

    def each_run(self, *arrays: Float, indices: Iterable[int] | None = None) -> Iterator[Any]:
        """The runs, all or those named, each with its entry of arrays that have a runs axis."""
        for k in range(len(self.keys)) if indices is None else indices:
            yield self.run(k), *(array[k] for array in arrays)

    def as_batch(self) -> Constraints:
        """One problem as a batch of one; differences that were computed are shared."""
        batch = self._at(None)
        if self.fits(FEW_KEYS):
            batch.__dict__["all_differences"] = self.all_differences[None]
        return batch

    def _at(self, index: int | slice | NDArray[np.intp] | None) -> Constraints:
        return Constraints(*(getattr(self, name)[index] for name in _FIELDS))

    def distinct_examples(self) -> NDArray[np.intp]:
        """The first of each group of examples of one run that are equal bit by bit (k,)."""
        sums = self.keys[..., 0].sum(1) + self.queries.sum(1)
        if len(np.unique(sums)) == self.n:  # no copies, as in most programs
            return np.arange(self.n)
        arrays = [*self._of_examples.values(), self.units.required, self.units.slack, self.units.exponent]
        flat = np.concatenate([np.asarray(array, np.float64).reshape(self.n, -1) for array in arrays], 1)
        bits = flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
        return np.sort(np.unique(bits, return_index=True)[1])

    def examples(self, index: NDArray[np.intp]) -> Constraints:
        """The constraints of some examples of one run."""
        arrays = {name: array[index] for name, array in self._of_examples.items()}
        return replace(self, units=self.units.examples(index), **arrays)

    @property
    def _of_examples(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in _FIELDS if name != "units"}

    def with_required(self, required: Float) -> Constraints:
        """The same rows with other margins (…, n)."""
        return self._changed(required=required)

    def _changed(self, **changes: Any) -> Constraints:
        """Another program of the same rows, which shares the arrays computed from them."""
        program = replace(self, **changes)
        for name in {"all_differences", "separating"} & self.__dict__.keys():
            program.__dict__[name] = self.__dict__[name]
        return program

    # ------------------------------------------------------------------ the linear map and its adjoint

    def chunks(self) -> Iterator[tuple[slice, Float]]:
        """Slices of examples and their differences x_a − x_t (…, chunk, T, d), in bounded memory."""
        size = max(1, CHUNK // max(1, self.keys.size // self.n))
        for start in range(0, self.n, size):
            examples = slice(start, min(start + size, self.n))
            keys = self.keys[examples] if self.stored else self.keys[..., examples, :, :]
            index = self.anchor[..., examples, None, None]
            yield examples, np.take_along_axis(keys, index, axis=-2) - keys

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
            margins_of(*self._flat(directions), out.reshape(-1, self.T))
        return np.where(self.active, out, 0.0)

    def some_margins(self, W: Float, examples: NDArray[np.intp]) -> Float:
        """`margins` of some examples, for keys stored elsewhere: (d, e), (k,) → (k, T). Reads only these."""
        anchor, queries = self.anchor[examples], self.queries[examples]
        out = stored_margins(cast(Any, self.keys), examples, anchor, queries, W)
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
            sums_of(*self._flat(multipliers), out.reshape(-1, self.d))
        return np.asarray(np.matmul(np.swapaxes(out, -1, -2), self.queries))

    @property
    def stored(self) -> bool:
        """Whether the keys are not in memory, and some examples are read at once. Only `Slacks` may ask."""
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
        unit_differences_of(self.flat_keys, self.anchor, example, token, delta, length)
        return delta, length

    def token_margins(self, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z of a weight in the units of the tokens: (…, d, e) → (…, n, T)."""
        exponent = self.units.exponent
        if not exponent.any():
            return self.margins(W)
        size = np.frexp(np.abs(W).max((-2, -1)))[1]
        margins = self.margins(np.ldexp(W, -size[..., None, None]))
        return np.ldexp(margins, (exponent + size[..., None])[..., None])

    # ------------------------------------------------------------------ arrays over rows

    def pack(self, multipliers: Float) -> Float:
        """Multipliers over tokens (…, n, T) → one per constraint (…, m), zero beyond a run's own m."""
        return packed(self.active, multipliers)

    def unpack(self, multipliers: Float) -> Float:
        """The inverse of `pack`."""
        out = np.zeros(self.active.shape)
        if np.count_nonzero(self.active) == multipliers.size:  # one run, or all have as many rows
            out[self.active] = multipliers.ravel()
        else:
            out[self.active] = multipliers[np.arange(multipliers.shape[1]) < self.m[:, None]]
        return out


def packed(active: Bool, multipliers: Float) -> Float:
    """Multipliers over tokens (…, n, T) → one per active row (…, m), zero beyond a run's own m."""
    out = multipliers[active]
    if active.ndim == 2:
        return out
    counts = np.count_nonzero(active, axis=(-2, -1))
    most = int(counts.max())
    if out.size == most * len(active):  # every run has as many
        return out.reshape(len(active), most)
    padded = np.zeros((len(active), most))
    padded[np.arange(most) < counts[:, None]] = out
    return padded


def unit(vectors: Float) -> tuple[Float, Float]:
    """Vectors (k, ·) at length one, and their lengths (k,); zero stays zero."""
    length = np.sqrt(np.einsum("kd,kd->k", vectors, vectors))
    return vectors / np.where(length > 0, length, 1.0)[:, None], length


_FIELDS = tuple(field.name for field in fields(Constraints))


# ---------------------------------------------------------------------- passes over the keys


def stored_margins(
    keys: Stored, examples: NDArray[np.intp], anchor: NDArray[np.intp], queries: Float, W: Float
) -> Float:
    """(x_a − x_t)ᵀ W z of some examples that are stored elsewhere, chunk by chunk, on all cores.

    examples (k,): increasing; anchor (k,), queries (k, e), W (d, e) → (k, T).
    """
    keys.passes += len(examples) / len(keys)
    if keys.exponent is not None:
        queries = np.ldexp(queries, -keys.exponent[examples, None])
    if isinstance(keys, ComputesMargins):
        return keys.margins(examples, anchor, queries, W)
    out, anchor = np.empty((len(examples), keys.shape[1])), np.ascontiguousarray(anchor)

    def work(chunk: slice) -> None:
        raw = keys.raw(examples[chunk])
        raw.flags.writeable = False  # one kind of array, one compilation
        first, y = anchor[chunk], np.ascontiguousarray(queries[chunk] @ W.T)
        if raw.itemsize == 2:
            scratch = np.empty((2, raw.shape[2]), np.uint32)
            shift = HALF if raw.dtype == np.float16 else BRAIN
            bits = raw.view(np.uint16)
            margins_of_halves(bits, shift, first, y, scratch, scratch.view(np.float32), out[chunk])
        else:
            margins_of(raw, first, y, out[chunk])

    in_threads(work, keys.parts(len(examples)))
    return out


@compiled
def margins_of(keys: Float, anchor: NDArray[np.intp], directions: Float, out: Float) -> None:
    """(x_a − x_t)ᵀ y_i, the difference first: keys (n, T, d), anchor (n,), y (n, d) → out (n, T)."""
    n, T, d = keys.shape
    for i in range(n):
        first, y = keys[i, anchor[i]], directions[i]
        for t in range(T):
            total, token = 0.0, keys[i, t]
            for c in range(d):
                total += (np.float64(first[c]) - np.float64(token[c])) * y[c]
            out[i, t] = total


@compiled
def margins_of_halves(
    bits: NDArray[np.uint16],
    shift: int,
    anchor: NDArray[np.intp],
    directions: Float,
    scratch: NDArray[np.uint32],
    numbers: NDArray[np.float32],
    out: Float,
) -> None:
    """The same for numbers of 16 bits; scratch (2, d) is memory, and numbers (2, d) its float32 view."""
    n, T, d = bits.shape
    scale = SCALE if shift == HALF else 1.0  # once for a token: keys are finite
    for i in range(n):
        y = directions[i]
        for j in range(T + 1):
            t = anchor[i] if j == 0 else j - 1
            row, token = 0 if j == 0 else 1, bits[i, t]
            for c in range(d):
                scratch[row, c] = shifted(token[c], shift)
            if j > 0:
                total = 0.0
                for c in range(d):
                    total += (np.float64(numbers[0, c]) - np.float64(numbers[1, c])) * y[c]
                out[i, t] = scale * total


@compiled
def sums_of(keys: Float, anchor: NDArray[np.intp], multipliers: Float, out: Float) -> None:
    """Σ_t λ_it (x_a − x_t), reading only tokens with a multiplier: λ (n, T) → out (n, d), zero at first."""
    n, T, d = keys.shape
    for i in range(n):
        first = keys[i, anchor[i]]
        for t in range(T):
            weight = multipliers[i, t]
            if weight != 0.0:
                token = keys[i, t]
                for c in range(d):
                    out[i, c] += weight * (first[c] - token[c])


@compiled
def unit_differences_of(keys, anchor, example, token, out, length):  # type: ignore[no-untyped-def]
    """(x_a − x_t) / |x_a − x_t| and its length for named rows: (k,), (k,) → out (k, d), length (k,)."""
    for j in range(len(example)):
        i, square = example[j], 0.0
        first, second = keys[i, anchor[i]], keys[i, token[j]]
        for c in range(keys.shape[2]):
            out[j, c] = first[c] - second[c]
            square += out[j, c] * out[j, c]
        length[j] = np.sqrt(square)
        scale = 1.0 / length[j] if length[j] > 0.0 else 1.0
        for c in range(keys.shape[2]):
            out[j, c] *= scale


# ---------------------------------------------------------------------- required margins and prices


def as_required(tokens: Tokens, required: ArrayLike) -> Float:
    """Check the required margins: one number, or one per example (n,); each ≥ 0 and finite."""
    margins = _per_example(tokens, "required", required)
    if not (margins.min() >= 0 and margins.max() < np.inf):
        raise ValueError("required must be finite and ≥ 0: the margin each example asks for.")
    return margins


def as_slack(tokens: Tokens, slack: ArrayLike | None) -> Float | None:
    """Check the price C of falling short: one number, or one per example (n,); ∞ for all is None."""
    if slack is None:
        return None
    prices = _per_example(tokens, "slack", slack)
    least, most = prices.min(), prices.max()
    if not least >= 0:
        raise ValueError("slack must be ≥ 0: the price C of one unit that an example falls short.")
    if least == np.inf:
        return None
    if most == np.inf:
        raise ValueError(
            "slack is infinite for some examples only. Pass a finite C for each, or slack=None "
            "for the program without slack."
        )
    return prices


def _per_example(tokens: Tokens, name: str, numbers: ArrayLike) -> Float:
    """One number, or one per example (n,), as one per example (…, n)."""
    array = np.asarray(numbers, dtype=np.float64)
    shape = tokens.labels.shape
    if array.shape not in ((), shape[-1:], shape):
        raise ValueError(
            f"{name} has shape {array.shape} but tokens has n={tokens.n}. "
            f"Pass one number, or one per example ({tokens.n},)."
        )
    return np.broadcast_to(array, shape)
