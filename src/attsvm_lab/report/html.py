"""HTML for reports and studies: tables."""

from __future__ import annotations

from collections.abc import Iterable

from attsvm._support.pages import escaped


def line(cells: Iterable[str]) -> str:
    """One line of a table; the cells are HTML."""
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def table(heads: Iterable[str], rows: Iterable[str], label: str, kind: str = "") -> str:
    """A table that scrolls by itself. kind: sortable, tall, checks, counts."""
    top = "".join(f'<th scope="col">{escaped(head)}</th>' for head in heads)
    body = "\n".join(rows)
    return (
        f'<div class="table {kind}" role="region" aria-label="{escaped(label)}" tabindex="0">'
        f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
