"""Transformers as SVMs, the programs: feasibility, least loss, rank, support vectors, causal attention.

Regularisation paths are in `transformers_by_path.py`, gradient descent in `transformers_by_descent.py`,
heads that mix tokens in `gen_svm.py`.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.transformers_setup import PAPER, draws, embedded, one_step, random_weights
from attsvm_lab.experiment import Experiment, solved

ROUNDING = 1e-6
"""Certified solutions are exact to 1e-8 in their norm, so to about its root in their parts."""


# ---------------------------------------------------------------------- the program


@claim(
    f"{PAPER}, feasibility by over-parameterisation",
    "recalled-H",
    removed="d ≥ max(T − 1, n): here d = 2",
    twin={"widths": (2, 2, 2)},
)
def every_selection_is_separable_at_d_of_T_minus_1_and_n(
    seed: int, widths: tuple[int, int, int] = (5, 5, 8)
) -> Verdict:
    """If d ≥ max(T − 1, n), then for almost all tokens every selection is separable, in cross- and in
    self-attention.

    Tested at equality: 20 draws of unit tokens with random targets for each of three sizes
    (n, T, d) and both kinds of query. Wanted: every program has a certified solution.
    """
    rng = np.random.default_rng(seed)
    evidence = []
    for (n, T), d in zip(((5, 6), (3, 6), (8, 4)), widths, strict=True):
        cross, _ = att.datasets.sphere(n, T, d, seed=draws(seed, 20))
        within = att.Tokens.self_attention(cross.keys, at=0)
        targets = rng.integers(T, size=(20, n))
        for kind, tokens in (("cross", cross), ("self", within)):
            share = np.mean(att.max_margin(tokens, targets).certified)
            evidence.append(at_least(f"share separable, {kind}, n={n} T={T} d={d}", share, 1.0))
    return judge("every selection is separable at d ≥ max(T − 1, n)", *evidence)


@claim(
    f"{PAPER}, optimal tokens minimise the loss",
    "recalled-H",
    removed="the selected tokens are the best",
    twin={"best": False},
)
def only_the_best_tokens_reach_the_least_loss(seed: int, best: bool = True) -> Verdict:
    """No finite weight reaches L* = 1/n Σ ℓ(γ_best), and along the Frobenius and the nuclear solution of
    the best tokens the loss tends to it.

    Hypotheses: unequal scores, separable best tokens. Four draws (2, 3, 8). Measured: the least
    L(W) − L* over 192 random weights of norm 0.1 to 10; and on the ray R·W^mm, whose least margin is R,
    the slope of log(L − L*) from R = 20 to 40, which must be −1.
    """
    tokens, v = att.datasets.sphere(2, 3, 8, seed=draws(seed, 4))
    selected = att.best_tokens(tokens, v) if best else att.scores(tokens, v).argmin(-1)
    radii = np.array([10.0, 20.0, 30.0, 40.0])
    rays = [
        radii[:, None, None] * solved(tokens, selected, norm).W[:, None]
        for norm in (att.frobenius, att.nuclear)
    ]
    W = np.concatenate([random_weights(seed, tokens, 48), *rays], axis=1)
    path = one_step(tokens, v, W)
    least = np.log1p(np.exp(-att.scores(tokens, v).max(-1))).mean(-1)
    gap = path.loss[:, 0].reshape(W.shape[:2]) - least[:, None]
    log_gap = path.log_excess[:, 0].reshape(W.shape[:2])[:, 48:].reshape(4, 2, 4)
    slope = (log_gap[..., 3] - log_gap[..., 1]) / (radii[3] - radii[1])
    return judge(
        "the best tokens, and only they, reach the least loss",
        at_least("least L(W) − L*", gap[:, :48].min(), np.finfo(float).eps),
        at_most("|slope of log(L − L*) along W^mm + 1|", np.abs(slope[:, 0] + 1).max(), 0.02),
        at_most("|slope of log(L − L*) along W⋆^mm + 1|", np.abs(slope[:, 1] + 1).max(), 0.02),
    )


@claim(
    f"{PAPER}, rank of the solutions",
    "recalled-H",
    removed="a norm of singular values: here l1",
    twin={"norms": (att.l1,)},
)
def solutions_have_rank_at_most_n_inside_the_queries(
    seed: int, norms: tuple[att.Norm, ...] = (att.frobenius, att.nuclear)
) -> Verdict:
    """Frobenius and nuclear solutions have rank at most n, and their row space lies in span{z_i}.

    On four draws (3, 4, 6). Measured: the next singular value and the part of W outside the
    span, both relative to W. The nuclear program is solved without assuming it.

    Partial: one number of tokens, T = 4.
    """
    tokens, v = att.datasets.sphere(3, 4, 6, seed=draws(seed, 4))
    best = att.best_tokens(tokens, v)
    outside = np.eye(6) - np.linalg.pinv(tokens.queries) @ tokens.queries
    evidence = []
    for norm in norms:
        solution = solved(tokens, best, norm)
        sigma = np.linalg.svd(solution.W, compute_uv=False)
        out = att.frobenius.value(solution.W @ outside) / att.frobenius.value(solution.W)
        evidence += [
            at_most(f"σ_(n+1)/σ_1, {norm}", (sigma[:, 3] / sigma[:, 0]).max(), ROUNDING),
            at_most(f"share of W outside the queries, {norm}", out.max(), ROUNDING),
            reported(f"mean rank, {norm}", np.mean(solution.rank)),
        ]
    return judge(
        "rank at most n, rows in the span of the queries",
        *evidence,
    )


@claim(
    f"{PAPER}, over-parameterisation",
    "recalled-M",
    removed="independent tokens: here all in one R⁴",
    twin={"widths": (4, 4, 4)},
)
def all_tokens_become_support_vectors_as_d_grows(
    seed: int, widths: tuple[int, int, int] = (4, 32, 256)
) -> Verdict:
    """For independent random tokens the share of problems where every token is a support vector
    (Assumption B.1) rises to one with d.

    100 draws (2, 3, d) of unit tokens. Wanted: the share rises by 0.3 from d = 4 to 32, does not fall from
    there to 256, and reaches 0.97 (the paper's threshold is a recalled polynomial in n and T, so only the
    limit is tested).
    """
    share = []
    for d, width in zip((4, 32, 256), widths, strict=True):  # the tokens span `width` of d dimensions
        tokens, v = embedded(2, 3, width, d, draws(seed, 100))
        share.append(float(np.mean(programs.all_tokens_support(solved(tokens, att.best_tokens(tokens, v))))))
    return judge(
        "all tokens become support vectors as d grows",
        at_least("share at d = 32 less share at d = 4", share[1] - share[0], 0.3),
        at_least("share at d = 256 less share at d = 32", share[2] - share[1], 0.0),
        at_least("share at d = 256", share[2], 0.97),
        reported("share at d = 4", share[0]),
    )


# ---------------------------------------------------------------------- causal attention


@claim(
    f"{PAPER}, sequential and causal attention",
    "recalled-M",
    removed="the flattened examples keep the causal mask",
    twin={"causal": False},
)
def causal_attention_is_the_flattened_problem(seed: int, causal: bool = True) -> Verdict:
    """Causal attention with a label per position is the base problem with one example per position, so
    its program, its loss and the limit of its training are those of the flattened tokens.

    Three sequences of four tokens in R⁶, every token a query, position k sees t ≤ k. The flattened side is
    Tokens.every_query; the sequential side is written out here: rows (x_best − x_t) x_kᵀ, t ≤ k, as a
    program in R^{d²}, and the masked softmax of X Wᵀ Xᵀ. Wanted: the same solution for the best tokens, the
    same loss along 20,000 normalised steps on the flattened tokens, and a margin ratio ≥ 0.99 of that run
    to the sequential program of the tokens it attends to.
    """
    tokens, v = att.datasets.sphere(3, 4, 6, seed=seed)
    keys = tokens.keys
    labels = np.where(np.random.default_rng(seed).random((3, 4)) < 0.5, -1.0, 1.0)
    visible = np.tri(4, dtype=bool) if causal else np.ones((4, 4), bool)
    flat = att.Tokens.every_query(keys, labels, visible=visible)
    best = att.best_tokens(flat, v)
    flattened, sequential = solved(flat, best).W, att.separate(_causal_rows(keys, best)).W.reshape(6, 6)
    path = Experiment(flat, v, att.steepest(att.frobenius, 0.1), 20_000, record=6).path
    loss = [_causal_loss(keys, labels, v, W) for W in path.W]
    rows = _causal_rows(keys, path.selected)
    margin = (rows @ path.final.ravel()).min() / att.frobenius.value(path.final) / att.separate(rows).margin
    return judge(
        "causal attention is the flattened problem",
        at_most(
            "relative difference of the solutions",
            att.frobenius.value(flattened - sequential) / att.frobenius.value(sequential),
            ROUNDING,
        ),
        at_most("difference of the losses along the run", np.abs(path.loss - loss).max(), 1e-12),
        at_least("margin ratio of the run to its sequential program", margin, 0.99),
    )


def _causal_rows(keys: Float, selected: Bool) -> Float:
    """One row (x_α − x_t) x_kᵀ per sequence, position k and t ≤ k, flattened: (m, d²)."""
    n, T, _ = keys.shape
    winner = selected.reshape(n, T, T).argmax(-1)
    return np.stack(
        [
            np.outer(X[winner[i, k]] - X[t], X[k]).ravel()
            for i, X in enumerate(keys)
            for k in range(T)
            for t in range(k + 1)
            if t != winner[i, k]
        ]
    )


def _causal_loss(keys: Float, labels: Float, v: Float, W: Float) -> float:
    """Logistic loss of S(X Wᵀ Xᵀ, masked) X v, averaged over all positions of all sequences."""
    logits = keys @ W.T @ keys.swapaxes(-1, -2)
    logits = np.where(np.tri(keys.shape[1], dtype=bool), logits, -np.inf)
    output = softmax(logits, axis=-1) @ keys @ v
    return float(np.logaddexp(0, -labels * output).mean())
