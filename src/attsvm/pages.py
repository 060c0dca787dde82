"""What every page of the package is made of: a template, its parts, and text as a reader should see it."""

from __future__ import annotations

import html
import re
from importlib.resources import files
from typing import Any

from attsvm import strict_json

_CODE = re.compile(r"`([^`]+)`")
RAISED = re.compile(r"(?<=[^\s^])\^(?:\{([^}]*)\}|\(([^)]*)\)|([^\W_]+))")
"""An exponent in plain text: W^mm, e^(−R), C^{1,2}."""


def page(room: str, template: str, **parts: Any) -> str:
    """A page in one file: a template of the package, and its parts by name; nothing is loaded from elsewhere.

    `__DATA__` is where the part `data` goes: text as it is, anything else as JSON. The style that pages
    share is theirs unless they have their own.
    """
    parts = {"style": asset("attsvm", "pages.css").strip()} | parts
    texts = {name: part if isinstance(part, str) else embedded(part) for name, part in parts.items()}
    return re.sub(r"__([A-Z]+)__", lambda found: texts[found[1].lower()], asset(room, template))


def asset(room: str, name: str) -> str:
    """A file of a package of ours, as text."""
    return files(room).joinpath(name).read_text(encoding="utf8")


def embedded(record: Any) -> str:
    """The record as JSON inside a script of a page, `<script type="application/json">`.

    No text in it ends the script or hides the rest of the page: `</script>`, `<!--<script>`.
    """
    text = strict_json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return _whole(text).replace("<", "\\u003c")


def escaped(text: object) -> str:
    """Text between tags or in an attribute."""
    return html.escape(_whole(str(text)))


def _whole(text: str) -> str:
    """Half a surrogate pair, which no file can hold, as the sign for what is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def prose(text: object) -> str:
    """Text with `code` and exponents as such."""
    parts = _CODE.split(str(text))
    parts[::2] = [RAISED.sub(_raised, escaped(part)) for part in parts[::2]]
    parts[1::2] = map(code, parts[1::2])
    return "".join(parts)


def code(text: str) -> str:
    """Code, which may go on in the next line after an underscore and not in the middle of a word."""
    return f"<code>{escaped(text).replace('_', '_<wbr>')}</code>"


def _raised(found: re.Match[str]) -> str:
    return f"<sup>{next(filter(None, found.groups()), '')}</sup>"
