"""HTML for reports and studies: tables, and pictures inside the page."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from pathlib import Path as File

from attsvm._support.pages import escaped

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


def picture(file: File, description: str) -> str:
    """A drawing as a separate image: the ids of several drawings would collide if they were inlined.

    The tag has the size of the image, so that the page does not move when the image loads.
    """
    drawing = file.read_bytes()
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    view = _SIZE.search(drawing)
    size = f'width="{float(view[1]):.0f}" height="{float(view[2]):.0f}" ' if view else ""
    return f'<figure><img src="{source}" alt="{escaped(description)}" {size}loading="lazy"></figure>'
