"""Parts of every page: tables, and pictures inside the page."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from pathlib import Path as File

from attsvm.pages import escaped

_SIZE = re.compile(rb'<svg[^>]*\bviewBox="0 0 ([\d.]+) ([\d.]+)"')


def line(cells: Iterable[str]) -> str:
    """One line of a table; the cells are HTML."""
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def table(heads: Iterable[str], rows: Iterable[str], label: str, kind: str = "") -> str:
    """A table that scrolls by itself. kind: sortable, tall."""
    top = "".join(f'<th scope="col">{escaped(head)}</th>' for head in heads)
    body = "\n".join(rows)
    return (
        f'<div class="table {kind}" role="region" aria-label="{escaped(label)}" tabindex="0">'
        f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def picture(file: File, words: str) -> str:
    """A drawing as an image of its own: inlined, the ids of several drawings would collide.

    Its size is told before it comes: a picture that grows would push away what a link leads to.
    """
    drawing = file.read_bytes()
    data = base64.b64encode(drawing).decode()
    found = _SIZE.search(drawing)
    size = f'width="{float(found[1]):.0f}" height="{float(found[2]):.0f}" ' if found else ""
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escaped(words)}" {size}loading="lazy">'
        "</figure>"
    )
