"""What several claims share: data, steps that fall or grow, and their time."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

import attsvm as att
from attsvm.numbers import Bool, Float


def equal_losers(n: int, T: int, d: int, seed: int) -> tuple[att.Tokens, Float]:
    """Unit keys and queries; token 0 scores 1, all others 0: Assumption B.2 holds, token 0 must win.

    The values are the scores (one wide) and the head is 1, so that every optimizer ends at the same
    selection and their margins can be compared.
    """
    drawn, _ = att.datasets.sphere(n, T, d, seed=seed)
    return att.Tokens(drawn.keys, drawn.queries, values=_first(n, T)[..., None].astype(float)), np.ones(1)


def first_tokens(tokens: att.Tokens) -> Bool:
    """The selection of token 0 in every example, bool (n, T)."""
    return _first(tokens.n, tokens.T)


def _first(n: int, T: int) -> Bool:
    return np.asarray(np.arange(T) == np.zeros((n, 1)))


@lru_cache(maxsize=16)
def falling(size: float) -> Any:
    """Steps of size · t^(−0.55): their sum is infinite, and that of their squares finite."""
    return lambda step: size * (step + 1.0) ** -0.55


@lru_cache(maxsize=16)
def growing(first: float, faster: float) -> Any:
    """Steps that grow with time, η e^(faster k); stable where slopes and curvature fall like 1/t."""
    return lambda step: first * math.e ** (faster * step)


def log_time(steps: Any, faster: float) -> Float:
    """log t after so many of these steps, t = (e^(faster k) − 1)/faster; faster = 0: log k."""
    return np.log(np.expm1(faster * np.asarray(steps)) / faster if faster else np.asarray(steps))


def r2(x: Any, y: Any) -> float:
    """R² of a line; 0 where y does not move."""
    return float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > 0 else 0.0
