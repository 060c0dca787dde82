"""From logits to weights of tokens, in NumPy, for the kinds of attention that a Path may hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.numbers import Float

FUNCTIONS = ("softmax", "normalised", "entmax 1.5", "sigmoid")
"""Their names; that of sigmoid is followed by its offset, and "normalised" is softmax of bounded logits."""


def check_function(name: str) -> None:
    """Refuse a name that is none of these."""
    if name not in FUNCTIONS and not name.startswith("sigmoid "):
        raise ValueError(f"the path's function is {name!r}. Known: {', '.join(FUNCTIONS)}.")


def log_weights(name: str, logits: Float, mask: Any) -> Float:
    """The logarithms of the weights (…, n, T) of logits; −∞ where masked."""
    check_function(name)
    if name.startswith("sigmoid"):
        offset = float(name.removeprefix("sigmoid") or 0)
        return np.asarray(np.where(mask, -np.logaddexp(0, -(logits + offset)), -np.inf))
    logits = np.where(mask, logits, -np.inf)
    relative = logits - logits.max(-1, keepdims=True)
    if name == "entmax 1.5":
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(_entmax(np.maximum(relative / 2, -2.0))))
    return np.asarray(relative - np.log(np.exp(relative).sum(-1, keepdims=True)))


def _entmax(halves: Float) -> Float:
    """(h − τ)₊² that add up to one, by bisection: from half logits h (…, T) whose largest is zero."""
    low, high = np.full(halves.shape[:-1], -1.0), np.zeros(halves.shape[:-1])
    for _ in range(60):
        middle = (low + high) / 2
        over = (np.maximum(halves - middle[..., None], 0) ** 2).sum(-1) > 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return np.asarray(np.maximum(halves - high[..., None], 0) ** 2)
