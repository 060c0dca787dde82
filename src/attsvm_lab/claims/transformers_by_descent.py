"""Transformers as SVMs, gradient descent: where it goes from any start, from the origin, from a cone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.prompt_instances import gradient, log_slope
from attsvm_lab.claims.transformers_setup import (
    PAPER,
    draws,
    four_problems,
    locally_optimal_selections,
    normalised_run,
    one_step,
    plain_run,
    random_weights,
    self_attending,
    smoothness,
    two_scores,
)
from attsvm_lab.experiment import solved

SMOOTHING = 0.002
"""At length R softmax misses the best margin by O(log(nT)/(R·margin)); R is 20,000 here."""
PLAIN_STEPS = 200_000
"""Steps of 1/L_W. The margins grow like log t: from three to about eight."""
PROGRAM = 1e-6
"""Certified margins are exact to 1e-8; a step of length one is subtracted from weights of length 16."""


# ---------------------------------------------------------------------- no stationary point


@claim(
    f"{PAPER}, no stationary weights and divergence of the norm",
    "recalled-H",
    removed="Assumption B",
    twin=lambda seed: _descent_along_without_either(seed),
)
def no_weight_is_stationary_if_all_tokens_are_support(seed: int) -> Verdict:
    """Under Assumption B.1, every token a support vector, ⟨∇L(W), W^mm⟩ < 0 at every finite W: there is no
    stationary point.

    Every example pulls by c_i ≥ 0 times the lead of its best token, which at W^mm is 1 over every other:
    ⟨−∇L, W^mm⟩ = Σ c exactly [derived]. Four draws (2, 3, 8) that satisfy B.1, 64 random weights each, of
    norm 0.1 to 16; the gradient is that of the training loop. Wanted: Σ c at every weight, to 1e-6.
    """
    tokens, v, solution = four_problems(seed, lambda t, v, s: np.asarray(programs.all_tokens_support(s)))
    return _descent_along(seed, tokens, v, solution, exact=True)


@claim(
    f"{PAPER}, no stationary weights and divergence of the norm",
    "recalled-H",
    removed="Assumption B",
    twin=lambda seed: _descent_along_without_either(seed),
)
def no_weight_is_stationary_if_losing_scores_are_equal(seed: int) -> Verdict:
    """Under Assumption B.2, equal scores of all tokens that are not best, ⟨∇L(W), W^mm⟩ < 0 at every finite
    W: there is no stationary point.

    As above, on eight draws (3, 5, 3) with exact scores 1 and 0.5. Here the lead is 1 or more, and the pull
    is Σ c or more; at some weight it must come within 1 % of it.
    """
    tokens, v = two_scores(3, 5, 3, draws(seed, 8))
    return _descent_along(seed, tokens, v, solved(tokens, att.best_tokens(tokens, v)))


@claim(
    f"{PAPER}, no stationary weights and divergence of the norm, self-attention",
    "recalled-H",
    removed="Assumption B",
    twin=lambda seed: _descent_along_without_either(seed, own_queries=True),
)
def in_self_attention_no_weight_is_stationary_if_losing_scores_are_equal(seed: int) -> Verdict:
    """In self-attention, z_i = x_i1, ⟨∇L(W), W^mm⟩ < 0 at every finite W under Assumption B.2.

    As above; the query has the score of its token as its last coordinate.
    """
    tokens, v = two_scores(3, 5, 3, draws(seed, 8))
    tokens = self_attending(tokens)
    return _descent_along(seed, tokens, v, solved(tokens, att.best_tokens(tokens, v)))


def _descent_along_without_either(seed: int, own_queries: bool = False) -> Verdict:
    tokens, v = att.datasets.sphere(3, 5, 3, seed=draws(seed, 8))
    tokens = self_attending(tokens) if own_queries else tokens
    return _descent_along(seed, tokens, v, solved(tokens, att.best_tokens(tokens, v)))


def _descent_along(
    seed: int, tokens: att.Tokens, v: Float, solution: att.Solution, exact: bool = False
) -> Verdict:
    W = random_weights(seed, tokens, 64, largest=16.0)
    path = one_step(_with_lead(tokens, v), v, np.pad(W, ((0, 0), (0, 0), (0, 1), (0, 1))))
    step = (path.W[:, 1] - path.W[:, 0]).reshape(*W.shape[:2], tokens.d + 1, tokens.e + 1)
    along = (step[..., :-1, :-1] * solution.W[:, None]).sum((-2, -1))
    pull = (along / step[..., -1, -1])[solution.separable]
    least, largest = pull.min(initial=np.inf), pull.max(initial=-np.inf)
    return judge(
        "−∇L and W^mm form an acute angle everywhere",
        at_least("least ⟨−∇L, W^mm⟩ / Σ c", least, 1 - PROGRAM),
        at_most("largest", largest, 1 + PROGRAM) if exact else at_most("the same", least, 1.01),
        reported("weights", pull.size),
        given={"some best tokens are separable": bool(pull.size)},
    )


def _with_lead(tokens: att.Tokens, v: Float) -> att.Tokens:
    """One more coordinate of keys and queries, in which the best token leads by one: its step is Σ c."""
    lead = att.best_tokens(tokens, v)[..., None]
    keys = np.concatenate([tokens.keys, lead], axis=-1)
    queries = np.concatenate([tokens.queries, np.ones((*tokens.queries.shape[:-1], 1))], axis=-1)
    return att.Tokens(keys, queries, tokens.labels, values=tokens.values)


@claim(
    f"{PAPER}, no stationary weights and divergence of the norm",
    "recalled-H",
    removed="the best tokens are separable: here every example has both labels",
    twin=lambda seed: _norm_diverges(seed, *_contradicting_labels(seed)),
)
def the_norm_diverges_from_every_start(seed: int) -> Verdict:
    """Gradient descent on W has ‖W(k)‖_F → ∞ from any start when Assumption B holds and the best tokens are
    separable.

    The theorem's steps, η = 1/L_W, on eight draws (2, 3, 8) with scores 1 and 0.5, from Gaussian
    starts. Excess loss of order e^(−R·margin) gives R ≈ ‖W^mm‖ log k, so that every decade of steps must
    add about log 10 · ‖W^mm‖. Wanted: that, to 10 %, in the last one (20,000 to 200,000 steps).
    """
    return _norm_diverges(seed, *two_scores(2, 3, 8, draws(seed, 8)))


@claim(
    f"{PAPER}, no stationary weights and divergence of the norm, self-attention",
    "recalled-H",
    removed="the best tokens are separable: here every example has both labels",
    twin=lambda seed: _norm_diverges(seed, *_contradicting_labels(seed, own_queries=True)),
)
def in_self_attention_the_norm_diverges_from_every_start(seed: int) -> Verdict:
    """In self-attention, z_i = x_i1, gradient descent on W has ‖W(k)‖_F → ∞ from any start when Assumption B
    holds and the best tokens are separable.

    As above, with keys whose last coordinate is the score, queries included.
    """
    tokens, v = two_scores(2, 3, 8, draws(seed, 8))
    return _norm_diverges(seed, self_attending(tokens), v)


def _norm_diverges(seed: int, tokens: att.Tokens, v: Float) -> Verdict:
    init = np.random.default_rng(seed).standard_normal((8, 8, 8)) / 4
    path = plain_run(tokens, v, init, PLAIN_STEPS, [PLAIN_STEPS // 10])
    solution = solved(tokens, att.best_tokens(tokens, v))
    size = np.where(solution.separable, att.frobenius.value(solution.W), 1.0)
    growth = (path.norm()[:, -1] - path.norm()[:, 1]) / (size * np.log(10))
    return judge(
        "the norm diverges like ‖W^mm‖ log k",
        at_least("growth per decade over ‖W^mm‖ log 10", growth.min(), 0.9),
        at_most("largest growth", growth.max(), 1.1),
        reported("largest norm", path.norm()[:, -1].max()),
    )


def _contradicting_labels(seed: int, own_queries: bool = False) -> tuple[att.Tokens, Float]:
    """Each example twice, with both labels: no weight separates the best tokens."""
    tokens, v = att.datasets.sphere(1, 3, 8, seed=draws(seed, 8))
    tokens = self_attending(tokens) if own_queries else tokens
    keys, queries = (np.repeat(a, 2, axis=1) for a in (tokens.keys, tokens.queries))
    return att.Tokens(keys, queries, np.array([1.0, -1.0])), v


# ---------------------------------------------------------------------- the gradient


@claim(
    f"{PAPER}, smoothness constant",
    "recalled-H",
    removed="Assumption A: |ℓ'| ≤ M₁",
    twin={"slope": lambda f: -f},
    chosen_on=range(5),
)
def the_gradient_in_W_is_lipschitz_with_the_stated_constant(
    seed: int, slope: Callable[[Float], Float] = log_slope
) -> Verdict:
    """‖∇L(W) − ∇L(W')‖_F ≤ L_W ‖W − W'‖_F with
    L_W = 1/n Σ (M₀ ‖v‖² ‖z_i‖² ‖X_i‖⁴ + 3 M₁ ‖v‖ ‖z_i‖² ‖X_i‖³).

    Hypotheses (Assumption A): |ℓ''| ≤ M₀ and |ℓ'| ≤ M₁; logistic: ¼ and 1. Measured: the largest ratio of
    the two sides over 1,000 pairs of weights, near and far, on a draw (6, 4, 6) whose queries have lengths
    ½ and 2, for heads of length 1 and 50. So that the constant cannot be many times too large: one example of
    two opposite tokens, a query of length 2 and a head of length 1,000, where it is at most five times too
    large (four in the limit, as for prompts).
    """
    drawn, v = att.datasets.sphere(6, 4, 6, seed=seed)
    queries, rng = drawn.queries * np.array(3 * [[0.5], [2.0]]), np.random.default_rng(seed)
    W, step = rng.standard_normal((2, 1_000, 6, 6))
    W *= np.geomspace(0.05, 20, 1_000)[:, None, None]
    step *= rng.permutation(np.geomspace(1e-4, 3, 1_000))[:, None, None]
    ratios = [
        _change(att.Tokens(drawn.keys, queries, drawn.labels), head * v, W, step, slope) for head in (1, 50)
    ]
    opposite = np.stack([drawn.keys[:1, 0], -drawn.keys[:1, 0]], axis=1)
    near = 1e-4 * drawn.keys[0, 0][:, None] * drawn.queries[0] / 2
    pair = att.Tokens(opposite, 2 * drawn.queries[:1], np.ones(1))
    worst = _change(pair, 1_000 * drawn.keys[0, 0], 0 * near[None], near[None], slope)
    return judge(
        "∇L is L_W-Lipschitz",
        at_most("largest ‖∇L(W) − ∇L(W')‖ / (L_W ‖W − W'‖)", max(*map(np.max, ratios), worst.max()), 1),
        at_least("the same, two opposite tokens", worst.max(), 0.2),
        reported("the same, random tokens", np.max(ratios)),
    )


def _change(tokens: att.Tokens, v: Float, W: Float, step: Float, slope: Callable[[Float], Float]) -> Float:
    """‖∇L(W + step) − ∇L(W)‖ / (L_W ‖step‖), (m,): as a prompt vec(W) with the keys x_it z_iᵀ."""
    keys = np.einsum("ntd,ne->ntde", tokens.keys, tokens.queries).reshape(*tokens.keys.shape[:2], -1)
    gamma, first, size = att.scores(tokens, v), W.reshape(len(W), -1), step.reshape(len(W), -1)
    (one, a), (two, b) = (gradient(gamma, keys, x, slope) for x in (first, first + size))
    change = np.linalg.norm(np.exp(a)[:, None] * one - np.exp(b)[:, None] * two, axis=-1)
    return np.asarray(change / np.linalg.norm(size, axis=-1) / smoothness(tokens, v))


# ---------------------------------------------------------------------- local convergence, factors


@claim(
    f"{PAPER}, local convergence of gradient descent",
    "recalled-H",
    removed="the tokens are locally optimal",
    twin={"optimal": False},
)
def descent_near_a_locally_optimal_direction_tends_to_it(seed: int, optimal: bool = True) -> Verdict:
    """From a cone around W^mm_α far from the origin gradient descent tends to W^mm_α if the tokens α are
    locally optimal.

    Two draws (2, 3, 4), their locally optimal selections (enumerated, the first sixteen) that
    keep every better token at margin ≥ 1.5; starts of norm 1,000 tilted by 1 − cosine = 0.005, 20,000
    normalised steps of 1. Wanted: margin ratio ≥ 1 − SMOOTHING, norm grown tenfold.

    Normalised steps, for selections whose better-scoring tokens have margin ≥ 1.5: a cone of one size then
    serves all of them. The theorem's own steps are in the next claim.
    """
    solution, v = locally_optimal_selections(seed, att.frobenius, optimal, runs=16)
    tilt = np.random.default_rng(seed).standard_normal(solution.W.shape)
    axis, tilt = (a / np.asarray(att.frobenius.value(a))[:, None, None] for a in (solution.W, tilt))
    path = normalised_run(solution.tokens, v, 1_000 * (axis + 0.1 * tilt), steps=20_000, lr=1.0)
    ratio = att.margin_ratio(path, solution)[:, -1]
    return judge(
        "descent near a direction tends to it",
        at_least("margin ratio", ratio.min(), 1 - SMOOTHING),
        at_least("growth of the norm", (path.norm()[:, -1] / path.norm()[:, 0]).min(), 10.0),
        reported("share of selections that stay", float(np.mean(ratio >= 1 - SMOOTHING))),
    )


def _plain_steps(seed: int, optimal: bool, own_queries: bool = False) -> Verdict:
    """Plain steps of 1/L_W from 3 W^mm_α, tilted: how W grows at the end, beside W^mm_α."""
    solution, v = locally_optimal_selections(seed, att.frobenius, optimal, 8, own_queries, margin=3.0)
    size = np.asarray(att.frobenius.value(solution.W))
    tilt = np.random.default_rng(seed).standard_normal(solution.W.shape)
    tilt *= (0.1 * size / np.asarray(att.frobenius.value(tilt)))[:, None, None]
    path = plain_run(solution.tokens, v, 3 * (solution.W + tilt), PLAIN_STEPS, [PLAIN_STEPS // 3])
    grown = path.W[:, -1] - path.W[:, 1]
    length = np.asarray(att.frobenius.value(grown))
    cosine = (grown * solution.W).sum((-2, -1)) / (length * size)
    rate = length / (size * np.log(3))
    return judge(
        "plain steps near a direction tend to it",
        at_least("share of runs that keep their tokens", _share_kept(path, solution), 1.0),
        at_most("1 − cosine of the growth to W^mm_α", (1 - cosine).max(), 0.1),
        at_least("growth over ‖W^mm_α‖ log 3", rate.min(), 0.7),
        at_most("the same, from above", rate.max(), 1.1),
        at_most("largest rise of the loss", np.diff(path.loss).max(), 0.0),
    )


def _share_kept(path: att.Path, solution: att.Solution) -> float:
    return float((path.selected == solution.selected).all((-2, -1)).mean())


@claim(
    f"{PAPER}, local convergence of gradient descent",
    "recalled-H",
    removed="the tokens are locally optimal",
    twin=lambda seed: _plain_steps(seed, optimal=False),
)
def plain_steps_near_a_locally_optimal_direction_tend_to_it(seed: int) -> Verdict:
    """Gradient descent with η ≤ 1/L_W from a cone around W^mm_α stays with the tokens α, and grows along
    W^mm_α, if α is locally optimal.

    The theorem's steps, η = 1/L_W (about 0.1), 200,000 of them from a margin of three, W tilted by 1 − cosine
    = 0.005. W is log t W^mm_α and a part that stays bounded, so that the growth in the last two thirds of the
    steps shows the direction long before W does. Two draws (2, 3, 4), up to eight selections whose better
    tokens pull by less than a tenth of what support tokens do at that margin: there R is large enough.
    Wanted: the tokens α, 1 − cosine of the growth ≤ 0.1, its length 0.7 to 1.1 ‖W^mm_α‖ log 3, no rise of
    the loss.

    Surprise: on three of twenty seeds the steps have not reached that yet, in length or direction, though all
    tokens are kept; on one a selection leaves, whose R is larger than where a tenth of the pull says.
    """
    return _plain_steps(seed, optimal=True)


@claim(
    f"{PAPER}, local convergence of gradient descent, self-attention",
    "recalled-H",
    removed="the tokens are locally optimal",
    twin=lambda seed: _plain_steps(seed, optimal=False, own_queries=True),
)
def in_self_attention_plain_steps_tend_to_locally_optimal_directions(seed: int) -> Verdict:
    """In self-attention, z_i = x_i1, gradient descent with η ≤ 1/L_W from a cone around W^mm_α stays with the
    tokens α, and grows along W^mm_α, if α is locally optimal.

    As above, with W^mm_α, local optimality and L_W of these queries.
    """
    return _plain_steps(seed, optimal=True, own_queries=True)


@claim(
    f"{PAPER}, experiments with (K, Q)",
    "recalled-H",
    removed="W is trained as K Qᵀ",
    twin={"factored": False},
)
def key_and_query_prefer_the_nuclear_margin(seed: int, factored: bool = True) -> Verdict:
    """Gradient descent on (K, Q) ends with nearly the best nuclear margin of the tokens it attends to, and a
    better one than descent on W has for its own tokens.

    An experiment of the paper; proven for the regularisation path only. Four draws (3, 4, 5), 20,000
    normalised steps. Wanted: nuclear margin ratio ≥ 0.95 in every run of (K, Q) (K and Q start at ±1/√d, and
    what the start leaves in W fades slowly), and 0.02 above the runs of W on average. Of seeds 0–19 one
    (12) is inconclusive: a run is at 0.934, and rises to 0.975 by 200,000 steps.
    """
    tokens, v = att.datasets.sphere(3, 4, 5, seed=draws(seed, 4))
    ratios = []
    for weight in (att.KeyQuery() if factored else att.FullWeight(), att.FullWeight()):
        path = att.train(
            tokens,
            att.Linear(v),
            weight=weight,
            optimizer=att.steepest(att.frobenius, 0.1),
            steps=20_000,
            init=att.uniform(draws(seed, 4)),
            record=[10_000],
        )
        ratios.append(att.margin_ratio(path, solved(tokens, path.selected, att.nuclear)))
    (_, halfway, end), (*_, of_W) = (np.moveaxis(ratio, -1, 0) for ratio in ratios)
    return judge(
        "(K, Q) ends with the better nuclear margin",
        at_least("nuclear margin ratio", end.min(), 0.95),
        at_least("its mean less that of W", end.mean() - of_W.mean(), 0.02),
        reported("mean nuclear margin ratio of W", of_W.mean()),
        on_its_way=bool(np.all((end >= 0.95) | (1 - end < 0.9 * (1 - halfway)))),
    )
