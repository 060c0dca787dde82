"""TokenStore: token sequences of any lengths that stay where they are, in the precision they have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm._support.validation import is_integer
from attsvm.numbers import Array, Bool, Index, Values
from attsvm.numbers.stored.matrix import Matrix, as_matrix
from attsvm.probe.data.on_disk import opened, sequences


class TokenStore:
    """n sequences of d-wide tokens: rows of one matrix, of which nothing is read before it is needed.

        store = TokenStore.open("activations")              # a folder of shards, .safetensors, .npy
        store = TokenStore.from_flat(x, offsets)            # x (N, d), offsets (n + 1,)
        store[3]  (T_3, d) array        store[1:5], store[indices], store[mask]  TokenStore

    x may be a memory map, a Zarr array, a tensor of torch or JAX (it stays on its device), or anything with
    shape, dtype and slices, in float16, bfloat16, float32 or float64. scikit-learn's splitters can index it.

    rows: the matrix; starts, lengths (n,): first row and number of tokens of every sequence.
    given_mask (n, T): where the caller's tokens stood in a padded array; None for the first places.
    """

    def __init__(self, rows: Matrix, starts: Index, lengths: Index, given_mask: Bool | None = None) -> None:
        self.rows, self.starts, self.lengths, self.given_mask = rows, starts, lengths, given_mask

    @classmethod
    def from_flat(cls, x: Array, offsets: ArrayLike) -> TokenStore:
        """Sequence i is x[offsets[i] : offsets[i + 1]]; x (N, d), offsets (n + 1,) from 0 to N."""
        rows = as_matrix(x)
        return cls(rows, *sequences(offsets, rows.shape[0]))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TokenStore:
        """Activations on disk, mapped and not read; an .npz file is read once, to compare its check sum.

        A folder of .safetensors shards (`tokens` (N, d) and `offsets` (n + 1,) each) in the order of their
        names, or of tokens.npy and offsets.npy; or one such file; a Zarr group of `tokens` and `offsets`; or
        one array (n, T, d), as in a .npy file or the `keys` of a file of `Tokens` without a mask.
        """
        rows, offsets = opened(Path(path))
        return cls.from_flat(rows, offsets)

    # ------------------------------------------------------------------ as scikit-learn sees it

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shape(self) -> tuple[int]:
        """(n,): its splitters ask for it."""
        return (len(self),)

    @property
    def width(self) -> int:
        """d, the numbers of a token."""
        return int(self.rows.shape[1])

    @property
    def numbers(self) -> int:
        """How many, in all tokens together."""
        return int(self.lengths.sum()) * self.width

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Values: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike | tuple[ArrayLike, ...]) -> TokenStore: ...
    def __getitem__(self, key: Array) -> Values | TokenStore:
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn asks for store[indices, ...]
        if is_integer(key):
            start = int(self.starts[key])
            return self.rows.numpy(self.rows.read(slice(start, start + int(self.lengths[key]))))
        if not isinstance(key, slice):
            several, key = isinstance(key, tuple), np.asarray(key, None if np.size(key) else np.intp)
            if several or key.ndim != 1 or key.dtype.kind not in "biu":
                raise IndexError(
                    "a store has one axis. Pass a number, a slice, numbers or truth values (n,)."
                )
        mask = None if self.given_mask is None else self.given_mask[key]
        return TokenStore(self.rows, self.starts[key], self.lengths[key], mask)

    def __iter__(self) -> Iterator[Values]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        tokens = f"{int(self.lengths.sum()):,} tokens × {self.width:,}"
        return f"TokenStore({len(self):,} sequences, {tokens}, {self.rows.precision})"

    # ------------------------------------------------------------------ blocks

    def spans(self, numbers: int) -> list[slice]:
        """Neighbouring sequences in groups of about so many numbers, each of at least one."""
        size = np.cumsum(self.lengths) * self.width
        spans, start = [], 0
        while start < len(self):
            before = size[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(size, before + numbers, side="right")))
            spans.append(slice(start, stop))
            start = stop
        return spans

    def read(self, span: slice) -> Array:
        """The tokens of neighbouring sequences below one another (m, d), as they are stored."""
        starts, lengths = self.starts[span], self.lengths[span]
        ends = starts + lengths
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        if not len(breaks):
            return self.rows.read(slice(int(starts[0]), int(ends[-1])))
        rows = self.rows.in_memory
        if rows is not None:  # one look-up of many rows is faster than many slices
            return rows[np.repeat(ends - np.cumsum(lengths), lengths) + np.arange(lengths.sum())]
        first, last = np.append(0, breaks), np.append(breaks, len(starts)) - 1
        stretches = zip(starts[first].tolist(), ends[last].tolist(), strict=True)
        return self.rows.joined([self.rows.read(slice(a, b)) for a, b in stretches])

    def numpy(self, span: slice) -> Values:
        """The same as one of NumPy's arrays, bfloat16 in float32."""
        return self.rows.numpy(self.read(span))

    def plain(self, span: slice) -> tuple[Values, Index]:
        """Rows for a compiled loop (N, d), those of 16 bits as uint16, and the first row of each sequence."""
        rows, starts = self.rows.in_memory, self.starts[span]
        if rows is None or not (self.rows.narrow or rows.dtype == np.float64):
            rows, starts = self.read(span), np.cumsum(self.lengths[span]) - self.lengths[span]
        if rows.dtype == np.float16:
            rows = rows.view(np.uint16)
        elif not (self.rows.narrow or rows.dtype == np.float64):
            rows = rows.astype(np.float64)
        rows = np.require(rows, rows.dtype.newbyteorder("="), ["C", "A"]).view()
        rows.flags.writeable = False  # one kind of array, one compilation
        return rows, starts

    # ------------------------------------------------------------------ other forms

    @cached_property
    def mask(self) -> Bool:
        """Where the tokens stand in a padded array, bool (n, T)."""
        if self.given_mask is not None:
            return self.given_mask
        return np.arange(self.lengths.max(initial=0)) < self.lengths[:, None]

    def padded(self, of_tokens: Values) -> Values:
        """Numbers of all tokens (N, …) laid out as (n, T, …), zero where there is no token."""
        out = np.zeros((*self.mask.shape, *of_tokens.shape[1:]), of_tokens.dtype)
        out[self.mask] = of_tokens
        return out

    def split(self) -> list[Values]:
        """One array (T_i, d) per sequence."""
        return list(self)
