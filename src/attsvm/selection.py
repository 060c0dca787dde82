"""Which tokens win: scores, best and attended tokens, local optimality, and selections as they are given."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from attsvm.equal_keys import merged
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.tokens import Tokens, as_tokens

TIE = 1e-12
"""Scores closer than TIE times the largest score of the example count as equal."""


class TiedScores(UserWarning):
    """Some example has several best tokens."""


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
    """The tokens with the highest score, bool (n, T): all of them where scores tie.

    Tokens of one key, which no weight tells apart, score the mean of theirs.
    A tie is reported by the warning `TiedScores`, which names the first one.
    """
    gamma, size = _in_units(tokens, v)
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
    """The tokens a model attends to, bool (…, n, T).

    By default the largest attention of each example (several only where they are equal);
    with `above`, every token whose attention is at least that number.
    """
    s = as_attention(attention)
    if above is None:
        return np.asarray(s == s.max(-1, keepdims=True))
    if not 0 < above <= 1:
        raise ValueError(f"above is {above}. Pass a number in (0, 1].")
    chosen = np.asarray(s >= above)
    if not chosen.any(-1).all():
        raise ValueError(f"some example has no attention ≥ {above}. Pass a smaller number.")
    return chosen


def soft_sparsity(attention: ArrayLike) -> Float:
    """Effective number of attended tokens, 1/Σ_t s_t², between 1 and T: (…, n, T) → (…, n)."""
    s = as_attention(attention)
    return np.asarray(1 / np.sum(s * s, axis=-1))


class Separated(Protocol):
    """What `locally_optimal` needs of a solution: the selection and its support tokens."""

    @property
    def selected(self) -> Bool: ...
    @property
    def support(self) -> Bool: ...


def locally_optimal(tokens: Tokens, v: ArrayLike, solution: Separated) -> Any:
    """Whether every selected token scores above its support tokens, strictly.

        γ_{iα_i} > γ_it  for all i and all t ∈ T_i

    Tokens whose constraint is not active may score higher. One boolean, with runs (runs,).
    Several selected tokens in a row must score alike: of others attention would move to the better ones.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection", locally-optimal direction.
    """
    gamma, size = _in_units(tokens, v)
    lowest = np.where(solution.selected, gamma, np.inf).min(-1)
    alike = np.where(solution.selected, gamma, -np.inf).max(-1) <= lowest + TIE * size
    highest = np.where(solution.support, gamma, -np.inf).max(-1)
    good = (alike & (lowest > highest + TIE * size)).all(-1)
    return bool(good) if good.ndim == 0 else good


def equal_losing_scores(tokens: Tokens, v: ArrayLike) -> Any:
    """Assumption B.2: in each example one best token, and one score shared by all others."""
    gamma, size = _in_units(tokens, v)
    gamma = np.sort(np.where(tokens.mask, gamma, np.nan), axis=-1)  # NaN sorts last
    best = np.nanmax(gamma, axis=-1)
    count = tokens.lengths
    second = np.take_along_axis(gamma, np.maximum(count - 2, 0)[..., None], axis=-1)[..., 0]
    alone = count == 1
    good = (alone | ((second < best - TIE * size) & (second - gamma[..., 0] <= TIE * size))).all(-1)
    return bool(good) if good.ndim == 0 else good


def _in_units(tokens: Tokens, v: ArrayLike) -> tuple[Float, Float]:
    """The scores of v at length about one, of equal keys their mean, and the largest (n,) in size.

    No order of scores depends on the length of v. At its own, scores of 1e-200 · 1e-200 would all be 0, and
    tie; of 1e150 · 1e200 all infinite.
    """
    head = as_head(tokens, v)
    gamma = scores(merged(tokens), np.ldexp(head, -np.frexp(np.abs(head).max(-1, keepdims=True))[1]))
    return gamma, np.abs(np.where(tokens.mask, gamma, 0)).max(-1)


# ---------------------------------------------------------------------- at the door


def as_selected(tokens: Tokens, selected: ArrayLike) -> Bool:
    """Check a selection and return it as bool (n, T), with runs (runs, n, T).

    selected: one boolean per token, or one token index per example (n,).
    """
    array, tokens = np.asarray(selected), as_tokens(tokens)
    want, counts = tokens.mask.shape, tokens.labels.shape
    if array.dtype == bool:
        if array.shape[-2:] != want[-2:] or array.ndim > len(want):
            raise ValueError(
                f"selected has shape {array.shape} but tokens has n={tokens.n}, T={tokens.T}. "
                "Pass one boolean per token."
            )
        chosen = np.broadcast_to(array, want)
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
        chosen = np.broadcast_to(array[..., None] == np.arange(tokens.T), want)
    else:
        raise TypeError(f"selected has dtype {array.dtype}. Pass booleans (n, T) or integer indices (n,).")
    if (chosen & ~tokens.mask).any():
        *_, i, t = np.argwhere(chosen & ~tokens.mask)[0]
        raise ValueError(f"selected picks token {t} of example {i}, which is masked.")
    if not chosen.any(-1).all():
        *_, i = np.argwhere(~chosen.any(-1))[0]
        raise ValueError(f"selected picks no token in example {i}. Pick at least one.")
    return chosen


def matching_runs(tokens: Tokens, selected: ArrayLike) -> Tokens:
    """The tokens, repeated for every run of the selection where only the selection has a runs axis."""
    array, tokens = np.asarray(selected), as_tokens(tokens)
    axes = 2 if array.dtype == bool else 1
    return tokens.repeated(len(array)) if tokens.runs is None and array.ndim == axes + 1 else tokens


def as_head(tokens: Tokens, v: ArrayLike) -> Float:
    """Check a linear head and return it with the last axis as wide as the values."""
    tokens = as_tokens(tokens)
    head = np.asarray(v, dtype=np.float64)
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
