"""Scores, best and attended tokens, local optimality; checks of selections, heads and attention."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.equal_keys import merged
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored

TIE = 1e-12
"""Scores closer than TIE times the largest score of the example count as equal."""


class TiedScores(UserWarning):
    """An example has several best tokens."""


def scores(tokens: Tokens, v: ArrayLike) -> Float:
    """Token scores of a linear head, −∞ where masked.

        γ_it = Y_i vᵀ x_it

    v (c,), with runs also (runs, c); returns (n, T), with runs (runs, n, T).
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism".
    """
    head = as_head(tokens, v).astype(tokens.keys.dtype)
    if isinstance(tokens.values, Stored):
        gamma = tokens.values.products(head) * tokens.labels[..., None]
    else:
        gamma = np.matmul(tokens.values, head[..., None, :, None])[..., 0] * tokens.labels[..., None]
    return np.where(tokens.mask, gamma, -np.inf)


def best_tokens(tokens: Tokens, v: ArrayLike) -> Bool:
    """The tokens with the highest score, bool (n, T): several if scores tie.

    Tokens whose logits are equal for every W share the mean of their scores: those with equal keys, and all
    tokens of an example whose query is zero.
    Warns `TiedScores` if scores tie, and names the first such example.
    """
    gamma, size = _scaled_scores(tokens, v)
    best = gamma >= (gamma.max(-1) - TIE * size)[..., None]
    tied = best.sum(-1) > 1
    if tied.any():
        where = tuple(np.argwhere(tied)[0])
        names = ", ".join(map(str, np.flatnonzero(best[where])))
        warnings.warn(
            f"{int(tied.sum())} of {tied.size} examples have tied best scores; the first is "
            f"example {where[-1]}, tokens {names}. All tied tokens are selected, and max_margin "
            "will give them equal logits. Pass token indices to choose one instead.",
            TiedScores,
            stacklevel=2,
        )
    return best


def attended_tokens(attention: ArrayLike, above: float | None = None) -> Bool:
    """The tokens that a model attends to, bool (…, n, T).

    By default the token with the largest attention of each example, or all that have it. With `above`, every
    token whose attention is at least that number.
    """
    s = as_attention(attention)
    if above is None:
        return np.asarray(s == s.max(-1, keepdims=True))
    if not 0 < above <= 1:
        raise ValueError(f"above is {above}. Pass a number in (0, 1].")
    attended = np.asarray(s >= above)
    if not attended.any(-1).all():
        raise ValueError(f"some example has no attention ≥ {above}. Pass a smaller number.")
    return attended


def soft_sparsity(attention: ArrayLike) -> Float:
    """The effective number of attended tokens, 1/Σ_t s_t², from 1 to T: (…, n, T) → (…, n)."""
    s = as_attention(attention)
    return np.asarray(1 / np.sum(s * s, axis=-1))


class Separated(Protocol):
    """The parts of a Solution that `locally_optimal` uses."""

    @property
    def selected(self) -> Bool: ...
    @property
    def support(self) -> Bool: ...


def locally_optimal(tokens: Tokens, v: ArrayLike, solution: Separated) -> Any:
    """Whether every selected token scores strictly above its support tokens.

        γ_{iα_i} > γ_it  for all i and all t ∈ T_i

    Tokens whose constraint is not active may score higher. Several selected tokens of an example must have
    equal scores: otherwise training moves attention to the better ones. One boolean, with runs (runs,).
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection", locally-optimal direction.
    """
    gamma, size = _scaled_scores(tokens, v)
    lowest = np.where(solution.selected, gamma, np.inf).min(-1)
    equal = np.where(solution.selected, gamma, -np.inf).max(-1) <= lowest + TIE * size
    highest = np.where(solution.support, gamma, -np.inf).max(-1)
    optimal = (equal & (lowest > highest + TIE * size)).all(-1)
    return bool(optimal) if optimal.ndim == 0 else optimal


def equal_losing_scores(tokens: Tokens, v: ArrayLike) -> Any:
    """Assumption B.2: each example has one best token, and all other tokens have equal scores."""
    gamma, size = _scaled_scores(tokens, v)
    gamma = np.sort(np.where(tokens.mask, gamma, np.nan), axis=-1)  # NaN sorts last
    best = np.nanmax(gamma, axis=-1)
    count = tokens.lengths
    second = np.take_along_axis(gamma, np.maximum(count - 2, 0)[..., None], axis=-1)[..., 0]
    single = count == 1
    holds = (single | ((second < best - TIE * size) & (second - gamma[..., 0] <= TIE * size))).all(-1)
    return bool(holds) if holds.ndim == 0 else holds


def _scaled_scores(tokens: Tokens, v: ArrayLike) -> tuple[Float, Float]:
    """The scores of v scaled to about length one, and the largest of each example in absolute value (n,).

    The order of scores does not depend on the length of v. Unscaled, values of 1e-200 and a head of 1e-200
    give scores that underflow and tie; 1e150 and 1e200 give infinite ones.
    """
    head = as_head(tokens, v)
    scaled_head = np.ldexp(head, -np.frexp(np.abs(head).max(-1, keepdims=True))[1])
    has_query = (tokens.queries != 0).any(-1, keepdims=True)  # a query of zeros makes all logits equal
    gamma = scores(merged(tokens, has_query), scaled_head)
    return gamma, np.abs(np.where(tokens.mask, gamma, 0)).max(-1)


# ---------------------------------------------------------------------- checks


def as_selected(tokens: Tokens, selected: ArrayLike) -> Bool:
    """Check a selection and return it as bool (n, T), with runs (runs, n, T).

    selected: one boolean per token, or one token index per example (n,).
    """
    array, tokens = np.asarray(selected), as_tokens(tokens)
    shape, counts = tokens.mask.shape, tokens.labels.shape
    if array.dtype == bool:
        if array.shape[-2:] != shape[-2:] or array.ndim > len(shape):
            raise ValueError(
                f"selected has shape {array.shape} but tokens has n={tokens.n}, T={tokens.T}. "
                "Pass one boolean per token."
            )
        mask = np.broadcast_to(array, shape)
    elif np.issubdtype(array.dtype, np.integer):
        if array.shape[-1:] != (tokens.n,) or array.ndim > len(counts):
            raise ValueError(
                f"selected has shape {array.shape} but tokens has n={tokens.n}. "
                "Pass one token index per example, or booleans (n, T)."
            )
        if (array < 0).any() or (array >= tokens.T).any():
            raise ValueError(
                f"selected has indices from {array.min()} to {array.max()} but T={tokens.T}. "
                f"Pass indices from 0 to {tokens.T - 1}."
            )
        mask = np.broadcast_to(array[..., None] == np.arange(tokens.T), shape)
    else:
        raise TypeError(f"selected has dtype {array.dtype}. Pass booleans (n, T) or integer indices (n,).")
    if (mask & ~tokens.mask).any():
        *_, i, t = np.argwhere(mask & ~tokens.mask)[0]
        raise ValueError(f"selected picks token {t} of example {i}, which is masked.")
    if not mask.any(-1).all():
        *_, i = np.argwhere(~mask.any(-1))[0]
        raise ValueError(f"selected picks no token in example {i}. Pick at least one.")
    return mask


def matching_runs(tokens: Tokens, selected: ArrayLike) -> Tokens:
    """The tokens, repeated for every run if only the selection has a runs axis."""
    array, tokens = np.asarray(selected), as_tokens(tokens)
    axes = 2 if array.dtype == bool else 1
    return tokens.repeated(len(array)) if tokens.runs is None and array.ndim == axes + 1 else tokens


def as_head(tokens: Tokens, v: ArrayLike) -> Float:
    """Check a linear head (c,), with runs also (runs, c), and return it as float64."""
    tokens = as_tokens(tokens)
    try:
        head = np.asarray(v, dtype=np.float64)
    except TypeError:
        remedy = "its vector of numbers, such as Linear(v).v"
        raise TypeError(f"the head v is of type {type(v).__name__}. Pass {remedy}.") from None
    width = tokens.values.shape[-1]
    allowed = [(width,)] if tokens.runs is None else [(width,), (tokens.runs, width)]
    if head.shape not in allowed:
        raise ValueError(
            f"the head v has shape {head.shape} but the values are {width} wide. "
            f"Pass shape {' or '.join(map(str, allowed))}."
        )
    if not np.isfinite(head).all():
        raise ValueError("the head v has a NaN or infinite entry.")
    return head


def as_attention(attention: ArrayLike) -> Float:
    """Check attention weights (…, n, T): nonnegative rows that sum to one."""
    s = np.asarray(attention, dtype=np.float64)
    if s.ndim < 2:
        raise ValueError(f"attention has shape {s.shape}. Pass (n, T).")
    if not np.isfinite(s).all() or (s < 0).any() or (np.abs(s.sum(-1) - 1) > 1e-4).any():
        raise ValueError("attention is not a probability vector per example: rows must sum to 1.")
    return s
