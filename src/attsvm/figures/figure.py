"""What a figure is: a name, arrays, a drawing, and the numbers it must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from matplotlib.figure import Figure as Canvas

from attsvm.figures.recorded import made
from attsvm.figures.style import TITLE_SIZE, plain_powers

Arrays = dict[str, Any]
Scale = Literal["quick", "default", "paper"]
Agreement = Literal["agrees", "differs, explained", "disagrees"]
Provenance = Literal["printed", "read off a plot", "derived", "conjectured", "independent run"]

PRINTED: Final = "printed"
PLOT: Final = "read off a plot"
DERIVED: Final = "derived"
CONJECTURED: Final = "conjectured"
RUN: Final = "independent run"
KINDS: dict[Provenance, str] = {
    PRINTED: "a number or a plain statement in the paper's text, its notebooks or their saved results",
    PLOT: "a published plot, read to about 2 % of its axes",
    DERIVED: "a closed form, a definition or an asymptotic order that we worked out",
    CONJECTURED: "an expectation without a published number: a statement that we recall from a paper, or "
    "carry beyond what it proves",
    RUN: "a small script of ours that shares no code with the package, run once, often on other draws",
}
"""Where the numbers come from, the published kinds first."""
PUBLISHED: tuple[Provenance, ...] = (PRINTED, PLOT)


@dataclass(frozen=True)
class Check:
    """One number beside the one it must meet.

    what: the quantity; provenance: what kind of number the reference is, one of KINDS; source: where it
    stands; reference, ours: the two numbers; tolerance: how far apart they may be, absolute;
    because: why the tolerance, or, where we know that the reference is off, why we differ.
    """

    what: str
    provenance: Provenance
    source: str
    reference: float
    ours: float
    tolerance: float
    because: str = ""
    expected_to_differ: bool = False

    def __post_init__(self) -> None:
        if self.provenance not in KINDS:
            raise ValueError(f"provenance is {self.provenance!r}. Pass one of: {', '.join(KINDS)}.")

    @property
    def published(self) -> bool:
        """Whether the reference was published: printed, or drawn in a plot."""
        return self.provenance in PUBLISHED

    @property
    def agrees(self) -> bool:
        return abs(self.ours - self.reference) <= self.tolerance

    @property
    def agreement(self) -> Agreement:
        if self.agrees:
            return "agrees"
        return "differs, explained" if self.expected_to_differ else "disagrees"


Experiment = Callable[..., Arrays]
Drawing = Callable[[Arrays], Canvas]
Checks = Callable[[Arrays], Sequence[Check]]


@dataclass(eq=False)
class Figure:
    """A figure that anyone can regenerate, made by the decorator `Paper.figure`.

    experiment(**sizes): seeded arrays. sizes: what each scale passes to it (runs, steps, seeds).
    shows: what to see in it, in one to three sentences. notes: where we differ from the published
    figure, and why; empty when we do not. long_runs: even at the quick scale running takes longer than
    compiling. seconds: processor time at the default scale, as measured once; the longest figures are
    started first, and those that declare nothing before them.
    draw(arrays): a matplotlib figure; without one it is a table of numbers only.
    checks(arrays): our numbers beside their references.
    record: of a figure that draws what a larger machine computed once: the name of the record.
    """

    name: str
    title: str
    shows: str
    experiment: Experiment
    sizes: Mapping[Scale, Mapping[str, Any]]
    draw: Drawing | None = None
    checks: Checks = field(default=lambda arrays: ())
    notes: str = ""
    long_runs: bool = False
    seconds: float = math.inf
    record: str = ""

    @property
    def recorded(self) -> str:
        """Which machine, code and command made the record; empty where there is none."""
        return made(self.record) if self.record else ""

    def draws(self, drawing: Drawing) -> Drawing:
        """Decorator: this function draws the figure."""
        self.draw = drawing
        return drawing

    def checked_by(self, checks: Checks) -> Checks:
        """Decorator: this function sets the figure's numbers beside their references."""
        self.checks = checks
        return checks

    def __call__(self, *sizes: Any, **named: Any) -> Arrays:
        return self.experiment(*sizes, **named)

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
    figures: list[Figure] = field(default_factory=list)

    def figure(self, name: str, title: str, **facts: Any) -> Callable[[Experiment], Figure]:
        """Make a figure of the experiment below; the arguments are fields of `Figure`.

        @paper.figure("coin", "A coin", shows="Heads come up half of the time.", sizes={…})
        def experiment(throws): ...

        @experiment.draws
        def draw(arrays): ...

        @experiment.checked_by
        def checks(arrays): ...
        """

        def register(experiment: Experiment) -> Figure:
            made = Figure(name, title, experiment=experiment, **facts)
            self.figures.append(made)
            return made

        return register
