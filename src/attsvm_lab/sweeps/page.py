"""sweep.html: a finished study as one self-contained page in the style of the report."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from attsvm import __version__
from attsvm._support.pages import asset, escaped, page as in_one_file, shared_style
from attsvm.plotting.style import write_svg
from attsvm_lab.report.drawings import Drawings
from attsvm_lab.report.html import line, table
from attsvm_lab.sweeps import labels
from attsvm_lab.sweeps.drawing import CellEstimate, Layout, draw_curves, draw_map
from attsvm_lab.sweeps.intervals import Estimate
from attsvm_lab.sweeps.table import Table

SHOWN = 2_000
"""Cells in the table of the page; all of them are in cells.csv."""

TRAINING = ("weight", "optimizer", "norm")
"""The parameters that name a training in a map of measures across norms."""

LINES = 20
"""With more lines than this a reader cannot separate the curves, and the page has the map only."""


def page(study: Table) -> str:
    """The whole page; its drawings are also written beside it, into pictures/."""
    facts, layout, drawings = study.facts, layout_of(study), Drawings()
    sections = []
    if layout:
        sections = [_across_norms(study, name, layout, drawings) for name in _in_several_norms(study)]
        sections += [_section(study, quantity, layout, drawings) for quantity in study.quantities]
    contents = "".join(
        f'<li><a href="#{_slug(q)}">{escaped(labels.title(q))}</a></li>' for q in study.quantities
    )
    return in_one_file(
        "attsvm_lab.sweeps",
        "page.html",
        title=escaped(facts["title"]),
        about=escaped(facts["about"] or _shared_parameters(study)),
        scale=escaped(facts["scale"]),
        style="\n".join((shared_style(), asset("attsvm_lab.report", "page.css"), drawings.style)),
        shapes=drawings.shared,
        script=asset("attsvm_lab.report", "page.js"),
        numbers=_numbers(study),
        contents=contents if layout else "",
        sections="\n".join(sections),
        cells=_cells(study),
        same=escaped(_shared_parameters(study)),
        versions=escaped(f"attsvm {__version__}, NumPy {version('numpy')}, JAX {version('jax')}"),
    )


def layout_of(study: Table) -> Layout | None:
    """The layout that the study's [show] requests.

    Without one, x is the number with most values, or the parameter with most, and the next one makes lines.
    """
    varying, show = list(study.varying), study.facts["show"]
    if not varying:
        return None
    values = {name: len({cell.words.get(name) for cell in study.cells}) for name in varying}
    ranked = sorted(
        varying, key=lambda name: (not _numeric(study, name), -values[name], -varying.index(name))
    )
    x = show.get("x") or next(name for name in ranked if name != show.get("lines"))
    lines = show.get("lines") or next((name for name in ranked if name != x), None)
    requested = show.get("panels", [])
    panels = [requested] if isinstance(requested, str) else list(requested)
    panels += [name for name in varying if name not in (x, lines, *panels)]
    return Layout(x, lines, tuple(panels))


# ---------------------------------------------------------------------- details


def _section(study: Table, quantity: str, layout: Layout, drawings: Drawings) -> str:
    estimates = [
        CellEstimate(cell.words, e.value, e.low, e.high)
        for cell in study.cells
        for e in [cell.quantities.get(quantity)]
        if e is not None
    ]
    pictures = []
    lines = len({e.words.get(layout.lines) for e in estimates}) if layout.lines is not None else 0
    if lines > 2:  # two rows of colours say less than two curves
        pictures.append(_drawn(study, draw_map(estimates, quantity, layout), quantity, "map", drawings))
    if lines <= LINES:
        pictures.append(_drawn(study, draw_curves(estimates, quantity, layout), quantity, "curves", drawings))
    bars = "Bars: 95 % intervals, Wilson’s for a share, Student’s for a mean."
    caption = f'<p class="how">{bars} <code>{escaped(quantity)}</code></p>'
    title = f"<h2>{escaped(labels.title(quantity))}</h2>"
    return f'<section id="{_slug(quantity)}">{title}{"".join(pictures)}{caption}</section>'


def _in_several_norms(study: Table) -> list[str]:
    """The measures that the study has in more than one norm."""
    names = [quantity.partition(":")[0] for quantity in study.quantities if ":" in quantity]
    return [name for name in dict.fromkeys(names) if name in labels.TITLES and names.count(name) > 1]


def _across_norms(study: Table, name: str, layout: Layout, drawings: Drawings) -> str:
    """One map of a measure: the norm it is measured in against the training, one panel per size."""
    of_training = [name for name in study.varying if name in TRAINING] or [layout.lines or layout.x]
    trainings = [
        " ".join(str(cell.words[key]) for key in of_training if key in cell.words) for cell in study.cells
    ]
    estimates = [
        CellEstimate(
            {**cell.words, "training": training, "measured in": quantity.partition(":")[2]},
            e.value,
            e.low,
            e.high,
        )
        for cell, training in zip(study.cells, trainings, strict=True)
        for quantity, e in cell.quantities.items()
        if quantity.startswith(f"{name}:")
    ]

    def varies_within_training(parameter: str) -> bool:
        pairs = {(e.words["training"], e.words.get(parameter)) for e in estimates}
        return len(pairs) > len(set(trainings))

    parameters = (p for p in (*layout.panels, layout.lines, layout.x) if p is not None)
    panels = [p for p in parameters if p not in of_training and varies_within_training(p)]
    canvas = draw_map(estimates, name, Layout("measured in", "training", tuple(panels)))
    title = f"<h2>{escaped(labels.title(name))}, norm by norm</h2>"
    drawn = _drawn(study, canvas, name, "norms", drawings)
    return f'<section id="{_slug(name)}-norms">{title}{drawn}</section>'


def _drawn(study: Table, canvas: Any, quantity: str, kind: str, drawings: Drawings) -> str:
    folder = study.folder / "pictures"
    folder.mkdir(exist_ok=True)
    file = folder / f"{_slug(quantity)}-{kind}.svg"
    write_svg(canvas, file)
    return drawings.figure(file, labels.title(quantity))


def _numbers(study: Table) -> str:
    """How many cells, runs and seeds, in a line."""
    runs = [cell.runs for cell in study.cells]
    seeds = f"{min(runs):,}" if min(runs) == max(runs) else f"{min(runs):,} to {max(runs):,}"
    counts = [f"{len(runs):,} cells", f"{sum(runs):,} runs", f"{seeds} seeds per cell"]
    precision = study.facts["wanted"]
    if precision:
        name, width = precision["quantity"], precision["width"]
        narrow = sum(cell.quantities[name].width <= width for cell in study.cells)
        every = "all" if narrow == len(study.cells) else f"{narrow:,} of"
        reached = f"{every} {len(study.cells):,} cells reached the requested precision ({width:g})"
        counts.append(f"{reached} of {labels.title(name).lower()}")
    return "".join(f"<li>{escaped(count)}</li>" for count in counts)


def _cells(study: Table) -> str:
    names = list(study.varying) or list(study.facts["parameters"][:1])
    rows = (
        line(
            [
                *(escaped(cell.words.get(name, "–")) for name in names),
                f"{cell.runs:,}",
                *(_estimate(cell.quantities.get(quantity)) for quantity in study.quantities),
            ]
        )
        for cell in study.cells[:SHOWN]
    )
    omitted = len(study.cells) - SHOWN
    note = f'<p>{omitted:,} more cells are in <a href="cells.csv">cells.csv</a>.</p>' if omitted > 0 else ""
    return table([*names, "runs", *study.quantities], rows, "All cells", "sortable tall") + note


def _estimate(e: Estimate | None) -> str:
    if e is None:
        return "–"
    missing = f"; {e.missing} without" if e.missing else ""
    return f"{e.value:.3g}<small>{e.low:.3g} … {e.high:.3g}{missing}</small>".replace("-", "−")


def _shared_parameters(study: Table) -> str:
    """The parameters with one value in all cells, in a sentence."""
    first = study.cells[0].words
    pairs = [f"{n} {first[n]}" for n in study.facts["parameters"] if n not in study.varying and n in first]
    return "All runs have " + ", ".join(pairs) + "." if pairs else ""


def _numeric(study: Table, name: str) -> bool:
    return all(not isinstance(cell.words.get(name), str | None) for cell in study.cells)


def _slug(quantity: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", quantity.lower()).strip("-")
