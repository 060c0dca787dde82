"""Radii, ridges and head radii: in order, positive, and of a size that float64 resolves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.data.tokens import Tokens

LARGEST = 1e12
"""Logits beyond it carry a rounding error that shows in the attention."""


def checked(
    radii: ArrayLike | None, ridge: ArrayLike | None, head_radii: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The index of a path, radii or ridges, and the head's radii where it is trained."""
    if (radii is None) == (ridge is None):
        raise ValueError("pass either radii, or ridge for the penalised form.")
    if radii is None:
        if head_radii is not None:
            raise ValueError("ridge takes a fixed head. Drop head_radii.")
        return _positive("ridge", ridge, -1), None
    index = _positive("radii", radii, 1)
    if head_radii is None:
        return index, None
    head_index = _positive("head_radii", head_radii, 0)
    if head_index.shape != index.shape:
        raise ValueError(
            f"head_radii has {head_index.size} entries but radii has {index.size}. Pass one per radius."
        )
    return index, head_index


def check_size(tokens: Tokens, radii: NDArray[Any], head_radii: NDArray[Any] | None) -> None:
    """Refuse radii at which rounding decides who wins: the path would be noise, or never end."""
    last, limit = radii[-1], largest(tokens).min()
    if last > limit:
        raise ValueError(
            f"radii reach {last:g}, but float64 cannot resolve the logits x W z of these tokens beyond the "
            f"radius {limit:.3g}. Stop there; the direction beyond is that of max_margin."
        )
    if head_radii is not None and head_radii.max() > (limit := LARGEST / max(np.abs(tokens.values).max(), 1)):
        raise ValueError(f"head_radii reach {head_radii.max():g}. Pass radii up to {limit:.3g}.")


def largest(tokens: Tokens) -> NDArray[Any]:
    """The radius at which logits reach LARGEST, (runs, 1)."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.exp2(np.log2(LARGEST) - sum(map(np.log2, _sizes(tokens)))))


def units(tokens: Tokens) -> tuple[NDArray[Any], NDArray[Any]]:
    """Exponents of two that bring keys and queries to size one, (runs, 1); zero where they are near it."""
    exponents = (np.frexp(size)[1] for size in _sizes(tokens))
    keys, queries = (np.where(np.abs(each) > 100, each, 0) for each in exponents)
    return keys, queries


def _sizes(tokens: Tokens) -> tuple[NDArray[Any], NDArray[Any]]:
    """The largest entry of the keys and of the queries, (runs, 1)."""
    flat = (a.astype(float).reshape(tokens.runs or 1, -1) for a in (tokens.keys, tokens.queries))
    keys, queries = (np.abs(a).max(-1, keepdims=True) for a in flat)
    return keys, queries


def _positive(name: str, values: ArrayLike | None, order: int) -> NDArray[Any]:
    """A vector of positive numbers, increasing (order 1), decreasing (−1) or free (0)."""
    try:
        given = np.asarray(values)
        array = given.astype(np.float64) if given.dtype.kind in "iuf" else np.zeros(0)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError(f"{name} is {values!r}. Pass a sequence of positive numbers.")
    if (order * np.diff(array) <= 0).any() and order:
        raise ValueError(f"{name} must be strictly {'increasing' if order > 0 else 'decreasing'}.")
    return array
