"""What every page of the package is made of: data in it, and text as a reader should see it."""

from __future__ import annotations

import html
import re
from importlib.resources import files
from typing import Any

from attsvm import strict_json

_CODE = re.compile(r"`([^`]+)`")
RAISED = re.compile(r"(?<=[^\s^])\^(?:\{([^}]*)\}|\(([^)]*)\)|([^\W_]+))")
"""An exponent in plain text: W^mm, e^(−R), C^{1,2}."""


def page(room: str, template: str, **records: Any) -> str:
    """A page in one file: a template of the package, the style all such pages share, and data by name.

    `__STYLE__` and the names in capitals, `__DATA__`, are where they go; nothing is loaded from elsewhere.
    """
    parts = {f"__{name.upper()}__": embedded(record) for name, record in records.items()}
    parts["__STYLE__"] = files("attsvm").joinpath("pages.css").read_text(encoding="utf8").strip()
    text = files(room).joinpath(template).read_text(encoding="utf8")
    return re.sub("|".join(parts), lambda found: parts[found[0]], text)


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
