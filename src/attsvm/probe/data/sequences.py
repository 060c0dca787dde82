"""Every form of token sequences as a TokenStore; sequences among others; transformers of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from attsvm._support.validation import is_integer
from attsvm.data.tokens import Tokens
from attsvm.numbers import Array, Bool, Float, Values, library
from attsvm.numbers.stored import Stored
from attsvm.numbers.stored.matrix import as_matrix, stacked
from attsvm.probe.data.store import TokenStore


class Column(Protocol):
    """A column of pandas or of Hugging Face, an array of any library: what has a length and is indexed."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> object: ...


Sequences: TypeAlias = TokenStore | Tokens | ArrayLike | Column | Sequence[ArrayLike | Column]
"""Every form in which token sequences come; see `AttentionProbe`."""

NARROW = ("float16", "bfloat16", "float32")


def as_sequences(X: Sequences) -> list[Float]:
    """A list of arrays (T_i, d): the form that scikit-learn's splitters can index.

    X: array (n, T, d), list of (T_i, d), pair (array, mask), Tokens, or TokenStore.
    """
    return list(as_store(X))


def as_store(X: Sequences) -> TokenStore:
    """Sequences in any form as a TokenStore; ValueError where they are none."""
    store = read_sequences(X)
    if isinstance(store, TokenStore):
        return store
    if _axes(store) == 2:
        raise _is_a_table(store, "sequences of tokens are needed here")
    raise ValueError("X has no axis of tokens. Pass an array (n, T, d) or a list of arrays (T_i, d).")


def read_sequences(X: Sequences) -> TokenStore | Array:
    """X as a TokenStore; where it is a table (n, d), as scikit-learn can check it.

    All forms of sequences are recognised here and in `unwrapped`.
    """
    X = unwrapped(X)
    if isinstance(X, Tokens):
        return _of_tokens(X)
    _check_form(X)
    if isinstance(X, TokenStore):
        return X
    if isinstance(X, tuple) and len(X) == 2 and _axes(X[0]) == 3:
        return _of_padded(*X)
    if isinstance(X, list | tuple):
        arrays = _axes(X[0]) > 1 or any(getattr(x, "ndim", 0) > 1 for x in X)
        return _of_list(X) if arrays else X
    return _of_padded(X, None) if getattr(X, "ndim", 0) == 3 else X


def _check_form(X: Array) -> None:
    """Raise for what holds no sequences at all."""
    if isinstance(X, TokenStore | list | tuple) and not len(X):
        raise ValueError("X has no sequences. Pass at least one.")
    if isinstance(X, Mapping):
        problem = f"X is a mapping with the keys {list(X)[:3]}"
        raise TypeError(f"{problem}. Pass the sequences of one layer, or fit a ProbeSuite on all of them.")
    first = X[0] if isinstance(X, list | tuple) else X
    texts = getattr(getattr(X, "dtype", None), "kind", None) in ("U", "S") and getattr(X, "ndim", 0) < 2
    if isinstance(first, str | bytes) or texts:
        raise ValueError("X holds texts. Pass their hidden states, such as heads.activations writes.")
    if not (hasattr(X, "__len__") or hasattr(X, "__array__")):
        raise TypeError(f"X is {type(X).__name__}. Pass an array (n, T, d) or a list of arrays (T_i, d).")
    if getattr(X, "ndim", 0) > 3:
        raise ValueError(f"X has shape {tuple(X.shape)}. Pass (n, T, d), or a list of arrays (T_i, d).")
    if isinstance(first, list | tuple) and first and _axes(first[0]) > 1:
        raise ValueError("X holds lists of sequences. Pass one list; a ProbeSuite takes {layer: sequences}.")
    if hasattr(first, "toarray") and first is not X:
        raise TypeError("X holds sparse sequences. Pass dense arrays (T_i, d): [x.toarray() for x in X].")


def from_table(X: Values, fitted_on_sequences: bool = False) -> TokenStore:
    """The rows of a table (n, d) as sequences of one token; refused by probes fitted on longer sequences."""
    if fitted_on_sequences:
        raise _is_a_table(X, "the probe was fitted on sequences of several tokens")
    return TokenStore(as_matrix(X), np.arange(len(X)), np.ones(len(X), np.intp))


def _is_a_table(X: ArrayLike, problem: str) -> ValueError:
    T, d = np.shape(X)
    remedy = f"Pass [X] for one sequence, X[:, None] for {T} sequences of one token"
    return ValueError(f"X has shape ({T}, {d}), and {problem}. {remedy}.")


def unwrapped(X: Array) -> Array:
    """X with tensors as arrays, and object arrays and columns of arrays as lists of arrays.

    Each form is recognised by its attributes, so no library is imported. A table keeps its column names, and
    an array on a GPU stays there.
    """
    home = library.home(X)
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise ValueError("X is a masked array, whose mask would be lost. Pass (array, mask) or a list.")
    if getattr(X, "is_nested", False):
        X = X.unbind()
    elif home in ("torch", "jax"):
        return library.as_array(X)
    if getattr(X, "ndim", 0) == 2 and (hasattr(X, "iloc") or getattr(X, "dtype", None) == np.dtype(object)):
        X = _column(X)
    if getattr(X, "dtype", None) == np.dtype(object):
        if X.ndim == 1:
            X = list(np.asarray(X))
        elif X.ndim == 3:
            with suppress(TypeError, ValueError):  # `Tokens` raises the error
                return X.astype(np.float64)
    if home == "polars":
        X = _of_polars(X)
    if home == "datasets":  # a column of Hugging Face
        X = [np.asarray(x) for x in X]
    if isinstance(X, list | tuple):
        items = map(unwrapped, X)
        return tuple(items) if isinstance(X, tuple) else list(items)
    return X


def _column(table: Array) -> Array:
    """The one column of a table of pandas or of objects, where it holds arrays; other tables as they are."""
    cells: Array = getattr(table, "iloc", table)
    arrays = [i for i, cell in enumerate(cells[0]) if _axes(cell)] if len(table) else []
    if not arrays:
        return table
    if table.shape[1] > 1:
        raise _several_columns(table.columns[arrays[0]] if hasattr(table, "columns") else arrays[0])
    return cells[:, 0]


def _of_polars(X: Array) -> Array:
    """A column of Polars whose cells are lists or arrays as a list of arrays; other tables as they are."""
    if hasattr(X, "collect"):
        raise TypeError("X is a LazyFrame of Polars, which holds no numbers yet. Pass X.collect().")
    columns = X.get_columns() if hasattr(X, "get_columns") else [X]
    nested = [column for column in columns if column.dtype.is_nested()]
    if not nested:
        return X
    if len(columns) > 1:
        raise _several_columns(nested[0].name)
    arrays = []
    for i, cell in enumerate(nested[0].to_list()):
        try:
            arrays.append(np.asarray(cell))
        except ValueError:
            raise ValueError(f"sequence {i} has tokens of different widths. Pass (T, d).") from None
    return arrays


def _several_columns(name: object) -> ValueError:
    return ValueError(f"column {name!r} of X holds arrays, and X has others. Pass that column alone.")


def _of_tokens(tokens: Tokens) -> TokenStore:
    if tokens.runs is not None:
        raise ValueError("these tokens have a runs axis. Fit one run: tokens.run(0).")
    keys: Array = tokens.keys
    unscaled = isinstance(keys, Stored) and keys.exponent is None
    return _of_padded(keys.array if unscaled else np.asarray(keys), tokens.mask)


def _of_padded(array: Array, mask: Array) -> TokenStore:
    """array (n, T, d), mask (n, T) or None. Where tokens come first in every row, nothing is copied."""
    if 0 in array.shape:
        raise ValueError(f"X is empty: shape {tuple(array.shape)}. Pass at least one of each axis.")
    mask = None if mask is None else np.asarray(mask.cpu().numpy() if hasattr(mask, "cpu") else mask)
    if mask is not None and mask.shape != tuple(array.shape[:2]):
        n, T, _ = array.shape
        raise ValueError(f"mask has shape {mask.shape}, X has n={n} and T={T}. Pass one per token.")
    if str(getattr(array, "dtype", "")).rpartition(".")[2] in NARROW:
        tokens = Tokens(np.broadcast_to(0.0, (*array.shape[:2], 1)), mask=mask)
    else:
        tokens = Tokens(array, mask=mask)
        array = tokens.keys.array if isinstance(tokens.keys, Stored) else np.asarray(tokens.keys)
    (n, T, d), lengths = array.shape, tokens.lengths.astype(np.intp)
    rows, starts = as_matrix(array.reshape(n * T, d)), np.arange(n) * T
    given_mask: Bool = np.asarray(tokens.mask)
    if not (given_mask == (np.arange(T) < lengths[:, None])).all():
        rows, starts = rows.at(np.flatnonzero(given_mask)), np.cumsum(lengths) - lengths
    return TokenStore(rows, starts, lengths, given_mask)


def _of_list(X: Sequence[Array]) -> TokenStore:
    arrays = [_as_numbers(i, library.as_array(x)) for i, x in enumerate(X)]
    width = next((array.shape[-1] for array in arrays if array.ndim == 2), "d")
    for i, array in enumerate(arrays):
        shape = tuple(array.shape)
        if array.ndim != 2 or 0 in shape or shape[1] != width:
            remedy = f"Pass (T_i, {width}) with T_i ≥ 1"
            if array.ndim == 3 and len(X) == 2 and _axes(X[1]) == 2:
                remedy = "Pass an array and its mask as a tuple: (array, mask)"
            elif array.ndim == 3 and len(array) == 1:
                remedy = f"Pass {shape[1:]}: [x[0] for x in X]"
            elif array.ndim == 3:
                remedy = "Pass one such array alone, or all as a mapping {layer: array} to a ProbeSuite"
            raise ValueError(f"sequence {i} has shape {shape}. {remedy}.")
    lengths = np.array([len(array) for array in arrays])
    return TokenStore(stacked(arrays), np.cumsum(lengths) - lengths, lengths)


def _as_numbers(i: int, array: Array) -> Array:
    """The tokens of sequence i, objects as float64."""
    if isinstance(array, np.ndarray) and array.dtype == object and array.ndim:
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if isinstance(array, np.ndarray) and array.ndim and array.dtype.kind not in "fiubV":
        raise ValueError(f"sequence {i} has an entry that is NaN, infinite or no real number. Remove it.")
    return array


def _axes(x: Array) -> int:
    try:
        return np.ndim(x) if not hasattr(x, "ndim") else x.ndim
    except ValueError:  # rows of different lengths
        return -1


def surround(X: Sequences, benign: Sequences, length: int, *, seed: int = 0) -> TokenStore:
    """Every sequence among benign ones, `length` tokens or more in all; labels stay as they are.

        twice = [*train, *surround(train, benign, 256)]                        # for long contexts
        probe.fit(twice, np.tile(labels, 2), groups=np.tile(np.arange(len(labels)), 2))

    A probe that is fitted on short texts gives the tokens of a long context weights that it never learned.
    Fitted on both it keeps what it knows of the text alone.
    X, benign: inputs of `AttentionProbe` of one width. Benign sequences are drawn with replacement and stay
    whole; the place of the sequence among them is drawn, too. A sequence that is long enough is left alone.
    """
    store, pool = as_store(X), as_store(benign)
    if store.width != pool.width:
        raise ValueError(f"X has tokens {store.width} wide, benign {pool.width}. Pass states of one layer.")
    if not (is_integer(length) and length >= 1):
        raise ValueError(f"length is {length!r}. Pass a number of tokens, 1 or more.")
    rng, lengths = np.random.default_rng(seed), np.zeros(len(store), np.intp)
    pieces = list[np.ndarray]()
    for i, sequence in enumerate(store):
        context, lengths[i] = [sequence], len(sequence)
        while lengths[i] < length:
            context.append(pool[int(rng.integers(len(pool)))])
            lengths[i] += len(context[-1])
        place = int(rng.integers(len(context)))
        context[0], context[place] = context[place], context[0]
        pieces += context
    return TokenStore.from_flat(np.concatenate(pieces), np.cumsum([0, *lengths]))


class PerToken(TransformerMixin, BaseEstimator):
    """Fit a transformer on all tokens as rows, and map every sequence (T_i, d) to (T_i, c).

    With a kernel approximation in front, `AttentionProbe` attends and scores in the feature space:

        make_pipeline(PerToken(StandardScaler()), PerToken(Nystroem()), AttentionProbe())

    X: array (n, T, d), list of (T_i, d), pair (array, mask), Tokens or TokenStore; the result is a list.
    """

    def __init__(self, transformer: BaseEstimator) -> None:
        self.transformer = transformer

    def fit(self, X: Sequences, y: object = None) -> PerToken:
        """Fit a clone of the transformer on the tokens (N, d). Labels belong to sequences, not to tokens."""
        self.transformer_ = clone(self.transformer).fit(_all_tokens(as_store(X)))
        return self

    def transform(self, X: Sequences) -> list[Float]:
        """Every sequence with its tokens transformed."""
        check_is_fitted(self)
        store = as_store(X)
        flat = self.transformer_.transform(_all_tokens(store))
        # One-hot encoders and discretisers return sparse matrices by default.
        dense = np.asarray(flat.toarray() if hasattr(flat, "toarray") else flat)
        return np.split(dense, np.cumsum(store.lengths)[:-1])


def _all_tokens(store: TokenStore) -> Float:
    """All tokens in memory as float64 (N, d)."""
    return np.asarray(store.numpy(slice(0, len(store))), np.float64)
