"""What a figure is: a name, arrays, a drawing, and the published numbers it must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as Canvas

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One number beside the published one.

    what: the quantity; source: where it was published, "derived" for a closed form;
    published, ours: the two numbers; tolerance: how far apart they may be, absolute.
    """

    what: str
    source: str
    published: float
    ours: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return abs(self.ours - self.published) <= self.tolerance


@dataclass(frozen=True)
class Figure:
    """A figure that anyone can regenerate.

    compute(): seeded arrays. draw(arrays): a matplotlib figure, or None for a table of numbers only.
    checks(arrays): our numbers beside the published ones.
    """

    name: str
    title: str
    compute: Callable[[], Arrays]
    draw: Callable[[Arrays], Canvas] | None
    checks: Callable[[Arrays], Sequence[Check]]
