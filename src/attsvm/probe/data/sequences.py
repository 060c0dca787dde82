"""Every form in which token sequences come, as a TokenStore."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float, library
from attsvm.numbers.stored import KEPT, Stored
from attsvm.numbers.stored.matrix import DeviceMatrix, Matrix, Shards
from attsvm.probe.data.store import TokenStore
from attsvm.tokens import Tokens

NARROW = ("float16", "bfloat16", "float32")


def as_sequences(X: Any) -> list[Float]:
    """A list of arrays (T_i, d): the form that scikit-learn's splitters can index.

    X: array (n, T, d), list of (T_i, d), pair (array, mask), Tokens, or TokenStore.
    """
    return as_store(X).split()


def plain(X: Any) -> Any:
    """X with tensors on the host, object arrays and columns of arrays as NumPy's arrays and lists of them.

    Known by what they can do, so that no library is imported. A table keeps the names of its columns; what
    lies on a GPU stays there.
    """
    if isinstance(X, TokenStore | Tokens):
        return X
    if getattr(X, "is_nested", False):
        return [plain(x) for x in X.unbind()]
    if library.home(X) == "torch":
        return X.detach() if library.on_gpu(X) else library.on_host(X)
    if getattr(X, "ndim", 0) == 2 and (hasattr(X, "iloc") or getattr(X, "dtype", None) == np.dtype(object)):
        X = _column(X)
    if getattr(X, "dtype", None) == np.dtype(object):
        if X.ndim == 1:
            X = list(np.asarray(X))
        elif X.ndim == 3:
            with suppress(TypeError, ValueError):  # `Tokens` says what is wrong with it
                return X.astype(np.float64)
    if type(X).__module__.partition(".")[0] == "datasets":  # a column of Hugging Face
        X = [np.asarray(x) for x in X]
    if isinstance(X, list | tuple):
        parts = map(plain, X)
        return tuple(parts) if isinstance(X, tuple) else list(parts)
    return X


def _column(table: Any) -> Any:
    """The one column of a table of pandas or of objects, where it holds arrays; other tables as they are."""
    cells = getattr(table, "iloc", table)
    arrays = [i for i, cell in enumerate(cells[0]) if _axes(cell)] if len(table) else []
    if not arrays:
        return table
    if table.shape[1] > 1:
        name = table.columns[arrays[0]] if hasattr(table, "columns") else arrays[0]
        raise ValueError(f"column {name!r} of X holds arrays, and X has others. Pass that column alone.")
    return cells[:, 0]


def is_nested(X: Any) -> bool:
    """Whether X holds sequences; otherwise it is a table (n, d), one token per row."""
    if isinstance(X, Tokens | TokenStore) or is_pair(X):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and not hasattr(X[0], "toarray") and _axes(X[0]) == 2
    return getattr(X, "ndim", 0) == 3


def is_pair(X: Any) -> bool:
    """Whether X is (array (n, T, d), boolean mask (n, T))."""
    return isinstance(X, tuple) and len(X) == 2 and _axes(X[0]) == 3


def as_store(X: Any) -> TokenStore:
    """Check nested input; `Tokens` says what is wrong with a padded array."""
    X = plain(X)
    if isinstance(X, TokenStore):
        return X
    if isinstance(X, Tokens):
        if X.runs is not None:
            raise ValueError("these tokens have a runs axis. Fit one run: tokens.run(0).")
        keys: Any = X.keys
        as_it_is = isinstance(keys, Stored) and keys.exponent is None
        return _of_padded(keys.array if as_it_is else np.asarray(keys), X.mask)
    if is_pair(X):
        return _of_padded(*X)
    if hasattr(X, "ndim"):
        return _of_padded(X, None)
    return _of_list(X)


def of_table(X: NDArray[Any]) -> TokenStore:
    """The rows of a table (n, d) as sequences of one token."""
    return TokenStore(Matrix(X), np.arange(len(X)), np.ones(len(X), np.intp))


def _of_padded(array: Any, mask: Any) -> TokenStore:
    """array (n, T, d), mask (n, T) or None. Where tokens come first in every row, nothing is copied."""
    elsewhere = library.on_gpu(array)
    if elsewhere or str(getattr(array, "dtype", "")) in NARROW:
        if hasattr(mask, "cpu"):
            mask = mask.cpu().numpy()
        stand_in = np.broadcast_to(0.0, (*array.shape[:2], 1))
        tokens = Tokens(stand_in, mask=mask)
    else:
        tokens = Tokens(array, mask=mask)
        array = tokens.keys.array if isinstance(tokens.keys, Stored) else np.asarray(tokens.keys)
    (n, T, d), lengths = array.shape, tokens.lengths.astype(np.intp)
    rows = array.reshape(n * T, d)
    where = DeviceMatrix(rows) if elsewhere else Matrix(rows)
    starts = np.arange(n) * T
    given: Bool = np.asarray(tokens.mask)
    if not (given == (np.arange(T) < lengths[:, None])).all():
        where = where.at(np.flatnonzero(given))
        starts = np.cumsum(lengths) - lengths
    return TokenStore(where, starts, lengths, given)


def _of_list(X: Sequence[Any]) -> TokenStore:
    there = library.on_gpu(X[0])
    arrays = [x if there else np.asarray(x) for x in X]
    for i, array in enumerate(arrays):
        if array.ndim != 2 or 0 in array.shape or array.shape[1] != arrays[0].shape[1]:
            want = f"(T_i, {arrays[0].shape[-1]}) with T_i ≥ 1"
            raise ValueError(f"sequence {i} has shape {tuple(array.shape)}. Pass {want}.")
        if not there and array.dtype.kind not in "fiubV":
            raise ValueError(f"sequence {i} has an entry that is NaN, infinite or no real number. Remove it.")
    lengths = np.array([len(a) for a in arrays])
    starts = np.cumsum(lengths) - lengths
    if there:
        return TokenStore(DeviceMatrix(library.library_of(X[0]).joined(arrays)), starts, lengths)
    alike = len({a.dtype for a in arrays}) == 1
    if alike and lengths.sum() * arrays[0].shape[1] > KEPT:
        return TokenStore(Shards(arrays), starts, lengths)
    return TokenStore(Matrix(np.concatenate(arrays)), starts, lengths)


def _axes(x: Any) -> int:
    try:
        return np.ndim(x) if not hasattr(x, "ndim") else x.ndim
    except ValueError:  # rows of different lengths
        return -1
