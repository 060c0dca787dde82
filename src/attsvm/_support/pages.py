"""Pages of the package: templates with placeholders, and text as HTML."""

from __future__ import annotations

import html
import re
from importlib.resources import files
from typing import Any

from attsvm._support import strict_json

_CODE = re.compile(r"`([^`]+)`")


def _balanced(depth: int) -> str:
    """A pattern of text whose parentheses close, in up to this many levels."""
    return r"[^()]*" if depth == 0 else rf"(?:[^()]|\({_balanced(depth - 1)}\))*"


RAISED = re.compile(rf"(?<=[^\s^])\^(?:\{{([^}}]*)\}}|\(({_balanced(4)})\)|([−-]?(?:\d*\.\d+|[^\W_]+)))")
"""An exponent in plain text: W^mm, t^−1.5, e^(−2(R + 1)), C^{1,2}."""


def page(package: str, template: str, **contents: Any) -> str:
    """A page in one file, which loads nothing: a template of a package with its placeholders filled in.

    The argument `data` replaces `__DATA__`: a string as it is, any other value as JSON. No argument is needed
    for `__STYLE__`, the style sheet that pages share, and `__THEME__`, the button for dark and light.
    """
    contents = {"style": shared_style(), "theme": asset("attsvm._support", "theme.html").strip()} | contents
    texts = {name: value if isinstance(value, str) else embedded(value) for name, value in contents.items()}
    return re.sub(r"__([A-Z]+)__", lambda match: texts[match[1].lower()], asset(package, template))


def shared_style() -> str:
    """The style sheet of all pages: colours, type, the line with the name, keys."""
    return asset("attsvm._support", "pages.css").strip()


def asset(package: str, name: str) -> str:
    """A file of a package, as text."""
    return files(package).joinpath(name).read_text(encoding="utf8")


def embedded(record: Any) -> str:
    """The record as JSON for a script of a page, `<script type="application/json">`.

    Escaping `<` keeps text such as `</script>` and `<!--<script>` from ending the script.
    """
    text = strict_json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return _without_surrogates(text).replace("<", "\\u003c")


def escaped(text: object) -> str:
    """Text for HTML, between tags or in an attribute."""
    return html.escape(_without_surrogates(str(text)))


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def prose(text: object) -> str:
    """Text as HTML, with `code` and exponents marked up."""
    pieces = _CODE.split(str(text))
    pieces[::2] = [RAISED.sub(_superscript, escaped(piece)) for piece in pieces[::2]]
    pieces[1::2] = map(code, pieces[1::2])
    return "".join(pieces)


def code(text: str) -> str:
    """Code as HTML, in which a line may break after an underscore and not inside a word."""
    return f"<code>{escaped(text).replace('_', '_<wbr>')}</code>"


def _superscript(match: re.Match[str]) -> str:
    inside = next(filter(None, match.groups()), "")
    return f"<sup>{RAISED.sub(_superscript, inside)}</sup>"
