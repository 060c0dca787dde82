"""What several claims share: data, programs with their certificates, and what is measured of a run."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

import attsvm as att
from attsvm.numbers import Bool, Float


def solved(
    tokens: att.Tokens, selected: Any, norm: att.Norm = att.frobenius, *, required: Any = 1.0
) -> att.Solution:
    """The program of `max_margin`, whose certificate holds in every run that it separates.

    Judged by a program that is not optimal, a run would have too large a margin ratio. Raises ValueError
    where the certificate does not hold: the claim is then not applicable.
    """
    solution = att.max_margin(tokens, selected, norm, required=required)
    if not np.all(np.asarray(solution.certified) | ~np.asarray(solution.separable)):
        raise ValueError(f"the {norm} program is not certified: {solution.certificate}")
    return solution


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


def certified_ratio(path: att.Path, norm: att.Norm) -> Float:
    """Margin ratio (runs, k) for the tokens that each run attends to at the end, by certified programs."""
    return att.margin_ratio(path, solved(path.tokens, path.selected, norm))


def certified_share(path: att.Path, norm: att.Norm) -> Float:
    """The same at the end (runs,)."""
    return certified_ratio(path, norm)[:, -1]


def limit(ratio: Float) -> Float:
    """What margin ratios (runs, k) tend to, 2 r(t) − r(t/2) (runs,); their last records are at t/2 and t.

    The part of the factors that a run learnt before it selected fades like 1/t, so that 1 − r ~ c/t. The next
    term is of order 1/t²: by it runs that selected late end above one.
    """
    return np.asarray(2 * ratio[:, -1] - ratio[:, -2])


def settled(path: att.Path) -> bool:
    """Whether one run selects the same tokens at its last two records, in every head."""
    chosen = path.attention.argmax(-1)
    return bool((chosen[-2] == chosen[-1]).all())


def limit_by_length(shares: Any, lengths: Any) -> float:
    """The share of a margin that a run tends to, from its last two records.

    What is missing is a number of logits: linear in 1/N(W), the length of the weight.
    """
    (before, last), (shorter, longer) = shares[-2:], lengths[-2:]
    return float((longer * last - shorter * before) / (longer - shorter))


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
