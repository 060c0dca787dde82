"""Topics as priority graphs: corpora of one topic and of two, and when a model leaves the topic of its text.

"Dynamics of Spontaneous Topic Changes in Next Token Prediction with Self-Attention" (Jia, Diaz-Rodriguez
2025, arXiv 2501.06382).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.next_token.corpus import Corpus
from attsvm.next_token.ids import Ids
from attsvm.next_token.priorities import Priorities
from attsvm.numbers import Bool, Float

ROUNDING = 1e-12
"""Share of the largest attention by which another may be smaller and still be as large."""


def random_topic(V: int = 10, arrows: int = 4, seed: int = 0) -> Bool:
    """A random topic, bool (V, V, V): [q, x, y] says whether x is above y where the last token is q.

    Under q so many different pairs are drawn, the first of which has q in it, and then all their tokens are
    put above q. Pairs may run in cycles: more of them make a topic ambiguous.
    """
    if not (V >= 2 and 1 <= arrows <= V * (V - 1)):
        raise ValueError(f"V={V}, arrows={arrows}. Pass V ≥ 2 tokens and 1 … V(V − 1) pairs of them.")
    rng = np.random.Generator(np.random.PCG64(seed))
    pairs = np.argwhere(~np.eye(V, dtype=bool))
    topic = np.zeros((V, V, V), bool)
    for q in range(V):
        own = np.flatnonzero((pairs == q).any(-1))
        first = int(own[rng.integers(len(own))])
        rest = rng.permutation(np.delete(np.arange(len(pairs)), first))[: arrows - 1]
        topic[q, pairs[[first, *rest], 0], pairs[[first, *rest], 1]] = True
        met = topic[q].any(0) | topic[q].any(1)
        topic[q, met & (np.arange(V) != q), q] = True
    return topic


def topic_corpus(topic: Bool, n: int = 100, T: int = 4, seed: int = 0) -> Corpus:
    """n sentences of T tokens about a topic, each followed by one of its own tokens.

    The last token q is uniform. What follows is q or a token above it, each as likely as one plus the tokens
    below it are many; it stands at a random place, and the others are drawn from it and the tokens below it.
    """
    V = len(topic)
    rng = np.random.Generator(np.random.PCG64(seed))
    return _written(rng, topic, rng.integers(V, size=n), np.zeros((V, V), np.intp), T)


def topic_sentences(corpus: Corpus, n: int = 100, T: int = 4, seed: int = 0) -> Corpus:
    """Other sentences about the topic of a corpus, in which tokens of high priority are likelier.

    As `topic_corpus`, with the priorities that the corpus shows. Among the tokens that may stand beside the
    next one, those of the lowest component have weight 1, of the one above it 2, and so on.
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
    """The tokens that a model may say next, bool (n, V): those with the most attention, copies counted.

    logits (V tokens, V queries): `token_logits` of a weight trained on the corpus. A token that is tied with
    one of them in the corpus and occurs as often is one of them. decimals: attention is rounded before it is
    counted, as the paper's script does to three.
    """
    if not (logits.shape == (corpus.V, corpus.V) and sentences.V == corpus.V):
        told = f"logits has shape {logits.shape}, the corpus V={corpus.V} and the sentences V={sentences.V}"
        raise ValueError(f"{told}. Pass one logit per token and query of one vocabulary.")
    counts = _counts(sentences)
    own = logits.T[sentences.queries]
    shifted = np.where(counts > 0, own - np.where(counts > 0, own, -np.inf).max(-1, keepdims=True), -np.inf)
    attention = np.exp(shifted) / (counts * np.exp(shifted)).sum(-1, keepdims=True)
    if decimals is not None:
        attention = np.round(attention, decimals)
    mass = np.where(counts > 0, counts * attention, -1)
    best = mass >= (1 - ROUNDING) * mass.max(-1, keepdims=True)  # 2 · 0.15 is not 3 · 0.1 in floats
    component = _components(corpus)[sentences.queries]
    alike = (counts[:, :, None] == counts[:, None]) & (component[:, :, None] == component[:, None])
    return np.asarray((best[:, :, None] & alike).any(1) & (counts > 0))


@dataclass(frozen=True, eq=False)
class TopicChanges:
    """What a model of two topics says after sentences of one, beside the model of that topic; each (n,).

    kept: its token is one that the other may say. ambiguous: it is not, but all that the other may say it
    may say, too. changed: neither. lower: its token has a lower priority than the sentence's next one.
    outnumbers_all, outnumbers_some: it occurs more often than all, or some, tokens of the highest priority.
    """

    kept: Bool
    ambiguous: Bool
    changed: Bool
    lower: Bool
    outnumbers_all: Bool
    outnumbers_some: Bool


def topic_changes(sentences: Corpus, corpus: Corpus, one: Bool, both: Bool, seed: int = 0) -> TopicChanges:
    """Compare what a model of two topics says after sentences of one topic with what that topic's model says.

    corpus: the sentences of the topic; one, both (n, V): the `likeliest` tokens of both models, of which the
    model of two topics says one at random.
    """
    counts, rng = _counts(sentences), np.random.Generator(np.random.PCG64(seed))
    said = np.where(both, rng.random(both.shape), -1).argmax(-1)
    every = np.arange(len(said))
    kept = one[every, said]
    ambiguous = ~kept & ~(one & ~both).any(-1)
    component = _components(corpus)[sentences.queries]
    top = (component == component[every, sentences.winners][:, None]) & (counts > 0)
    often = counts[every, said][:, None]
    return TopicChanges(
        kept,
        ambiguous,
        ~kept & ~ambiguous,
        ~top[every, said],
        (~top | (often > counts)).all(-1),
        (top & (often > counts)).any(-1),
    )


# ---------------------------------------------------------------------- details


def _written(rng: np.random.Generator, topic: Bool, queries: Ids, place: Ids, T: int) -> Corpus:
    """A sentence for every query; place (V, V): how high a token stands under a query, as its weight."""
    if not (len(queries) >= 1 and T >= 2):
        raise ValueError(f"n={len(queries)}, T={T}. Pass n ≥ 1 sentences of T ≥ 2 tokens.")
    V = len(topic)
    ids, following = np.empty((len(queries), T), np.intp), np.empty(len(queries), np.intp)
    for i, q in enumerate(queries):
        may = topic[q, :, q] | (np.arange(V) == q)
        weight = np.where(may, 1 + topic[q].sum(-1), 0)
        y = rng.choice(V, p=weight / weight.sum())
        beside = topic[q, y] | (np.arange(V) == y)
        rank = np.zeros(V)
        rank[beside] = 1 + np.unique(place[q, beside], return_inverse=True)[1]
        ids[i, :-1] = rng.choice(V, size=T - 1, p=rank / rank.sum())
        ids[i, rng.integers(T - 1)] = y
        ids[i, -1], following[i] = q, y
    return Corpus(ids, following, tuple(map(str, range(V))))


def _counts(sentences: Corpus) -> Ids:
    """How often each token occurs in each sentence (n, V)."""
    counts = np.zeros((sentences.n, sentences.V), np.intp)
    np.add.at(counts, (np.nonzero(sentences.mask)[0], sentences.ids[sentences.mask]), 1)
    return counts


def _components(corpus: Corpus) -> Ids:
    """The component of each token under each query (V queries, V tokens); one without priorities is alone."""
    graph, V = Priorities.of(corpus), corpus.V
    labels = np.broadcast_to(-1 - np.arange(V), (V, V)).copy()
    labels[graph.nodes // V, graph.nodes % V] = graph.components
    return labels
