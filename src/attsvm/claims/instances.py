"""Data that several claims share."""

from __future__ import annotations

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
