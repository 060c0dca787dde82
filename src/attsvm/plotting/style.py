"""The style of all figures, colour-blind safe and readable at page width, and their SVG files."""

from __future__ import annotations

import re
from pathlib import Path as File
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter, NullLocator

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
ON_DARK, ON_LIGHT = "#fefefe", "#010101"
"""Text on the colours of a map. Pages turn white and black around on a dark page, and not these."""
TITLE_SIZE = 10


def colours(count: int) -> list[Any]:
    """Distinguishable colours: those of the palette or, where it has too few, of a colour map."""
    if count <= 8:
        return [BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000", GREY][:count]
    return [colormaps["viridis"](x) for x in np.linspace(0, 0.92, count)]


def label(ax: Axes, x: float, y: float, text: str, color: str, **options: Any) -> None:
    """Write a name beside its curve, in the curve's colour."""
    ax.annotate(text, (x, y), color=color, fontsize=8, **options)


def plain_powers(ax: Axes) -> None:
    """Label long logarithmic axes at powers of ten only, written 10⁻³: this takes half the time of TeX."""
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        if isinstance(axis.get_major_formatter(), LogFormatter) and high > 100 * low:
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(_power)


def _power(x: float, position: float) -> str:
    if x <= 0:  # the axis is linear around zero
        return f"{x:g}"
    exponent = round(np.log10(x))
    return "10" + str(exponent).translate(_RAISED) if np.isclose(x, 10.0**exponent) else f"{x:g}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_svg(canvas: Any, file: File) -> None:
    """Write a drawing to an SVG file; the same drawing gives the same bytes.

    Matplotlib's ids are random, so that two files of one figure would differ. They are replaced by numbers.
    """
    canvas.savefig(file, metadata={"Date": None})
    text = file.read_text(encoding="utf8")
    numbered = {name: f"{file.stem}-{k}" for k, name in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    uses = re.compile(r'(?<=\bid=")[^"]+|(?<=#)[\w.-]+(?=["\)])')
    file.write_text(uses.sub(lambda match: numbered.get(match[0], match[0]), text), encoding="utf8")
