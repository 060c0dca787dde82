"""What several claims share: data, and what is measured of a run."""

from __future__ import annotations

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


def certified_share(path: att.Path, norm: att.Norm) -> Float:
    """Margin ratio (runs,) at the end, for the tokens that each run attends to; NaN without a certificate."""
    solution = att.max_margin(path.tokens, path.selected, norm)
    return np.where(solution.certified, att.margin_ratio(path, solution)[:, -1], np.nan)


def r2(x: Any, y: Any) -> float:
    """R² of a line; 0 where y does not move."""
    return float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > 0 else 0.0
