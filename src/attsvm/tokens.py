"""The data of every attention problem, and every shape check of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path as File
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attsvm.files import memory, naming, read_arrays, write_arrays
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.token_arrays import (
    as_labels,
    as_mask,
    as_numpy_writes_it,
    as_padded,
    check_counts,
    check_finite,
    check_no_example_is_empty,
    common_runs,
    frozen,
    in_unit,
    keys_or_values,
    largest,
    numbers,
    sizes,
    zero_masked,
)

_ARRAYS = ("keys", "queries", "labels", "mask", "values")


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """Keys, queries, values and labels of n attention problems.

        logits  a_t = x_tᵀ W z          attention  s = softmax(a)

    keys (n, T, d): the tokens x_t that are compared with the query.
    queries (n, e): the query z of each example. `None` is the prompt model, e = 1 with
        the constant query 1, so that W (d, 1) is the prompt itself.
    labels (n,): −1 or +1, by default all +1.
    mask (n, T): True where there is a token, by default everywhere. Masked tokens are set to zero.
    values (n, T, c): what attention averages, by default the keys.
    dtype: float64; pass `np.float32` to keep single precision.

    Every array may carry a leading `runs` axis; arrays without it are shared by all runs.
    The arrays are read-only views: float64 input is not copied. Keys and values (n, T, ·) that are memory
    maps, large arrays of float32 or float16, or anything else with shape, dtype and slices of examples
    (h5py, Zarr, dask) stay where they are, as `Stored`; road one reads them in passes.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines".
    """

    keys: Float
    queries: Float = field(default=cast(Float, None))
    labels: Float = field(default=cast(Float, None))
    mask: Bool = field(default=cast(Bool, None))
    values: Float = field(default=cast(Float, None))
    dtype: InitVar[DTypeLike] = field(default=np.float64, kw_only=True)

    def __post_init__(self, dtype: DTypeLike) -> None:
        if np.dtype(dtype) not in (np.dtype(np.float64), np.dtype(np.float32)):
            raise ValueError(f"dtype is {np.dtype(dtype)}. Pass np.float64 or np.float32.")
        keys = keys_or_values("keys", self.keys, dtype, ("n", "T", "d"))
        n, T = keys.shape[-3:-1]
        queries = (
            np.ones((n, 1), dtype)
            if self.queries is None
            else numbers("queries", self.queries, dtype, ("n", "e"))
        )
        labels = np.ones(n, dtype) if self.labels is None else as_labels(self.labels, dtype)
        mask = np.ones((n, T), bool) if self.mask is None else as_mask(self.mask)
        values = (
            keys
            if self.values is None or self.values is self.keys
            else keys_or_values("values", self.values, dtype, ("n", "T", "c"))
        )
        parts: dict[str, tuple[NDArray[Any], int]]
        parts = {"keys": (keys, 3), "queries": (queries, 2), "labels": (labels, 1)}
        parts |= {"mask": (mask, 2), "values": (values, 3)}
        check_counts(parts, n, T)
        check_no_example_is_empty(mask)
        shared = values is keys
        keys = zero_masked(keys, mask)
        values = keys if shared else zero_masked(values, mask)
        parts |= {"keys": (keys, 3), "values": (values, 3)}
        runs = common_runs(parts)
        for name, (array, axes) in parts.items():
            object.__setattr__(self, name, frozen(array, runs, axes))
        if shared:  # one object, so that code may test `values is keys`
            object.__setattr__(self, "values", self.keys)
        check_finite("keys", self.keys, self.key_size, self.mask)
        check_finite("queries", self.queries, self.query_size)
        if not shared:
            check_finite("values", self.values, sizes(self.values, self.mask), self.mask)

    # ------------------------------------------------------------------ other ways to build

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[ArrayLike],
        queries: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        values: Sequence[ArrayLike] | None = None,
        *,
        dtype: DTypeLike = np.float64,
    ) -> Tokens:
        """Pad sequences of different lengths and mask the padding.

        sequences: n arrays (T_i, d); values: n arrays (T_i, c).
        """
        keys, lengths = as_padded("sequences", sequences, dtype)
        mask = np.arange(keys.shape[1]) < lengths[:, None]
        padded = None
        if values is not None:
            padded, value_lengths = as_padded("values", values, dtype)
            if not np.array_equal(lengths, value_lengths):
                raise ValueError("values and sequences have different lengths. Pass one value per token.")
        return cls(keys, queries, labels, mask, padded, dtype=dtype)  # type: ignore[arg-type]

    @classmethod
    def self_attention(
        cls,
        keys: ArrayLike,
        at: ArrayLike = 0,
        labels: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        values: ArrayLike | None = None,
        *,
        dtype: DTypeLike = np.float64,
    ) -> Tokens:
        """Take each query from its own sequence: z_i = x_{i, at_i}.

        at: one position, or one per example (n,); −1 is the last token that is not masked.
        """
        base = cls(keys, None, labels, mask, values, dtype=dtype)  # type: ignore[arg-type]
        try:
            position = np.broadcast_to(np.asarray(at), base.labels.shape)
        except ValueError:
            raise ValueError(
                f"at has shape {np.shape(at)} but keys has n={base.n}. Pass one, or one per example. "
                "For several queries per sequence use Tokens.every_query(keys)."
            ) from None
        if not np.issubdtype(position.dtype, np.integer):
            raise ValueError(f"at has dtype {position.dtype}. Pass integer positions.")
        last = base.T - 1 - np.argmax(base.mask[..., ::-1], axis=-1)
        position = np.where(position < 0, last + 1 + position, position)
        if (position < 0).any() or (position > last).any():
            raise ValueError(f"at points outside a sequence: got {at!r}, T={base.T}.")
        if isinstance(base.keys, Stored):
            queries = base.keys[np.arange(base.n), position]
        else:
            queries = np.take_along_axis(base.keys, position[..., None, None], axis=-2)[..., 0, :]
        own = None if base.values is base.keys else base.values
        return cls(base.keys, queries, base.labels, base.mask, own, dtype=dtype)  # type: ignore[arg-type]

    @classmethod
    def every_query(
        cls,
        keys: ArrayLike,
        labels: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        values: ArrayLike | None = None,
        visible: ArrayLike | None = None,
        *,
        dtype: DTypeLike = np.float64,
    ) -> Tokens:
        """Let every token of every sequence be a query once: one example per (sequence, token).

        keys (n, T, d), labels (n, T); visible (T, T): which token t the query k may see.
        `visible=np.tri(T, dtype=bool)` is causal attention. Queries that are masked are dropped.
        """
        base = cls(keys, None, None, mask, values, dtype=dtype).in_memory()  # type: ignore[arg-type]
        if base.runs is not None:
            raise ValueError("every_query takes keys (n, T, d) without a runs axis.")
        n, T = base.n, base.T
        seen = np.ones((T, T), bool) if visible is None else np.asarray(visible, bool)
        if seen.shape != (T, T):
            raise ValueError(f"visible has shape {seen.shape} but T={T}. Pass shape ({T}, {T}).")
        i, k = np.nonzero(base.mask)
        y = None
        if labels is not None:
            y = np.asarray(labels)
            if y.shape != (n, T):
                raise ValueError(f"labels has shape {y.shape}. Pass one per query: ({n}, {T}).")
            y = y[i, k]
        own = None if base.values is base.keys else base.values[i]
        rows = base.mask[i] & seen[k]
        return cls(base.keys[i], base.keys[i, k], y, rows, own, dtype=dtype)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ sizes

    @property
    def runs(self) -> int | None:
        """Number of runs, or None without a runs axis."""
        return self.keys.shape[0] if self.keys.ndim == 4 else None

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.keys.shape[-3]

    @property
    def T(self) -> int:
        """Tokens per example, padding included."""
        return self.keys.shape[-2]

    @property
    def d(self) -> int:
        """Width of a key."""
        return self.keys.shape[-1]

    @property
    def e(self) -> int:
        """Width of a query; 1 in the prompt model."""
        return self.queries.shape[-1]

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Number of tokens of each example (n,)."""
        return self.mask.sum(axis=-1)

    @cached_property
    def key_size(self) -> Float:
        """Largest absolute entry of each example's keys: (n,), with runs (runs, n)."""
        return sizes(self.keys, self.mask)

    @cached_property
    def query_size(self) -> Float:
        """Largest absolute entry of each query: (n,), with runs (runs, n)."""
        return largest(self.queries, 1)

    @cached_property
    def in_units(self) -> tuple[Float, Float, NDArray[np.int_], Float]:
        """Keys and queries in float64, each example times a power of two where sizes are far from one.

        Then the exponent (n,) of their product in these units, and its reach (n,): |x_s − x_t| |z| ≤ reach.
        """
        keys, key_exponent = in_unit(self.keys, self.key_size)
        queries, query_exponent = in_unit(self.queries, self.query_size)
        largest_key = np.ldexp(self.key_size.astype(np.float64), -key_exponent)
        reach = 2.0 * np.sqrt(self.d) * largest_key * np.sqrt(np.einsum("...e,...e->...", queries, queries))
        return keys, queries, key_exponent + query_exponent, reach

    def run(self, index: int) -> Tokens:
        """The tokens of one run."""
        if self.runs is None:
            raise ValueError("these tokens have no runs axis.")
        own = None if self.values is self.keys else self.values[index]
        parts = (self.keys[index], self.queries[index], self.labels[index], self.mask[index])
        return Tokens(*parts, own, dtype=self.keys.dtype)  # type: ignore[arg-type]

    def repeated(self, runs: int) -> Tokens:
        """The same tokens once per run, without a copy; they must have no runs axis yet."""
        if isinstance(self.keys, Stored):
            raise ValueError("many runs need keys in memory. Pass one run at a time, or np.asarray(keys).")
        keys = np.broadcast_to(self.keys, (runs, *self.keys.shape))
        own = None if self.values is self.keys else self.values
        return Tokens(keys, self.queries, self.labels, self.mask, own, dtype=self.keys.dtype)  # type: ignore[arg-type]

    @property
    def stored(self) -> bool:
        """Whether keys or values are read as float64 from numbers stored in another way, or elsewhere."""
        return isinstance(self.keys, Stored) or isinstance(self.values, Stored)

    @property
    def elsewhere(self) -> bool:
        """Whether keys or values lie in a file of their own, or anywhere but in memory."""
        return any(isinstance(x, Stored) and not x.here for x in (self.keys, self.values))

    def in_memory(self) -> Tokens:
        """The same tokens with stored keys and values read into memory, in float64."""
        stored = {id(x): x for x in (self.keys, self.values) if isinstance(x, Stored)}
        if not stored:
            return self
        need = 8 * sum(x.size for x in stored.values())
        if need > memory() // 2:
            raise ValueError(
                f"the stored keys and values take {need / 2**30:,.3g} GiB in float64, more than half of the "
                "memory, and this needs them there. Pass fewer examples."
            )
        own = None if self.values is self.keys else np.asarray(self.values)
        return Tokens(np.asarray(self.keys), self.queries, self.labels, self.mask, own)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        size = f"n={self.n}, T={self.T}, d={self.d}, e={self.e}"
        parts = [size] if self.runs is None else [f"runs={self.runs}, {size}"]
        if not self.mask.all():
            parts.append(f"lengths {self.lengths.min()}–{self.lengths.max()}")
        if self.values is not self.keys:
            parts.append(f"values {self.values.shape[-1]} wide")
        parts.append(f"labels {int((self.labels > 0).sum())}+ {int((self.labels < 0).sum())}−")
        if isinstance(self.keys, Stored):
            parts.append(f"stored as {self.keys.array.dtype}")
        elif self.keys.dtype != np.float64:
            parts.append(str(self.keys.dtype))
        return f"Tokens({'; '.join(parts)})"

    # ------------------------------------------------------------------ open format

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, as `save` writes them; values only where they differ from the keys."""
        if self.elsewhere:
            raise ValueError(
                "keys or values stay where they are stored. Keep that file, or use tokens.in_memory()."
            )
        kept = _ARRAYS[:-1] if self.values is self.keys else _ARRAYS
        return {name: as_numpy_writes_it(getattr(self, name)) for name in kept}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Tokens:
        """The inverse of `arrays`: keys and any of the others by name; further arrays are passed over."""
        if "keys" not in arrays:
            raise ValueError(f"no array 'keys', only {sorted(arrays)}. Add the tokens (n, T, d) as 'keys'.")
        found: dict[str, Any] = {name: arrays[name] for name in _ARRAYS if name in arrays}
        stays = any(isinstance(array, np.memmap) for array in found.values())
        single = found["keys"].dtype == np.float32 and not stays
        return cls(**found, dtype=np.float32 if single else np.float64)

    def save(self, file: str | PathLike[str]) -> File:
        """Write the arrays to an .npz file; returns its name. What is stored elsewhere is not copied."""
        return write_arrays(file, self.arrays())

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Tokens:
        """Read tokens from an .npz, .safetensors or .json file: `keys`, any of queries, labels, mask, values.

        An .npy file holds the keys alone; a saved path or solution holds tokens too. Large keys and values
        that are not compressed stay in the file, as `Stored`. Raises BadFile; an unknown name is told the
        nearest one.
        """
        arrays = read_arrays(file, _ARRAYS, in_place=True)
        with naming(file):
            return cls.from_arrays(arrays)


# ---------------------------------------------------------------------- checks for the other files


def as_selected(tokens: Tokens, selected: ArrayLike) -> Bool:
    """Check a selection and return it as bool (n, T), with runs (runs, n, T).

    selected: one boolean per token, or one token index per example (n,).
    """
    array = np.asarray(selected)
    want, counts = tokens.mask.shape, tokens.labels.shape
    if array.dtype == bool:
        if array.shape[-2:] != want[-2:] or array.ndim > len(want):
            raise ValueError(
                f"selected has shape {array.shape} but tokens has n={tokens.n}, T={tokens.T}. "
                "Pass one boolean per token."
            )
        chosen = np.broadcast_to(array, want)
    elif np.issubdtype(array.dtype, np.integer):
        if array.shape[-1:] != (tokens.n,) or array.ndim > len(counts):
            raise ValueError(
                f"selected has shape {array.shape} but tokens has n={tokens.n}. "
                "Pass one token index per example, or booleans (n, T)."
            )
        if (array < 0).any() or (array >= tokens.T).any():
            raise ValueError(
                f"selected has indices from {array.min()} to {array.max()} but T={tokens.T}. "
                f"Pass indices from 0 to {tokens.T - 1}."
            )
        chosen = np.broadcast_to(array[..., None] == np.arange(tokens.T), want)
    else:
        raise TypeError(f"selected has dtype {array.dtype}. Pass booleans (n, T) or integer indices (n,).")
    if (chosen & ~tokens.mask).any():
        *_, i, t = np.argwhere(chosen & ~tokens.mask)[0]
        raise ValueError(f"selected picks token {t} of example {i}, which is masked.")
    if not chosen.any(-1).all():
        *_, i = np.argwhere(~chosen.any(-1))[0]
        raise ValueError(f"selected picks no token in example {i}. Pick at least one.")
    return chosen


def matching_runs(tokens: Tokens, selected: ArrayLike) -> Tokens:
    """The tokens, repeated for every run of the selection where only the selection has a runs axis."""
    array = np.asarray(selected)
    axes = 2 if array.dtype == bool else 1
    return tokens.repeated(len(array)) if tokens.runs is None and array.ndim == axes + 1 else tokens


def as_head(tokens: Tokens, v: ArrayLike) -> Float:
    """Check a linear head and return it with the last axis as wide as the values."""
    head = np.asarray(v, dtype=tokens.keys.dtype)
    width = tokens.values.shape[-1]
    allowed = [(width,)] if tokens.runs is None else [(width,), (tokens.runs, width)]
    if head.shape not in allowed:
        raise ValueError(
            f"the head v has shape {head.shape} but the values are {width} wide. "
            f"Pass shape {' or '.join(map(str, allowed))}."
        )
    if not np.isfinite(head).all():
        raise ValueError("the head v has a NaN or infinite entry.")
    return head


def as_required(tokens: Tokens, required: ArrayLike) -> Float:
    """Check the margins asked for: one number, or one per example (n,); each ≥ 0 and finite."""
    asked = per_example(tokens, "required", required)
    if not np.isfinite(asked).all() or (asked < 0).any():
        raise ValueError("required must be finite and ≥ 0: the margin each example asks for.")
    return asked


def per_example(tokens: Tokens, name: str, numbers: ArrayLike) -> Float:
    """One number, or one per example (n,), as one per example (…, n)."""
    given = np.asarray(numbers, dtype=np.float64)
    want = tokens.labels.shape
    if given.ndim > len(want) or given.shape not in ((), want[-1:], want):
        raise ValueError(
            f"{name} has shape {given.shape} but tokens has n={tokens.n}. "
            f"Pass one number, or one per example ({tokens.n},)."
        )
    return np.broadcast_to(given, want)


def as_attention(attention: ArrayLike) -> Float:
    """Check attention weights (…, n, T): nonnegative rows that sum to one."""
    s = np.asarray(attention, dtype=np.float64)
    if s.ndim < 2:
        raise ValueError(f"attention has shape {s.shape}. Pass (n, T).")
    if not np.isfinite(s).all() or (s < 0).any() or (np.abs(s.sum(-1) - 1) > 1e-4).any():
        raise ValueError("attention is not a probability vector per example: rows must sum to 1.")
    return s
