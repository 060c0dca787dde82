"""Claims of "From Self-Attention to Markov Models" (Ildiz et al. 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import rel_entr

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim

REFERENCE = "Ildiz et al. 2024, From Self-Attention to Markov Models"
SIZES = ((6, 2_400, 16), (12, 9_600, 3))
"""Tokens K, pairs n and draws of the excess risk."""
OWN_TEXT = (6, 600, 4)
"""The same of a text that feeds on itself."""
POOL, PROMPT = 400, 6
"""Different prompts, and their tokens."""
SPREAD = 0.5
"""Of the logits: where odds are large the number of pairs must be, too, before its leading term is all."""


@claim(
    f"{REFERENCE}, distribution collapse",
    "derived",
    removed="the text is its own context",
    twin={"feedback": False},
)
def weak_tokens_fade_with_exponent_q_over_p(seed: int, feedback: bool = True) -> Verdict:
    """A chain that draws from its own text with weights p > q repeats itself: the weak token's count grows
    like the strong one's to the power q/p.

    p = 0.7, 200 chains of 30,000 draws. Wanted: the exponent within 5 %.
    """
    counts = fading(0.7, 30_000, 200, seed)[1] if feedback else _without_feedback(seed)
    exponent, predicted = weak_exponent(counts), 0.3 / 0.7
    return judge(
        "the weak token fades with exponent q/p",
        at_most("relative error of the exponent", abs(exponent / predicted - 1), 0.05),
        reported("exponent", exponent),
        reported("share of the weak token at the end", (counts[:, -1, 1] / counts[:, -1].sum(-1)).mean()),
    )


def fading(p: float, steps: int, chains: int, seed: int = 0) -> tuple[Any, Any]:
    """Texts that feed on themselves with weights p and 1 − p: their lengths (k,), counts (chains, k, 2)."""
    chain = programs.ContextChain(np.log([[p, 1 - p]] * 2))
    return chain.simulate([0, 1], steps=steps, chains=chains, seed=seed)


def weak_exponent(counts: Any) -> float:
    """The power of the strong token's count (…, k, 2) with which the weak one's grows."""
    return programs.collapse_exponent(counts, weak=1, strong=0)


def _without_feedback(seed: int) -> Any:
    """The same weights drawn without regard to the text."""
    recorded = np.unique(np.geomspace(1, 30_000, 40).astype(int)) - 1
    drawn = np.random.Generator(np.random.PCG64(seed)).random((200, 30_000)) < 0.3
    weak = drawn.cumsum(-1)[:, recorded] + 1
    return np.stack([recorded + 3 - weak, weak], axis=-1)


@claim(f"{REFERENCE}, consistency", "paper summary", removed="connected co-occurrence", twin={"halves": True})
def likelihood_recovers_the_chain(seed: int, halves: bool = False) -> Verdict:
    """Maximum likelihood from pairs of prompt and next token finds the chain when the prompts of every
    query connect all tokens.

    Six tokens, prompts of four. Wanted: from 4,000 to 64,000 prompts the error of the logits falls by
    more than 2.5 (√16 = 4 expected), below 0.06.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    chain = programs.ContextChain(rng.standard_normal((6, 6)))
    truth = chain.log_base - chain.log_base.mean(-1, keepdims=True)
    errors = []
    for n in (4_000, 64_000):
        ids = rng.integers(3 if halves else 6, size=(n, 4))
        if halves:  # a prompt speaks of 0 1 2 or of 3 4 5, never of both, and the query asks from outside
            ids = ids + 3 * rng.integers(2, size=(n, 1))
        corpus = chain.logs(ids, seed, queries=rng.integers(6, size=n))
        errors.append(np.sqrt(np.mean((att.next_token.recover(corpus).logits - truth) ** 2)))
    return judge(
        "maximum likelihood recovers the chain",
        at_most("error of the logits", errors[1], 0.06),
        at_least("error at a sixteenth of the prompts, relative", errors[0] / errors[1], 2.5),
        reported("share of connected queries", programs.CoOccurrence.of(corpus).connected.mean()),
    )


# ---------------------------------------------------------------------- sample complexity


@claim(
    f"{REFERENCE}, sample complexity",
    "paper summary",
    removed="independent pairs: one text that feeds on itself",
    twin=lambda seed: _excess_risk(seed, (OWN_TEXT,), _own_text),
    chosen_on=range(40),
)
def the_excess_risk_of_the_chain_is_of_order_k_squared_over_n(seed: int) -> Verdict:
    """From n independent pairs of prompt and next token over K tokens, maximum likelihood has an excess
    risk of order K²/n, if prompts connect all tokens.

    Derived constant: K (K − 1)/(2n), half the number of odds over n, once n is large. Prompts of six tokens
    from a pool of 400, the risk over that pool. Wanted: excess risk over that number between 0.75 and 1.3 for
    (K, n) = (6, 2400), sixteen draws, and (12, 9600), three. The twin learns from one text of 600 tokens that
    feeds on itself, in which weak tokens fade.
    """
    return _excess_risk(seed, SIZES, _independent_pairs)


def _excess_risk(seed: int, sizes: Any, drawn: Any) -> Verdict:
    evidence = []
    for K, n, draws in sizes:
        excess = np.mean([_excess(K, n, drawn, (seed, K, n, k)) for k in range(draws)])
        name = f"excess risk · 2n/(K(K − 1)), K = {K}, n = {n}"
        share = float(excess * 2 * n / (K * (K - 1)))
        evidence += [at_least(name, share, 0.75), at_most(f"{name}, from above", share, 1.3)]
    return judge("the excess risk is K(K − 1)/(2n)", *evidence)


def _excess(K: int, n: int, drawn: Any, key: tuple[int, ...]) -> float:
    """KL of what maximum likelihood says after the prompts of the pool, against the chain; one draw."""
    rng = np.random.default_rng(key)
    chain = programs.ContextChain(SPREAD * rng.standard_normal((K, K)))
    pool, queries = rng.integers(K, size=(POOL, PROMPT)), rng.integers(K, size=POOL)
    logits = att.next_token.recover(drawn(rng, chain, pool, queries, n)).logits
    learnt = programs.ContextChain(np.nan_to_num(logits))  # never compared: even odds
    p, q = (each.probabilities(pool, queries) for each in (chain, learnt))
    return float(rel_entr(p, q).sum(-1).mean())


def _independent_pairs(
    rng: np.random.Generator, chain: programs.ContextChain, pool: Any, queries: Any, n: int
) -> att.next_token.Corpus:
    chosen = rng.integers(POOL, size=n)
    return chain.logs(pool[chosen], int(rng.integers(2**31)), queries=queries[chosen])


def _own_text(
    rng: np.random.Generator, chain: programs.ContextChain, pool: Any, queries: Any, n: int
) -> att.next_token.Corpus:
    """The n prompts of one text that starts with every token once and draws each next one from itself."""
    text, counts = list(range(chain.V)), np.ones(chain.V)
    for _ in range(n):
        weights = counts * chain.base[text[-1]]
        text.append(int(rng.choice(chain.V, p=weights / weights.sum())))
        counts[text[-1]] += 1
    ids = np.array(text)
    prompts = np.where(np.arange(n + chain.V - 1) < chain.V + np.arange(n)[:, None], ids[:-1], -1)
    return att.next_token.Corpus(prompts, ids[chain.V :], tuple(map(str, range(chain.V))))
