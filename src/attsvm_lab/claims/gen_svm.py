"""Transformers as SVMs, heads that mix tokens: the generalised SVM, W ≈ C · W^mm + W^fin."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab import programs
from attsvm_lab.claims.claim import REFUTED, claim
from attsvm_lab.claims.transformers_setup import PAPER, draws
from attsvm_lab.experiment import Experiment, solved

KEPT, GONE = 1e-3, 1e-6
"""Attention from which a token counts as selected, and below which as masked."""
STRENGTHS = (0.1, 0.2, 0.3, 0.5)
"""Of the quadratic penalty: from one to two or three selected tokens of four."""
NEAR = 0.02
"""Median 1 − cosine to C · W^mm + W^fin of a quadratic head."""


class Prediction(NamedTuple):
    """Runs, the tokens they should keep, how attention divides among these, and which runs are judged.

    foretold: selected and attention come from a closed form, not from the end of the run itself.
    """

    path: att.Path
    selected: Bool  # (runs, n, T)
    attention: Float  # (runs, n, T)
    judged: Bool  # (runs,)
    foretold: bool = False


def _quadratic(seed: int, orthonormal: bool) -> Prediction:
    """Unit-sphere problems with labels 1 under vᵀ r − λ‖r‖²; the prediction is the closed form."""
    tokens, v = att.datasets.sphere(3, 4, 4, seed=draws(seed, 32))
    U, _, Vt = np.linalg.svd(tokens.keys)
    tokens = att.Tokens(U @ Vt if orthonormal else tokens.keys, tokens.queries)
    strength = np.repeat(STRENGTHS, 8)
    head = att.QuadraticPenalty(v, strength)
    path = Experiment(tokens, head, att.steepest(att.frobenius, decaying), 10_000).path
    best = on_simplex(np.einsum("rntd,rd->rnt", tokens.keys, v) / (2 * strength[:, None, None]))
    left_over = np.where(best > 0, 0.0, path.attention[:, -1]).sum(-1).max(-1)
    clear = np.where(best > 0, best, 1.0).min((-2, -1)) >= 0.02
    return Prediction(path, best > 0, best, clear & (left_over <= KEPT) & _mixed(best > 0), True)


def relu_problems(seed: int, count: int = 128) -> tuple[att.Tokens, Float]:
    """Unit-sphere problems, and V (count, 4, 4) of Frobenius length one."""
    tokens, _ = att.datasets.sphere(3, 4, 4, seed=range(128 * seed, 128 * seed + count))
    V = np.random.default_rng(seed).standard_normal((128, 4, 4))[:count]
    return tokens, V / np.asarray(att.frobenius.value(V))[:, None, None]


def _relu(seed: int, steps: int, count: int = 128) -> Prediction:
    """Unit-sphere problems under 1ᵀ ReLU(Vᵀ r), ‖V‖_F = 1; the prediction takes what the run attends to."""
    tokens, V = relu_problems(seed, count)
    start, rule = att.uniform(range(128 * seed, 128 * seed + count)), att.steepest(att.frobenius, 0.1)
    return attended(Experiment(tokens, att.ReLUNetwork(V, np.ones(4)), rule, steps, start=start).path)


def attended(path: att.Path) -> Prediction:
    """The prediction from what the run attends to at its end."""
    s = path.attention[:, -1]
    finished = ((s >= KEPT) | (s <= GONE)).all((-2, -1))
    return Prediction(path, s >= KEPT, s, finished & _mixed(s >= KEPT))


# ---------------------------------------------------------------------- direction and finite part


@claim(
    f"{PAPER}, Gen-SVM, a conjecture",
    REFUTED,
    removed="the queries that were trained on: each example is predicted with the next one's",
    twin=lambda seed: _split(_misread(_relu(seed, steps=2_000))),
)
def a_relu_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With a ReLU network as head, gradient descent on W ends near C · W^mm + W^fin: closer than to W^mm
    alone, which in turn is closer than the SVM of one token per example.

    A conjecture of the paper with experiments; only sometimes true, so refuted as recalled. 128 draws
    (3, 4, 4), head 1ᵀ ReLU(Vᵀ r), the paper's 2,000 normalised steps. As in the paper, runs count that have
    no attention between 1e-6 and 1e-3 and mask something; and here keep several tokens somewhere. Wanted,
    for the median 1 − cosine: at most 0.05 to C · W^mm + W^fin, and the paper's ordering with 5 % to spare.
    The twin predicts with exchanged queries. With gradients that survive saturation this holds on 6 of the
    seeds 0–19, and the prediction worsens with training: on seed 0 the means of 1 − cosine are .008, .062,
    .128 after 500, 2,000 and 6,000 steps.

    Settled by runs of 100,000 and 1,000,000 steps (`lab/benchmarks/relu_long_runs.py` of commit 7ea95ac3):
    the median over four seeds goes on to 0.12 after 10,000 and 0.19 after 100,000 steps, and to
    3e-7 if examples whose units can all be off ask for no margin:
    `under_a_relu_head_examples_that_can_be_zero_ask_for_no_margin`.
    """
    return _split(_relu(seed, steps=2_000))


@claim(
    f"{PAPER}, in place of the Gen-SVM conjecture",
    "observed",
    removed="the queries that were trained on: each example is predicted with the next one's",
    twin=lambda seed: _split(_misread(_relu(seed, steps=500)), 0.03),
)
def early_on_a_relu_head_is_near_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """After 500 normalised steps under a ReLU head, W is near C · W^mm + W^fin, with the ordering above.

    What is left of the claim above, with a median 1 − cosine of at most 0.03: an observation about a norm of
    about 45, not about the limit. The horizon was chosen after seeing 500, 2,000 and 6,000 steps on one seed.
    """
    return _split(_relu(seed, steps=500), 0.03)


@claim(
    f"{PAPER}, Gen-SVM, a conjecture",
    "recalled-M",
    removed="orthonormal tokens",
    twin=lambda seed: _split(_quadratic(seed, orthonormal=False), NEAR),
)
def a_quadratic_head_trains_to_a_direction_and_a_finite_part(seed: int) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², gradient descent on W ends near C · W^mm + W^fin
    with the selected tokens and their attention known beforehand.

    32 draws (3, 4, 4), four strengths λ, W(0) = 0. Both parts come from the closed form of the next claim;
    only C is fitted. Runs count whose attention left the other tokens (below 1e-3), with several tokens
    kept somewhere, each by 0.02. Wanted: a median 1 − cosine of at most 0.02, the same ordering, and
    attention within 0.001 of the predicted.

    The Frobenius norm; the nuclear Gen-SVM of K and Q is the next claim.
    """
    return _split(_quadratic(seed, orthonormal=True), NEAR)


@claim(
    f"{PAPER}, Gen-SVM, a conjecture",
    "recalled-M",
    removed="W is trained as K Qᵀ",
    twin={"factored": False},
)
def under_a_quadratic_head_key_and_query_prefer_the_nuclear_gen_svm(
    seed: int, factored: bool = True
) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², gradient descent on K and Q ends nearer to
    C · W^mm + W^fin of the nuclear norm than to that of the Frobenius norm.

    Draws, strengths and closed form as above, K and Q start at ±1/√d. Both W^mm and W^fin in the norm. ‖W‖ is
    27 only at the end, because steps must decay for the ratios. Wanted, for the medians of 1 − cosine: at
    most 0.12 to the nuclear prediction, and that at most 0.7 of the Frobenius one.
    """
    known = _quadratic(seed, orthonormal=True)
    prediction = _quadratic_factors(seed) if factored else known
    norms = (att.nuclear, att.frobenius)
    each = [
        [_distances(prediction, int(r), norm=norm) for norm in norms]
        for r in np.flatnonzero(prediction.judged)
    ]
    away = np.array([[d[0] for d in both if d is not None] for both in each if None not in both])
    enough = len(away) >= 3
    to_nuclear, to_frobenius = np.median(away, axis=0) if enough else np.ones(2)
    return judge(
        "K and Q prefer the nuclear Gen-SVM",
        at_most("1 − cosine to the nuclear C · W^mm + W^fin", to_nuclear, 0.12),
        at_most("the same, relative to the Frobenius one", to_nuclear / to_frobenius, 0.7),
        reported("runs judged", len(away)),
        given={"three runs or more keep several tokens and mask others": enough},
    )


def _quadratic_factors(seed: int) -> Prediction:
    """The runs of K and Q on the problems of `_quadratic`, with its prediction."""
    known, (_, v) = _quadratic(seed, True), att.datasets.sphere(3, 4, 4, seed=draws(seed, 32))
    head, start = att.QuadraticPenalty(v, np.repeat(STRENGTHS, 8)), att.uniform(draws(seed, 32))
    rule = att.steepest(att.frobenius, decaying)
    path = Experiment(known.path.tokens, head, rule, 10_000, att.KeyQuery(), start).path
    left_over = np.where(known.selected, 0.0, path.attention[:, -1]).sum(-1).max(-1)
    clear = np.where(known.selected, known.attention, 1.0).min((-2, -1)) >= 0.02
    judged = clear & (left_over <= KEPT) & _mixed(known.selected)
    return known._replace(path=path, judged=judged)


@claim(
    f"{PAPER}, in place of the Gen-SVM conjecture",
    "derived",
    removed="examples whose units can all be off ask for no margin: here every example asks for one",
    twin={"all_ask": True},
)
def under_a_relu_head_examples_that_can_be_zero_ask_for_no_margin(
    seed: int, all_ask: bool = False
) -> Verdict:
    """With a ReLU network as head, gradient descent on W tends to the Gen-SVM in which examples of label −1
    that some mixture of their tokens turns off, Vᵀ r ≤ 0, ask for no margin.

    There the head is zero, the least that label −1 can have, on a set of mixtures with an inside, and so is
    the gradient [derived]: such an example keeps its tokens tied and the others below, and no force makes a
    margin grow. A linear program on Vᵀ x says which examples these are, before training. 64 draws as above,
    10,000 normalised steps. Wanted: 1 − cosine to C · W^mm + W^fin of at most 0.001 in the median and 0.01 in
    four runs of five. The twin asks every example for a margin, as the paper does: 0.1 in the median.
    """
    away = relu_distances(seed, _relu(seed, steps=10_000, count=64), all_ask)
    enough = len(away) >= 3
    return judge(
        "W ≈ C · W^mm + W^fin without the margins of examples at zero",
        at_most("median 1 − cosine", float(np.median(away)) if enough else 1.0, 0.001),
        at_least("share of runs within 0.01", float(np.mean(away <= 0.01)) if enough else 0.0, 0.8),
        reported("largest 1 − cosine", away.max(initial=0.0)),
        reported("runs judged", len(away)),
        given={"three runs or more keep several tokens and mask others": enough},
    )


def relu_distances(seed: int, prediction: Prediction, all_ask: bool) -> Float:
    """1 − cosine to C · W^mm + W^fin of the runs judged, in which some example asks for a margin."""
    zero = can_be_zero(*relu_problems(seed, len(prediction.judged)))
    required = np.where(zero & ~np.bool_(all_ask), 0.0, 1.0)
    masks = (~prediction.selected).any(-1)
    judged = prediction.judged & (masks & ~zero).any(-1)
    each = [_distances(prediction, int(r), required[r]) for r in np.flatnonzero(judged)]
    return np.array([distances[0] for distances in each if distances is not None])


def can_be_zero(tokens: att.Tokens, V: Float) -> Bool:
    """Examples of label −1 with a mixture of tokens r for which Vᵀ r < 0, (count, n)."""
    activations = np.einsum("rntd,rdh->rnht", tokens.keys, V)
    return np.array(
        [
            [label < 0 and _least_largest(A) < 0 for A, label in zip(of_run, labels, strict=True)]
            for of_run, labels in zip(activations, tokens.labels, strict=True)
        ]
    )


def _least_largest(A: Float) -> float:
    """min over mixtures s of max (A s), for A (h, T)."""
    h, T = A.shape
    cost, bound = np.append(np.zeros(T), 1.0), [(0, None)] * T + [(None, None)]
    rows, total = np.hstack([A, -np.ones((h, 1))]), np.append(np.ones(T), 0.0)[None]
    return float(linprog(cost, rows, np.zeros(h), total, [1.0], bound).fun)


def _split(prediction: Prediction, near: float = 0.05) -> Verdict:
    each = [_distances(prediction, int(r)) for r in np.flatnonzero(prediction.judged)]
    away = np.array([distances for distances in each if distances is not None]).reshape(-1, 3)
    enough = len(away) >= 3
    both, direction, single = np.median(away, axis=0) if enough else np.ones(3)
    return judge(
        "W ≈ C · W^mm + W^fin",
        at_most("1 − cosine to C · W^mm + W^fin", both, near),
        at_most("the same, relative to W^mm alone", both / direction, 0.95),
        at_most("1 − cosine to W^mm, relative to W^1token", direction / single, 0.95),
        *([_missed(prediction)] if prediction.foretold and enough else []),
        reported("1 − cosine to W^1token", single),
        reported("runs judged", len(away)),
        given={"three runs or more keep several tokens and mask others": enough},
    )


def _missed(prediction: Prediction) -> Evidence:
    """How far attention is from the closed form."""
    missed = np.abs(prediction.path.attention[:, -1] - prediction.attention)[prediction.judged].max((-2, -1))
    return at_most("max |s − s predicted|", float(np.median(missed)), 0.001)


def _misread(prediction: Prediction) -> Prediction:
    """The same runs and kept tokens, beside the program of exchanged queries."""
    tokens = prediction.path.tokens
    turned = att.Tokens(tokens.keys, np.roll(tokens.queries, 1, axis=-2), tokens.labels)
    return prediction._replace(path=prediction.path.changed(tokens=turned))


def _distances(prediction: Prediction, r: int, required: Any = 1.0, norm: att.Norm = att.frobenius) -> Any:
    """1 − cosine of W to C · W^mm + W^fin, W^mm and W^1token; required (n,): the margins of W^mm.

    None where the kept tokens cannot be separated from the others, or not be divided like this.
    """
    path, selected = prediction.path.run(r), prediction.selected[r]
    try:
        direction = solved(path.tokens, selected, norm, required=required).W
        single = solved(path.tokens, prediction.attention[r].argmax(-1), norm).W
        finite = programs.finite_part_in(path.tokens, prediction.attention[r], selected, norm)
    except (att.NotSeparable, ValueError):
        return None
    scale = ((path.final - finite) * direction).sum() / (direction * direction).sum()
    return [
        1 - _cosine(path.final, candidate) for candidate in (scale * direction + finite, direction, single)
    ]


def _cosine(a: Float, b: Float) -> float:
    return float((a * b).sum() / (att.frobenius.value(a) * att.frobenius.value(b)))


# ---------------------------------------------------------------------- how many tokens


@claim(
    f"{PAPER}, closed form of the quadratic head",
    "derived",
    removed="orthonormal tokens",
    twin={"orthonormal": False},
)
def selected_tokens_are_the_support_of_a_simplex_projection(seed: int, orthonormal: bool = True) -> Verdict:
    """With orthonormal tokens and the head vᵀ r − λ‖r‖², trained attention is the projection of γ/(2λ) on the
    simplex; so the number of selected tokens is the size of its support, and grows with λ.

    Closed form of the paper's head: the best attention maximises γᵀs − λ‖s‖². Same runs. Wanted: median of
    max |s − s*| ≤ 0.001 (a last step of 0.001 moves a logit by that much), tokens per example within 0.15
    of the closed form, averaged over λ (a few examples end in local solutions when λ is small), and at
    least 0.5 more for λ = 0.5 than for λ = 0.1.
    """
    prediction = _quadratic(seed, orthonormal)
    s, best = prediction.path.attention[:, -1], prediction.attention
    counts = [(a >= KEPT).sum(-1).reshape(len(STRENGTHS), -1).mean(-1) for a in (s, best)]
    return judge(
        "selected tokens are the support of a simplex projection",
        at_most("median of max |s − s*|", float(np.median(np.abs(s - best).max((-2, -1)))), 0.001),
        at_most("mean difference of tokens per example", np.abs(counts[0] - counts[1]).mean(), 0.15),
        at_least("growth of tokens per example with λ", counts[0][-1] - counts[0][0], 0.5),
        reported("tokens per example at the smallest λ", counts[0][0]),
    )


def on_simplex(x: Float) -> Float:
    """Nearest points of the simplex {s ≥ 0, Σ s = 1} along the last axis: max(x − θ, 0)."""
    high = -np.sort(-x, axis=-1)
    level = (high.cumsum(-1) - 1) / np.arange(1, x.shape[-1] + 1)
    last = (high > level).sum(-1, keepdims=True) - 1
    return np.maximum(x - np.take_along_axis(level, last, axis=-1), 0.0)


# ---------------------------------------------------------------------- the runs


def decaying(step: Any) -> Any:
    """A normalised step never settles below its own length: from 0.1 down to 0.001."""
    return 10 / (100 + step)


def _mixed(selected: Bool) -> Bool:
    """Runs that keep several tokens in some example and mask a token in some example."""
    return np.asarray((selected.sum(-1) > 1).any(-1) & (~selected).any((-2, -1)))
