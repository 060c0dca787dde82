"""The score of a sequence while it grows: one pass, exact, in memory that does not grow with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.numbers import Array, Float
from attsvm.probe.fitting.attention import Weights


class Running(NamedTuple):
    """What a softmax needs to know of the tokens so far, per head.

        top = max_t l_t,   total = Σ_t e^(l_t − top),   sums = Σ_t e^(l_t − top) (v · x_t)

    seen: tokens so far; top, total (h,); sums (h, k).
    """

    seen: int
    top: Float
    total: Float
    sums: Float


def start(weights: Weights) -> Running:
    """Before the first token."""
    _, h, k = weights.head.shape
    return Running(0, np.full(h, -np.inf), np.zeros(h), np.zeros((h, k)))


def step(state: Running, tokens: Float, weights: Weights, centre: Float) -> tuple[Running, Float]:
    """The state after some more tokens (m, d), and the scores (k,) of all tokens so far.

    What was summed is brought to the scale of the new largest logit, so nothing overflows and the score is
    that of the softmax over all tokens. weights are for the tokens as given; centre (d,) as in `attend`.
    Reference: Milakov, Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    logits, values = weights.on(tokens - centre)
    top = np.maximum(state.top, logits.max(0))
    before, now = np.exp(state.top - top), np.exp(logits - top)
    total = before * state.total + now.sum(0)
    sums = before[:, None] * state.sums + np.einsum("th,thk->hk", now, values)
    scores = (sums / total[:, None]).sum(0) + weights.about(centre).intercept
    return Running(state.seen + len(tokens), top, total, sums), scores


def as_tokens(x: Array, width: int) -> Float:
    """One token (d,) or some (m, d), as float64 (m, d)."""
    if hasattr(x, "detach"):  # torch's bfloat16 has no array of NumPy's
        x = x.detach().cpu().double().numpy()
    tokens = np.atleast_2d(np.asarray(x, dtype=np.float64))
    if tokens.ndim != 2 or tokens.shape[1] != width or not len(tokens):
        raise ValueError(f"x has shape {np.shape(x)}. Pass one token ({width},), or some (m, {width}).")
    if not np.isfinite(tokens).all():
        raise ValueError("x has an entry that is NaN or infinite. Leave the token out.")
    return tokens
