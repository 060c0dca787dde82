"""Transformers as SVMs, heads that mix tokens: the generalised SVM, W ≈ C · W^mm + W^fin."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.claims.claim import Claim
from attsvm.claims.transformers_setup import PAPER, draws
from attsvm.datasets import sphere
from attsvm.norms import frobenius
from attsvm.path import Path
from attsvm.program.finite_part import finite_part
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable
from attsvm.tokens import Bool, Float, Tokens
from attsvm.training.heads import Head, Linear, QuadraticPenalty, ReLUNetwork
from attsvm.training.optimizers import steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight
from attsvm.verdict import Verdict, at_least, at_most, judge, told

KEPT, GONE = 1e-3, 1e-6
"""Attention from which a token counts as selected, and below which as masked; between, a run is unfinished."""
STRENGTHS = (0.1, 0.3, 0.6, 1.0)
"""Of the quadratic penalty: from about one to about four selected tokens of four."""


# ---------------------------------------------------------------------- direction and finite part


def a_relu_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With a ReLU network as head, gradient descent on W ends near C · W^mm + W^fin: closer than to W^mm
    alone, and much closer than to the SVM of one token per example.

    A conjecture of the paper with experiments. 64 draws (3, 4, 6), head 1ᵀ ReLU(Vᵀ r), W(0) = 0, 6,000
    normalised steps. As in the paper, runs are judged that are finished (no attention between 1e-6 and 1e-3),
    mask something, and select several tokens somewhere. Wanted, for the mean 1 − cosine: at most 0.05 to
    C · W^mm + W^fin, which is below that to W^mm, which is at most 0.8 of that to W^1token.
    """
    tokens, head = _relu(seed)
    return _split(tokens, head)


def _split_with_a_linear_head(seed: int) -> Verdict:
    tokens, v = sphere(3, 4, 6, seed=draws(seed, 64))
    return _split(tokens, Linear(v))


def a_quadratic_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With the head vᵀ r − λ‖r‖², gradient descent on W ends near C · W^mm + W^fin, as with a ReLU head.

    64 draws (3, 4, 4) of orthonormal tokens, four strengths λ; otherwise as above.
    """
    tokens, v = _orthonormal(seed)
    return _split(tokens, QuadraticPenalty(v, np.repeat(STRENGTHS, 16)))


def _split_without_the_penalty(seed: int) -> Verdict:
    tokens, v = _orthonormal(seed)
    return _split(tokens, QuadraticPenalty(v, np.zeros(64)))


def _split(tokens: Tokens, head: Head) -> Verdict:
    path = _run(tokens, head)
    away = np.array([_distances(path.run(int(r))) for r in np.flatnonzero(_finished(path))])
    away = away[np.isfinite(away).all(-1)] if len(away) else np.full((0, 4), np.nan)
    both, direction, single, angle = away.mean(0) if len(away) else np.full(4, np.nan)
    return judge(
        "W ≈ C · W^mm + W^fin",
        at_most("1 − cosine to C · W^mm + W^fin", both, 0.05),
        at_most("the same over 1 − cosine to W^mm", both / direction, 1.0),
        at_most("1 − cosine to W^mm over that to W^1token", direction / single, 0.8),
        at_most("largest |cosine| of W^fin and W^mm", angle, 1e-6),
        told("runs judged", len(away)),
        given={"two runs or more select several tokens and mask others": len(away) > 1},
    )


def _finished(path: Path) -> Bool:
    """Runs with every attention kept or gone, something gone, and several tokens kept somewhere."""
    s = path.attention[:, -1]
    done = ((s >= KEPT) | (s <= GONE)).all((-2, -1)) & (s <= GONE).any((-2, -1))
    return np.asarray(done & ((s >= KEPT).sum(-1) > 1).any(-1))


def _distances(path: Path) -> Any:
    """1 − cosine of W to C · W^mm + W^fin, W^mm and W^1token, and |cosine| of W^fin and W^mm; NaN where no
    program separates."""
    W, s = path.final, path.attention[-1]
    try:
        direction = max_margin(path.tokens, s >= KEPT).W
        single = max_margin(path.tokens, path.selected).W
        finite = finite_part(path.tokens, s, s >= KEPT)
    except (NotSeparable, ValueError):
        return np.full(4, np.nan)
    scale = ((W - finite) * direction).sum() / (direction * direction).sum()
    near = [1 - _cosine(W, other) for other in (scale * direction + finite, direction, single)]
    return np.array([*near, abs(_cosine(finite, direction))])


def _cosine(one: Float, other: Float) -> float:
    return float((one * other).sum() / (frobenius.value(one) * frobenius.value(other)))


# ---------------------------------------------------------------------- how many tokens


def selected_tokens_are_the_support_of_a_simplex_projection(seed: int) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², trained attention is the projection of γ/(2λ) on the
    simplex; so the number of selected tokens is the size of its support, and grows with λ.

    Closed form derived from the paper's head: the best attention maximises γᵀs − λ‖s‖². 64 draws (3, 4, 4),
    labels 1, four strengths λ, W(0) = 0, 6,000 normalised steps. Wanted: median of max |s − s*| ≤ 0.01 (the
    last steps of 0.02 move a logit by that much), tokens per example within 0.15 of the closed form for
    every λ (few runs end in local solutions when λ is small), and growing with λ.
    """
    tokens, v = _orthonormal(seed)
    return _count(tokens, v)


def _count_of_dependent_tokens(seed: int) -> Verdict:
    tokens, v = sphere(3, 4, 4, seed=draws(seed, 64))
    return _count(Tokens(tokens.keys, tokens.queries), v)


def _count(tokens: Tokens, v: Float) -> Verdict:
    strength = np.repeat(STRENGTHS, 16)
    s = _run(tokens, QuadraticPenalty(v, strength)).attention[:, -1]
    best = _on_simplex(np.einsum("rntd,rd->rnt", tokens.keys, v) / (2 * strength[:, None, None]))
    counts = [(a >= KEPT).sum(-1).reshape(4, -1).mean(-1) for a in (s, best)]
    return judge(
        "selected tokens are the support of a simplex projection",
        at_most("median of max |s − s*|", float(np.median(np.abs(s - best).max((-2, -1)))), 0.01),
        at_most("largest difference of tokens per example", np.abs(counts[0] - counts[1]).max(), 0.15),
        at_least("least growth of tokens per example with λ", np.diff(counts[0]).min(), 0.0),
        told("tokens per example at the smallest λ", counts[0][0]),
        told("tokens per example at the largest λ", counts[0][-1]),
    )


def _on_simplex(x: Float) -> Float:
    """Nearest points of the simplex {s ≥ 0, Σ s = 1} along the last axis: max(x − θ, 0)."""
    high = -np.sort(-x, axis=-1)
    level = (high.cumsum(-1) - 1) / np.arange(1, x.shape[-1] + 1)
    last = (high > level).sum(-1, keepdims=True) - 1
    return np.maximum(x - np.take_along_axis(level, last, axis=-1), 0.0)


# ---------------------------------------------------------------------- shared set-up


def _smaller_late(step: Any) -> Any:
    """Steps of 0.1, then 0.02: a normalised step never settles below its own length."""
    return 0.1 - 0.08 * (step >= 4_000)


def _run(tokens: Tokens, head: Head) -> Path:
    optimizer = steepest(frobenius, _smaller_late)
    return train(tokens, head, weight=FullWeight(), optimizer=optimizer, steps=6_000, record=2)


def _relu(seed: int) -> tuple[Tokens, ReLUNetwork]:
    """Unit-sphere problems, and V Gaussian of Frobenius norm 1 with as many units as coordinates."""
    tokens, _ = sphere(3, 4, 6, seed=draws(seed, 64))
    V = np.random.default_rng(seed).standard_normal((64, 6, 6))
    return tokens, ReLUNetwork(V / np.asarray(frobenius.value(V))[:, None, None], np.ones(6))


def _orthonormal(seed: int) -> tuple[Tokens, Float]:
    """Examples of four orthonormal tokens, unit queries and heads, all labels 1."""
    tokens, v = sphere(3, 4, 4, seed=draws(seed, 64))
    left, _, right = np.linalg.svd(tokens.keys)
    return Tokens(left @ right, tokens.queries), v


CLAIMS: tuple[Claim, ...] = (
    Claim(
        a_relu_head_trains_to_a_direction_and_a_finite_part,
        _split_with_a_linear_head,
        "a head that mixes tokens: here a linear one",
        f"{PAPER}, Gen-SVM, a conjecture",
        "recalled-H",
    ),
    Claim(
        a_quadratic_head_trains_to_a_direction_and_a_finite_part,
        _split_without_the_penalty,
        "a penalty λ > 0",
        f"{PAPER}, Gen-SVM, a conjecture",
        "recalled-M",
    ),
    Claim(
        selected_tokens_are_the_support_of_a_simplex_projection,
        _count_of_dependent_tokens,
        "orthonormal tokens",
        f"{PAPER}, closed form of the quadratic head",
        "derived",
    ),
)
