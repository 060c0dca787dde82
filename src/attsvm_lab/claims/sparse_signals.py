"""A signal in one of many tokens: who finds it (Barnfield, Cui, Lu 2026), and in how many examples it can be
selected.

"High-dimensional Analysis of Single-layer Attention for Sparse-token Classification".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge
from attsvm.numbers import Float
from attsvm_lab import datasets
from attsvm_lab.claims.claim import claim
from attsvm_lab.experiment import Experiment

REFERENCE = "Barnfield, Cui, Lu 2026, arXiv 2509.25153"
TOKENS, WIDTH, STRENGTH = 10, 40, 5.0
RATIOS = (8, 32)
"""α = n/d of the two training sets."""
LENGTHS, EXAMPLES = (64, 512, 2048), 1_000
CAPACITY = ((2, 0.0), (8, 0.0), (4, 2.0))
"""T and strength of the sizes at which the capacity is looked at."""
DRAWS, LOADS = 30, (0.75, 1.0, 1.35)


@claim(
    f"{REFERENCE}, two gradient steps",
    "text",
    removed="labels that tell where the signal is: they are permuted",
    twin={"permuted": True},
    chosen_on=range(5),
)
def two_gradient_steps_find_the_signal(seed: int, permuted: bool = False) -> Verdict:
    """From zero, one step of the head and one of the prompt align it with the signal: 1 − cosine = C/α, α =
    n/d.

    L = 10, one row, strength 5, d = 40, logistic loss, the mean of four draws: the second step of joint
    gradient descent is the paper's q. Wanted: 1 − cosine ≤ 0.005 at α = 32, and there between 0.14 and 0.33
    of that at α = 8 (C/α: a quarter).
    """
    gaps = []
    for ratio in RATIOS:
        cosines = []
        for draw in range(4 * seed, 4 * seed + 4):
            tokens, xi = datasets.sparse_signals(ratio * WIDTH, TOKENS, WIDTH, STRENGTH, draw)
            if permuted:
                labels = np.random.default_rng(draw).permutation(tokens.labels)
                tokens = att.Tokens(tokens.keys, labels=labels)
            cosines.append(float(xi @ prompt(tokens)))
        gaps.append(1 - float(np.mean(cosines)))
    return judge(
        "two gradient steps find the signal",
        at_most("1 − cosine at α = 32", gaps[1], 0.005),
        at_most("1 − cosine at α = 32, relative to α = 8", gaps[1] / gaps[0], 0.33),
        at_least("the same", gaps[1] / gaps[0], 0.14),
    )


@claim(
    f"{REFERENCE}, error of attention and of linear classifiers",
    "text",
    removed="a strength that grows with log L: it stays at 2.5",
    twin={"growing": False},
    chosen_on=range(5),
)
def attention_needs_a_signal_of_log_l_where_pooling_needs_its_root(
    seed: int, growing: bool = True
) -> Verdict:
    """With strength 1.5 log L the error of attention falls with L, while that of pooled tokens tends to one
    half; these need a strength of order √L.

    Attention with prompt and head ξ, and the mean token read along ξ, each with its best threshold on 1,000
    training inputs, judged on 1,000 fresh ones; L = 64, 512, 2048. Wanted: attention ≤ 2 % at every L, and no
    more at the last than at the first; pooling ≥ 35 % at the last, and with strength 4 √L between 1 % and 5 %
    at every L (Φ(−2) = 2.3 %).
    """
    attention, pooled, rooted = [], [], []
    for L in LENGTHS:
        read = _read(seed, L, 1.5 * np.log(L) if growing else 2.5)
        attention.append(_error(*((_attended(a), labels) for a, labels in read)))
        pooled.append(_error(*((a.mean(1), labels) for a, labels in read)))
        rooted.append(_error(*((a.mean(1), labels) for a, labels in _read(seed, L, 4 * np.sqrt(L)))))
    return judge(
        "attention needs log L, pooling its root",
        at_most("largest error of attention", max(attention), 0.02),
        at_most("its last error minus its first", attention[-1] - attention[0], 0.0),
        at_least("last error of pooled tokens", pooled[-1], 0.35),
        at_most("largest error of pooled tokens, strength 4 √L", max(rooted), 0.05),
        at_least("least", min(rooted), 0.01),
    )


def _read(seed: int, L: int, strength: float) -> list[tuple[Float, Float]]:
    """Tokens along ξ and labels, of the training and of the fresh inputs.

    In one dimension, ξ = ±1: what lies across ξ neither prompt nor head sees.
    """
    sets = [datasets.sparse_signals(EXAMPLES, L, 1, strength, seed, fresh=fresh) for fresh in (0, EXAMPLES)]
    return [(tokens.keys[..., 0] * xi[0], tokens.labels) for tokens, xi in sets]


@claim(
    "ours: docs/papers/sparse_signals.md, by the kinematic formula of Amelunxen et al. 2014",
    "derived",
    removed="the right number of tokens: the capacity of half as many, or of twice as many for T = 2",
    twin={"tokens_of": lambda T: T // 2 if T > 2 else 4},
    chosen_on=range(5),
)
def a_prompt_selects_planted_tokens_up_to_its_capacity(
    seed: int, tokens_of: Callable[[int], int] = lambda T: T
) -> Verdict:
    """Gaussian tokens with a planted one can be selected in n examples up to n* = d · max_s (1 − s²)/D(s ·
    strength), no further.

    D(τ) = E dist²(g + τe_1, {u: u_1 ≥ u_t}). d = 48; T and strength: 2 and 0, 8 and 0, 4 and 2; 30 draws
    each, separable or not by certified programs. Wanted: ≥ 80 % separable at n = 0.75 n*, ≤ 20 % at 1.35 n*,
    and at n* itself 50 % ± 30 %.
    """
    outcomes = []
    for T, strength in CAPACITY:
        most = 48 * datasets.capacity(tokens_of(T), strength)
        for n in (round(load * most) for load in LOADS):
            tokens, _ = datasets.planted(n, T, 48, strength, _draws(seed))
            outcomes.append(att.separable(tokens, np.zeros(n, int)))
    return _judged("selection up to the capacity", _shares(outcomes))


@claim(
    "ours: docs/papers/sparse_signals.md",
    "conjecture",
    removed="queries of their own: every example has the same one",
    twin={"own_queries": False},
    chosen_on=range(5),
)
def a_matrix_has_the_capacity_of_a_prompt_with_as_many_entries(
    seed: int, own_queries: bool = True
) -> Verdict:
    """With Gaussian queries of width e a matrix W selects planted tokens in n* = d e/D(0) examples.

    d = e = 8, no signal, T = 2, 4 and 16; 30 draws each. Wanted: as for prompts. Surprise: the rows x zᵀ are
    no Gaussian matrices. Where n* is near e it fails (d = e = 4, T = 16: half are separable at 0.75 n*).
    """
    outcomes, d = [], 8
    for T in (2, 4, 16):
        most = d * d * datasets.capacity(T)
        for n in (round(load * most) for load in LOADS):
            keys = datasets.planted(n, T, d, seed=_draws(seed))[0].keys
            queries = np.random.default_rng([1, seed]).standard_normal((DRAWS, n if own_queries else 1, d))
            tokens = att.Tokens(keys, np.broadcast_to(queries, (DRAWS, n, d)))
            outcomes.append(att.separable(tokens, np.zeros(n, int)))
    return _judged("the capacity of a matrix", _shares(outcomes))


def prompt(tokens: att.Tokens) -> Float:
    """The direction of the prompt after the two steps."""
    rule = att.gd(1.0)
    W = Experiment(tokens, np.zeros(tokens.d), rule, 2, options={"train_head": rule}).path.final
    return np.asarray(W[:, 0] / np.linalg.norm(W))


def _attended(a: Float) -> Float:
    weights = np.exp(a - a.max(1, keepdims=True))
    return np.asarray((weights * a).sum(1) / weights.sum(1))


def _error(train: tuple[Float, Float], test: tuple[Float, Float]) -> float:
    """The test error of the threshold that is best on the training inputs."""
    order = np.argsort(train[0])
    positive = train[1][order] > 0
    # Wrong where the first k are called negative: positives among them, negatives behind.
    wrong = np.append(0, np.cumsum(positive)) + np.append(np.cumsum(~positive[::-1])[::-1], 0)
    k = int(wrong.argmin())
    padded = np.concatenate([[-np.inf], train[0][order], [np.inf]])
    threshold = (padded[k] + padded[k + 1]) / 2
    return float(((test[0] > threshold) != (test[1] > 0)).mean())


def _draws(seed: int) -> range:
    return range(DRAWS * seed, DRAWS * (seed + 1))


def _shares(outcomes: list[Any]) -> Float:
    """(sizes, loads)."""
    return np.asarray(outcomes, dtype=float).mean(-1).reshape(-1, len(LOADS))


def _judged(name: str, shares: Float) -> Verdict:
    below, at, above = shares.T
    return judge(
        name,
        at_least("least share separable at 0.75 n*", below.min(), 0.8),
        at_most("largest |share − ½| at n*", np.abs(at - 0.5).max(), 0.3),
        at_most("largest share separable at 1.35 n*", above.max(), 0.2),
    )
