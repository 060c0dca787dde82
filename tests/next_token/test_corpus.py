"""Corpora: what they accept, what they refuse, and how they say it."""

import numpy as np
import pytest

from attsvm.next_token import Corpus, Priorities, random_corpus
from attsvm.next_token.corpus import collocations

PAIRS = [["the", "cat"], ["cat", "sat"], ["sat", "the"]]


def test_the_last_entry_of_a_sequence_is_the_next_token():
    corpus = Corpus.of([["a", "b", "a"], ["b", "b"]])
    assert corpus.vocabulary == ("a", "b")
    assert corpus.ids.tolist() == [[0, 1], [1, -1]]
    assert corpus.following.tolist() == [0, 1]
    assert corpus.queries.tolist() == [1, 1]


def test_two_token_sequences_teach_the_collocation():
    corpus = Corpus.of([*PAIRS, ["the", "cat", "sat"]])
    assert corpus.collocation.tolist() == [1, 2, 0]
    assert corpus.winners.tolist() == [0, 1, 2, 1]


def test_without_two_token_sequences_tokens_announce_themselves():
    corpus = Corpus.of([["a", "b", "a"]])
    assert corpus.copies
    assert corpus.winners.tolist() == corpus.following.tolist()


def test_later_copies_of_a_token_are_marked():
    corpus = Corpus.of([["b", "a", "b", "b", "a"]])
    assert corpus.repeats.tolist() == [[False, False, True, True]]


def test_a_corpus_written_to_a_file_reads_back(tmp_path):
    corpus = random_corpus(30, 4, 9, seed=1)
    corpus.write(tmp_path / "corpus.txt")
    vocabulary = list(corpus.vocabulary)
    again = Corpus.read(tmp_path / "corpus.txt", vocabulary)
    assert again.collocation.tolist() == corpus.collocation.tolist()
    assert again.ids[9:].tolist() == corpus.ids.tolist()
    assert again.following[9:].tolist() == corpus.following.tolist()


def test_a_corpus_of_copies_reads_back_unchanged(tmp_path):
    corpus = random_corpus(30, 4, 9, seed=1, copies=True)
    corpus.write(tmp_path / "corpus.txt")
    again = Corpus.read(tmp_path / "corpus.txt", corpus.vocabulary)
    assert again.copies
    assert again.ids.tolist() == corpus.ids.tolist()


AWKWARD = ["New York", "a\tb", "", '{"tokens":', "two\nlines", "é ", '"', "plain"]


@pytest.mark.parametrize("seed", range(5))
def test_awkward_names_and_other_queries_read_back(tmp_path, seed):
    drawn, rng = random_corpus(20, 3, len(AWKWARD), seed=seed), np.random.default_rng(seed)
    corpus = Corpus(
        drawn.ids, drawn.following, AWKWARD, drawn.collocation, rng.integers(len(AWKWARD), size=20)
    )
    corpus.write(tmp_path / "corpus.txt")
    again = Corpus.read(tmp_path / "corpus.txt", AWKWARD)
    for name in ("ids", "following", "queries"):
        np.testing.assert_array_equal(getattr(again, name)[-20:], getattr(corpus, name))
    assert again.collocation.tolist() == corpus.collocation.tolist()


def test_plain_sentences_are_written_as_plain_text(tmp_path):
    Corpus.of([["a", "b", "a"], ["b", "a", "b"]]).write(tmp_path / "text")
    assert (tmp_path / "text").read_text(encoding="utf8") == "a b a\nb a b\n"
    Corpus.of([["a", "b", "a"]], queries=["a"]).write(tmp_path / "text")
    assert (tmp_path / "text").read_text(encoding="utf8").startswith("{")


def test_a_text_that_begins_like_json_is_text(tmp_path):
    (tmp_path / "text").write_text('{ a {\n{"next": a {"next":\n', encoding="utf8")
    assert Corpus.read(tmp_path / "text").vocabulary == ("{", "a", '{"next":')


def test_queries_may_be_named():
    corpus = Corpus.of([["a", "b", "a"], ["b", "a", "b"]], queries=["c", None])
    assert [corpus.vocabulary[q] for q in corpus.queries] == ["c", "a"]
    with pytest.raises(ValueError, match="queries has 1 entries but there are 2 sentences"):
        Corpus.of([["a", "b", "a"], ["b", "a", "b"]], queries=["c"])
    with pytest.raises(ValueError, match="unknown token 'c'"):
        Corpus.of([["a", "b", "a"]], vocabulary=["a", "b"], queries=["c"])


def test_blank_lines_of_a_file_are_skipped(tmp_path):
    (tmp_path / "text").write_text("\na b a\n\n b  a b \n", encoding="utf8")
    assert Corpus.read(tmp_path / "text").n == 2


def test_an_unknown_token_is_shown_with_its_sentence():
    with pytest.raises(ValueError, match=r'sentence 1 "a c a" has the unknown token \'c\''):
        Corpus.of([["a", "b", "a"], ["a", "c", "a"]], vocabulary=["a", "b"])


@pytest.mark.parametrize("sequence", [[], ["a"]])
def test_an_empty_sentence_is_refused(sequence):
    with pytest.raises(ValueError, match="sentence 1 is empty"):
        Corpus.of([["a", "b", "a"], sequence])


def test_a_next_token_that_is_not_in_the_sentence_is_shown():
    with pytest.raises(ValueError, match=r"sentence 1 \"a b\" → 'c': only 'c' announces 'c'"):
        Corpus.of([["a", "c", "c"], ["a", "b", "c"]])


def test_a_next_token_that_nobody_announces_is_shown():
    with pytest.raises(ValueError, match=r"sentence 1 .*the token that announces 'z' is not in the sentence"):
        Corpus.of([["a", "b"], ["a", "z", "z"]])


def test_contradicting_collocations_show_both_sentences():
    with pytest.raises(ValueError, match="'a' is followed by 'b' in sentence 0 and by 'c' in sentence 1"):
        collocations([["a", "b"], ["a", "c"]])


def test_a_collocation_must_be_injective():
    with pytest.raises(ValueError, match="'a' and 'b' both announce 'c'"):
        Corpus.of([["a", "c"], ["b", "c"]])


@pytest.mark.parametrize(
    ("ids", "following", "message"),
    [
        ([[0, 5]], [0], "unknown token 5"),
        ([[-1, -1]], [0], "sentence 0 is empty"),
        ([[-1, 1]], [1], "padding before"),
        ([[0, 1]], [0, 1], "following has 2 entries"),
        ([[0.0, 1.0]], [0], "dtype float64"),
        (np.zeros((0, 2), int), [], "no sentence|Pass 1-d integers"),
        ([[0], [0, 1]], [0, 1], "ragged"),
    ],
)
def test_bad_numbers_are_refused(ids, following, message):
    with pytest.raises(ValueError, match=message):
        Corpus(ids, following, ("a", "b"))


def test_no_sentences_are_refused(tmp_path):
    (tmp_path / "text").write_text("\n", encoding="utf8")
    with pytest.raises(ValueError, match="holds no sentence"):
        Corpus.read(tmp_path / "text")
    with pytest.raises(ValueError, match="there is no sentence"):
        Corpus.of([])


def test_a_random_corpus_has_different_tokens_and_repeats_with_its_seed():
    corpus = random_corpus(200, 5, 1000, seed=3)
    assert not corpus.repeats.any()
    assert (random_corpus(200, 5, 1000, seed=3).ids == corpus.ids).all()
    with pytest.raises(ValueError, match="1 ≤ T ≤ V"):
        random_corpus(5, 6, 4)


def test_an_explicit_collocation_is_taken_as_it_is_told():
    corpus = Corpus.of([["a", "b", "a"]], collocation={"a": "a"})
    assert corpus.collocation.tolist() == [0, -1]


def test_a_text_that_would_be_read_as_another_corpus_is_not_written(tmp_path):
    corpus = Corpus.of([["a", "b", "a"]], collocation={"a": "a"})
    with pytest.raises(ValueError, match="which a text cannot say"):
        corpus.write(tmp_path / "text")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "text").write_bytes("café café".encode("latin1"))
    with pytest.raises(ValueError, match="text is not a text in UTF-8"):
        Corpus.read(tmp_path / "text")


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path):
    (tmp_path / "text").write_text("a b a\nb a b\n", encoding="utf-8-sig")
    assert Corpus.read(tmp_path / "text").vocabulary == ("a", "b")
    marked = Corpus.of([["\ufeffa", "b", "\ufeffa"]])
    marked.write(tmp_path / "text")
    assert Corpus.read(tmp_path / "text").vocabulary == marked.vocabulary  # where it is one


def test_groups_of_equally_good_tokens_make_cycles_and_keep_the_order_between_them():
    graph = Priorities.of(random_corpus(400, 4, 6, seed=0, group=2))
    assert Priorities.of(random_corpus(400, 4, 6, seed=0)).realisable and not graph.realisable
    sizes = {len(c) for q in range(6) for c in graph.condensation(q).components}
    assert sizes == {1, 2} or sizes == {2}
    with pytest.raises(ValueError, match="how many tokens are equally good"):
        random_corpus(4, 3, 6, group=0)
