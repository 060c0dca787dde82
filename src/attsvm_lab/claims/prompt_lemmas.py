"""Max-Margin Token Selection: the lemmas about the loss, its gradient and the program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.prompt_instances import (
    CROWDED,
    HEAD,
    PAPER,
    best_indices,
    equal_losers,
    gradient,
    lipschitz,
    log_slope,
    small,
)
from attsvm_lab.experiment import Experiment, solved

ROUNDING = 1e-12
"""Two runs of the same numbers in float64, a few hundred steps apart from rounding only."""
PROGRAM = 1e-7
"""Certified margins are exact to 1e-8."""


# ---------------------------------------------------------------------- prompt and weight


@claim(
    f"{PAPER}, equivalence of prompt and weight",
    "recalled-H",
    removed="the step of W is η/‖u‖²",
    twin={"step": 0.5},
)
def training_the_prompt_is_training_the_weight_on_a_fixed_query(seed: int, step: float = 0.5 / 4) -> Verdict:
    """Gradient descent on p in softmax(X p) with step η and on W in softmax(X W u) with step η/‖u‖²
    give W(t) = p(t) uᵀ/‖u‖² at every step.

    Hypothesis: W(0) = p(0) uᵀ/‖u‖². Measured: the largest difference over all records of 300 steps.
    """
    prompt = small(seed)
    rng = np.random.default_rng(seed)
    u, start = rng.standard_normal(3), rng.standard_normal((4, 1))
    u *= 2 / np.linalg.norm(u)  # ‖u‖² = 4 on every seed: the step is a compiled constant
    weight = att.Tokens(prompt.keys, np.tile(u, (2, 1)), values=prompt.values)
    p, W = (
        Experiment(tokens, HEAD, att.gd(rate), 300, start=init, record=5).path.W
        for tokens, rate, init in ((prompt, 0.5, start), (weight, step, start * u / 4))
    )
    return judge(
        "W(t) = p(t) uᵀ/‖u‖²",
        at_most("largest difference", np.abs(W - p * u / 4).max(), ROUNDING),
        reported("how far the prompt moved", np.abs(p[-1] - p[0]).max()),
    )


# ---------------------------------------------------------------------- the loss


@claim(
    f"{PAPER}, optimal tokens minimise the loss",
    "recalled-H",
    removed="the ray selects the best tokens",
    twin={"best": False},
)
def only_the_best_tokens_reach_the_smallest_loss(seed: int, best: bool = True) -> Verdict:
    """Every finite prompt has L(p) > L* = 1/n Σ ℓ(γ_best), and L(R p^mm) → L* as R grows.

    Hypotheses: a decreasing loss, a token that is not best, p^mm of the best tokens. Measured: the
    smallest L − L* over 200 random prompts, L by the code of training, L* from the scores; along the ray,
    whose least margin is 1, log(L − L*) must fall by exactly 1 per unit of R: never slower, and between
    R = 100 and 1,000 by no more than 1.001. (Any weight of least margin 1 does that, not p^mm alone.)
    """
    tokens = small(seed)
    selected = best_indices(tokens) if best else att.scores(tokens, HEAD).argmin(-1)
    rng = np.random.default_rng(seed)
    mm = solved(tokens, selected).W
    scales = np.repeat([0.1, 1.0, 4.0, 10.0], 50)[:, None, None]
    radii = np.array([50.0, 100.0, 1000.0])
    starts = np.concatenate([scales * rng.standard_normal((200, 4, 1)), radii[:, None, None] * mm])
    at = Experiment(tokens, HEAD, att.steepest(att.frobenius, 0.1), 1, start=starts, record=[1]).path
    least = np.logaddexp(0.0, -att.scores(tokens, HEAD).max(-1)).mean()
    fall = -np.diff(at.log_excess[200:, 0]) / np.diff(radii)
    return judge(
        "L(p) > L*, and the ray of the best tokens reaches L*",
        at_least("smallest L − L* at a random prompt", (at.loss[:200, 0] - least).min(), 1e-12),
        at_least("fall of log(L − L*) per unit of R, R = 50 … 1,000", fall.min(), 1 - ROUNDING),
        at_most("the same, R = 100 … 1,000", fall[-1], 1.001),
    )


# ---------------------------------------------------------------------- the gradient


@claim(
    f"{PAPER}, key inequality of global convergence",
    "recalled-H",
    removed="Assumption B: equal losing scores",
    twin={"equal": False},
)
def descent_always_moves_towards_the_best_direction(seed: int, equal: bool = True) -> Verdict:
    """⟨∇L(p), p^mm⟩ < 0 at every finite prompt: there is no stationary point.

    Hypotheses: a decreasing loss, Assumption B (the losing tokens of an input share one score), p^mm
    exists. Then −∇L = Σ c_it (k_best − k_it) with c ≥ 0, and all margins of p^mm are 1 or more: the pull
    along it is Σ c or more [derived], and 1 is the best such constant. Measured: the least pull over Σ c at
    3,000 random prompts of length 0.1 … 30. (Any direction that separates is one of descent; of its length
    p^mm has the largest least pull.)
    """
    tokens = (equal_losers if equal else small)(seed, CROWDED)
    directions = np.random.default_rng(seed).standard_normal((3_000, tokens.d))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    prompts = np.geomspace(0.1, 30, 3_000)[:, None] * directions
    best = best_indices(tokens)
    # One more coordinate, in which the best token leads by one: its slope is −Σ c.
    lead = (np.arange(tokens.T) == best[:, None])[..., None]
    slope, _ = gradient(
        tokens.values[..., 0], np.concatenate([tokens.keys, lead], -1), np.pad(prompts, ((0, 0), (0, 1)))
    )
    pull = slope[:, :-1] @ solved(tokens, best).W[:, 0] / slope[:, -1]
    return judge(
        "⟨∇L(p), p^mm⟩ < 0 everywhere",
        at_least("least ⟨−∇L, p^mm⟩ / Σ c", pull.min(), 1 - PROGRAM),
        at_most("the same, from above", pull.min(), 1.001),
    )


@claim(
    f"{PAPER}, smoothness constant",
    "recalled-H",
    removed="Assumption A: |ℓ'| ≤ M₁",
    twin={"slope": lambda f: -f},
)
def the_gradient_is_lipschitz_with_the_stated_constant(
    seed: int, slope: Callable[[Float], Float] = log_slope
) -> Verdict:
    """‖∇L(p) − ∇L(p')‖ ≤ L_p ‖p − p'‖ with L_p = 1/n Σ (M₀ ‖v‖² ‖X_i‖⁴ + 3 M₁ ‖v‖ ‖X_i‖³).

    Hypotheses (Assumption A): |ℓ''| ≤ M₀ and |ℓ'| ≤ M₁; logistic: ¼ and 1. Measured: the largest ratio
    of the two sides over 2,000 pairs, near and far, for heads of length 1 and 50. There the constant is loose
    by a factor of hundreds; so two opposite tokens and a head of length 1,000 are looked at, where it may be
    at most five times too large (four in the limit [derived], from the part of M₀).
    """
    tokens, rng = small(seed, CROWDED), np.random.default_rng(seed)
    p, step = rng.standard_normal((2, 2_000, tokens.d))
    p *= np.geomspace(0.05, 5, 2_000)[:, None]
    step *= rng.permutation(np.geomspace(1e-4, 3, 2_000))[:, None]
    ratios = [_change(head * tokens.values[..., 0], tokens.keys, p, step, slope, head) for head in (1, 50)]
    opposite = np.stack([tokens.keys[0, :1], -tokens.keys[0, :1]], axis=1)
    near = 1e-4 * tokens.keys[0, :1]
    worst = _change(1_000 * np.array([[1.0, -1.0]]), opposite, 0 * near, near, slope, 1_000)
    return judge(
        "∇L is L_p-Lipschitz",
        at_most("largest ‖∇L(p) − ∇L(p')‖ / (L_p ‖p − p'‖)", max(*map(np.max, ratios), worst.max()), 1),
        at_least("the same, two opposite tokens", worst.max(), 0.2),
        reported("the same, random tokens", np.max(ratios)),
    )


def _change(
    gamma: Float, keys: Float, p: Float, step: Float, slope: Callable[[Float], Float], head: float
) -> Float:
    """‖∇L(p + step) − ∇L(p)‖ / (L_p ‖step‖) for a head of this length, (m,)."""
    (first, a), (second, b) = (gradient(gamma, keys, x, slope) for x in (p, p + step))
    change = np.linalg.norm(np.exp(a)[:, None] * first - np.exp(b)[:, None] * second, axis=-1)
    size = np.linalg.norm(keys, ord=2, axis=(-2, -1))
    return np.asarray(change / np.linalg.norm(step, axis=-1) / lipschitz(head * size, size))


@claim(
    f"{PAPER}, expansion lemma", "recalled-M", removed="softmax weights sum to one", twin={"softmax": False}
)
def the_pull_of_a_selected_token_is_first_order_in_the_leak(seed: int, softmax: bool = True) -> Verdict:
    """|aᵀ(diag(s) − ssᵀ)γ − Σ_{t≥2} (a_1 − a_t)(γ_1 − γ_t) s_t| ≤ A Γ (1 − s_1)² with A and Γ the ranges
    of a and γ.

    Hypothesis: s sums to one. The paper's constant is 2 (recalled-M); 1 is enough, because the difference
    is exactly (Σ_t (a_1 − a_t) s_t)(Σ_t (γ_1 − γ_t) s_t) [derived], and token 1 need not be the largest;
    two tokens give equality, so 1 is the best constant. Measured over 4,000 draws, some of which must come
    within a tenth of it.
    """
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((4_000, 5)) * rng.exponential(2, (4_000, 1))
    weights = np.exp(logits)
    s = weights / (weights.sum(-1, keepdims=True) if softmax else 1 + weights)  # the twin: sigmoid attention
    a, gamma = rng.standard_normal((2, *s.shape)) * rng.exponential(2, (2, len(s), 1))
    exact = (a * s * gamma).sum(-1) - (a * s).sum(-1) * (gamma * s).sum(-1)
    first = ((a[:, :1] - a) * (gamma[:, :1] - gamma) * s).sum(-1)
    leak = s[:, 1:].sum(-1)  # 1 − s_1 itself would cancel
    size = np.ptp(a, axis=-1) * np.ptp(gamma, axis=-1)
    # The exact form cancels where the leak is small: allow its rounding, 16 ulp of its largest term.
    rounding = 16 * np.finfo(float).eps * np.abs(a * gamma).max(-1)
    ratio = np.maximum(np.abs(exact - first) - rounding, 0) / (size * leak**2)
    return judge(
        "the expansion is exact to second order",
        at_most("largest error / (A Γ (1 − s_1)²)", ratio.max(), 1),
        at_least("the same, from below", ratio.max(), 0.9),
    )


# ---------------------------------------------------------------------- the program


@claim(f"{PAPER}, feasibility of the p-SVM", "derived", removed="d ≥ n(T − 1)", twin={"d": 4})
def every_selection_is_separable_once_the_width_reaches_the_constraints(seed: int, d: int = 9) -> Verdict:
    """With generic keys and d ≥ n(T − 1) every selection of tokens is separable.

    The n(T − 1) rows are then linearly independent. Measured: the share of the 64 selections of
    n = 3, T = 4, d = 9 that a program separates.
    """
    keys = att.datasets.prompt_sphere(3, 4, d, seed=seed)[0].keys
    every = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    return judge(
        "every selection is separable",
        at_least("share of separable selections", float(np.mean(att.separable(att.Tokens(keys), every))), 1),
    )
