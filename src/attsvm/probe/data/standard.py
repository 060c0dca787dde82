"""Mean and spread of every feature over the tokens, in one read that also finds what is not a number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.numbers import Array, Float
from attsvm.probe.data.arithmetic import Arithmetic, arithmetic
from attsvm.probe.data.store import TokenStore


class Standard(NamedTuple):
    """mean (d,) and scale (d,): standardised tokens are (x − mean) / scale."""

    mean: Float
    scale: Float


def standardise(store: TokenStore, importance: Float) -> Standard:
    """Mean and standard deviation of every feature, each token weighted as its sequence (n,).

    Raises ValueError where a number is NaN or infinite.
    """
    where = arithmetic(store.rows)
    first = np.asarray(store.numpy(slice(0, 1)), np.float64)[0]
    if not np.isfinite(first).all():
        name_the_bad(store, slice(0, 1))
    with where.scope(), quiet():
        spans = store.spans(where.part // 8)
        origin = where.factor(first)  # a constant feature is exactly 0 from there
        size = _size(where, where.centred(store.read(spans[0]), origin))
        weight, mean, squares = 0.0, np.zeros(store.width), np.zeros(store.width)
        for span in spans:
            w, m, s = _moments(where, store, span, importance[span], origin, size)
            step = m - mean  # Chan et al. 1983: no difference of large squares
            squares = squares + s + step**2 * (weight * w / (weight + w))
            mean, weight = mean + step * (w / (weight + w)), weight + w
    spread = np.sqrt(squares / weight) * size
    scale = np.where(spread > 1e-12 * np.abs(first), spread, np.maximum(np.abs(first), size))
    return Standard(first + mean * size, scale)


def _size(where: Arithmetic, x: Array) -> Float:
    """Size of every feature in a block (d,): squares of the numbers themselves may overflow."""
    size = where.numpy(where.widened(where.xp.amax(abs(x), 0)))
    return np.where((size > 0) & np.isfinite(size), size, 1.0)


def _moments(
    where: Arithmetic, store: TokenStore, span: slice, importance: Float, origin: Array, size: Float
) -> tuple[float, Float, Float]:
    """Weight, mean and weighted squares about it, of a block from the origin in units of the sizes."""
    weights = np.repeat(importance, store.lengths[span])
    total = float(weights.sum())
    x = where.centred(store.read(span), origin) * where.factor(1 / size)
    w = where.factor(weights / total)
    mean = w @ x
    squares = w @ (x - mean) ** 2
    done = [where.numpy(where.widened(part)) for part in (mean, squares)]
    if not all(np.isfinite(part).all() for part in done):
        name_the_bad(store, span)
    return total, done[0], total * done[1]


def quiet() -> np.errstate:
    """No warnings of NumPy's where `name_the_bad` says in words which numbers are not finite."""
    return np.errstate(invalid="ignore", over="ignore")


def name_the_bad(store: TokenStore, span: slice) -> None:
    """Raise ValueError with the first sequence of a span whose numbers are not finite."""
    for i in range(*span.indices(len(store))):
        if not np.isfinite(np.asarray(store[i], np.float64)).all():
            raise ValueError(f"sequence {i} has an entry that is NaN, infinite or no real number. Remove it.")
    raise ValueError("the tokens are too large for their precision. Divide them by their size.")
