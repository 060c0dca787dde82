"""What a figure is: a name, arrays, a drawing, and the published numbers it must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.figure import Figure as Canvas

from attsvm.figures.style import TITLE_SIZE, plain_powers

Arrays = dict[str, Any]
Scale = Literal["quick", "default", "paper"]
Agreement = Literal["agrees", "differs, explained", "disagrees"]


@dataclass(frozen=True)
class Check:
    """One number beside the published one.

    what: the quantity; source: where it was published, "derived" for a closed form;
    published, ours: the two numbers; tolerance: how far apart they may be, absolute;
    because: why the tolerance, or, where we know that the published number is off, why we differ.
    """

    what: str
    source: str
    published: float
    ours: float
    tolerance: float
    because: str = ""
    expected_to_differ: bool = False

    @property
    def agrees(self) -> bool:
        return abs(self.ours - self.published) <= self.tolerance

    @property
    def agreement(self) -> Agreement:
        if self.agrees:
            return "agrees"
        return "differs, explained" if self.expected_to_differ else "disagrees"


@dataclass(frozen=True)
class Figure:
    """A figure that anyone can regenerate.

    experiment(**sizes): seeded arrays. sizes: what each scale passes to it (runs, steps, seeds).
    draw(arrays): a matplotlib figure, or None for a table of numbers only.
    checks(arrays): our numbers beside the published ones.
    shows: what to see in it, in one to three sentences. notes: where we differ from the published
    figure, and why; empty when we do not. long_runs: even at the quick scale running takes longer than
    compiling. seconds: processor time at the default scale, as measured once; the longest figures are
    started first, and those that declare nothing before them.
    recorded: of a figure that draws what a larger machine computed once: which machine, code and command.
    """

    name: str
    title: str
    shows: str
    experiment: Callable[..., Arrays]
    sizes: Mapping[Scale, Mapping[str, Any]]
    draw: Callable[[Arrays], Canvas] | None
    checks: Callable[[Arrays], Sequence[Check]]
    notes: str = ""
    long_runs: bool = False
    seconds: float = math.inf
    recorded: str = ""

    def compute(self, scale: Scale = "default") -> Arrays:
        """The arrays at a scale: quick (a look), default (small), paper (full size)."""
        return self.experiment(**self.sizes[scale])

    def picture(self, arrays: Arrays) -> Canvas | None:
        """The drawing, in the look that all figures share."""
        canvas = None if self.draw is None else self.draw(arrays)
        for ax in canvas.axes if canvas is not None else ():
            ax.title.set_fontsize(TITLE_SIZE)  # set_title forgets the size set before
            plain_powers(ax)
        return canvas


@dataclass(frozen=True)
class Paper:
    """A paper, or our own work, and its figures in the order of the page."""

    name: str
    title: str
    reference: str
    figures: tuple[Figure, ...]
