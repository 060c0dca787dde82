"""sweep.html: a finished study as one self-contained page in the style of the report."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from attsvm import __version__
from attsvm.figures.sweeps import Layout, Point, draw_curves, draw_map
from attsvm.pages import asset, escaped, page as in_one_file
from attsvm.report.html import line, picture, table
from attsvm.reproduce import write_svg

if TYPE_CHECKING:
    from attsvm.sweeps.result import Sweep

SHOWN = 2_000
"""Cells in the table of the page; all of them are in cells.csv."""

WAYS = ("weight", "optimizer", "norm")
"""Of a training, in a map of what it maximises."""

LINES = 20
"""Curves that an eye can tell apart; of more, the map alone is drawn."""

WORDS = {
    "global": "Runs that end at the best tokens",
    "local": "Runs that end at another, locally optimal, selection",
    "neither": "Runs that end elsewhere, or are not finished",
    "unmoved": "Runs that never left their start",
    "separable": "Draws whose best tokens some W separates",
    "margin_ratio": "Margin as a share of the best possible",
    "one_minus_cosine": "1 − cosine to the predicted program",
    "norm_growth": "Exponent of the norm over the last decade of steps",
    "rate": "Exponent of the error over the last decade of steps",
}


def page(done: Sweep) -> str:
    """The whole page; its drawings are left beside it, in pictures/."""
    facts, layout = done.facts, layout_of(done)
    sections = ""
    if layout:
        parts = [_across_norms(done, name, layout) for name in _in_several_norms(done)]
        sections = "\n".join([*parts, *(_section(done, quantity, layout) for quantity in done.quantities)])
    contents = "".join(f'<li><a href="#{_slug(q)}">{escaped(_title(q))}</a></li>' for q in done.quantities)
    return in_one_file(
        "attsvm.sweeps",
        "page.html",
        title=escaped(facts["title"]),
        about=escaped(facts["about"]),
        scale=escaped(facts["scale"]),
        style=asset("attsvm.report", "page.css"),
        script=asset("attsvm.report", "page.js"),
        tiles=_tiles(done),
        contents=contents if layout else "",
        sections=sections,
        cells=_cells(done),
        same=escaped(_same(done)),
        versions=escaped(f"attsvm {__version__}, NumPy {version('numpy')}, JAX {version('jax')}"),
    )


def layout_of(done: Sweep) -> Layout | None:
    """What the study's [show] says; else the last parameter with most values along x, the next as lines."""
    varying, shown = list(done.varying), done.facts["show"]
    if not varying:
        return None
    values = {name: len({cell.words.get(name) for cell in done.cells}) for name in varying}
    ranked = sorted(varying, key=lambda name: (not _numeric(done, name), -values[name], -varying.index(name)))
    x = shown.get("x") or next(name for name in ranked if name != shown.get("lines"))
    others = [name for name in ranked if name != x]
    lines = shown.get("lines") or next(iter(others), None)
    panels = [name for name in varying if name not in (x, lines)]
    asked = shown.get("panels", [])
    first = [asked] if isinstance(asked, str) else list(asked)
    return Layout(x, lines, (*first, *(name for name in panels if name not in first)))


# ---------------------------------------------------------------------- details


def _section(done: Sweep, quantity: str, layout: Layout) -> str:
    points = [
        Point(cell.words, e.value, e.low, e.high)
        for cell in done.cells
        for e in [cell.quantities.get(quantity)]
        if e is not None
    ]
    folder = done.folder / "pictures"
    folder.mkdir(exist_ok=True)
    drawn = []
    if layout.lines is not None:
        drawn.append(
            _drawn(draw_map(points, quantity, layout), folder / f"{_slug(quantity)}-map.svg", quantity)
        )
    if layout.lines is None or len({point.words.get(layout.lines) for point in points}) <= LINES:
        curves = draw_curves(points, quantity, layout)
        drawn.append(_drawn(curves, folder / f"{_slug(quantity)}-curves.svg", quantity))
    how = "Bars: 95 % intervals, Wilson’s for a share, Student’s for a mean."
    told = f'<p class="how">{how} <code>{escaped(quantity)}</code></p>'
    title = f"<h2>{escaped(_title(quantity))}</h2>"
    return f'<section id="{_slug(quantity)}">{title}{"".join(drawn)}{told}</section>'


def _in_several_norms(done: Sweep) -> list[str]:
    """Measures that were taken in more than one norm."""
    names = [quantity.partition(":")[0] for quantity in done.quantities if ":" in quantity]
    return [name for name in dict.fromkeys(names) if name in WORDS and names.count(name) > 1]


def _across_norms(done: Sweep, name: str, layout: Layout) -> str:
    """One map of a measure: its norm against the ways of training, one panel per size."""
    ways = [word for word in done.varying if word in WAYS] or [layout.lines or layout.x]
    trained = [" ".join(str(cell.words[way]) for way in ways if way in cell.words) for cell in done.cells]
    points = [
        Point(
            {**cell.words, "training": way, "measured in": quantity.partition(":")[2]}, e.value, e.low, e.high
        )
        for cell, way in zip(done.cells, trained, strict=True)
        for quantity, e in cell.quantities.items()
        if quantity.startswith(f"{name}:")
    ]

    def tells_more(word: str) -> bool:
        return len({(p.words["training"], p.words.get(word)) for p in points}) > len(set(trained))

    others = [
        word for word in (*layout.panels, layout.lines, layout.x) if word is not None and word not in ways
    ]
    wide = Layout("measured in", "training", tuple(word for word in others if tells_more(word)))
    folder = done.folder / "pictures"
    folder.mkdir(exist_ok=True)
    drawn = _drawn(draw_map(points, name, wide), folder / f"{_slug(name)}-norms.svg", name)
    return (
        f'<section id="{_slug(name)}-norms"><h2>{escaped(_title(name))}, norm by norm</h2>{drawn}</section>'
    )


def _drawn(canvas: Any, file: File, quantity: str) -> str:
    write_svg(canvas, file)
    return picture(file, _title(quantity))


def _tiles(done: Sweep) -> str:
    runs = [cell.runs for cell in done.cells]
    seeds = f"{min(runs):,}" if min(runs) == max(runs) else f"{min(runs):,} – {max(runs):,}"
    told = [(f"{len(runs):,}", "cells"), (f"{sum(runs):,}", "runs"), (seeds, "seeds per cell")]
    wanted = done.facts["wanted"]
    if wanted:
        name, width = wanted["quantity"], wanted["width"]
        narrow = sum(cell.quantities[name].width <= width for cell in done.cells)
        told.append((f"{narrow:,}", f"cells with {name} within {width:g}"))
    return "\n".join(
        f'<div class="tile"><b>{count}</b> <span>{escaped(what)}</span></div>' for count, what in told
    )


def _cells(done: Sweep) -> str:
    names = list(done.varying) or list(done.facts["parameters"][:1])
    rows = (
        line(
            [
                *(escaped(cell.words.get(name, "–")) for name in names),
                f"{cell.runs:,}",
                *(_estimate(cell.quantities.get(quantity)) for quantity in done.quantities),
            ]
        )
        for cell in done.cells[:SHOWN]
    )
    more = len(done.cells) - SHOWN
    note = f'<p>{more:,} more cells are in <a href="cells.csv">cells.csv</a>.</p>' if more > 0 else ""
    return table([*names, "runs", *done.quantities], rows, "All cells", "sortable tall") + note


def _estimate(found: Any) -> str:
    if found is None:
        return "–"
    missing = f"; {found.missing} without" if found.missing else ""
    return f"{found.value:.3g}<small>{found.low:.3g} … {found.high:.3g}{missing}</small>".replace("-", "−")


def _same(done: Sweep) -> str:
    """What all cells have in common."""
    first = done.cells[0].words
    told = [f"{n} {first[n]}" for n in done.facts["parameters"] if n not in done.varying and n in first]
    return "All cells: " + ", ".join(told) + "." if told else ""


def _numeric(done: Sweep, name: str) -> bool:
    return all(not isinstance(cell.words.get(name), str | None) for cell in done.cells)


def _title(quantity: str) -> str:
    name, _, norm = quantity.partition(":")
    return WORDS.get(quantity) or (f"{WORDS[name]}, {norm}" if name in WORDS else quantity)


def _slug(quantity: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", quantity.lower()).strip("-")
