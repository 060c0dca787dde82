"""Checks of the arrays of `Tokens`: numbers, shapes, masks, runs; and their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored, as_stored

UNSCALED_EXPONENT = 8
"""An array whose entries lie within 2 to this power is not scaled, which would copy it."""

WIDER_DTYPE = "Pass dtype=np.float64, or numbers of moderate size."

AXES = {"keys": "nTd", "queries": "ne", "labels": "n", "mask": "nT", "values": "nTc"}
"""The arrays of Tokens in the order of its arguments, and their axes, without the runs axis."""


def validated(arguments: Mapping[str, Any], dtype: DTypeLike) -> dict[str, NDArray[Any]]:
    """All arrays by name, checked and read-only; without values, the values are the keys' array."""
    if np.dtype(dtype) not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise ValueError(f"dtype is {np.dtype(dtype)}. Pass np.float64 or np.float32.")
    keys = keys_or_values("keys", arguments["keys"], dtype)
    n, T = keys.shape[-3:-1]
    queries, labels, mask, values = (arguments[name] for name in list(AXES)[1:])
    queries = np.ones((n, 1), dtype) if queries is None else as_numbers("queries", queries, dtype)
    labels = np.ones(n, dtype) if labels is None else as_labels(labels, dtype)
    mask = np.ones((n, T), bool) if mask is None else as_mask(mask)
    arrays: dict[str, Any] = {"keys": keys, "queries": queries, "labels": labels, "mask": mask}
    if values is not None and values is not arguments["keys"]:
        arrays["values"] = keys_or_values("values", values, dtype)
    check_counts(arrays, n, T)
    runs = common_runs(arrays)
    if not mask.all():
        check_no_example_is_empty(mask)
        arrays |= {name: zero_masked(arrays[name], mask) for name in ("keys", "values") if name in arrays}
    views = {name: read_only(array, runs, len(AXES[name])) for name, array in arrays.items()}
    return {"values": views["keys"], **views}


def as_numbers(name: str, value: ArrayLike, dtype: DTypeLike) -> Float:
    axes = len(AXES[name])
    shape = f"({', '.join(AXES[name])})"
    try:
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError
    except (TypeError, ValueError):
        hint = " For sequences of different lengths use Tokens.from_sequences." * (name == "keys")
        raise ValueError(f"{name} is not an array of real numbers {shape}.{hint}") from None
    if array.dtype.kind in "cUSMm":
        kinds = {"c": "complex numbers", "M": "dates", "m": "times"}
        kind = kinds.get(array.dtype.kind, "text")
        raise ValueError(f"{name} holds {kind} (dtype {array.dtype}). Pass real numbers {shape}.")
    array = _as_dtype(name, array, dtype)
    if array.ndim not in (axes, axes + 1):
        raise ValueError(
            f"{name} has shape {array.shape}. Pass {shape}, or (runs, {shape[1:]} for many runs."
        )
    if 0 in array.shape:
        raise ValueError(f"{name} is empty: shape {array.shape}. Pass at least one of each axis.")
    return cast(Float, array)


def _as_dtype(name: str, numbers: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Numbers in another dtype. Raises if all of them underflow; `check_finite` finds those that overflow."""
    with np.errstate(over="ignore", under="ignore"):
        array = np.asarray(numbers, dtype=dtype)
    underflow = array.dtype != numbers.dtype and np.abs(array).max(initial=0) < np.finfo(array.dtype).tiny
    if underflow and numbers.any():
        size = f"{np.abs(numbers).max():.0e}"
        raise ValueError(f"{name} reaches {size}, less than {array.dtype} holds. {WIDER_DTYPE}")
    return array


def keys_or_values(name: str, value: Any, dtype: DTypeLike) -> Float:
    return cast(Float, as_stored(name, value, dtype) or as_numbers(name, value, dtype))


def as_labels(value: ArrayLike, dtype: DTypeLike) -> Float:
    labels = as_numbers("labels", value, dtype)
    if not np.isin(labels, (-1, 1)).all():
        classes = np.unique(labels)[:5]
        one_class = f"np.where(labels == {classes[-1]:g}, 1, -1)"
        several = len(classes) > 1 and (classes == classes.round()).all()
        hint = f" Of several classes pass one against the others: {one_class}." if several else ""
        hint = " Pass 2*labels − 1." if np.isin(classes, (0, 1)).all() else hint
        raise ValueError(f"labels must be −1 or +1, got {', '.join(map(str, classes))}.{hint}")
    return labels


def as_mask(value: ArrayLike) -> Bool:
    mask = np.asarray(value)
    if mask.dtype != bool and not np.isin(mask, (0, 1)).all():
        raise ValueError(f"mask must be boolean (True = token), got dtype {mask.dtype}.")
    if mask.ndim not in (2, 3):
        raise ValueError(f"mask has shape {mask.shape}. Pass (n, T), or (runs, n, T).")
    return mask.astype(bool)


def check_counts(arrays: Mapping[str, NDArray[Any]], n: int, T: int) -> None:
    for name, array in arrays.items():
        core, has_T = array.shape[-len(AXES[name]) :], "T" in AXES[name]
        if core[0] != n or (has_T and core[1] != T):
            expected = f"n={n}, T={T}" if has_T else f"n={n}"
            raise ValueError(
                f"{name} has shape {array.shape} but keys has {expected}. "
                f"Pass one per {'token' if has_T else 'example'}."
                + _hint_for_several_queries(array, n)
                * (name == "queries" and arrays["keys"].ndim == 3)
            )


def _hint_for_several_queries(queries: NDArray[Any], n: int) -> str:
    """The remedy for several queries per sequence (n, q, e)."""
    if queries.ndim != 3 or len(queries) != n:
        return ""
    q, e = queries.shape[1:]
    return (
        f" For {q} queries per sequence pass one row per query, keys.repeat({q}, axis=0) and "
        f"queries.reshape({n * q}, {e}), and a mask where a query sees only some tokens; "
        "Tokens.every_query(keys) does so for self-attention, causal or not."
    )


def check_no_example_is_empty(mask: Bool) -> None:
    empty = ~mask.any(-1)
    if empty.any():
        *_, i = np.argwhere(empty)[0]
        raise ValueError(f"example {i} has no token: its mask is all False. Drop the example.")


def zero_masked(array: Float, mask: Bool) -> Float:
    if isinstance(array, Stored):
        return array
    return np.where(mask[..., None], array, array.dtype.type(0))


def for_npz(array: Any) -> NDArray[Any]:
    """The array in its precision; bfloat16, which .npz files cannot hold, as float32."""
    if isinstance(array, Stored):
        array = array.array
    return np.asarray(array, np.float32 if array.dtype.name == "bfloat16" else None)


def largest_entry(array: Float, axes: int) -> Float:
    """Largest absolute entry over the last axes, NaN and infinity included; allocates no temporary array."""
    last = tuple(range(-axes, 0))
    return np.asarray(np.maximum(array.max(axis=last), -array.min(axis=last)))


def sizes(array: Float, mask: Bool) -> Float:
    """Largest absolute entry of each example, without masked tokens."""
    if isinstance(array, Stored):
        return np.asarray(np.where(mask, array.largest(), 0.0).max(-1))
    return largest_entry(array, 2)  # masked tokens are zero


def scaled_to_one(array: Float, size: Float) -> tuple[Float, NDArray[np.int_]]:
    """The array in float64, each example scaled so that its largest entry is near one; the exponents.

    A run whose entries all lie within 2 to ± UNSCALED_EXPONENT is not scaled.
    """
    exponent = np.asarray(np.frexp(size)[1])  # 0 for size 0
    exponent = exponent * (np.abs(exponent) > UNSCALED_EXPONENT).any(-1, keepdims=True)
    if isinstance(array, Stored):
        return cast(Float, array.scaled(exponent)), exponent
    wide = np.ascontiguousarray(array, dtype=np.float64)
    if not exponent.any():
        return wide, exponent
    axes = array.ndim - exponent.ndim
    return np.ldexp(wide, -exponent.reshape(exponent.shape + (1,) * axes)), exponent


def check_finite(name: str, array: Float, size: Float, mask: Bool | None = None) -> None:
    if not np.isfinite(size).all():
        if isinstance(array, Stored):
            i = int(np.argmin(np.isfinite(size)))
            invalid = ~np.isfinite(array[i : i + 1][0])
            if mask is not None:
                invalid &= mask[i, :, None]
            where = (i, *(int(k) for k in np.argwhere(invalid)[0]))
            raise ValueError(f"{name}{list(where)} is not finite. Remove or mask the token.")
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        advice = "Remove the example." if name == "queries" else "Remove or mask the token."
        if array.dtype == np.float32 and np.isinf(array[where]):
            advice = f"float32 ends at 3.4e38. {WIDER_DTYPE}"
        raise ValueError(f"{name}{list(where)} is {array[where]}. {advice}")


def common_runs(arrays: Mapping[str, NDArray[Any]]) -> int | None:
    counts = {name: array.shape[0] for name, array in arrays.items() if array.ndim > len(AXES[name])}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the runs axes differ: {counts}. Give every array the same number.")
    return next(iter(counts.values()), None)


def read_only(array: NDArray[Any], runs: int | None, axes: int) -> NDArray[Any]:
    if isinstance(array, Stored):
        if runs is not None:
            raise ValueError("stored keys and values (n, T, d) take no runs axis. Pass one run at a time.")
        return array
    if runs is not None and array.ndim == axes:
        array = np.broadcast_to(array, (runs, *array.shape))
    view = array.view()
    view.flags.writeable = False
    return view


def as_positions(at: ArrayLike, mask: Bool) -> NDArray[np.intp]:
    """One position of an unmasked token per example (…, n); −1 is the last unmasked one."""
    try:
        position = np.broadcast_to(np.asarray(at), mask.shape[:-1])
    except ValueError:
        raise ValueError(
            f"at has shape {np.shape(at)} but keys has n={mask.shape[-2]}. Pass one, or one per example. "
            "For several queries per sequence use Tokens.every_query(keys)."
        ) from None
    if not np.issubdtype(position.dtype, np.integer):
        raise ValueError(f"at has dtype {position.dtype}. Pass integer positions.")
    last = mask.shape[-1] - 1 - np.argmax(mask[..., ::-1], axis=-1)
    position = np.where(position < 0, last + 1 + position, position)
    if (position < 0).any() or (position > last).any():
        raise ValueError(f"at points outside a sequence: got {at!r}, T={mask.shape[-1]}.")
    unmasked = np.take_along_axis(mask, position[..., None], axis=-1)[..., 0]
    if not unmasked.all():
        *_, i = np.argwhere(~unmasked)[0]
        raise ValueError(
            f"at points to token {position[~unmasked][0]} of example {i}, which is masked. Pass the position "
            "of a token that is there; −1 is the last one."
        )
    return position


def as_padded(name: str, sequences: Sequence[ArrayLike], dtype: DTypeLike) -> tuple[Float, NDArray[np.intp]]:
    arrays = [_as_dtype(f"{name}[{i}]", np.asarray(s), dtype) for i, s in enumerate(sequences)]
    if not arrays:
        raise ValueError(f"{name} is empty. Pass at least one array (T_i, d).")
    for i, a in enumerate(arrays):
        if a.ndim != 2 or 0 in a.shape:
            raise ValueError(f"{name}[{i}] has shape {a.shape}. Pass (T_i, d) with T_i ≥ 1.")
        if a.shape[1] != arrays[0].shape[1]:
            raise ValueError(f"{name}[{i}] is {a.shape[1]} wide but {name}[0] is {arrays[0].shape[1]} wide.")
    lengths = np.array([len(a) for a in arrays])
    out = np.zeros((len(arrays), int(lengths.max()), arrays[0].shape[1]), dtype)
    for row, a in zip(out, arrays, strict=True):
        row[: len(a)] = a
    return cast(Float, out), lengths
