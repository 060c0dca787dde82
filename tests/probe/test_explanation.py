"""Contributions sum to the score; the page shows them, and the mistakes, and nothing breaks out of it."""

import json
import re
from html import escape

import numpy as np
import pytest

from tests.browsers import elements

EXACT = 1e-12


def words(X):
    return [[f"w{i}{t}" for t in range(len(x))] for i, x in enumerate(X)]


def test_contributions_sum_to_the_score(any_probe, X):
    read = any_probe.explain(X)
    sums = np.array([each.sum(0) for each in read.contributions])
    scores = any_probe.decision_function(X)
    assert np.abs(np.squeeze(sums) - scores).max() <= EXACT
    assert np.array_equal(read.predicted, any_probe.predict(X))
    assert np.allclose(read.probabilities, any_probe.predict_proba(X), atol=EXACT)


def test_the_contribution_of_a_token_is_its_attention_times_its_own_score(probe, X):
    read, x = probe.explain(X[:3]), X[1]
    alone = probe.decision_function([token[None] for token in x])  # each token as a sequence of its own
    attention = probe.attention([x])[0]
    assert np.allclose(read.contributions[1][:, 0], attention * alone, atol=EXACT)
    assert np.allclose(read.attention[1], attention, atol=EXACT)


def test_the_surest_mistake_comes_first_and_right_ones_are_none(probe, X, y):
    turned = y.copy()
    sure = np.argsort(-np.abs(probe.decision_function(X)))[:3]
    turned[sure] = np.where(y[sure] == "yes", "no", "yes")
    own = probe.explain(X, y=probe.predict(X))
    assert len(own.mistakes()) == 0
    found = probe.explain(X, y=turned).mistakes(3)
    right = probe.predict(X) == y
    assert set(found) == set(sure[right[sure]]) | set(found) - set(sure) and found[0] == sure[0]
    with pytest.raises(ValueError, match="mistakes need labels"):
        probe.explain(X).mistakes()


@pytest.mark.parametrize("form", [bool, float, object, list])
def test_labels_that_are_equal_are_right_whatever_their_type(X, form):
    """Bool targets of a suite, whose probes have the classes 0 and 1, were all mistakes on the page."""
    from attsvm.probe import ProbeSuite

    y = np.array([len(x) > 5 for x in X])
    suite = ProbeSuite(head_ridge=0.1, prompt_ridge=0.1).fit(X, y[:, None])
    probe = suite.probes_[0][0]
    read = probe.explain(X, y=y.tolist() if form is list else y.astype(form))
    wrong = np.flatnonzero(probe.predict(X) != y)
    on_page = [s["i"] for s in read._data()["sequences"] if s["label"] != s["predicted"]]
    assert 0 < len(wrong) < len(X) and set(on_page) == set(wrong) == set(read.mistakes(60))
    with pytest.raises(ValueError, match="unknown classes"):
        probe.explain(X, y=y.astype(int).astype(str))


def test_the_loudest_words_are_those_that_decide(probe, X):
    pieces = [["high" if v > 4.2 else "low" for v in x[:, 0]] for x in X]
    loudest = probe.explain(X, pieces).words()
    assert loudest["yes"][0][0] == "high" and loudest["no"][0][0] == "low"


SPOKEN = {"[CLS]": 9.0, "</s>": 8.0, "rare": 5.0, "loud": 3.0, "often": 1.0}
"""Contributions of words: special tokens the largest, then a word that occurs once."""


def spoken(*words):
    """An explanation of one sequence of these words, which all speak for "yes"."""
    from attsvm.probe.explanation import Explanation

    votes = np.array([[SPOKEN[word]] for word in words])
    attention = np.full(len(words), 1 / len(words))
    return Explanation((words,), (attention,), (votes,), votes.sum(0)[None], np.array(["no", "yes"]))


def test_the_loudest_words_are_no_special_tokens_and_stand_by_their_mean():
    read = spoken("[CLS]", "rare", *["loud"] * 2, *["often"] * 40, "[CLS]", "</s>", "</s>")
    assert read.words()["yes"] == [("loud", 3.0, 2), ("often", 1.0, 40)]  # by mean times √count: often
    assert [word for word, *_ in read.words(least=1)["yes"]] == ["rare", "loud", "often"]
    assert spoken("rare", "loud").words()["yes"] == [("rare", 5.0, 1), ("loud", 3.0, 1)]
    assert read.words(most=1)["no"] == []


@pytest.mark.parametrize("piece", ["[SEP]", "[unused1]", "<s>", "<|im_end|>", "<｜begin of sentence｜>"])
def test_special_tokens_are_told_by_their_brackets_and_words_in_brackets_are_not(piece):
    from attsvm.probe.explanation import SPECIAL

    assert SPECIAL.fullmatch(piece)
    assert not any(map(SPECIAL.fullmatch, ["[sic]", "<", ">", "< a >", "I", "[]", "a<b>"]))


def test_texts_are_pieces_or_words_or_what_has_pieces(probe, X):
    pieces = words(X)
    joined = [" ".join(each) for each in pieces]

    class Read(list):
        def pieces(self, i):
            return self[i]

    for texts in (pieces, joined, Read(pieces)):
        assert probe.explain(X, texts).pieces[3] == tuple(pieces[3])
    assert probe.explain(X).pieces[0][:2] == ("0", "1")


def test_pieces_with_the_marks_of_a_tokenizer_are_shown_as_text(probe, X):
    marked = [["ĠHigh" if v > 4.2 else "ĠcafÃ©" for v in x[:, 0]] for x in X]
    read = probe.explain(X, marked)
    assert set(read.pieces[0]) <= {" High", " café"}
    assert read.words()["yes"][0][0] == "high" and "Ġ" not in read.html()


def test_texts_and_labels_that_do_not_fit_are_refused(probe, X, y):
    short = [*words(X)[:-1], ["one"]]
    for call, said in (
        (lambda: probe.explain(X, words(X)[1:]), "59 texts and 60 sequences"),
        (lambda: probe.explain(X, short), r"text 59 has 1 pieces, its sequence \d tokens"),
        (lambda: probe.explain(X, y=y[:5]), r"y has shape \(5,\)"),
        (lambda: probe.explain(X, y=["maybe"] * 60), r"unknown classes \['maybe'\]"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_the_page_holds_the_numbers_and_no_text_breaks_out(probe, X, y, tmp_path):
    pieces = words(X)
    pieces[0][0] = "</script><script>alert(1)</script>"
    read = probe.explain(X, pieces, y)
    page = read.save(tmp_path / "probe.html").read_text(encoding="utf8")
    assert "</script><script>" not in page and "__DATA__" not in page and "http" not in page
    data = json.loads(re.search(r'id="data">(.*)</script>$', page, re.MULTILINE)[1])
    assert (
        data["n"] == 60
        and len(data["sequences"]) == 60
        and data["right"] == pytest.approx((probe.predict(X) == y).mean())
    )
    one = next(s for s in data["sequences"] if s["i"] == 7)
    assert sum(one["votes"]) == pytest.approx(probe.decision_function(X)[7], abs=1e-3)


def test_chromium_runs_the_page(probe, X, y, tmp_path, chrome):
    wrong = np.where(np.arange(60) == 5, np.where(y == "yes", "no", "yes"), probe.predict(X))
    page = probe.explain(X, words(X), wrong).save(tmp_path / "probe.html")
    said = elements(chrome, page)
    shown = said[said.index('<div id="list">') :]
    assert shown.count('class="text"') == 1 and "sequence 5<" in shown and "wrong: is" in shown
    assert all(f">{word}<" in shown for word in words(X)[5]) and shown.count('class="most"') == 1


@pytest.mark.parametrize("name", ["<!--<script>", "__proto__", "\ud800"])
def test_chromium_runs_the_page_whatever_tokens_and_classes_are_called(X, y, tmp_path, chrome, name):
    from attsvm.probe import AttentionProbe

    probe = AttentionProbe(head_ridge=0.01, prompt_ridge=0.01).fit(X, np.where(y == "yes", name, "no"))
    pieces = [[name] * len(x) for x in X]
    said = elements(chrome, probe.explain(X, pieces).save(tmp_path / "probe.html"))
    shown = said[said.index('<div id="list">') :]
    assert 'class="text"' in shown and f">{seen(name)}<" in shown and f"for {seen(name)}" in said


def seen(text):
    """The text as a browser writes it: what is no character is shown as one that is missing."""
    return escape(text.replace("\ud800", "\ufffd"))


def test_a_large_set_is_cut_to_a_page_with_its_mistakes(probe, X, y, monkeypatch):
    monkeypatch.setattr("attsvm.probe.explanation.SHOWN", 12)
    wrong = np.where(y == "yes", "no", "yes")
    read = probe.explain(X, y=wrong)
    shown = [s["i"] for s in read._data()["sequences"]]
    assert len(shown) == len(set(shown)) == 12 and set(read.mistakes(6)) <= set(shown)


def test_labels_in_the_place_of_texts_are_told_apart():
    from attsvm.probe.explanation import read_pieces

    with pytest.raises(ValueError, match=r"a text is True\. Pass a string"):
        read_pieces([True, False], np.array([2, 2]))


def test_a_score_just_above_zero_predicts_as_the_probe_does():
    """The chances of both classes are then one half to the last digit."""
    from attsvm.probe.explanation import Explanation

    one = (np.ones((1, 1)),)
    for score, name in ((1e-20, "yes"), (-1e-20, "no"), (0.0, "no")):
        read = Explanation((("a",),), (np.ones(1),), one, np.array([[score]]), np.array(["no", "yes"]))
        assert read.predicted.tolist() == [name]
