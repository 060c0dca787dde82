"""What tokens read: the pieces of a tokenizer, in which bytes and spaces have marks of their own, as text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Sequence

Spelling = Callable[[str], bytes]

PART = "⋯"
"""A token that holds a part of a character; the last part shows it."""

_OWN = {*range(33, 127), *range(161, 173), *range(174, 256)}
_MOVED = [byte for byte in range(256) if byte not in _OWN]
_BYTES = {chr(byte): byte for byte in _OWN} | {chr(256 + k): byte for k, byte in enumerate(_MOVED)}
"""The letters in which byte-level tokenizers write bytes: Ġ is a space, Ċ the end of a line."""

_MALTESE = "ċġ"
"""Where small ones stand beside Ġ and Ċ, these are letters and no marks: their bytes hardly occur."""

_ONE_BYTE = re.compile("<0x([0-9A-F]{2})>")


def spelling(tokens: Collection[str]) -> Spelling | None:
    """How these tokens write bytes, by their marks: byte level (Ġ), SentencePiece (▁); None: as they read."""
    if any(token.startswith("▁") for token in tokens):
        return _sentence_piece
    marked = any(token.startswith("Ġ") or "Ċ" in token for token in tokens)
    return _byte_level if marked and not any(set(token) & set(_MALTESE) for token in tokens) else None


def read(pieces: Sequence[str], spelled: Spelling | None) -> list[str]:
    """What each token of a text reads; a leading space starts a word. Both ends may cut a character."""
    if spelled is None:
        return list(pieces)
    decoder = codecs.getincrementaldecoder("utf8")("ignore")
    return [decoder.decode(spelled(piece)) or (piece and PART) for piece in pieces]


def readable(texts: Iterable[Sequence[str]]) -> list[list[str]]:
    """The tokens of several texts as a reader would see them."""
    texts = list(texts)
    spelled = spelling({piece for text in texts for piece in text})
    return [read(text, spelled) for text in texts]


def _byte_level(piece: str) -> bytes:
    """The bytes of a piece; one with other letters is a special token, which is written as it reads."""
    try:
        return bytes(_BYTES[letter] for letter in piece)
    except KeyError:
        return piece.encode("utf8", "replace")


def _sentence_piece(piece: str) -> bytes:
    byte = _ONE_BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf8", "replace")
