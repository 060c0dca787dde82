"""What tokens read, whichever marks their tokenizer makes."""

import pytest

from attsvm._support.token_text import PARTIAL, readable

TEXT = "The café\nis naïve 😀 – 東京!"


def byte_letters(text):
    """The bytes of a text in the letters of a byte-level tokenizer, by the library that most models use."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [word for word, _ in words]


def test_byte_level_words_read_as_their_text():
    words = byte_letters(TEXT)
    (shown,) = readable([words])
    assert any("Ġ" in word for word in words) and "".join(shown) == TEXT
    assert shown[0] == "The" and " 😀" in shown


def test_a_character_of_several_tokens_is_shown_by_its_last():
    letters = [letter for word in byte_letters(TEXT) for letter in word]
    (shown,) = readable([letters])
    assert len(shown) == len(letters) == len(TEXT.encode())
    assert "".join(piece for piece in shown if piece != PARTIAL) == TEXT
    assert shown[shown.index("😀") - 3 :][:4] == [PARTIAL, PARTIAL, PARTIAL, "😀"]


@pytest.mark.parametrize("special", ["</s>", "<｜end▁of▁text｜>", "[SEP]"])
def test_a_character_that_is_cut_spoils_nothing_beside_it(special):
    letters = byte_letters(" 😀")[0]
    assert readable([[letters[2:], "Ġa", letters[:3], special]]) == [[PARTIAL, " a", " ", special]]


def test_sentence_pieces_read_as_their_text():
    pieces = ["<s>", "▁The", "▁caf", "é", "<0x0A>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert readable([pieces]) == [["<s>", " The", " caf", "é", "\n", PARTIAL, PARTIAL, PARTIAL, "😀"]]


@pytest.mark.parametrize(
    "words", [["play", "##ing", "[CLS]"], ["Ġorġ", "u", "Ġanni"], ["łąka", "é", "Ã©"], ["a", "", "b"]]
)
def test_pieces_without_such_marks_stay_as_they_are(words):
    assert readable([words]) == [words]
