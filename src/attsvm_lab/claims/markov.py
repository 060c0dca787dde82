"""Claims of "From Self-Attention to Markov Models" (Ildiz et al. 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm as att
from attsvm_lab.claims.claim import claim

REFERENCE = "Ildiz et al. 2024, From Self-Attention to Markov Models"


@claim(
    f"{REFERENCE}, distribution collapse",
    "derived",
    removed="the text is its own context",
    twin={"feedback": False},
)
def weak_tokens_fade_with_exponent_q_over_p(seed: int, feedback: bool = True) -> att.Verdict:
    """A chain that draws from its own text with weights p > q repeats itself: the weak token's count grows
    like the strong one's to the power q/p.

    p = 0.7, 200 chains of 30,000 draws. Wanted: the exponent within 5 %.
    """
    counts = fading(0.7, 30_000, 200, seed)[1] if feedback else _without_feedback(seed)
    exponent, predicted = weak_exponent(counts), 0.3 / 0.7
    return att.judge(
        "the weak token fades with exponent q/p",
        att.at_most("relative error of the exponent", abs(exponent / predicted - 1), 0.05),
        att.reported("exponent", exponent),
        att.reported("share of the weak token at the end", (counts[:, -1, 1] / counts[:, -1].sum(-1)).mean()),
    )


def fading(p: float, steps: int, chains: int, seed: int = 0) -> tuple[Any, Any]:
    """Texts that feed on themselves with weights p and 1 − p: their lengths (k,), counts (chains, k, 2)."""
    chain = att.next_token.ContextChain(np.log([[p, 1 - p]] * 2))
    return chain.simulate([0, 1], steps=steps, chains=chains, seed=seed)


def weak_exponent(counts: Any) -> float:
    """The power of the strong token's count (…, k, 2) with which the weak one's grows."""
    return att.next_token.collapse_exponent(counts, weak=1, strong=0)


def _without_feedback(seed: int) -> Any:
    """The same weights drawn without regard to the text."""
    recorded = np.unique(np.geomspace(1, 30_000, 40).astype(int)) - 1
    drawn = np.random.Generator(np.random.PCG64(seed)).random((200, 30_000)) < 0.3
    weak = drawn.cumsum(-1)[:, recorded] + 1
    return np.stack([recorded + 3 - weak, weak], axis=-1)


@claim(f"{REFERENCE}, consistency", "paper summary", removed="connected co-occurrence", twin={"halves": True})
def likelihood_recovers_the_chain(seed: int, halves: bool = False) -> att.Verdict:
    """Maximum likelihood from pairs of prompt and next token finds the chain when the prompts of every
    query connect all tokens.

    Six tokens, prompts of four. Wanted: from 4,000 to 64,000 prompts the error of the logits falls by
    more than 2.5 (√16 = 4 expected), below 0.06.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    chain = att.next_token.ContextChain(rng.standard_normal((6, 6)))
    truth = chain.log_base - chain.log_base.mean(-1, keepdims=True)
    errors = []
    for n in (4_000, 64_000):
        ids = rng.integers(3 if halves else 6, size=(n, 4))
        if halves:  # a prompt speaks of 0 1 2 or of 3 4 5, never of both, and the query asks from outside
            ids = ids + 3 * rng.integers(2, size=(n, 1))
        corpus = chain.logs(ids, seed, queries=rng.integers(6, size=n))
        errors.append(np.sqrt(np.mean((att.next_token.recover(corpus).logits - truth) ** 2)))
    return att.judge(
        "maximum likelihood recovers the chain",
        att.at_most("error of the logits", errors[1], 0.06),
        att.at_least("error at a sixteenth of the prompts, relative", errors[0] / errors[1], 2.5),
        att.reported("share of connected queries", att.next_token.CoOccurrence.of(corpus).connected.mean()),
    )
