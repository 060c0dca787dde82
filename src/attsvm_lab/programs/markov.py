"""One attention layer as a context-conditioned Markov chain, and its collapse on one long text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import digamma

from attsvm.next_token.corpus import Corpus, Ids, as_queries, as_sentences
from attsvm.next_token.model import token_logits
from attsvm.numbers import Float


@dataclass(frozen=True, eq=False)
class ContextChain:
    """A Markov chain that can only go to tokens of its context, in proportion to their counts.

        P(j | X) = m_j(X) π_kj / Σ_l m_l(X) π_kl,     k the last token, m_j the count of j in X

    log_base (V queries, V tokens): log π, one row per last token.
    With tied output weights this is how an attention layer draws the next token.
    Reference: Ildiz et al. 2024, "From Self-Attention to Markov Models".
    """

    log_base: Float

    def __post_init__(self) -> None:
        rows = np.asarray(self.log_base, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[0] != rows.shape[1] or np.isnan(rows).any():
            raise ValueError(f"log_base has shape {rows.shape}. Pass a square matrix without NaN.")
        top = rows.max(-1, keepdims=True)
        if not np.isfinite(top).all():
            raise ValueError("a row of log_base has no finite largest entry: every query needs a next token.")
        total = top + np.log(np.exp(rows - top).sum(-1, keepdims=True))
        object.__setattr__(self, "log_base", rows - total)

    @classmethod
    def of(cls, W: ArrayLike, embeddings: ArrayLike) -> ContextChain:
        """The chain of a weight: π_k = softmax(E W e_k), for W (d, d) and embeddings E (V, d)."""
        return cls(token_logits(W, embeddings).T)

    @property
    def V(self) -> int:
        """Number of tokens."""
        return len(self.log_base)

    @property
    def base(self) -> Float:
        """The base chain π (V, V), rows sum to one."""
        return np.exp(self.log_base)

    def probabilities(self, ids: ArrayLike, queries: ArrayLike | None = None) -> Float:
        """Next-token probabilities of prompts ids (n, T), −1 beyond their end: (n, V)."""
        rows, query_ids = self._prompts(ids, queries)
        counts = np.zeros((len(rows), self.V))
        np.add.at(counts, (np.nonzero(rows >= 0)[0], rows[rows >= 0]), 1)
        weights = self._weights(counts, query_ids)
        return np.asarray(weights / weights.sum(-1, keepdims=True))

    def logs(self, ids: ArrayLike, seed: int = 0, queries: ArrayLike | None = None) -> Corpus:
        """Draw one next token for each prompt: a corpus of (prompt, next token) pairs."""
        rows, query_ids = self._prompts(ids, queries)
        rng = np.random.Generator(np.random.PCG64(seed))
        following = _draw(rng, self.probabilities(rows, query_ids))
        return Corpus(rows, following, tuple(map(str, range(self.V))), queries=query_ids)

    def simulate(
        self, prompt: Sequence[int], steps: int, chains: int = 1, seed: int = 0, record: int = 40
    ) -> tuple[Ids, Ids]:
        """Simulate the chain: token counts (chains, k, V) at k log-spaced lengths (k,) of the text.

        All chains start from the same prompt, and each appends its own draws to it.
        """
        if min(steps, chains, record) < 1:
            raise ValueError(f"steps={steps}, chains={chains}, record={record}. Pass positive numbers.")
        start, query_ids = self._prompts([prompt], None)
        text = start[start >= 0]
        rng = np.random.Generator(np.random.PCG64(seed))
        counts = np.tile(np.bincount(text, minlength=self.V), (chains, 1))
        last = np.full(chains, query_ids[0])
        recorded_steps = np.unique(np.geomspace(1, steps, record).round().astype(np.intp))
        chain, records = np.arange(chains), list[Ids]()
        for step in range(1, steps + 1):
            last = _draw(rng, self._weights(counts, last))
            counts[chain, last] += 1
            if step == recorded_steps[len(records)]:
                records.append(counts.copy())
        return len(text) + recorded_steps, np.stack(records, axis=1)

    def _weights(self, counts: NDArray[Any], query_ids: Ids) -> Float:
        """m_j π_kj of texts with these counts (n, V); each text is scaled so that its largest π_kj is 1."""
        logits = np.where(counts > 0, self.log_base[query_ids], -np.inf)
        top = logits.max(-1, keepdims=True)
        if top.min() == -np.inf:
            i = int(np.argmin(top))
            raise ValueError(
                f"text {i} with the tokens {np.flatnonzero(counts[i]).tolist()} holds none that its query "
                f"{query_ids[i]} can choose: their entries of log_base are −∞."
            )
        return np.asarray(counts * np.exp(logits - top))

    def _prompts(self, ids: ArrayLike, queries: ArrayLike | None) -> tuple[Ids, Ids]:
        rows = as_sentences(ids, self.V)
        return rows, as_queries(queries, rows, self.V)


@dataclass(frozen=True, eq=False, repr=False)
class CoOccurrence:
    """Which tokens share prompts of each query: component (V queries, V tokens), −1 for tokens in no prompt.

    Tokens in different components never compete, directly or through other tokens. No corpus of such prompts
    identifies their odds.
    Reference: Ildiz et al. 2024, "From Self-Attention to Markov Models".
    """

    corpus: Corpus
    component: Ids

    @classmethod
    def of(cls, corpus: Corpus) -> CoOccurrence:
        """Join the tokens that share a prompt, query by query."""
        V = corpus.V
        sentence, position = np.nonzero(corpus.mask)
        base = corpus.queries[sentence] * V
        node, hub = base + corpus.ids[sentence, position], base + corpus.ids[sentence, 0]
        nodes, place = np.unique(np.concatenate([node, hub]), return_inverse=True)
        start, end = np.split(place, 2)
        graph = csr_array((np.ones(len(start), np.int8), (start, end)), shape=(len(nodes), len(nodes)))
        labels = connected_components(graph, directed=False)[1]
        component = np.full(V * V, -1)
        component[nodes] = labels
        return cls(corpus, component.reshape(V, V))

    @property
    def connected(self) -> NDArray[np.bool_]:
        """Queries (V,) under which all tokens of the vocabulary are in one component."""
        return np.asarray((self.component == self.component[:, :1]).all(-1) & (self.component[:, 0] >= 0))

    def unidentified(self, query: int) -> list[tuple[int, int]]:
        """The pairs of tokens whose odds under the query such prompts do not identify."""
        c = self.component[query]
        separate = (c[:, None] != c) | (c[:, None] < 0) | (c < 0)
        return [(int(i), int(j)) for i, j in np.argwhere(np.triu(separate, 1))]

    def __repr__(self) -> str:
        connected, V = int(self.connected.sum()), self.corpus.V
        text = f"CoOccurrence({connected} of {V} queries connected"
        if connected == V:
            return text + ")"
        query = int(np.argmin(self.connected))
        pairs = self.unidentified(query)
        names = self.corpus.vocabulary
        first = ", ".join(f"({names[i]}, {names[j]})" for i, j in pairs[:3])
        ellipsis = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
        return f"{text}; under {names[query]!r} unidentified: {first}{ellipsis})"


def collapse_exponent(counts: Ids, weak: int, strong: int, after: int = 100) -> float:
    """Exponent b of  m_weak ≈ m_strong^b  over recorded counts (chains, k, V), mean over the chains.

    Theory predicts b = q/p for a two-token chain with π = (p, q), p > q, under every query: the weak token's
    share of the text tends to zero. The fit is on ψ(m), the digamma function, in place of log m. Each draw
    raises ψ(m_j) by 1/m_j with probability ∝ π_j m_j. Therefore ψ(m_weak)/q − ψ(m_strong)/p is a martingale,
    and the fit is unbiased at every length; a fit on log m is biased.
    after: records with fewer strong tokens on average are not fitted: the first draws are the noisiest.
    """
    fitted = counts[..., strong].mean(0) >= after
    if fitted.sum() < 3:
        raise ValueError(f"only {fitted.sum()} records have {after} strong tokens. Simulate more steps.")
    x, y = (digamma(counts[..., token][:, fitted]).mean(0) for token in (strong, weak))
    return float(np.polyfit(x, y, 1)[0])


def _draw(rng: np.random.Generator, weights: Float) -> Ids:
    """One index per row with probability proportional to weights (n, V)."""
    cumulative = weights.cumsum(-1)
    level = rng.random((len(weights), 1)) * cumulative[:, -1:]
    return np.asarray((cumulative <= level).sum(-1), np.intp)
