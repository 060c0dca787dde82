"""The types of a figure: the figure itself, its paper, and the checks of its numbers against references."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from matplotlib.figure import Figure as Canvas

from attsvm.plotting.style import TITLE_SIZE, plain_powers
from attsvm_lab.figures.accuracy import Accuracy, exactly
from attsvm_lab.figures.recorded import origin

Arrays = dict[str, Any]
Scale = Literal["quick", "default", "paper"]
Status = Literal[
    "agrees",
    "differs: the published recipe gives the published number",
    "differs, not explained",
    "not comparable yet",
    "agrees, but could not have failed",
]
AGREES: Final = "agrees"
RECIPE: Final = "differs: the published recipe gives the published number"
UNEXPLAINED: Final = "differs, not explained"
SHORT: Final = "not comparable yet"
POWERLESS: Final = "agrees, but could not have failed"
STATUSES: tuple[Status, ...] = (AGREES, RECIPE, UNEXPLAINED, SHORT, POWERLESS)
"""The possible outcomes of a check. Only the first two are understood."""

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
"""The kinds of references, the published kinds first."""
PUBLISHED: tuple[Provenance, ...] = (PRINTED, PLOT)
MEASURED: tuple[Provenance, ...] = (*PUBLISHED, RUN)
"""References that were measured: their tolerance follows from digits, axes and samples alone."""


@dataclass(frozen=True)
class Check:
    """One of our numbers beside its reference.

    what: the quantity; provenance: the kind of the reference, one of KINDS; source: where the reference
    stands; reference, ours: the two numbers; accuracy: how well both are known, which gives the tolerance;
    because: an explanation. item: the published number this row is about, where several rows share one.
    recipe: where a row may differ because the paper computed otherwise, our row that repeats the published
    recipe. short: how many epochs, seeds or runs a comparison still lacks. beside: the other published
    numbers of the figure that differ from this one by more than the accuracy of its source; `Figure.rows`
    sets them.
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
    beside: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.provenance not in KINDS:
            raise ValueError(f"provenance is {self.provenance!r}. Pass one of: {', '.join(KINDS)}.")
        if not isinstance(self.accuracy, Accuracy):
            remedy = "Pass one that says how well both are known: digits, axis, sampled, counted, within."
            raise TypeError(f"{self.what}: its accuracy is {self.accuracy!r}. {remedy}")
        for name in ("reference", "ours"):  # from NumPy's numbers and truth values, too
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "beside", tuple(self.beside))  # a record has a list
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
        """Whether half of a published number, or twice it, would agree as well."""
        return self.published and self.tolerance > abs(self.reference) / 2 > 0

    @property
    def told_apart(self) -> tuple[int, int]:
        """Of the published numbers `beside` this one: from how many ours would differ, and their number."""
        return sum(abs(self.ours - other) > self.tolerance for other in self.beside), len(self.beside)

    @property
    def powerless(self) -> bool:
        """Whether a published row accepts what it should tell apart, and so could not have failed.

        It is blunt, or accepts more than half of the other published numbers of its figure.
        """
        differ, others = self.told_apart
        return self.published and (self.blunt or 2 * differ < others)

    @property
    def agreement(self) -> Status:
        if self.short:
            return SHORT
        if self.agrees:
            return POWERLESS if self.powerless else AGREES
        if self.recipe is None:
            return UNEXPLAINED
        status = self.recipe.agreement
        if status == POWERLESS:  # the recipe's row would have accepted other numbers, too
            return SHORT
        return RECIPE if status == AGREES else status

    @property
    def reason(self) -> str:
        """The reason of the agreement; "" where the numbers alone show it."""
        if self.agreement in (AGREES, UNEXPLAINED):
            return ""
        if self.recipe is not None and not self.agrees:
            return f"{self.recipe.what}: {self.recipe.ours:.4g}"
        if self.short:
            return self.short
        if self.blunt:
            return f"within more than half of the number ({self.accuracy.words})"
        differ, others = self.told_apart
        return f"differs from {differ} of {others} other published numbers of the figure"

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Check:
        """The check that `dataclasses.asdict` wrote."""
        recipe = record["recipe"] and cls.from_record(record["recipe"])
        return cls(**{**record, "accuracy": Accuracy(**record["accuracy"]), "recipe": recipe})


def certified(arrays: Arrays) -> Check:
    """Whether all programs of a figure are certified, by its array `certified`."""
    share = arrays["certified"].mean()
    return Check("share of certified programs", DERIVED, "definition", 1.0, share, exactly("every program"))


def beside_each_other(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks of one figure, each published one with the other published numbers of the figure.

    Left out: numbers that the source itself cannot tell from the row's own, and rows that are not compared.
    """
    references = {check.reference for check in checks if check.published and not check.short}

    def completed(check: Check) -> Check:
        known_to = check.accuracy.known_to
        others = sorted(r for r in references if abs(r - check.reference) > known_to)
        recipe = check.recipe and completed(check.recipe)
        return replace(check, recipe=recipe, beside=tuple(others) if check.published else ())

    return tuple(map(completed, checks))


def items(checks: Sequence[Check], kinds: Sequence[Provenance] = PUBLISHED) -> dict[str, Status]:
    """The status of each number of these kinds among the checks, once, however many rows it has.

    A row that repeats a recipe belongs to the row that names it. Among the other rows of a number, the worst
    counts.
    """
    repeats = {check.recipe.what for check in checks if check.recipe is not None}
    statuses: dict[str, Status] = {}
    for check in checks:
        if check.provenance in kinds and check.what not in repeats:
            name = check.item or check.what
            statuses[name] = max(statuses.get(name, AGREES), check.agreement, key=SEVERITY.index)
    return statuses


SEVERITY: tuple[Status, ...] = (AGREES, RECIPE, POWERLESS, SHORT, UNEXPLAINED)
"""The outcomes from best to worst."""


def summary(counts: Mapping[Status, int], noun: str) -> str:
    """How many of the numbers called `noun` have each status, in words, without the statuses of none."""
    clauses = [f"{counts.get(AGREES, 0)} of {sum(counts.values())} {noun} agree"]
    if count := counts.get(POWERLESS, 0):
        clauses = [f"{clauses[0]} in rows that could have failed, {count} in rows that could not"]
    if count := counts.get(RECIPE, 0):
        verb = "differs" if count == 1 else "differ"
        clauses.append(f"{count} {verb}, where the published recipe gives the published number")
    if count := counts.get(UNEXPLAINED, 0):
        clauses.append(f"{count} {'differs' if count == 1 else 'differ'}, not explained")
    if count := counts.get(SHORT, 0):
        clauses.append(f"{count} {'is' if count == 1 else 'are'} not comparable yet")
    return "; ".join(clauses)


def scales(**values: tuple[Any, Any, Any]) -> dict[Scale, dict[str, Any]]:
    """The arguments of an experiment at every scale, from each argument's values at quick, default, paper."""
    names: tuple[Scale, ...] = ("quick", "default", "paper")
    return {scale: {name: triple[k] for name, triple in values.items()} for k, scale in enumerate(names)}


Experiment = Callable[..., Arrays]
Drawing = Callable[[Arrays], Canvas]
Checks = Callable[[Arrays], Sequence[Check]]


@dataclass(eq=False)
class Figure:
    """A figure that anyone can regenerate, made by the decorator `Paper.figure`.

    experiment(**sizes): seeded arrays. sizes: the experiment's arguments at each scale (runs, steps, seeds).
    shows: what a reader sees in it, in one to three sentences. notes: where we differ from the published
    figure, and why; empty when we do not. long_runs: even at the quick scale running takes longer than
    compiling. seconds: processor time at the default scale, as measured once; the longest figures are
    started first, and figures without this number before them.
    draw(arrays): a matplotlib figure; a figure without it is a table of numbers only.
    checks(arrays): our numbers beside their references.
    record: the name of a record that a larger machine computed once, for a figure that draws one.
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
        return origin(self.record) if self.record else ""

    def draws(self, drawing: Drawing) -> Drawing:
        """Decorator: this function draws the figure."""
        self.draw = drawing
        return drawing

    def checked_by(self, checks: Checks) -> Checks:
        """Decorator: this function compares the figure's numbers with their references."""
        self.checks = checks
        return checks

    def rows(self, arrays: Arrays) -> tuple[Check, ...]:
        """The checks, each beside the other published numbers of the figure."""
        return beside_each_other(self.checks(arrays))

    def __call__(self, *sizes: Any, **keywords: Any) -> Arrays:
        return self.experiment(*sizes, **keywords)

    def compute(self, scale: Scale = "default") -> Arrays:
        """The arrays at a scale: quick (a look), default (small), paper (full size)."""
        return self.experiment(**self.sizes[scale])

    def picture(self, arrays: Arrays) -> Canvas | None:
        """The drawing, in the look that all figures share."""
        canvas = None if self.draw is None else self.draw(arrays)
        for ax in canvas.axes if canvas is not None else ():
            ax.title.set_fontsize(TITLE_SIZE)  # set_title resets a size that was set before it
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
            figure = Figure(name, title, experiment=experiment, **facts)
            self.figures.append(figure)
            return figure

        return register
