"""The pieces of a tokenizer, which marks bytes and spaces in its own way, as readable text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Sequence

PieceToBytes = Callable[[str], bytes]

PARTIAL = "⋯"
"""Stands for a token that holds part of a character; the token with the last part shows the character."""

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHER_BYTES = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + k): byte for k, byte in enumerate(_OTHER_BYTES)
}
"""The byte of each letter of byte-level tokenizers: Ġ is a space, Ċ a line break."""

_MALTESE = "ċġ"
"""In a vocabulary with these letters Ġ and Ċ are letters, too: as marks, ċ and ġ stand for rare bytes."""

_ONE_BYTE = re.compile("<0x([0-9A-F]{2})>")


def piece_to_bytes(tokens: Collection[str]) -> PieceToBytes | None:
    """How these tokens encode bytes: byte level (Ġ) or SentencePiece (▁); None if as plain text."""
    if any(token.startswith("▁") for token in tokens):
        return _sentence_piece
    marked = any(token.startswith("Ġ") or "Ċ" in token for token in tokens)
    return _byte_level if marked and not any(set(token) & set(_MALTESE) for token in tokens) else None


def decode_pieces(pieces: Sequence[str], to_bytes: PieceToBytes | None) -> list[str]:
    """The text of each token of a sequence, with leading spaces; a character may be cut at either end."""
    if to_bytes is None:
        return list(pieces)
    decoder = codecs.getincrementaldecoder("utf8")("ignore")
    return [decoder.decode(to_bytes(piece)) or (piece and PARTIAL) for piece in pieces]


def readable(texts: Iterable[Sequence[str]]) -> list[list[str]]:
    """The tokens of several texts as readable text."""
    texts = list(texts)
    to_bytes = piece_to_bytes({piece for text in texts for piece in text})
    return [decode_pieces(text, to_bytes) for text in texts]


def _byte_level(piece: str) -> bytes:
    """The bytes of a piece. A piece with other letters is a special token, and its name is its text."""
    try:
        return bytes(_BYTES[letter] for letter in piece)
    except KeyError:
        return piece.encode("utf8", "replace")


def _sentence_piece(piece: str) -> bytes:
    byte = _ONE_BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf8", "replace")
