"""Output on terminals without Unicode: the nearest plain letters instead of an error."""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

NAME = "attsvm.plain"
PLAIN = {
    "‖": "||",
    "≥": ">=",
    "≤": "<=",
    "−": "-",
    "–": "-",
    "×": "x",
    "·": ".",
    "•": "*",
    "→": "->",
    "≈": "~",
    "∞": "inf",
    "λ": "lambda",
    "γ": "gamma",
    "’": "'",
    "✓": "ok",
    "✗": "no",
}


def use_plain_letters(*streams: TextIO) -> None:
    """Let the streams write what their encoding lacks in plain letters."""
    codecs.register_error(NAME, _replace)
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=NAME)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(letter: str) -> str:
    """ "−" → "-", "⁻³" → "-3", "…" → "...", "é" → "e"; "?" where nothing is near."""
    near = (PLAIN.get(part, part) for part in unicodedata.normalize("NFKD", PLAIN.get(letter, letter)))
    return "".join(near).encode("ascii", "ignore").decode() or "?"
