"""Drawings of a page: matplotlib's SVG files as elements of the page, small, and dark where the page is dark.

Letters, markers and styles that several drawings share are written once for the page. Black, white and the
palette of plotting/style.py become variables of the page's style sheet.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path as File

from attsvm._support.pages import escaped
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE

DIGITS = 2
"""Decimals of a coordinate: a hundredth of a point is below what a screen can show."""

COLOURS = {
    "#ffffff": "paper",
    "#000000": "ink",
    GREY.lower(): "grey",
    BLUE.lower(): "blue",
    ORANGE.lower(): "orange",
    GREEN.lower(): "green",
    PURPLE.lower(): "purple",
    "#e69f00": "yellow",
    "#56b4e9": "sky",
}
"""Colours that have a variable in pages.css, `--plot-NAME`. Any other colour is the same in the dark."""

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_HEX = re.compile(r"#[0-9a-f]{6}")
_REFERENCE = re.compile(r"#([\w.-]+)")
_COORDINATES = {"d", "x", "y", "width", "height"}
_SKIPPED = {"metadata", "style", "defs"}


class Drawings:
    """The drawings of one page. `shared` and `style` are complete when every figure has been asked for."""

    def __init__(self) -> None:
        self._shapes: dict[str, str] = {}  # markup without its id → the id
        self._classes: dict[str, str] = {}  # style → the class

    def figure(self, file: File, description: str) -> str:
        """The drawing as a figure of the page; its size is known before it is drawn."""
        root = ElementTree.fromstring(file.read_text(encoding="utf8"))
        ids: dict[str, str] = {}
        for shape in _definitions(root):
            ids[shape.attrib["id"]] = self._shape(self._element(shape, ids))
        content = "".join(self._element(child, ids) for child in root)
        view = root.attrib["viewBox"]
        wide, high = view.split()[2:]
        return (
            f'<figure class="drawing" style="aspect-ratio: {wide} / {high}; --wide: {wide}">'
            f'<svg viewBox="{view}" role="img" aria-label="{escaped(description)}">{content}</svg></figure>'
        )

    @property
    def shared(self) -> str:
        """The shapes that the drawings use, as an element of the page that shows nothing."""
        shapes = (markup.replace(" ", f' id="{name}" ', 1) for markup, name in self._shapes.items())
        return f'<svg class="shapes" aria-hidden="true"><defs>{"".join(shapes)}</defs></svg>'

    @property
    def style(self) -> str:
        """The styles that the drawings use, for the style sheet of the page."""
        return "\n".join(f".{name} {{ {_themed(style)} }}" for style, name in self._classes.items())

    # ------------------------------------------------------------------ one element

    def _element(self, element: ElementTree.Element, ids: dict[str, str]) -> str:
        tag = _tag(element)
        if tag in _SKIPPED:
            return ""
        attributes = "".join(f' {name}="{value}"' for name, value in self._attributes(element, ids))
        content = "".join(self._element(child, ids) for child in element)
        if tag != "g":
            return f"<{tag}{attributes or ' '}>{content}</{tag}>" if content else f"<{tag}{attributes}/>"
        if not content or not attributes:
            return content
        if "scale(" in attributes:  # a text: its letters stand once on the page, however often it is written
            return f'<use{attributes} href="#{self._shape(f"<g >{content}</g>")}"/>'
        return f"<g{attributes}>{content}</g>"

    def _attributes(self, element: ElementTree.Element, ids: dict[str, str]) -> Iterable[tuple[str, str]]:
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]  # xlink:href is href in HTML
            if name == "id":
                continue
            if value.startswith("data:"):
                yield name, "".join(value.split())
            elif name in ("href", "clip-path"):
                yield name, _REFERENCE.sub(lambda match: f"#{ids[match[1]]}", value)
            elif name == "style":
                yield "class", self._numbered(self._classes, value, "d")
            elif name in _COORDINATES:
                yield name, _compact(value)
            elif name == "transform":
                yield name, re.sub(r"(?<=translate\()[^)]+", lambda match: _compact(match[0]), value)
            else:
                yield name, value

    def _shape(self, markup: str) -> str:
        return self._numbered(self._shapes, markup, "s")

    @staticmethod
    def _numbered(names: dict[str, str], content: str, letter: str) -> str:
        return names.setdefault(content, f"{letter}{len(names)}")


def _definitions(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Everything that other elements refer to: letters, markers, clipping rectangles."""
    parts = (part for part in root.iter() if _tag(part) == "defs")
    return [child for part in parts for child in part if _tag(child) != "style"]


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _compact(numbers: str) -> str:
    """Coordinates with fewer decimals and spaces."""
    rounded = _NUMBER.sub(lambda match: _rounded(float(match[0])), numbers)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(rounded.split()))


def _rounded(number: float) -> str:
    text = f"{number:.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _themed(style: str) -> str:
    def variable(match: re.Match[str]) -> str:
        name = COLOURS.get(match[0])
        return f"var(--plot-{name})" if name else match[0]

    return _HEX.sub(variable, style)
