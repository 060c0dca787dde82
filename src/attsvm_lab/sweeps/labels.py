"""Parameters and measures of a study in words, for titles and axes."""

from __future__ import annotations

TITLES = {
    "global": "Runs that end at the best tokens",
    "local": "Runs that end at another, locally optimal, selection",
    "neither": "Runs that end elsewhere, or are not finished",
    "unmoved": "Runs that never left their start",
    "separable": "Draws whose best tokens some W separates",
    "margin_ratio": "Margin as a share of the best possible",
    "one_minus_cosine": "1 − cosine to the predicted program",
    "norm_growth": "Exponent of the norm over the last decade of steps",
    "rate": "Exponent of the error over the last decade of steps",
    "arrival": "Steps until 99 % of the best margin",
}
"""The title of each measure."""

AXES = {
    "global": "share of runs",
    "local": "share of runs",
    "neither": "share of runs",
    "unmoved": "share of runs",
    "separable": "share of draws",
    "margin_ratio": "margin / best margin",
    "one_minus_cosine": "1 − cosine",
    "norm_growth": "exponent of the norm",
    "rate": "exponent of the error",
    "arrival": "steps",
}
"""The label of each measure on an axis, below its title."""

PARAMETERS = {
    "model": "data set",
    "n": "number of inputs n",
    "T": "tokens per input T",
    "d": "width of a token d",
    "e": "width of a query e",
    "r": "rank r",
    "rank": "rank r",
    "lr": "step size",
    "steps": "steps",
    "norm": "norm of the steps",
    "optimizer": "optimizer",
    "weight": "trained weight",
    "loss": "loss",
    "init": "start",
    "momentum": "momentum",
    "decay": "weight decay",
    "batch": "inputs per step",
    "depth": "number of factors",
    "heads": "number of heads",
    "noise": "noise",
}
"""The label of each parameter on an axis."""


def title(quantity: str) -> str:
    """The title of a measure such as margin_ratio:l1; a measure of the user's own is its own title."""
    name, _, norm = quantity.partition(":")
    if name not in TITLES:
        return quantity
    return f"{TITLES[name]}, {norm}" if norm else TITLES[name]


def axis(quantity: str) -> str:
    """The label of a measure on an axis."""
    return AXES.get(quantity.partition(":")[0], quantity)


def parameter(name: str) -> str:
    """The label of a parameter on an axis."""
    return PARAMETERS.get(name, name)


def study_title(name: str, measures: tuple[str, ...], varying: list[str]) -> str:
    """The title of a study that has none: its name, what it measures and over what."""
    wanted = {"kind": "where runs end"}
    what = [wanted.get(measure, title(measure).lower()) for measure in measures]
    text = f"{name.replace('_', ' ').strip().capitalize()}: {_listed(what)}"
    return f"{text}, over {_listed(varying)}" if varying else text


def _listed(words: list[str]) -> str:
    """One, two and three; of more than three the first two, and the number of the others."""
    if len(words) > 3:
        words = [*words[:2], f"{len(words) - 2} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
