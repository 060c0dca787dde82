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
    AXES,
    as_numpy_writes_it,
    as_padded,
    as_positions,
    check_finite,
    checked,
    in_unit,
    largest,
    sizes,
)


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
        given = {name: getattr(self, name) for name in AXES}
        for name, array in checked(given, dtype).items():
            object.__setattr__(self, name, array)
        check_finite("keys", self.keys, self.key_size, self.mask)
        check_finite("queries", self.queries, self.query_size)
        if self.values is not self.keys:
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
        y = None if labels is None else np.asarray(labels)
        if y is not None and y.shape != (n, T):
            raise ValueError(f"labels has shape {y.shape}. Pass one per query: ({n}, {T}).")
        every = {name: array[i] for name, array in base._own.items()}
        every |= {"queries": base.keys[i, k], "mask": every["mask"] & seen[k]}
        return cls(**every | {"labels": None if y is None else y[i, k]}, dtype=dtype)

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

    @property
    def _own(self) -> dict[str, Any]:
        """The arrays that make these tokens, by name: values only where they are not the keys."""
        shared = self.values is self.keys
        return {name: getattr(self, name) for name in AXES if not (shared and name == "values")}

    def run(self, index: int) -> Tokens:
        """The tokens of one run."""
        if self.runs is None:
            raise ValueError("these tokens have no runs axis.")
        return Tokens(**{name: array[index] for name, array in self._own.items()}, dtype=self.keys.dtype)

    def repeated(self, runs: int) -> Tokens:
        """The same tokens once per run, without a copy; they must have no runs axis yet."""
        if isinstance(self.keys, Stored):
            raise ValueError("many runs need keys in memory. Pass one run at a time, or np.asarray(keys).")
        keys = np.broadcast_to(self.keys, (runs, *self.keys.shape))
        return Tokens(**{**self._own, "keys": keys}, dtype=self.keys.dtype)

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
        return Tokens(**{name: np.asarray(array) for name, array in self._own.items()})

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
        return {name: as_numpy_writes_it(array) for name, array in self._own.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Tokens:
        """The inverse of `arrays`: keys and any of the others by name; further arrays are passed over."""
        if "keys" not in arrays:
            raise ValueError(f"no array 'keys', only {sorted(arrays)}. Add the tokens (n, T, d) as 'keys'.")
        found: dict[str, Any] = {name: arrays[name] for name in AXES if name in arrays}
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
        arrays = read_arrays(file, tuple(AXES), in_place=True)
        with naming(file):
            return cls.from_arrays(arrays)


def as_tokens(tokens: object) -> Tokens:
    """Check that something is Tokens: arrays, and what a data set returns, are answered with what to do."""
    if isinstance(tokens, Tokens):
        return tokens
    pair = isinstance(tokens, tuple) and len(tokens) and isinstance(tokens[0], Tokens)
    what = "Take it apart first: tokens, v = …" if pair else "Pass Tokens(keys, queries, labels)."
    raise TypeError(f"tokens is of type {type(tokens).__name__}. {what}")
