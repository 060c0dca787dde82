"""Contexts: in every example some tokens carry the label along a direction that marks them; the others do
not.

Oymak, Rawat, Soltanolkotabi, Thrampoulidis 2023, "On the Role of Attention in Prompt-tuning" (arXiv
2306.03435): tokens of a context-relevant and of a context-irrelevant set. The formulas are recalled; several
contexts, and how they are drawn, are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm._support.validation import as_seeds, check_share, check_sizes, describe, is_finite
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs
from attsvm.numbers import Bool, Float


class Contexts(NamedTuple):
    """Hidden directions of `contextual`, and what each example has of them.

    prompts, heads (K, d): the directions q_k and w_k of K contexts, orthonormal. relevant (n, T): the tokens
    that carry the label. context (n,): the context of each example.
    """

    prompts: Float
    heads: Float
    relevant: Bool
    context: Float


def contextual(
    n: int = 200,
    T: int = 20,
    d: int = 50,
    seed: Seed = 0,
    *,
    share: float = 0.2,
    noise: float = 1.0,
    opposed: ArrayLike = ((0.0, 0.0),),
    contexts: Sequence[float] = (1.0,),
    shared_head: bool = False,
    fresh: int = 0,
) -> tuple[Tokens, Contexts]:
    """Relevant tokens carry the label beside the mark of their context; the others oppose both, or are noise.

        relevant:  x_t = q_k + y w_k        others:  x_t = −δ_q q_k − δ_w y w_k + noise · z_t,   z ~ N(0, I_d)

    share: part of the T tokens that is relevant, at random places. opposed: pairs (δ_q, δ_w), of which every
    example draws one. contexts: how likely each context k is; an example draws one. shared_head: all contexts
    have the same w. fresh: 0 for the training inputs, or the number of test inputs, from a separate stream,
    with the same directions.
    Draw order: q and w; labels, contexts, pairs, places, noise. Returns Tokens with labels ±1, and the
    contexts.
    """
    n, T, d, fresh = check_sizes(n=(n, 1), T=(T, 2), d=(d, 2 * len(contexts)), fresh=(fresh, 0))
    check_share("share", share)
    pairs, chances = np.asarray(opposed, dtype=float), np.asarray(contexts, dtype=float)
    marked = round(share * T)
    if not 1 <= marked < T:
        raise ValueError(f"share is {share} of T={T} tokens. Pass a share of 1 … {T - 1} of them.")
    if not (is_finite(noise) and noise >= 0):
        raise ValueError(f"noise is {describe(noise)}. Pass a number of at least 0.")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs) or not np.isfinite(pairs).all():
        raise ValueError(f"opposed has shape {pairs.shape}. Pass pairs (δ_q, δ_w) of finite numbers.")
    if chances.ndim != 1 or not (chances >= 0).all() or not np.isclose(chances.sum(), 1):
        raise ValueError(f"contexts is {contexts}. Pass the probability of each context; they add to one.")
    count, K, seed = fresh or n, len(chances), as_seeds(seed)

    def directions(rng: np.random.Generator) -> dict[str, Float]:
        basis = np.linalg.qr(rng.standard_normal((d, 2 * K)))[0].T
        return {
            "prompts": basis[:K],
            "heads": np.repeat(basis[K : K + 1], K, 0) if shared_head else basis[K:],
        }

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        arrays = directions(rng)
        arrays["labels"] = np.where(rng.random(count) < 0.5, -1.0, 1.0)
        arrays["context"] = np.searchsorted(np.cumsum(chances)[:-1], rng.random(count), side="right") * 1.0
        arrays["opposed"] = pairs[rng.integers(len(pairs), size=count)]
        arrays["relevant"] = (np.argsort(rng.random((count, T)), axis=1) < marked) * 1.0
        return arrays | {"noise": rng.standard_normal((count, T, d))}

    arrays = draw_runs(draw, seed, test=bool(fresh))
    arrays |= draw_runs(directions, seed)  # test inputs have the directions of the training inputs
    context = arrays["context"].astype(int)
    q, w = (np.take_along_axis(arrays[name], context[..., None], axis=-2) for name in ("prompts", "heads"))
    parts = np.stack([q, arrays["labels"][..., None] * w], axis=-2)  # (n, 2, d)
    against = -np.matmul(arrays["opposed"][..., None, :], parts) + noise * arrays["noise"]
    relevant = arrays["relevant"].astype(bool)
    keys = np.where(relevant[..., None], parts.sum(-2, keepdims=True), against)
    hidden = Contexts(arrays["prompts"], arrays["heads"], relevant, context)
    return Tokens(keys, labels=arrays["labels"]), hidden
