"""Token-priority graphs: for every query, the pairs of tokens that a corpus orders."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from attsvm.next_token.corpus import Corpus, Ids
from attsvm.numbers import Bool


class Role(IntEnum):
    """What a token is under a query: it beats others (1), is beaten (2), both (3) or neither (0)."""

    non_comparable = 0
    optimal = 1
    non_optimal = 2
    confused = 3


class Condensation(NamedTuple):
    """The components of one query's graph, top first, and the strict priorities between them."""

    components: list[tuple[int, ...]]
    edges: list[tuple[int, int]]


class Unrealisable(ValueError):
    """The priorities of a query form a cycle.

    cycle: the edges (upper, lower) of a short cycle; query: its query token; sentences: one sentence that
    shows each edge.
    """

    def __init__(self, message: str, query: int, cycle: list[tuple[int, int]], sentences: list[int]) -> None:
        super().__init__(message)
        self.query = query
        self.cycle = cycle
        self.sentences = sentences


@dataclass(frozen=True, eq=False, repr=False)
class Priorities:
    """The edges of all token-priority graphs of a corpus, each once.

    A sentence with query q and winner y puts y above each other token x of the sentence: the edge y → x in
    the graph of q. Two tokens in one strongly connected component are tied; an edge between two components is
    a strict priority. Without cycles every edge is strict and each graph is a partial order; then the corpus
    is realisable.

    query, upper, lower (m,): the edge upper → lower of the query's graph; sentence (m,): the first
    sentence that shows it. Sorted by query, then upper, then lower.
    Reference: Li et al. 2024, "Mechanics of Next Token Prediction with Self-Attention".
    """

    corpus: Corpus
    query: Ids
    upper: Ids
    lower: Ids
    sentence: Ids

    @classmethod
    def of(cls, corpus: Corpus) -> Priorities:
        """Read the priorities off the sentences."""
        V = corpus.V
        beaten = corpus.mask & (corpus.ids != corpus.winners[:, None])
        sentence, position = np.nonzero(beaten)
        # Encode pairs by their place in a sorted list: query · V² overflows 64 bits at two million tokens.
        pairs, place = np.unique(corpus.queries * V + corpus.winners, return_inverse=True)
        codes = place[sentence] * V + corpus.ids[sentence, position]
        codes, first = np.unique(codes, return_index=True)
        pair = pairs[codes // V]
        return cls(corpus, pair // V, pair % V, codes % V, sentence[first])

    # ------------------------------------------------------------------ components

    @cached_property
    def nodes(self) -> Ids:
        """The nodes of all graphs together, as query·V + token, sorted."""
        ends = np.concatenate([self.upper, self.lower])
        return np.unique(np.tile(self.query, 2) * self.corpus.V + ends)

    @cached_property
    def components(self) -> Ids:
        """The strongly connected component of each node; nodes of different queries never share one."""
        if self.nodes.size == 0:
            return np.zeros(0, np.intp)
        start, end = self._node(self.query, self.upper), self._node(self.query, self.lower)
        size = len(self.nodes)
        graph = csr_array((np.ones(len(start), np.int8), (start, end)), shape=(size, size))
        return np.asarray(connected_components(graph, directed=True, connection="strong")[1], np.intp)

    @cached_property
    def strict(self) -> Bool:
        """The edges between different components (m,)."""
        return self._component(self.query, self.upper) != self._component(self.query, self.lower)

    @property
    def realisable(self) -> bool:
        """Whether no query has a cycle."""
        return bool(self.strict.all())

    @cached_property
    def selected(self) -> Bool:
        """The tokens in the winner's component, bool (n, T): the selection of Graph-SVM."""
        corpus = self.corpus
        selected = corpus.ids == corpus.winners[:, None]
        sentence, position = np.nonzero(corpus.mask & ~selected)
        query = corpus.queries[sentence]
        tied = self._component(query, corpus.winners[sentence]) == self._component(
            query, corpus.ids[sentence, position]
        )
        selected[sentence[tied], position[tied]] = True
        return selected

    @cached_property
    def roles(self) -> NDArray[np.int8]:
        """The Role of every token under every query, (V queries, V tokens)."""
        V = self.corpus.V
        roles = np.zeros((V, V), np.int8)
        roles[self.query, self.upper] |= Role.optimal
        roles[self.query, self.lower] |= Role.non_optimal
        return roles

    def condensation(self, query: int) -> Condensation:
        """Components of one query's graph in topological order, and the edges between them."""
        V = self.corpus.V
        own_edges = slice(*np.searchsorted(self.query, [query, query + 1]))
        nodes = slice(*np.searchsorted(self.nodes, [query * V, (query + 1) * V]))
        token, label = self.nodes[nodes] % V, self.components[nodes]
        start = self._component(self.query[own_edges], self.upper[own_edges])
        end = self._component(self.query[own_edges], self.lower[own_edges])
        edges = {(int(a), int(b)) for a, b in zip(start, end, strict=True) if a != b}
        above: dict[int, set[int]] = {int(c): set() for c in label}
        for a, b in edges:
            above[b].add(a)
        order = list(TopologicalSorter(above).static_order())
        place = {c: k for k, c in enumerate(order)}
        members: list[list[int]] = [[] for _ in order]
        for x, c in zip(token, label, strict=True):
            members[place[int(c)]].append(int(x))
        return Condensation([tuple(c) for c in members], sorted((place[a], place[b]) for a, b in edges))

    def cyclic(self) -> Corpus | None:
        """The cyclic sub-corpus: of each sentence the tokens tied with its winner; None without ties.

        A sentence of which only copies of the winner remain compares nothing and is dropped. Queries stay,
        even if their token is dropped from the sentence.
        """
        corpus, tied = self.corpus, self.selected
        useful = (tied & (corpus.ids != corpus.winners[:, None])).any(-1)
        if not useful.any():
            return None
        order = np.argsort(~tied[useful], axis=-1, kind="stable")
        ids = np.take_along_axis(np.where(tied, corpus.ids, -1)[useful], order, -1)
        following, queries = corpus.following[useful], corpus.queries[useful]
        return Corpus(ids, following, corpus.vocabulary, corpus.collocation, queries)

    # ------------------------------------------------------------------ the counterexample

    def check_realisable(self) -> None:
        """Raise Unrealisable with a short cycle and the sentences that show it, if there is one."""
        if self.realisable:
            return
        names = self.corpus.vocabulary
        edges = self._cycle()
        shown = [
            f"  {names[self.upper[k]]!r} above {names[self.lower[k]]!r}: "
            f"{self.corpus.show(int(self.sentence[k]))}"
            for k in edges
        ]
        query = int(self.query[edges[0]])
        cyclic = len(np.unique(self.query[~self.strict]))
        raise Unrealisable(
            f"the corpus is not realisable: under the query {names[query]!r} the priorities run in a "
            f"cycle ({cyclic} of {len(np.unique(self.query))} queries have one):\n" + "\n".join(shown),
            query,
            [(int(self.upper[k]), int(self.lower[k])) for k in edges],
            [int(self.sentence[k]) for k in edges],
        )

    def _cycle(self) -> list[int]:
        """Edges of a cycle: two opposite edges, or without these a cycle of the smallest component."""
        start, end = self._node(self.query, self.upper), self._node(self.query, self.lower)
        codes, reversed_codes = start * len(self.nodes) + end, end * len(self.nodes) + start
        opposite = np.flatnonzero(np.isin(codes, reversed_codes))
        if opposite.size:
            k = int(opposite[0])
            return [k, int(np.searchsorted(codes, reversed_codes[k]))]
        component = self._component(self.query, self.upper)
        tied = np.flatnonzero(~self.strict)
        labels, counts = np.unique(component[tied], return_counts=True)
        return _shortest_cycle(tied[component[tied] == labels[np.argmin(counts)]], self.upper, self.lower)

    # ------------------------------------------------------------------ details

    def _node(self, query: Ids, token: Ids) -> Ids:
        return np.searchsorted(self.nodes, query * self.corpus.V + token)

    def _component(self, query: Ids, token: Ids) -> Ids:
        return self.components[self._node(query, token)]

    def __repr__(self) -> str:
        queries = len(np.unique(self.query))
        kind = "realisable" if self.realisable else f"{int((~self.strict).sum())} of them in cycles"
        return f"Priorities({len(self.query)} over {queries} queries; {kind})"


def _shortest_cycle(edges: Ids, upper: Ids, lower: Ids) -> list[int]:
    """A shortest cycle through the first node of a strongly connected component, by breadth-first search."""
    outgoing: dict[int, list[int]] = {}
    for k in map(int, edges):
        outgoing.setdefault(int(upper[k]), []).append(k)
    start = int(upper[edges[0]])
    path: dict[int, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for k in outgoing[node]:
            successor = int(lower[k])
            if successor == start:
                return [*path[node], k]
            if successor not in path:
                path[successor] = [*path[node], k]
                queue.append(successor)
    raise AssertionError("a strongly connected component has a cycle through every node")
