"""The theorems on next-token prediction, as experiments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from attsvm.claims.claim import Claim
from attsvm.next_token.corpus import Corpus
from attsvm.next_token.excess import log_excess
from attsvm.next_token.generators import log2_toy, random_corpus, random_embeddings
from attsvm.next_token.likelihood import CoOccurrence, graph_finite_part_by_query, recover
from attsvm.next_token.markov import ContextChain, collapse_exponent
from attsvm.next_token.model import extended_pairs, token_logits
from attsvm.next_token.programs import (
    attention_program,
    attention_program_by_query,
    feed_forward_program_by_token,
    graph_program_by_query,
)
from attsvm.next_token.two_stage import TwoStages, train_choice, train_two_stages
from attsvm.path import Path
from attsvm.tokens import Float
from attsvm.training.optimizers import gd
from attsvm.verdict import Evidence, Verdict, at_least, at_most, cosine, fit_rate, judge, told

SENTENCES, LENGTH, VOCABULARY = 120, 5, 20
STEPS = (1_000, 30_000)
"""Steps of the two stages; with 200,000 in the second, 1 − cosine falls below 1e-4 (docs/next_token.md)."""
CLOSE = (1e-4, 5e-3)
"""1 − cosine of each stage at its last step: about 1e-3 for the second, falling like steps⁻²."""
SHORT = 20_000
"""Steps of the second stage in the twins, which fail by far."""


# ---------------------------------------------------------------------- two-stage training


def both_stages_tend_to_their_programs(seed: int) -> Verdict:
    """Two-stage normalised GD on a realisable corpus of orthonormal tokens: in both stages the norm grows
    linearly and the direction tends to the max-margin program.

    Twenty tokens, 120 sentences of five, steps 0.2/√d and 0.05/√d. Wanted: R² of a line through the
    norm ≥ 0.999, 1 − cosine ≤ 1e-4 after 1,000 steps of the first and ≤ 5e-3 after 30,000 of the second
    stage, there still falling faster than 1/steps.
    """
    return _directions(_corpus(seed), _normalised(seed))


def _plain_descent_directions(seed: int) -> Verdict:
    return _directions(_corpus(seed), _plain(seed))


def the_loss_gap_decays_exponentially(seed: int) -> Verdict:
    """The cross-entropy tends to its limit behind the frozen feed-forward layer exponentially in the steps.

    Wanted: over the last nine tenths of the second stage, log(L − L*) is a falling line, R² ≥ 0.999.
    """
    return _decay(_corpus(seed), _normalised(seed).attention)


def _plain_descent_decay(seed: int) -> Verdict:
    return _decay(_corpus(seed), _plain(seed).attention)


def the_trained_order_extends_the_corpus(seed: int) -> Verdict:
    """Under every query the trained model ranks optimal above non-comparable above non-optimal tokens,
    also pairs that no sentence compares.

    Orthonormal tokens. Wanted: at least 99.9 % of the pairs of these classes.
    """
    stages = _normalised(seed)
    return _extension(_corpus(seed), stages.attention.final, np.eye(VOCABULARY))


def _extension_of_dependent_tokens(seed: int) -> Verdict:
    E = random_embeddings(VOCABULARY, VOCABULARY, seed)
    stages = train_two_stages(_corpus(seed), E, steps=(STEPS[0], SHORT))
    return _extension(_corpus(seed), stages.attention.final, E)


def _corpus(seed: int) -> Corpus:
    return random_corpus(SENTENCES, LENGTH, VOCABULARY, seed)


@lru_cache(maxsize=2)
def _normalised(seed: int) -> TwoStages:
    return train_two_stages(_corpus(seed), steps=STEPS)


@lru_cache(maxsize=2)
def _plain(seed: int) -> TwoStages:
    """The same two stages by gradient descent at the true scale."""
    return train_two_stages(_corpus(seed), steps=(STEPS[0], SHORT), optimizers=(gd(1.0), gd(1.0)))


def _directions(corpus: Corpus, stages: TwoStages) -> Verdict:
    best = (feed_forward_program_by_token(corpus), attention_program_by_query(corpus))
    evidence: list[Evidence] = []
    numbers: dict[str, Float] = {}
    paths = (stages.feed_forward, stages.attention)
    for name, path, program, close in zip(("feed-forward", "attention"), paths, best, CLOSE, strict=True):
        away = 1 - cosine(path.W, program.W)
        evidence += [
            at_most(f"1 − cosine, {name}", away[-1], close),
            at_least(f"R² of linear growth, {name}", _r2(path.index, path.norm()), 0.999),
            told(f"norm, {name}", path.norm()[-1]),
        ]
        numbers |= {f"index, {name}": path.index, f"1 − cosine, {name}": away, f"norm, {name}": path.norm()}
    late = fit_rate(stages.attention.index, numbers["1 − cosine, attention"], last=3.0)
    return judge(
        "both stages tend to their programs",
        *evidence,
        at_most("exponent of 1 − cosine, attention", late.exponent, -1.0),
        given={"the programs are certified": all(program.certified for program in best)},
        numbers=numbers,
    )


def _decay(corpus: Corpus, path: Path) -> Verdict:
    gap = log_excess(path, corpus)
    late = path.index >= path.index[-1] / 10
    slope = np.polyfit(path.index[late], gap[late], 1)[0]
    return judge(
        "the loss gap decays exponentially",
        at_least("R² of log gap against steps", _r2(path.index[late], gap[late]), 0.999),
        at_most("slope per step", slope, 0.0),
        told("log gap at the end", gap[-1]),
        numbers={"index": path.index, "log gap": gap},
    )


def _extension(corpus: Corpus, W: Float, E: Float) -> Verdict:
    right, pairs = extended_pairs(corpus, token_logits(W, E)).sum(-1)
    # Tokens whose priorities are all slack tie at zero in the program: rounding must not break the ties.
    best = np.round(token_logits(attention_program(corpus, E).W, E), 9)
    best_right = extended_pairs(corpus, best)[0].sum()
    return judge(
        "the trained order extends the corpus",
        at_least("share of pairs in the extended order", right / pairs, 0.999),
        told("pairs", pairs),
        told("share that the program itself ranks strictly", best_right / pairs),
    )


# ---------------------------------------------------------------------- token-priority graphs


def weights_split_into_direction_and_finite_part(seed: int) -> Verdict:
    """Gradient descent on the log-loss of a corpus with a cycle ends near R · W_svm + W_fin: an unbounded
    part along Graph-SVM, and finite odds inside components.

    The toy with w_0 − w_1 → log 2. Wanted: log 2 to 1e-6, and the rest along Graph-SVM to cosine 0.99.
    The seed has no part in it.
    """
    return _split(True)


def _split_without_the_cycle(seed: int) -> Verdict:
    return _split(False)


@lru_cache
def _split(cycle: bool) -> Verdict:
    toy = log2_toy()
    corpus = toy if cycle else toy.take(toy.following == 0)
    path = train_choice(corpus, steps=1_000_000, optimizer=gd(4.0))
    w = path.final[:, 3]
    rest = path.final - graph_finite_part_by_query(corpus)
    return judge(
        "the weight is a direction and a finite part",
        at_most("|w_0 − w_1 − log 2|", abs(w[0] - w[1] - np.log(2)), 1e-6),
        at_least(
            "cosine of the rest to Graph-SVM", cosine(rest[None], graph_program_by_query(corpus).W)[0], 0.99
        ),
        told("norm", path.norm()[-1]),
        numbers={"index": path.index, "w_0 − w_1": path.W[:, 0, 3] - path.W[:, 1, 3]},
    )


# ---------------------------------------------------------------------- the Markov view


def weak_tokens_fade_with_exponent_q_over_p(seed: int) -> Verdict:
    """A chain that draws from its own text with weights p > q repeats itself: the weak token's count grows
    like the strong one's to the power q/p.

    p = 0.7, 200 chains of 30,000 draws. Wanted: the exponent within 5 %.
    """
    chain = ContextChain(np.log([[0.7, 0.3]] * 2))
    return _collapse(chain.simulate([0, 1], steps=30_000, chains=200, seed=seed)[1])


def _fading_without_feedback(seed: int) -> Verdict:
    """The same weights drawn without regard to the text."""
    kept = np.unique(np.geomspace(1, 30_000, 40).astype(int)) - 1
    drawn = np.random.Generator(np.random.PCG64(seed)).random((200, 30_000)) < 0.3
    weak = drawn.cumsum(-1)[:, kept] + 1
    return _collapse(np.stack([kept + 3 - weak, weak], axis=-1))


def _collapse(counts: Any) -> Verdict:
    exponent, predicted = collapse_exponent(counts, weak=1, strong=0), 0.3 / 0.7
    return judge(
        "the weak token fades with exponent q/p",
        at_most("relative error of the exponent", abs(exponent / predicted - 1), 0.05),
        told("exponent", exponent),
        told("share of the weak token at the end", (counts[:, -1, 1] / counts[:, -1].sum(-1)).mean()),
    )


def likelihood_recovers_the_chain(seed: int) -> Verdict:
    """Maximum likelihood from pairs of prompt and next token finds the chain when the prompts of every
    query connect all tokens.

    Six tokens, prompts of four. Wanted: from 4,000 to 64,000 prompts the error of the logits falls by
    more than 2.5 (√16 = 4 expected), below 0.1.
    """
    return _recovery(seed, halves=False)


def _recovery_from_halves(seed: int) -> Verdict:
    return _recovery(seed, halves=True)


def _recovery(seed: int, halves: bool) -> Verdict:
    rng = np.random.Generator(np.random.PCG64(seed))
    chain = ContextChain(rng.standard_normal((6, 6)))
    truth = chain.log_base - chain.log_base.mean(-1, keepdims=True)
    errors = []
    for n in (4_000, 64_000):
        ids = rng.integers(3 if halves else 6, size=(n, 4))
        if halves:  # a prompt speaks of 0 1 2 or of 3 4 5, never of both, and the query asks from outside
            ids = ids + 3 * rng.integers(2, size=(n, 1))
        corpus = chain.logs(ids, seed, queries=rng.integers(6, size=n))
        errors.append(np.sqrt(np.mean((recover(corpus).logits - truth) ** 2)))
    return judge(
        "maximum likelihood recovers the chain",
        at_most("error of the logits", errors[1], 0.1),
        at_least("error at a sixteenth of the prompts, relative", errors[0] / errors[1], 2.5),
        told("share of connected queries", CoOccurrence.of(corpus).connected.mean()),
    )


def _r2(x: Any, y: Any) -> float:
    """R² of a line; 0 where y does not move."""
    return float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > 0 else 0.0


_HUANG = "Huang, Liang, Yang 2024, Non-asymptotic Convergence of Training Transformers"
_LI = "Li et al. 2024, Mechanics of Next Token Prediction with Self-Attention"
_ILDIZ = "Ildiz et al. 2024, From Self-Attention to Markov Models"

CLAIMS = (
    Claim(
        both_stages_tend_to_their_programs,
        _plain_descent_directions,
        "normalised steps",
        f"{_HUANG}, Proposition 1 and Theorem 1",
        "recalled",
    ),
    Claim(
        the_loss_gap_decays_exponentially,
        _plain_descent_decay,
        "normalised steps",
        f"{_HUANG}, Theorem 1",
        "recalled",
    ),
    Claim(
        the_trained_order_extends_the_corpus,
        _extension_of_dependent_tokens,
        "orthonormal tokens",
        f"{_HUANG}, generalisation under dataset shift",
        "paper summary",
    ),
    Claim(
        weights_split_into_direction_and_finite_part,
        _split_without_the_cycle,
        "a cycle between 0 and 1",
        f"{_LI}, global convergence under log-loss",
        "recalled",
    ),
    Claim(
        weak_tokens_fade_with_exponent_q_over_p,
        _fading_without_feedback,
        "the text is its own context",
        f"{_ILDIZ}, distribution collapse",
        "derived",
    ),
    Claim(
        likelihood_recovers_the_chain,
        _recovery_from_halves,
        "connected co-occurrence",
        f"{_ILDIZ}, consistency",
        "paper summary",
    ),
)
