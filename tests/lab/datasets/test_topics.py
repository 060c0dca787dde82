"""Topics, their texts, and what counts as a change."""

import numpy as np
import pytest

from attsvm.next_token import Corpus, Priorities
from attsvm_lab.datasets import likeliest, random_topic, topic_changes, topic_corpus, topic_sentences

NAMES = ("a", "b", "c", "d")
A = Corpus.of(["cdc", "cdbc", "bdb"], NAMES)  # under d: c above d and b; b above d
TEXT = Corpus.of([[*"bbcdc"]], NAMES)


def logits(**high):
    """Logits (V, V) of these tokens under every query; zero for the others."""
    return np.array([[high.get(name, 0.0)] * 4 for name in NAMES])


def test_every_token_of_a_topic_stands_above_the_last_one():
    topic = random_topic(8, 3, seed=1)
    for q, above in enumerate(topic):
        met = (above.any(0) | above.any(1)) & (np.arange(8) != q)
        assert above[met, q].all()
        assert met.any() and not above.diagonal().any()
        assert above[:, np.arange(8) != q].sum() <= 3


def test_the_corpus_shows_priorities_of_its_topic_alone():
    topic = random_topic(8, 4, seed=2)
    graph = Priorities.of(topic_corpus(topic, 200, 5, seed=3))
    assert topic[graph.query, graph.upper, graph.lower].all()
    other = random_topic(8, 4, seed=4)
    assert not other[graph.query, graph.upper, graph.lower].all()


def test_fresh_sentences_compare_only_what_the_corpus_compares():
    corpus = topic_corpus(random_topic(8, 4, seed=2), 100, 4, seed=3)
    known, fresh = (Priorities.of(c) for c in (corpus, topic_sentences(corpus, 50, 12, seed=3)))
    edges = [{*zip(g.query, g.upper, g.lower, strict=True)} for g in (known, fresh)]
    assert edges[1] <= edges[0]
    assert not edges[0] <= edges[1]


def test_copies_count_and_attention_decides():
    np.testing.assert_array_equal(likeliest(logits(), A, TEXT)[0], [False, True, False, False])
    np.testing.assert_array_equal(likeliest(logits(c=1.0), A, TEXT)[0], [False, False, True, False])


def test_rounding_makes_ties_that_are_none():
    text = Corpus.of([[*"bcdc"]], NAMES)
    close = logits(c=1e-4)
    assert likeliest(close, A, text)[0].sum() == 1
    assert likeliest(close, A, text, decimals=3)[0].sum() == 3


@pytest.mark.parametrize(("counts", "one"), [((2, 3), 0.3), ((3, 6), 0.1), ((6, 7), 0.7)])
def test_masses_that_only_rounding_tells_apart_are_a_tie(counts, one):
    # b occurs so often at odds 1, c so often at odds that make up for it
    text = Corpus.of([[*("b" * counts[0] + "c" * counts[1] + "dc")]], NAMES)
    said = logits(b=np.log(one), c=np.log(one * counts[0] / counts[1]), d=-50.0)
    assert likeliest(said, A, text)[0].sum() == 2
    said = logits(b=np.log(one), c=np.log(one * counts[0] / counts[1] * (1 + 1e-9)), d=-50.0)
    assert likeliest(said, A, text)[0].sum() == 1


def test_tied_tokens_that_occur_as_often_are_said_alike():
    tied = Corpus.of(["bcdc", "bcdb"], NAMES)
    both = likeliest(logits(c=1.0), tied, Corpus.of([[*"bcdc"]], NAMES))[0]
    np.testing.assert_array_equal(both, [False, True, True, False])
    assert likeliest(logits(c=1.0), A, Corpus.of([[*"bcdc"]], NAMES))[0].sum() == 1


@pytest.mark.parametrize(
    ("one", "both", "kind"),
    [("c", "c", "kept"), ("c", "bc", "ambiguous"), ("c", "b", "changed"), ("b", "b", "kept")],
)
def test_what_is_kept_ambiguous_and_changed(one, both, kind):
    may = [np.array([[name in word for name in NAMES]]) for word in (one, both)]
    seen = [topic_changes(TEXT, A, *may, seed=seed) for seed in range(20)]
    found = {name for each in seen for name in ("kept", "ambiguous", "changed") if getattr(each, name)[0]}
    assert kind in found
    assert found <= ({kind, "kept"} if kind == "ambiguous" else {kind})


def test_a_lower_token_outnumbers_the_top_one_by_its_copies():
    may = [np.array([[name in word for name in NAMES]]) for word in "cb"]
    seen = topic_changes(TEXT, A, *may)
    assert seen.changed[0] and seen.lower[0] and seen.outnumbers_all[0] and seen.outnumbers_some[0]
    once = topic_changes(Corpus.of([[*"bcdc"]], NAMES), A, *may)
    assert once.changed[0] and once.lower[0] and not once.outnumbers_some[0]


def test_impossible_topics_are_refused():
    with pytest.raises(ValueError, match="1 … V"):
        random_topic(3, 7)
    with pytest.raises(ValueError, match="T ≥ 2"):
        topic_corpus(random_topic(3, 2), T=1)


@pytest.mark.parametrize("sizes", [{"n": 0}, {"T": 1}])
def test_sentences_too_few_or_too_short_are_refused(sizes):
    for draw in (lambda **k: topic_corpus(random_topic(), **k), lambda **k: topic_sentences(A, **k)):
        with pytest.raises(ValueError, match="Pass n ≥ 1 sentences of T ≥ 2 tokens"):
            draw(**sizes)


def test_logits_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="of one vocabulary"):
        likeliest(np.zeros((2, 2)), A, TEXT)
