"""Token sequences of any lengths, laid end to end: memory is linear in the tokens, padding costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.tokens import Bool, Float, Tokens


@dataclass(frozen=True, eq=False)
class Sequences:
    """n sequences of d-wide tokens, one below the other.

    flat (N, d): all tokens; lengths (n,): tokens of each sequence, each at least 1.
    given_mask (n, T): where the caller's tokens stood; None for the first places of each row.
    """

    flat: Float
    lengths: NDArray[np.intp]
    given_mask: Bool | None = None

    @property
    def n(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Row of each sequence's first token (n,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def example(self) -> NDArray[np.intp]:
        """Sequence of each token (N,)."""
        return np.repeat(np.arange(self.n), self.lengths)

    @cached_property
    def mask(self) -> Bool:
        """Where the tokens stand in a padded array, bool (n, T)."""
        if self.given_mask is not None:
            return self.given_mask
        return np.arange(self.lengths.max()) < self.lengths[:, None]

    def sums(self, of_tokens: Float) -> Float:
        """Sum over the tokens of each sequence: (N, …) → (n, …)."""
        return np.asarray(np.add.reduceat(of_tokens, self.starts, axis=0))

    def largest(self, of_tokens: Float) -> Float:
        """Largest over the tokens of each sequence: (N, …) → (n, …)."""
        return np.asarray(np.maximum.reduceat(of_tokens, self.starts, axis=0))

    def padded(self, of_tokens: Float) -> Float:
        """Laid out as (n, T, …), zero where there is no token."""
        out = np.zeros((*self.mask.shape, *of_tokens.shape[1:]), of_tokens.dtype)
        out[self.mask] = of_tokens
        return out

    def split(self) -> list[Float]:
        """One array (T_i, d) per sequence."""
        return np.split(self.flat, self.starts[1:])

    def take(self, kept: Bool) -> Sequences:
        """The sequences marked in kept (n,)."""
        if kept.all():
            return self
        return Sequences(self.flat[kept[self.example]], self.lengths[kept], self.mask[kept])


def as_sequences(X: Any) -> list[Float]:
    """A list of arrays (T_i, d): the form that scikit-learn's splitters can index.

    X: array (n, T, d), list of (T_i, d), pair (array, mask), or Tokens.
    """
    return read(X).split()


def plain(X: Any) -> Any:
    """X with torch tensors, object arrays and pandas columns of arrays as NumPy's arrays and lists of them.

    Known by what they can do, so that no library is imported. A table keeps the names of its columns.
    """
    if hasattr(X, "detach"):  # NumPy has no bfloat16; float64 holds every number of a smaller type
        tensor = X.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    if getattr(X, "dtype", None) == np.dtype(object):
        if X.ndim == 1:
            X = list(np.asarray(X))
        elif X.ndim == 3:
            with suppress(TypeError, ValueError):  # `Tokens` says what is wrong with it
                return X.astype(np.float64)
    if isinstance(X, list | tuple):
        parts = map(plain, X)
        return tuple(parts) if isinstance(X, tuple) else list(parts)
    return X


def is_nested(X: Any) -> bool:
    """Whether X holds sequences; otherwise it is a table (n, d), one token per row."""
    if isinstance(X, Tokens) or is_pair(X):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and not hasattr(X[0], "toarray") and _axes(X[0]) == 2
    return getattr(X, "ndim", 0) == 3


def is_pair(X: Any) -> bool:
    """Whether X is (array (n, T, d), boolean mask (n, T))."""
    return isinstance(X, tuple) and len(X) == 2 and _axes(X[0]) == 3


def read(X: Any) -> Sequences:
    """Check nested input and lay it end to end; `Tokens` says what is wrong with a padded array."""
    X = plain(X)
    if isinstance(X, Tokens):
        if X.runs is not None:
            raise ValueError("these tokens have a runs axis. Fit one run: tokens.run(0).")
        return _of_padded(X)
    if is_pair(X):
        return _of_padded(Tokens(X[0], mask=X[1]))
    if hasattr(X, "ndim"):
        return _of_padded(Tokens(X))
    return _of_list(X)


def _of_padded(tokens: Tokens) -> Sequences:
    tokens = tokens.in_memory()
    return Sequences(tokens.keys[tokens.mask], tokens.lengths, tokens.mask)


def _of_list(X: Sequence[ArrayLike]) -> Sequences:
    arrays = [np.asarray(x) for x in X]
    for i, array in enumerate(arrays):
        if array.ndim != 2 or 0 in array.shape or array.shape[1] != arrays[0].shape[1]:
            want = f"(T_i, {arrays[0].shape[-1]}) with T_i ≥ 1"
            raise ValueError(f"sequence {i} has shape {array.shape}. Pass {want}.")
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ValueError(f"sequence {i} has an entry that is NaN, infinite or no real number. Remove it.")
    flat = np.concatenate(arrays).astype(np.float64, copy=False)
    return Sequences(flat, np.array([len(a) for a in arrays]))


def _axes(x: Any) -> int:
    try:
        return np.ndim(x)
    except ValueError:  # rows of different lengths
        return -1
