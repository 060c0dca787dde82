"""The max-margin programs of next-token prediction, all through `max_margin`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.tokens import Tokens
from attsvm.next_token.corpus import Corpus, Ids
from attsvm.next_token.priorities import Priorities
from attsvm.next_token.problems import as_embeddings, collocation_tokens, sentence_tokens
from attsvm.norms import frobenius
from attsvm.numbers import Bool, Float
from attsvm.program.certificate import TOLERANCE, Certificate, certify
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import basis
from attsvm.program.solution import Solution


@dataclass(frozen=True, eq=False, repr=False)
class Decoupled:
    """A Frobenius program of orthonormal tokens, solved one small vector problem per query.

    W (V, V): the logit of every token (row) under every query (column), W[x, q] = xᵀ W q.
    blocks: the solutions, each of a vector problem over the tokens that a query compares.
    places: the entries of W that a block solves: rows (tokens, c) of columns (c,), where c queries have the
        same problem.

    ‖W‖² is the sum of the blocks' squares, and no constraint joins two blocks. Therefore norms and lower
    bounds add in squares, and the largest violation and relative gap of a block bound those of W.
    """

    W: Float
    blocks: tuple[Solution, ...]
    places: tuple[tuple[Ids, Ids], ...]

    @property
    def margin(self) -> float:
        """1/‖W‖, the best margin of a weight of norm one; infinite without constraints."""
        size = float(frobenius.value(self.W))
        return 1 / size if size > 0 else np.inf

    @property
    def certificate(self) -> Certificate:
        """The worst block's violations and gap, recomputed from W at every access."""
        certificates, outside = [], self.W.copy()
        for block, place in zip(self.blocks, self.places, strict=True):
            for w in np.unique(self.W[place], axis=-1).T:
                multipliers = block.token_multipliers
                certificates.append(certify(block.constraints, frobenius, w[:, None], multipliers))
            outside[place] = 0.0
        primal, dual, gap = (
            max((getattr(c, name) for c in certificates), default=0.0) for name in ("primal", "dual", "gap")
        )
        # Entries outside of the blocks only make W longer: compare ‖W‖ with the length of its blocks.
        excess = 1 - float(frobenius.value(self.W - outside) * self.margin) if outside.any() else 0.0
        return Certificate(primal, dual, gap + excess, sum(c.rows for c in certificates))

    @property
    def certified(self) -> bool:
        """Whether violations and gap are at most 1e-8."""
        return bool(self.certificate.worst <= TOLERANCE)

    def __repr__(self) -> str:
        certified = "certified" if self.certified else "NOT certified"
        size = f"W {self.W.shape[0]} × {self.W.shape[1]}, margin {self.margin:.6g}"
        return f"Decoupled({size}, {len(self.blocks)} blocks; {certified} {self.certificate})"


@overload
def attention_program(corpus: Corpus, embeddings: None = None) -> Decoupled: ...
@overload
def attention_program(corpus: Corpus, embeddings: ArrayLike) -> Solution: ...
def attention_program(corpus: Corpus, embeddings: ArrayLike | None = None) -> Solution | Decoupled:
    """W_kq*: the smallest W that ranks the tokens as a realisable corpus does.

        min ‖W‖_F  subject to  (x − x')ᵀ W q ≥ 1  whenever x is above x' under q

    embeddings (V, d); without them tokens are orthonormal, and each query has a separate problem. Raises
    Unrealisable, which shows a cycle, and NotSeparable where the embeddings cannot express the orders.
    Reference: Huang, Liang, Yang 2024, "Non-asymptotic Convergence of Training Transformers for
    Next-token Prediction".
    """
    Priorities.of(corpus).check_realisable()
    return graph_program(corpus, embeddings)


@overload
def graph_program(corpus: Corpus, embeddings: None = None) -> Decoupled: ...
@overload
def graph_program(corpus: Corpus, embeddings: ArrayLike | None) -> Solution | Decoupled: ...
def graph_program(corpus: Corpus, embeddings: ArrayLike | None = None) -> Solution | Decoupled:
    """Graph-SVM: ties inside the components of the priority graphs, margins between them.

        min ‖W‖_F  s.t.  (x − x')ᵀ W q = 0 if x, x' share a component of q's graph,  ≥ 1 if x is above

    One example per sentence: the selected tokens are those in the winner's component. Priorities along
    several edges follow from those of the edges, so that the sentences give all constraints. Without
    embeddings tokens are orthonormal, and memory is that of one query's distinct priorities.
    Reference: Li et al. 2024, "Mechanics of Next Token Prediction with Self-Attention".
    """
    if embeddings is None:
        return _solve_each_query(corpus)
    tokens = sentence_tokens(corpus, embeddings)
    selected = Priorities.of(corpus).selected & tokens.mask
    # W lies in the span of the embeddings: with d > V the same problem in V coordinates is smaller.
    span = basis(as_embeddings(corpus, embeddings))
    small = max_margin(sentence_tokens(corpus, np.asarray(embeddings) @ span), selected)
    return replace(small, tokens=tokens, W=span @ small.W @ span.T)


@overload
def feed_forward_program(corpus: Corpus, embeddings: None = None) -> Decoupled: ...
@overload
def feed_forward_program(corpus: Corpus, embeddings: ArrayLike) -> Solution: ...
def feed_forward_program(corpus: Corpus, embeddings: ArrayLike | None = None) -> Solution | Decoupled:
    """W_ov*: the smallest output layer (V, d) that announces every collocation.

        min ‖W‖_F  subject to  (e_{n(x)} − e_v)ᵀ W x ≥ 1,  v ≠ n(x)

    With embeddings (V, d) it takes V keys of width V for every token. Without them tokens are orthonormal,
    and their problems are equal up to a permutation. One is solved; its closed form is e_{n(x)} − 1/V.
    """
    if embeddings is None:
        return _solve_one_token(corpus)
    announced = corpus.collocation[corpus.collocation >= 0]
    return max_margin(collocation_tokens(corpus, embeddings), announced)


# ---------------------------------------------------------------------- orthonormal tokens


def _solve_each_query(corpus: Corpus) -> Decoupled:
    """The logits of each query:  min ‖w‖  s.t.  w_x − w_x' = 0 in a component,  ≥ 1 if x is above x'."""
    graph = Priorities.of(corpus)
    W = np.zeros((corpus.V, corpus.V))
    blocks, places = [], []
    edges = np.flatnonzero(np.diff(graph.query, prepend=-1, append=corpus.V))
    for start, end in pairwise(edges):
        pairs = np.stack([graph.upper[start:end], graph.lower[start:end]], axis=-1)
        tied = ~graph.strict[start:end]
        present, place = np.unique(pairs, return_inverse=True)
        blocks.append(_one_query(place.reshape(pairs.shape), tied, len(present)))
        places.append((present[:, None], graph.query[start : start + 1]))
        W[places[-1]] = blocks[-1].W
    return Decoupled(W, tuple(blocks), tuple(places))


def _solve_one_token(corpus: Corpus) -> Decoupled:
    V = corpus.V
    block = max_margin(Tokens(np.eye(V)[None]), [0])
    announcing = np.flatnonzero(corpus.collocation >= 0)
    announced, losing = corpus.collocation[announcing], np.arange(V - 1)[:, None]
    place = np.concatenate([announced[None], losing + (losing >= announced)]), announcing
    W = np.zeros((V, V))
    W[place] = block.W
    return Decoupled(W, (block,), (place,))


def _one_query(pairs: Ids, tied: Bool, count: int) -> Solution:
    """The priorities of one query over the tokens it compares: examples of two tokens, upper first."""
    selected = np.stack([np.ones(len(pairs), bool), tied], axis=-1)
    return max_margin(Tokens(np.eye(count)[pairs]), selected)
