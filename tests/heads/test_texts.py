"""What is read of a text, what is cut off, and that both are said."""

import json
import warnings

import numpy as np
import pytest

from attsvm.heads import CutTexts, activations, extract, load, replace_head
from attsvm.heads.audit import AuditSettings, audit
from attsvm.heads.page import as_json, write
from tests.browsers import elements
from tests.heads.conftest import TEXTS, Letters, tiny

LONG = [TEXTS[0], " ".join([TEXTS[1]] * 2)]
"""8 and 21 tokens."""


def test_a_text_is_read_as_far_as_asked_and_the_warning_says_where(bert):
    with pytest.warns(
        CutTexts, match=r"1 of 2 texts cut after 9 tokens \(text 1; the longest has 21\).*length=21"
    ):
        texts = bert.tokenise(LONG, length=9)
    assert texts.ids.shape == (2, 9) and texts.full_lengths.tolist() == [8, 21]
    assert [(c.text, c.read, c.tokens) for c in texts.cut] == [(1, 9, 21)]


@pytest.mark.parametrize("length", [21, 64, 10**9])
def test_a_text_that_fits_is_read_whole_without_a_word(bert, length):
    with warnings.catch_warnings(action="error"):
        texts = bert.tokenise(LONG, length)
    assert texts.cut == () and texts.lengths.tolist() == [8, 21]


def test_no_more_is_read_than_the_model_takes():
    short = tiny("BertModel", max_position_embeddings=12)
    with pytest.warns(CutTexts, match="after 12 tokens.*The model takes no more: split the texts"):
        assert short.tokenise(LONG, 64).ids.shape == (2, 12)
    with warnings.catch_warnings(action="ignore", category=CutTexts):
        assert len(list(extract(short, LONG))) == 12


def test_the_length_of_an_extract_is_a_choice(bert):
    with pytest.warns(CutTexts):
        short = next(extract(bert, LONG, queries=None, length=9))
    whole = next(extract(bert, LONG, queries=None))
    assert (short.tokens.T, whole.tokens.T) == (9, 21)
    with pytest.raises(ValueError, match="length is 1"):
        next(extract(bert, LONG, length=1))


def test_real_tokenizers_count_their_special_tokens(minilm):
    with pytest.warns(CutTexts, match="after 6 tokens"):
        texts = minilm.tokenise(["a dull film", "a surprisingly touching film , a triumph ."], 6)
    assert (
        texts.full_lengths.tolist() == [5, 10]
        and texts.pieces[1][0] == "[CLS]"
        and texts.pieces[1][-1] == "[SEP]"
    )


@pytest.fixture(scope="module")
def audits(bert):
    """The same two texts, once cut after 9 tokens and once whole."""
    with warnings.catch_warnings(action="ignore", category=CutTexts):
        return [audit(bert, LONG, AuditSettings(queries=1, length=k), layers=[0]) for k in (9, 64)]


def test_the_audit_and_its_json_name_the_texts_that_were_cut(audits):
    cut, whole = (json.loads(as_json(each)) for each in audits)
    assert cut["cut"] == [{"text": 1, "read": 9, "tokens": 21}] and cut["settings"]["length"] == 9
    assert whole["cut"] == [] and whole["tokens"] == 29
    unread = {e["unread"] for h in cut["heads"] for e in h["examples"]}
    assert unread == {0, 12} and {e["unread"] for h in whole["heads"] for e in h["examples"]} == {0}


def test_chromium_shows_on_the_page_what_was_cut(audits, tmp_path, chrome):
    said = [
        elements(chrome, write(each, tmp_path / name)[0])
        for name, each in zip(("cut", "whole"), audits, strict=True)
    ]
    cut, whole = (text[text.index('id="cut">') :].split("</p>")[0] for text in said)
    assert "1 of 2 texts cut after 9 tokens: text 1 (21 tokens)" in cut and "No text was cut." in whole
    for text in said:  # the sentence that is read opens at its second token, and heads may be filtered
        opened = text[text.index('id="read"') :].split("</div>")[0]
        assert opened.count('role="button"') == opened.count('title="attention') > 1 and "→" in opened
        assert '<option value="duplicate token">' in text
    assert "more tokens, not read</span>" in said[0] and "more tokens, not read</span>" not in said[1]


def test_pieces_with_the_marks_of_a_tokenizer_are_shown_as_text(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(
        type(bert.tokenizer),
        "convert_ids_to_tokens",
        lambda _, ids: [f"ĠcafÃ©{i}" for i in ids],
        raising=False,
    )
    texts = bert.tokenise(TEXTS)
    assert texts.pieces[0][1] == f" café{texts.ids[0, 1]}"
    assert activations(bert, TEXTS, [1], tmp_path).pieces(0) == texts.pieces[0][: texts.lengths[0]]


class Bare(Letters):
    """A tokenizer that adds nothing, as GPT-2's."""

    begin = ()


WAYS = {
    "audit": lambda reader, texts, _: audit(reader, texts, AuditSettings(margins=False)),
    "extract": lambda reader, texts, _: list(extract(reader, texts)),
    "surgery": lambda reader, texts, _: replace_head(reader, texts, (0, 0), 1),
    "activations": lambda reader, texts, place: activations(reader, texts, [1], place),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("begin", [Letters, Bare])
def test_a_text_without_a_token_of_its_own_is_refused_in_words(llama, tmp_path, way, begin):
    reader = load(llama.model, begin())
    for texts in (["~"], [*TEXTS, "~ ~"]):
        with pytest.raises(ValueError, match=f"'{texts[-1]}' has no token beside special ones.*Leave"):
            WAYS[way](reader, texts, tmp_path)
    WAYS[way](reader, [*TEXTS, "~ film"], tmp_path)


@pytest.mark.parametrize("way", ["audit", "extract", "surgery"])
def test_texts_of_one_token_leave_no_choice_and_one_among_others_is_no_matter(llama, way):
    reader = load(llama.model, Bare())
    with pytest.raises(ValueError, match="every text is one token"):
        WAYS[way](reader, ["film", "plot"], None)
    WAYS[way](reader, ["film", *TEXTS], None)


def test_a_text_of_unknown_words_only_is_read(llama):
    reader = load(llama.model, Letters())
    reader.tokenizer.all_special_ids = [0, 1, int(reader.tokenise(["film"]).ids[0, 1])]
    with pytest.raises(ValueError, match="beside special ones"):
        reader.tokenise(["film"])
    reader.tokenizer.unk_token_id = reader.tokenizer.all_special_ids[-1]
    assert reader.tokenise(["film"]).lengths.tolist() == [2]


def test_what_a_reader_reads_is_told_in_one_line(bert, audits):
    texts = bert.tokenise(TEXTS)
    head, report = next(extract(bert, TEXTS)), audits[0]
    assert repr(bert) == "Reader(BertModel: BertModel, 2 layers of 6 heads)"
    assert repr(texts) == "Texts(2 texts, 19 tokens, 0 cut)"
    assert repr(head) == "Head(0·0: 19 queries over 11 tokens, 49 wide, hidden space)"
    assert repr(report) == "Audit(BertModel: 6 heads, 6 certified; 2 texts, 17 tokens, 1 cut)"
    assert np.prod(head.tokens.keys.shape) > 1000  # which a dataclass would print
