"""Token-priority graphs against a slow, independent reading of the definitions."""

import numpy as np
import pytest

from attsvm.next_token import Corpus, Priorities, Role, Unrealisable, log2_toy, noisy_corpus, random_corpus


def slow_graphs(corpus):
    """The edges of every query's graph, sentence by sentence."""
    graphs = {}
    for i in range(corpus.n):
        winner = int(corpus.winners[i])
        edges = {(winner, int(x)) for x in corpus.ids[i] if x >= 0 and x != winner}
        graphs.setdefault(int(corpus.queries[i]), set()).update(edges)
    return graphs


def slow_components(edges, V):
    """Tokens that reach each other, by transitive closure."""
    reach = np.eye(V, dtype=bool)
    reach[tuple(np.array(list(edges)).T)] = True
    for k in range(V):
        reach |= reach[:, k : k + 1] & reach[k]
    nodes = {x for edge in edges for x in edge}
    return {frozenset(map(int, np.flatnonzero(reach[x] & reach[:, x]))) for x in nodes}


@pytest.mark.parametrize("corpus", [random_corpus(120, 5, 20), noisy_corpus(200, 5, 12), log2_toy()])
def test_edges_and_components_are_those_of_the_definition(corpus):
    graph = Priorities.of(corpus)
    for query, edges in slow_graphs(corpus).items():
        here = graph.query == query
        assert set(zip(graph.upper[here], graph.lower[here], strict=True)) == edges
        found = {frozenset(c) for c in graph.condensation(query).components}
        assert found == slow_components(edges, corpus.V)


class Moved:
    """A corpus whose tokens are the last of a vocabulary of V: only what priorities read."""

    def __init__(self, corpus, V):
        self.V, self.vocabulary, self.mask = V, range(V), corpus.mask
        self.ids, self.queries, self.winners = (
            np.where(part < 0, -1, part + V - corpus.V)
            for part in (corpus.ids, corpus.queries, corpus.winners)
        )

    def show(self, sentence):
        return f"sentence {sentence}"


@pytest.mark.parametrize("corpus", [random_corpus(120, 5, 20), noisy_corpus(200, 5, 12), log2_toy()])
@pytest.mark.parametrize("V", [10_000, 3_000_000, 2_000_000_000])
def test_a_vocabulary_of_any_size_has_the_same_priorities(corpus, V):
    near, far = Priorities.of(corpus), Priorities.of(Moved(corpus, V))
    for name in ("query", "upper", "lower"):
        np.testing.assert_array_equal(getattr(far, name) - (V - corpus.V), getattr(near, name))
    np.testing.assert_array_equal(far.sentence, near.sentence)
    np.testing.assert_array_equal(far.selected, near.selected)
    assert far._cycle() == near._cycle() if not near.realisable else far.realisable


def test_a_condensation_is_listed_from_the_top():
    condensation = Priorities.of(log2_toy()).condensation(3)
    assert condensation.components[0] == (0, 1)
    assert condensation.edges == [(0, 1), (0, 2)]
    assert all(a < b for a, b in Priorities.of(random_corpus(120, 5, 20)).condensation(0).edges)


def test_a_random_corpus_is_realisable_and_a_noisy_one_is_not():
    Priorities.of(random_corpus(120, 5, 20)).check_realisable()
    assert Priorities.of(random_corpus(120, 5, 20)).realisable
    assert not Priorities.of(noisy_corpus(120, 5, 20)).realisable


def test_a_contradiction_shows_both_sentences():
    corpus = Corpus.of([["a", "b", "q", "a"], ["q", "q", "q"], ["a", "b", "q", "b"]])
    with pytest.raises(Unrealisable, match=r"under the query 'q'.*\n.*sentence 0 .*\n.*sentence 2") as caught:
        Priorities.of(corpus).check_realisable()
    assert caught.value.cycle == [(0, 1), (1, 0)]
    assert caught.value.sentences == [0, 2]


def test_a_long_cycle_is_followed_round():
    corpus = Corpus.of([[*"abqa"], [*"bcqb"], [*"cdqc"], [*"daqd"]])
    with pytest.raises(Unrealisable) as caught:
        Priorities.of(corpus).check_realisable()
    ends = caught.value.cycle
    assert len(ends) == 4
    assert all(ends[k][1] == ends[(k + 1) % 4][0] for k in range(4))


def test_the_same_pair_may_be_ordered_differently_under_two_queries():
    corpus = Corpus.of([["a", "b", "q", "a"], ["a", "b", "r", "b"]])
    assert Priorities.of(corpus).realisable


def test_roles_follow_from_who_beats_whom():
    graph = Priorities.of(Corpus.of([[*"abqa"], [*"bcqb"]], vocabulary="abcqz"))
    roles = [Role(r) for r in graph.roles[3]]
    assert roles == [Role.optimal, Role.confused, Role.non_optimal, Role.non_optimal, Role.non_comparable]
    assert not graph.roles[:3].any()


def test_the_selection_is_the_winners_component():
    graph = Priorities.of(log2_toy())
    assert graph.selected.tolist() == [[True, True, False]] * 3 + [[True, False, False]] * 2


def test_the_cyclic_sub_corpus_keeps_ties_and_its_query():
    cyclic = Priorities.of(log2_toy()).cyclic()
    assert cyclic.ids[:, :2].tolist() == [[0, 1]] * 3
    assert cyclic.queries.tolist() == [3, 3, 3]
    assert Priorities.of(random_corpus(50, 4, 10)).cyclic() is None


def test_copies_of_a_token_are_one_node():
    once, twice = Corpus.of([[*"abqa"]]), Corpus.of([[*"aabbqqa"]])
    one, two = Priorities.of(once), Priorities.of(twice)
    assert one.upper.tolist() == two.upper.tolist()
    assert one.lower.tolist() == two.lower.tolist()


def test_sentences_of_one_token_compare_nothing():
    graph = Priorities.of(Corpus.of([["a", "b"], ["b", "a"]]))
    assert len(graph.query) == 0
    assert graph.realisable
    assert graph.selected.all()


def test_a_large_corpus_is_analysed_at_once():
    graph = Priorities.of(random_corpus(50_000, 6, 1000))
    assert graph.realisable
    assert np.bincount(graph.roles.ravel()).sum() == 1_000_000
