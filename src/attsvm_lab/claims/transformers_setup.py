"""Set-up that the claims on "Transformers as SVMs" share: draws, starting points, one step of descent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attsvm as att
from attsvm.numbers import Bool, Float
from attsvm_lab.experiment import Experiment, solved

CLEAR = 1.5
"""The cone of the local theorems shrinks with the slack of better tokens; this much allows a fixed one."""
PAPER = "Tarzanagh et al. 2023, Transformers as Support Vector Machines"


def draws(seed: int, count: int) -> range:
    """Seeds of the draws that belong to one seed of a claim: disjoint for different seeds."""
    return range(count * seed, count * (seed + 1))


def locally_optimal_selections(
    seed: int,
    norm: att.Norm,
    optimal: bool,
    runs: int,
    own_queries: bool = False,
    margin: float | None = None,
) -> tuple[att.Solution, Float]:
    """Solutions of the selections of two draws (2, 3, 4) that are clearly, or are not, locally optimal.

    own_queries: the first token of each example is its query, as in self-attention. margin: those are taken
    that are locally optimal and far enough at this margin.
    Cut or repeated to a fixed number of runs, so that one compiled program serves all seeds.
    Returns the solutions as one with a runs axis, and the heads v (runs, d).
    """
    candidates: list[tuple[att.Solution, Float]] = []
    for draw in draws(seed, 2):
        tokens, v = att.datasets.sphere(2, 3, 4, seed=draw)
        tokens = self_attending(tokens) if own_queries else tokens
        accepted: Callable[[att.Solution, Float], bool] = _not_optimal
        if optimal:
            accepted = clearly_optimal if margin is None else partial(far_enough, margin=margin)
        candidates += [(s, v) for s in att.selections(tokens, norm=norm) if accepted(s, v)]
    chosen_runs = [candidates[k % len(candidates)] for k in range(runs)]
    keys, queries, labels = (
        np.stack([getattr(s.tokens, name) for s, _ in chosen_runs]) for name in ("keys", "queries", "labels")
    )
    selected = np.stack([s.selected for s, _ in chosen_runs])
    return solved(att.Tokens(keys, queries, labels), selected, norm), np.stack([v for _, v in chosen_runs])


def _not_optimal(solution: att.Solution, v: Float) -> bool:
    return not att.locally_optimal(solution.tokens, v, solution)


def clearly_optimal(solution: att.Solution, v: Float) -> bool:
    """Whether every token that scores higher than the selected one has a margin ≥ CLEAR, not only > 1."""
    gamma = att.scores(solution.tokens, v)
    higher = gamma >= np.where(solution.selected, gamma, np.inf).min(-1, keepdims=True)
    rows = solution.constraints
    return bool((rows.token_margins(solution.W) >= CLEAR)[higher & ~solution.selected].all())


def far_enough(solution: att.Solution, v: Float, margin: float) -> bool:
    """Whether α is locally optimal, and W^mm_α times the margin safe from tokens that score higher.

    A token of margin m pulls by its difference in score times e^(−m · margin): here those that score higher
    pull by less than a tenth of what the weakest support token does.
    """
    gamma, margins = (
        att.scores(solution.tokens, v),
        solution.constraints.token_margins(solution.W),
    )
    lead = gamma - np.where(solution.selected, gamma, 0.0).sum(-1, keepdims=True)
    pull = np.abs(lead) * np.exp(-margin * (margins - 1))
    weakest = pull[(solution.token_multipliers > 1e-9) & ~solution.selected].min()
    safe = bool((pull <= 0.1 * weakest)[lead > 0].all())
    return safe and bool(att.locally_optimal(solution.tokens, v, solution))


def embedded(n: int, T: int, width: int, d: int, seeds: range) -> tuple[att.Tokens, Float]:
    """Unit-sphere problems of a given width, placed in the first coordinates of R^d."""
    tokens, v = att.datasets.sphere(n, T, width, seed=seeds)
    keys, queries, head = (
        np.concatenate([a, np.zeros((*a.shape[:-1], d - width))], axis=-1)
        for a in (tokens.keys, tokens.queries, v)
    )
    return att.Tokens(keys, queries, tokens.labels), head


def random_weights(seed: int, tokens: att.Tokens, count: int, largest: float = 10.0) -> Float:
    """Weights (runs, count, d, e) of random direction, norms log-spaced from 0.1 to the largest."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((tokens.runs or 1, count, tokens.d, tokens.e))
    sizes = np.geomspace(0.1, largest, count)[:, None, None]
    return np.asarray(sizes * W / np.asarray(att.frobenius.value(W))[..., None, None])


def one_step(tokens: att.Tokens, v: Float, W: Float) -> att.Path:
    """One step of length one along −∇L from every weight W (runs, count, d, e), as runs · count runs."""
    count = W.shape[1]
    arrays = (tokens.keys, tokens.queries, tokens.labels, tokens.values)
    keys, queries, labels, values = (np.repeat(a, count, axis=0) for a in arrays)
    each = att.Tokens(keys, queries, labels, values=values), np.repeat(v, count, axis=0)
    start = W.reshape(-1, *W.shape[2:])
    return Experiment(*each, att.steepest(att.frobenius, 1.0), 1, start=start, record=[1]).path


def normalised_run(
    tokens: att.Tokens, v: Float, init: Float, steps: int = 10_000, lr: float = 0.1
) -> att.Path:
    """Normalised gradient descent on W from the given starts; twelve records."""
    return Experiment(tokens, v, att.steepest(att.frobenius, lr), steps, start=init, record=12).path


def smoothness(tokens: att.Tokens, v: Float) -> Float:
    """The constant of the papers for the logistic loss, M₀ = ¼ and M₁ = 1, one per run.

    L_W = 1/n Σ_i (M₀ ‖v‖² ‖z_i‖² ‖X_i‖⁴ + 3 M₁ ‖v‖ ‖z_i‖² ‖X_i‖³)
    """
    head, query = np.linalg.norm(v, axis=-1)[..., None], np.linalg.norm(tokens.queries, axis=-1)
    size = np.linalg.norm(tokens.keys, ord=2, axis=(-2, -1))
    return np.asarray((query**2 * (head**2 * size**4 / 4 + 3 * head * size**3)).mean(-1))


def self_attending(tokens: att.Tokens) -> att.Tokens:
    """The same examples with their first token as the query."""
    return att.Tokens.self_attention(tokens.keys, 0, tokens.labels)


def plain_run(tokens: att.Tokens, v: Float, init: Float, steps: int, record: Any) -> att.Path:
    """Gradient descent on W with the largest step of the theorems, η = 1/L_W, of each run."""
    rate = 1 / smoothness(tokens, v)
    return Experiment(tokens, v, att.gd(rate.tolist()), steps, start=init, record=record).path


def two_scores(n: int, T: int, d: int, seed: range) -> tuple[att.Tokens, Float]:
    """Unit-sphere problems whose last coordinate is replaced by the score: 1 for the best, 0.5 for others.

    The head reads that coordinate alone: scores equal up to rounding would not do, because their
    differences of 1e-16 outweigh a best token whose attention is below that.
    """
    tokens, v = att.datasets.sphere(n, T, d, seed=seed)
    keys = tokens.keys.copy()
    keys[..., -1] = tokens.labels[..., None] * np.where(att.best_tokens(tokens, v), 1.0, 0.5)
    head = np.broadcast_to(np.eye(d)[-1], v.shape)
    return att.Tokens(keys, tokens.queries, tokens.labels), head


def four_problems(
    seed: int,
    hypothesis: Callable[[att.Tokens, Float, att.Solution], Bool],
    size: tuple[int, int, int] = (2, 3, 8),
    own_queries: bool = False,
) -> tuple[att.Tokens, Float, att.Solution]:
    """The first four of 32 unit-sphere problems that satisfy a hypothesis, cyclically if there are fewer."""
    tokens, v = att.datasets.sphere(*size, seed=draws(seed, 32))
    tokens = self_attending(tokens) if own_queries else tokens
    solution = solved(tokens, att.best_tokens(tokens, v))
    matching = np.flatnonzero(hypothesis(tokens, v, solution))
    index = matching[np.arange(4) % len(matching)]
    tokens = att.Tokens(tokens.keys[index], tokens.queries[index], tokens.labels[index])
    return tokens, v[index], solved(tokens, att.best_tokens(tokens, v[index]))
