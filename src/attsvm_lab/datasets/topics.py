"""Topics as priority graphs: corpora of one topic or two, and when a model leaves the topic of its text.

"Dynamics of Spontaneous Topic Changes in Next Token Prediction with Self-Attention" (Jia, Diaz-Rodriguez
2025, arXiv 2501.06382).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.next_token.corpus import Corpus, Ids
from attsvm.next_token.priorities import Priorities
from attsvm.numbers import Bool, Float

ROUNDING = 1e-12
"""Attention within this share of the largest counts as equally large."""


def random_topic(V: int = 10, arrows: int = 4, seed: int = 0) -> Bool:
    """A random topic, bool (V, V, V): [q, x, y] says whether x is above y where the last token is q.

    Under each q, `arrows` different pairs are drawn, the first of which contains q. Then all tokens of the
    pairs are put above q. Pairs may form cycles: the more cycles, the more ambiguous the topic.
    """
    if not (V >= 2 and 1 <= arrows <= V * (V - 1)):
        raise ValueError(f"V={V}, arrows={arrows}. Pass V ≥ 2 tokens and 1 … V(V − 1) pairs of them.")
    rng = np.random.Generator(np.random.PCG64(seed))
    pairs = np.argwhere(~np.eye(V, dtype=bool))
    topic = np.zeros((V, V, V), bool)
    for q in range(V):
        with_q = np.flatnonzero((pairs == q).any(-1))
        first = int(with_q[rng.integers(len(with_q))])
        drawn = [first, *rng.permutation(np.delete(np.arange(len(pairs)), first))[: arrows - 1]]
        topic[q, pairs[drawn, 0], pairs[drawn, 1]] = True
        in_a_pair = topic[q].any(0) | topic[q].any(1)
        topic[q, in_a_pair & (np.arange(V) != q), q] = True
    return topic


def topic_corpus(topic: Bool, n: int = 100, T: int = 4, seed: int = 0) -> Corpus:
    """n sentences of T tokens about a topic, each followed by one of its own tokens.

    The last token q is uniform. The next token is q or a token above q, with a probability proportional to
    one plus the number of tokens below it. It also stands at a random place of the sentence; the other tokens
    are drawn from it and the tokens below it.
    """
    V = len(topic)
    rng = np.random.Generator(np.random.PCG64(seed))
    return _written(rng, topic, rng.integers(V, size=n), np.zeros((V, V), np.intp), T)


def topic_sentences(corpus: Corpus, n: int = 100, T: int = 4, seed: int = 0) -> Corpus:
    """New sentences about the topic of a corpus, in which tokens of high priority are more likely.

    As `topic_corpus`, with the priorities of the corpus. The tokens that are drawn beside the next token have
    weight 1 in the lowest component, weight 2 in the component above it, and so on.
    """
    V, graph = corpus.V, Priorities.of(corpus)
    topic, place = np.zeros((V, V, V), bool), -np.ones((V, V), np.intp)
    topic[graph.query, graph.upper, graph.lower] = True
    for q in np.unique(graph.query):
        for k, component in enumerate(reversed(graph.condensation(int(q)).components)):
            place[q, list(component)] = k
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,))))
    return _written(rng, topic, rng.choice(np.unique(corpus.queries), size=n), place, T)


def likeliest(logits: Float, corpus: Corpus, sentences: Corpus, decimals: int | None = None) -> Bool:
    """A model's most probable next tokens, bool (n, V): those with the most attention, summed over copies.

    A token that is tied with one of them in the corpus and occurs as often in the sentence is one of them.
    logits (V tokens, V queries): `token_logits` of a weight trained on the corpus.
    decimals: round the attention first, as the paper's script does to three decimals.
    """
    if not (logits.shape == (corpus.V, corpus.V) and sentences.V == corpus.V):
        sizes = f"logits has shape {logits.shape}, the corpus V={corpus.V} and the sentences V={sentences.V}"
        raise ValueError(f"{sizes}. Pass one logit per token and query of one vocabulary.")
    counts = sentences.counts
    of_present = np.where(counts > 0, logits.T[sentences.queries], -np.inf)
    shifted = of_present - of_present.max(-1, keepdims=True)
    attention = np.exp(shifted) / (counts * np.exp(shifted)).sum(-1, keepdims=True)
    if decimals is not None:
        attention = np.round(attention, decimals)
    mass = np.where(counts > 0, counts * attention, -1)
    best = mass >= (1 - ROUNDING) * mass.max(-1, keepdims=True)  # 2 · 0.15 is not 3 · 0.1 in floats
    component = _components(corpus)[sentences.queries]
    tied = (counts[:, :, None] == counts[:, None]) & (component[:, :, None] == component[:, None])
    return np.asarray((best[:, :, None] & tied).any(1) & (counts > 0))


@dataclass(frozen=True, eq=False)
class TopicChanges:
    """The next tokens of a model of two topics after sentences of one topic; each array (n,).

    kept: the token is a `likeliest` one of the model of one topic. ambiguous: it is not, but every
    `likeliest`
    token of that model is also one of the model of two topics. changed: neither. lower: the token has a lower
    priority than the sentence's next token. outnumbers_all, outnumbers_some: the token occurs more often than
    all, or some, tokens of the highest priority.
    """

    kept: Bool
    ambiguous: Bool
    changed: Bool
    lower: Bool
    outnumbers_all: Bool
    outnumbers_some: Bool


def topic_changes(sentences: Corpus, corpus: Corpus, one: Bool, both: Bool, seed: int = 0) -> TopicChanges:
    """Compare the next tokens of a model of two topics with those of a model of the sentences' topic.

    corpus: the sentences of the topic. one, both (n, V): the `likeliest` tokens of the models of one topic
    and of both topics; the next token is drawn at random from `both`.
    """
    counts, rng = sentences.counts, np.random.Generator(np.random.PCG64(seed))
    following = np.where(both, rng.random(both.shape), -1).argmax(-1)
    every = np.arange(len(following))
    kept = one[every, following]
    ambiguous = ~kept & ~(one & ~both).any(-1)
    component = _components(corpus)[sentences.queries]
    top = (component == component[every, sentences.winners][:, None]) & (counts > 0)
    outnumbers = counts[every, following][:, None] > counts
    return TopicChanges(
        kept,
        ambiguous,
        ~kept & ~ambiguous,
        ~top[every, following],
        (~top | outnumbers).all(-1),
        (top & outnumbers).any(-1),
    )


# ---------------------------------------------------------------------- details


def _written(rng: np.random.Generator, topic: Bool, queries: Ids, place: Ids, T: int) -> Corpus:
    """A sentence for every query; place (V, V): the height of a token under a query, which is its weight."""
    if not (len(queries) >= 1 and T >= 2):
        raise ValueError(f"n={len(queries)}, T={T}. Pass n ≥ 1 sentences of T ≥ 2 tokens.")
    V = len(topic)
    ids, following = np.empty((len(queries), T), np.intp), np.empty(len(queries), np.intp)
    for i, q in enumerate(queries):
        allowed = topic[q, :, q] | (np.arange(V) == q)
        weight = np.where(allowed, 1 + topic[q].sum(-1), 0)
        y = rng.choice(V, p=weight / weight.sum())
        below = topic[q, y] | (np.arange(V) == y)
        rank = np.zeros(V)
        rank[below] = 1 + np.unique(place[q, below], return_inverse=True)[1]
        ids[i, :-1] = rng.choice(V, size=T - 1, p=rank / rank.sum())
        ids[i, rng.integers(T - 1)] = y
        ids[i, -1], following[i] = q, y
    return Corpus(ids, following, tuple(map(str, range(V))))


def _components(corpus: Corpus) -> Ids:
    """Components of tokens under queries (V queries, V tokens); a token without priorities has its own."""
    graph, V = Priorities.of(corpus), corpus.V
    labels = np.broadcast_to(-1 - np.arange(V), (V, V)).copy()
    labels[graph.nodes // V, graph.nodes % V] = graph.components
    return labels
