"""Transformers as SVMs, heads that mix tokens: the generalised SVM, W ≈ C · W^mm + W^fin."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

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
from attsvm.training.init import uniform
from attsvm.training.optimizers import steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight
from attsvm.verdict import Verdict, at_least, at_most, judge, told

KEPT, GONE = 1e-3, 1e-6
"""Attention from which a token counts as selected, and below which as masked."""
STRENGTHS = (0.1, 0.2, 0.3, 0.5)
"""Of the quadratic penalty: from one to two or three selected tokens of four."""


class Prediction(NamedTuple):
    """Runs, the tokens they should keep, how attention divides among these, and which runs are judged."""

    path: Path
    kept: Bool  # (runs, n, T)
    attention: Float  # (runs, n, T)
    judged: Bool  # (runs,)


# ---------------------------------------------------------------------- direction and finite part


def a_relu_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With a ReLU network as head, gradient descent on W ends near C · W^mm + W^fin: closer than to W^mm
    alone, which in turn is closer than the SVM of one token per example.

    A conjecture of the paper with experiments; only sometimes true, so refuted. 128 draws (3, 4, 4), head
    1ᵀ ReLU(Vᵀ r), the paper's 2,000 normalised steps. As in the paper, runs count that have no attention
    between 1e-6 and 1e-3 and mask something; and here keep several tokens somewhere. Wanted, for the median
    1 − cosine: at most 0.05 to C · W^mm + W^fin, and the paper's ordering with 5 % to spare. With gradients
    that survive saturation this holds on 6 of the seeds 0–19, and the prediction worsens with training: on
    seed 0 the means of 1 − cosine are .008, .062, .128 after 500, 2,000 and 6,000 steps.
    """
    return _split(_relu(seed, steps=2_000))


def _split_with_a_linear_head(seed: int) -> Verdict:
    return _split(_relu(seed, steps=2_000, linear=True))


def early_on_a_relu_head_is_near_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """After 500 normalised steps under a ReLU head, W is near C · W^mm + W^fin, with the ordering above.

    What is left of the claim above: an observation about a norm of about 45, not about the limit. The
    horizon was chosen after seeing 500, 2,000 and 6,000 steps on one seed.
    """
    return _split(_relu(seed, steps=500))


def _early_with_a_linear_head(seed: int) -> Verdict:
    return _split(_relu(seed, steps=500, linear=True))


def a_quadratic_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², gradient descent on W ends near C · W^mm + W^fin
    with the selected tokens and their attention known beforehand.

    32 draws (3, 4, 4), four strengths λ, W(0) = 0. Both parts come from the closed form of the next claim;
    only C is fitted. Runs count whose attention left the other tokens (below 1e-3), with several tokens
    kept somewhere, each by 0.02. Wanted: as for the ReLU head, and attention within 0.005 of the predicted.
    """
    return _split(_quadratic(seed, orthonormal=True))


def _split_of_dependent_tokens(seed: int) -> Verdict:
    return _split(_quadratic(seed, orthonormal=False))


def _split(prediction: Prediction) -> Verdict:
    each = [_distances(prediction, int(r)) for r in np.flatnonzero(prediction.judged)]
    away = np.array([one for one in each if one is not None]).reshape(-1, 4)
    enough = len(away) >= 3
    missed = np.abs(prediction.path.attention[:, -1] - prediction.attention)[prediction.judged].max((-2, -1))
    both, direction, single, angle = np.median(away, axis=0) if enough else np.ones(4)
    return judge(
        "W ≈ C · W^mm + W^fin",
        at_most("1 − cosine to C · W^mm + W^fin", both, 0.05),
        at_most("the same, relative to W^mm alone", both / direction, 0.95),
        at_most("1 − cosine to W^mm, relative to W^1token", direction / single, 0.95),
        at_most("|cosine| of W^fin and W^mm", angle, 1e-6),
        at_most("max |s − s predicted|", float(np.median(missed)) if enough else 1.0, 0.005),
        told("1 − cosine to W^1token", single),
        told("runs judged", len(away)),
        given={"three runs or more keep several tokens and mask others": enough},
    )


def _distances(prediction: Prediction, r: int) -> Any:
    """1 − cosine of W to C · W^mm + W^fin, W^mm and W^1token, and |cosine| of W^fin and W^mm.

    None where the kept tokens cannot be separated from the others, or not be divided like this.
    """
    path, kept = prediction.path.run(r), prediction.kept[r]
    try:
        direction = max_margin(path.tokens, kept).W
        single = max_margin(path.tokens, path.selected).W
        finite = finite_part(path.tokens, prediction.attention[r], kept)
    except (NotSeparable, ValueError):
        return None
    scale = ((path.final - finite) * direction).sum() / (direction * direction).sum()
    near = [1 - _cosine(path.final, other) for other in (scale * direction + finite, direction, single)]
    return [*near, abs(_cosine(finite, direction))]


def _cosine(one: Float, other: Float) -> float:
    return float((one * other).sum() / (frobenius.value(one) * frobenius.value(other)))


# ---------------------------------------------------------------------- how many tokens


def selected_tokens_are_the_support_of_a_simplex_projection(seed: int) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², trained attention is the projection of γ/(2λ) on the
    simplex; so the number of selected tokens is the size of its support, and grows with λ.

    Closed form of the paper's head: the best attention maximises γᵀs − λ‖s‖². Same runs. Wanted: median of
    max |s − s*| ≤ 0.002 (a last step of 0.001 moves a logit by that much), tokens per example within 0.15
    of the closed form, averaged over λ (a few examples end in local solutions when λ is small), and at
    least 0.5 more for λ = 0.5 than for λ = 0.1.
    """
    return _count(_quadratic(seed, orthonormal=True))


def _count_of_dependent_tokens(seed: int) -> Verdict:
    return _count(_quadratic(seed, orthonormal=False))


def _count(prediction: Prediction) -> Verdict:
    s, best = prediction.path.attention[:, -1], prediction.attention
    counts = [(a >= KEPT).sum(-1).reshape(len(STRENGTHS), -1).mean(-1) for a in (s, best)]
    return judge(
        "selected tokens are the support of a simplex projection",
        at_most("median of max |s − s*|", float(np.median(np.abs(s - best).max((-2, -1)))), 0.002),
        at_most("mean difference of tokens per example", np.abs(counts[0] - counts[1]).mean(), 0.15),
        at_least("growth of tokens per example with λ", counts[0][-1] - counts[0][0], 0.5),
        told("tokens per example at the smallest λ", counts[0][0]),
    )


def _on_simplex(x: Float) -> Float:
    """Nearest points of the simplex {s ≥ 0, Σ s = 1} along the last axis: max(x − θ, 0)."""
    high = -np.sort(-x, axis=-1)
    level = (high.cumsum(-1) - 1) / np.arange(1, x.shape[-1] + 1)
    last = (high > level).sum(-1, keepdims=True) - 1
    return np.maximum(x - np.take_along_axis(level, last, axis=-1), 0.0)


# ---------------------------------------------------------------------- the runs


def _relu(seed: int, steps: int, linear: bool = False) -> Prediction:
    """Unit-sphere problems under 1ᵀ ReLU(Vᵀ r), ‖V‖_F = 1; the prediction takes what the run attends to."""
    tokens, v = sphere(3, 4, 4, seed=draws(seed, 128))
    V = np.random.default_rng(seed).standard_normal((128, 4, 4))
    head: Head = ReLUNetwork(V / np.asarray(frobenius.value(V))[:, None, None], np.ones(4))
    path = train(
        tokens,
        Linear(v) if linear else head,
        weight=FullWeight(),
        optimizer=steepest(frobenius, 0.1),
        steps=steps,
        init=uniform(draws(seed, 128)),
        record=2,
    )
    s = path.attention[:, -1]
    finished = ((s >= KEPT) | (s <= GONE)).all((-2, -1))
    return Prediction(path, s >= KEPT, s, finished & _mixed(s >= KEPT))


def _decaying(step: Any) -> Any:
    """A normalised step never settles below its own length: from 0.1 down to 0.001."""
    return 10 / (100 + step)


@lru_cache(maxsize=2)
def _quadratic(seed: int, orthonormal: bool) -> Prediction:
    """Unit-sphere problems with labels 1 under vᵀ r − λ‖r‖²; the prediction is the closed form."""
    tokens, v = sphere(3, 4, 4, seed=draws(seed, 32))
    left, _, right = np.linalg.svd(tokens.keys)
    tokens = Tokens(left @ right if orthonormal else tokens.keys, tokens.queries)
    strength = np.repeat(STRENGTHS, 8)
    optimizer = steepest(frobenius, _decaying)
    head = QuadraticPenalty(v, strength)
    path = train(tokens, head, weight=FullWeight(), optimizer=optimizer, steps=10_000, record=2)
    best = _on_simplex(np.einsum("rntd,rd->rnt", tokens.keys, v) / (2 * strength[:, None, None]))
    left_over = np.where(best > 0, 0.0, path.attention[:, -1]).sum(-1).max(-1)
    clear = np.where(best > 0, best, 1.0).min((-2, -1)) >= 0.02
    return Prediction(path, best > 0, best, clear & (left_over <= KEPT) & _mixed(best > 0))


def _mixed(kept: Bool) -> Bool:
    """Runs that keep several tokens in some example and mask a token in some example."""
    return np.asarray((kept.sum(-1) > 1).any(-1) & (~kept).any((-2, -1)))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        a_relu_head_trains_to_a_direction_and_a_finite_part,
        _split_with_a_linear_head,
        "a head that mixes tokens: here a linear one",
        f"{PAPER}, Gen-SVM, a conjecture",
        "refuted",
    ),
    Claim(
        early_on_a_relu_head_is_near_a_direction_and_a_finite_part,
        _early_with_a_linear_head,
        "a head that mixes tokens: here a linear one",
        f"{PAPER}, in place of the Gen-SVM conjecture",
        "observed",
    ),
    Claim(
        a_quadratic_head_trains_to_a_direction_and_a_finite_part,
        _split_of_dependent_tokens,
        "orthonormal tokens",
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
