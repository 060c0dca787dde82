"""The data of attention problems: keys, queries, labels, mask and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path as File
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attsvm.data.token_checks import (
    AXES,
    as_padded,
    as_positions,
    check_finite,
    for_npz,
    largest_entry,
    scaled_to_one,
    sizes,
    validated,
)
from attsvm.numbers import Bool, Float
from attsvm.numbers.files import memory, naming, read_arrays, write_arrays
from attsvm.numbers.stored import Stored


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """Keys, queries, labels and values of n attention problems.

        logits  a_t = x_tᵀ W z          attention  s = softmax(a)

    keys (n, T, d): the tokens x_t of each example.
    queries (n, e): the query z of each example. `None` is the prompt model: z is the constant 1, e = 1, and
        W (d, 1) is the prompt.
    labels (n,): −1 or +1, by default all +1.
    mask (n, T): True for a token, False for padding; by default all True. Padding is set to zero.
    values (n, T, c): the vectors that attention averages, by default the keys.
    dtype: np.float64, or np.float32 to compute in single precision.

    Every array may have a `runs` axis in front, such as keys (runs, n, T, d); all runs share the arrays
    without it. The arrays are read-only views: float64 input is not copied. Keys and values (n, T, ·) that
    are memory maps, large arrays of float32 or float16, or objects with shape, dtype and slices of examples
    (h5py, Zarr, dask) are not read into memory: they become `Stored`, which programs read in passes.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines".
    """

    keys: Float
    queries: Float = field(default=cast(Float, None))
    labels: Float = field(default=cast(Float, None))
    mask: Bool = field(default=cast(Bool, None))
    values: Float = field(default=cast(Float, None))
    dtype: InitVar[DTypeLike] = field(default=np.float64, kw_only=True)

    def __post_init__(self, dtype: DTypeLike) -> None:
        arguments = {name: getattr(self, name) for name in AXES}
        for name, array in validated(arguments, dtype).items():
            object.__setattr__(self, name, array)
        check_finite("keys", self.keys, self.key_size, self.mask)
        check_finite("queries", self.queries, self.query_size)
        if self.values is not self.keys:
            check_finite("values", self.values, sizes(self.values, self.mask), self.mask)

    # ------------------------------------------------------------------ constructors

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
        """Tokens of sequences of different lengths, padded and masked.

        sequences: n arrays (T_i, d); values: n arrays (T_i, c); queries and labels as in `Tokens`.
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
        """Tokens whose queries are keys of the same sequence: z_i = x_{i, at_i}.

        at: one position, or one per example (n,); −1 is the last token that is not masked.
        """
        base = cls(keys, None, labels, mask, values, dtype=dtype)  # type: ignore[arg-type]
        position = as_positions(at, base.mask)
        if isinstance(base.keys, Stored):
            queries = base.keys[np.arange(base.n), position]
        else:
            queries = np.take_along_axis(base.keys, position[..., None, None], axis=-2)[..., 0, :]
        return cls(base.keys, queries, base.labels, base.mask, base.values, dtype=dtype)

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
        """One example for each query of self-attention: every token of every sequence, unless it is masked.

        keys (n, T, d), labels (n, T); visible (T, T): True where query k attends to token t, by default
        everywhere. `visible=np.tri(T, dtype=bool)` is causal attention.
        """
        base = cls(keys, None, None, mask, values, dtype=dtype).in_memory()  # type: ignore[arg-type]
        if base.runs is not None:
            raise ValueError("every_query takes keys (n, T, d) without a runs axis.")
        n, T = base.n, base.T
        visible = np.ones((T, T), bool) if visible is None else np.asarray(visible, bool)
        if visible.shape != (T, T):
            raise ValueError(f"visible has shape {visible.shape} but T={T}. Pass shape ({T}, {T}).")
        i, k = np.nonzero(base.mask)
        y = None if labels is None else np.asarray(labels)
        if y is not None and y.shape != (n, T):
            raise ValueError(f"labels has shape {y.shape}. Pass one per query: ({n}, {T}).")
        arrays = {name: array[i] for name, array in base._arrays.items()}
        arrays |= {"queries": base.keys[i, k], "mask": arrays["mask"] & visible[k]}
        return cls(**arrays | {"labels": None if y is None else y[i, k]}, dtype=dtype)

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
        return largest_entry(self.queries, 1)

    @cached_property
    def in_units(self) -> tuple[Float, Float, NDArray[np.int_], Float]:
        """Keys, queries, exponent, reach: float64 arrays scaled by powers of two, so that logits are finite.

        An example is scaled where its entries are far from one; its logits are 2^exponent times those of the
        scaled arrays, exponent (n,). reach (n,) bounds the scaled |x_s − x_t| |z|.
        """
        keys, key_exponent = scaled_to_one(self.keys, self.key_size)
        queries, query_exponent = scaled_to_one(self.queries, self.query_size)
        largest_key = np.ldexp(self.key_size.astype(np.float64), -key_exponent)
        reach = 2.0 * np.sqrt(self.d) * largest_key * np.sqrt(np.einsum("...e,...e->...", queries, queries))
        return keys, queries, key_exponent + query_exponent, reach

    @property
    def _arrays(self) -> dict[str, Any]:
        """The arrays by name, without values that are the keys."""
        values_are_keys = self.values is self.keys
        return {name: getattr(self, name) for name in AXES if not (values_are_keys and name == "values")}

    def run(self, index: int | NDArray[np.intp]) -> Tokens:
        """The tokens of one run, or of several."""
        if self.runs is None:
            raise ValueError("these tokens have no runs axis.")
        return Tokens(**{name: array[index] for name, array in self._arrays.items()}, dtype=self.keys.dtype)

    def repeated(self, runs: int) -> Tokens:
        """The tokens with a runs axis: a view that shows them once per run."""
        if isinstance(self.keys, Stored):
            raise ValueError("many runs need keys in memory. Pass one run at a time, or np.asarray(keys).")
        keys = np.broadcast_to(self.keys, (runs, *self.keys.shape))
        return Tokens(**{**self._arrays, "keys": keys}, dtype=self.keys.dtype)

    @property
    def stored(self) -> bool:
        """Whether keys or values are `Stored`: in another precision, in a file, on a GPU or on a cluster."""
        return isinstance(self.keys, Stored) or isinstance(self.values, Stored)

    @property
    def elsewhere(self) -> bool:
        """Whether keys or values are not in memory, but in a file, on a GPU or on a cluster."""
        return any(isinstance(x, Stored) and not x.here for x in (self.keys, self.values))

    def in_memory(self) -> Tokens:
        """The tokens with stored keys and values read into memory, as float64."""
        stored = {id(x): x for x in (self.keys, self.values) if isinstance(x, Stored)}
        if not stored:
            return self
        size = 8 * sum(x.size for x in stored.values())
        if size > memory() // 2:
            raise ValueError(
                f"the stored keys and values take {size / 2**30:,.3g} GiB in float64, more than half of the "
                "memory, and this needs them there. Pass fewer examples."
            )
        return Tokens(**{name: np.asarray(array) for name, array in self._arrays.items()})

    def __repr__(self) -> str:
        shape = f"n={self.n}, T={self.T}, d={self.d}, e={self.e}"
        details = [shape] if self.runs is None else [f"runs={self.runs}, {shape}"]
        if not self.mask.all():
            details.append(f"lengths {self.lengths.min()}–{self.lengths.max()}")
        if self.values is not self.keys:
            details.append(f"values {self.values.shape[-1]} wide")
        details.append(f"labels {int((self.labels > 0).sum())}+ {int((self.labels < 0).sum())}−")
        if isinstance(self.keys, Stored):
            details.append(f"stored as {self.keys.array.dtype}")
        elif self.keys.dtype != np.float64:
            details.append(str(self.keys.dtype))
        return f"Tokens({'; '.join(details)})"

    # ------------------------------------------------------------------ open format

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, as `save` writes them, without values that are the keys."""
        if self.elsewhere:
            raise ValueError(
                "keys or values stay where they are stored. Keep that file, or use tokens.in_memory()."
            )
        return {name: for_npz(array) for name, array in self._arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Tokens:
        """The inverse of `arrays`: keys, and any of the other arrays; unknown names are ignored."""
        if "keys" not in arrays:
            raise ValueError(f"no array 'keys', only {sorted(arrays)}. Add the tokens (n, T, d) as 'keys'.")
        arguments: dict[str, Any] = {name: arrays[name] for name in AXES if name in arrays}
        mapped = any(isinstance(array, np.memmap) for array in arguments.values())
        single = arguments["keys"].dtype == np.float32 and not mapped
        return cls(**arguments, dtype=np.float32 if single else np.float64)

    def save(self, file: str | PathLike[str]) -> File:
        """Write the arrays to an .npz file, and return its path. Raises for keys that are not in memory."""
        return write_arrays(file, self.arrays())

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Tokens:
        """Read tokens from an .npz, .safetensors or .json file: `keys`, any of queries, labels, mask, values.

        An .npy file holds the keys alone; a saved path or solution has tokens, too. Large uncompressed keys
        and values are not read into memory: they become `Stored`. Raises BadFile, which proposes the right
        name for a misspelt one.
        """
        arrays = read_arrays(file, tuple(AXES), in_place=True)
        with naming(file):
            return cls.from_arrays(arrays)


def as_tokens(tokens: object) -> Tokens:
    """Check that an argument is Tokens. The error says how to get them from arrays or a data set's result."""
    if isinstance(tokens, Tokens):
        return tokens
    pair = isinstance(tokens, tuple) and len(tokens) and isinstance(tokens[0], Tokens)
    remedy = "Take it apart first: tokens, v = …" if pair else "Pass Tokens(keys, queries, labels)."
    raise TypeError(f"tokens is of type {type(tokens).__name__}. {remedy}")
