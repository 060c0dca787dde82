"""What a figure is: a name, arrays, a drawing, and the numbers it must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from matplotlib.figure import Figure as Canvas

from attsvm.figures.accuracy import Accuracy, exactly
from attsvm.figures.recorded import made
from attsvm.figures.style import TITLE_SIZE, plain_powers

Arrays = dict[str, Any]
Scale = Literal["quick", "default", "paper"]
Status = Literal[
    "agrees",
    "differs: the published recipe gives the published number",
    "differs, not explained",
    "not comparable yet",
]
AGREES: Final = "agrees"
RECIPE: Final = "differs: the published recipe gives the published number"
UNEXPLAINED: Final = "differs, not explained"
SHORT: Final = "not comparable yet"
STATUSES: tuple[Status, ...] = (AGREES, RECIPE, UNEXPLAINED, SHORT)
"""What can come of a check. Only the first two are understood."""

Provenance = Literal["printed", "read off a plot", "stated", "derived", "conjectured", "independent run"]

PRINTED: Final = "printed"
PLOT: Final = "read off a plot"
STATED: Final = "stated"
DERIVED: Final = "derived"
CONJECTURED: Final = "conjectured"
RUN: Final = "independent run"
KINDS: dict[Provenance, str] = {
    PRINTED: "a number in the paper's text, its notebooks or their saved results",
    PLOT: "a published plot, read to about 2 % of its axes",
    STATED: "what a paper says or plainly shows without a number of its own: a straight line, an order",
    DERIVED: "a closed form, a definition or an asymptotic order that we worked out",
    CONJECTURED: "an expectation without a published number: a statement that we recall from a paper, or "
    "carry beyond what it proves",
    RUN: "a small script of ours that shares no code with the package, run once, often on other draws",
}
"""Where the numbers come from, the published kinds first."""
PUBLISHED: tuple[Provenance, ...] = (PRINTED, PLOT)
MEASURED: tuple[Provenance, ...] = (*PUBLISHED, RUN)
"""References that somebody measured: how near ours must be follows from digits, axes and samples alone."""


@dataclass(frozen=True)
class Check:
    """One number beside the one it must meet.

    what: the quantity; provenance: what kind of number the reference is, one of KINDS; source: where it
    stands; reference, ours: the two numbers; accuracy: how well both are known, which gives the tolerance;
    because: what there is to say about it. item: the published number this row is about, where several
    rows share one. recipe: of a row that may differ because the paper computed otherwise, the row of ours
    that repeats the published recipe. short: how many epochs, seeds or runs a comparison still lacks.
    """

    what: str
    provenance: Provenance
    source: str
    reference: float
    ours: float
    accuracy: Accuracy
    because: str = ""
    item: str = ""
    recipe: Check | None = None
    short: str = ""

    def __post_init__(self) -> None:
        if self.provenance not in KINDS:
            raise ValueError(f"provenance is {self.provenance!r}. Pass one of: {', '.join(KINDS)}.")
        if not isinstance(self.accuracy, Accuracy):
            words = "Pass one that says how well both are known: digits, axis, sampled, counted, within."
            raise TypeError(f"{self.what}: its accuracy is {self.accuracy!r}. {words}")
        for name in ("reference", "ours"):  # NumPy's numbers, too, and what is true or false
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.accuracy.criterion and self.provenance in MEASURED:
            raise ValueError(
                f"{self.what}: a bound set by hand beside a number that somebody measured. "
                "Pass its accuracy: digits, axis, sampled, counted or exactly."
            )
        if self.recipe is not None and self.recipe.reference != self.reference:
            raise ValueError(
                f"{self.what}: its recipe is about {self.recipe.reference:g}, not {self.reference:g}. "
                "Pass the row that repeats how this very number was made."
            )

    @property
    def published(self) -> bool:
        """Whether the reference was published: printed, or drawn in a plot."""
        return self.provenance in PUBLISHED

    @property
    def tolerance(self) -> float:
        return self.accuracy.tolerance

    @property
    def agrees(self) -> bool:
        return abs(self.ours - self.reference) <= self.tolerance

    @property
    def blunt(self) -> bool:
        """Whether half of a published number, or twice it, would agree as well: such a row says nothing."""
        return self.published and self.tolerance > abs(self.reference) / 2 > 0

    @property
    def agreement(self) -> Status:
        if self.short or (self.agrees and self.blunt):
            return SHORT
        if self.agrees:
            return AGREES
        found = UNEXPLAINED if self.recipe is None else self.recipe.agreement
        return RECIPE if found == AGREES else found

    @property
    def reason(self) -> str:
        """Why the agreement is what it is, where the numbers alone do not say it."""
        if self.agreement in (AGREES, UNEXPLAINED):
            return ""
        if self.recipe is not None and not self.agrees:
            return f"{self.recipe.what}: {self.recipe.ours:.4g}"
        return self.short or f"within more than half of the number ({self.accuracy.words})"

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Check:
        """The check that `dataclasses.asdict` wrote."""
        inner = record["recipe"] and cls.from_record(record["recipe"])
        return cls(**{**record, "accuracy": Accuracy(**record["accuracy"]), "recipe": inner})


def certified(arrays: Arrays) -> Check:
    """Whether all programs of a figure are, by its array `certified`."""
    share = arrays["certified"].mean()
    return Check("share of certified programs", DERIVED, "definition", 1.0, share, exactly("every program"))


def items(checks: Sequence[Check]) -> dict[str, Status]:
    """What came of each published number among the checks, once, however many rows it has.

    A row that only repeats a recipe speaks for the row that names it; of the others the worst counts.
    """
    repeats = {check.recipe.what for check in checks if check.recipe is not None}
    found: dict[str, Status] = {}
    for check in checks:
        if check.published and check.what not in repeats:
            name = check.item or check.what
            found[name] = max(found.get(name, AGREES), check.agreement, key=WORST.index)
    return found


WORST: tuple[Status, ...] = (AGREES, RECIPE, SHORT, UNEXPLAINED)


def told(counts: Mapping[Status, int], of: str) -> str:
    """How many of some numbers have each status, in words; a status that none has is left out."""
    words: dict[Status, str] = {
        RECIPE: "where the published recipe gives the published number",
        UNEXPLAINED: "not explained",
    }
    parts = [f"{counts.get(AGREES, 0)} of {sum(counts.values())} {of} agree"]
    for status, why in words.items():
        if count := counts.get(status, 0):
            parts.append(f"{count} {'differs' if count == 1 else 'differ'}, {why}")
    if count := counts.get(SHORT, 0):
        parts.append(f"{count} {'is' if count == 1 else 'are'} not comparable yet")
    return "; ".join(parts)


def scales(**each: tuple[Any, Any, Any]) -> dict[Scale, dict[str, Any]]:
    """What every scale passes to an experiment, from the values of each argument at quick, default, paper."""
    names: tuple[Scale, ...] = ("quick", "default", "paper")
    return {scale: {name: values[k] for name, values in each.items()} for k, scale in enumerate(names)}


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
