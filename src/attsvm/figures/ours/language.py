"""A small language model while it learns: when its heads select, and what optimizers write into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.figures.accuracy import exactly
from attsvm.figures.figure import CONJECTURED, Arrays, Check
from attsvm.figures.ours.head_ranks import MEASURES, interval, ranked
from attsvm.figures.panels import describe, grid
from attsvm.figures.papers import OURS
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import BLUE, GREEN, GREY, ORANGE
from attsvm.numbers import Float

RULES = {
    "adam+gd-heads": ("gradient descent", "nuclear", BLUE),
    "adam": ("Adam", "", GREY),
    "adam+adamw": ("AdamW", "", "#000000"),
    "adam+schatten4-heads": ("Schatten-4 steps", "Frobenius", GREEN),
    "adam+muon-heads": ("Muon", "spectral", ORANGE),
}
"""Optimizer of each head's W_Q and W_K, everything else by Adam: name, norm by the law of halves, colour."""
SEEDS, MILLION = 3, 1e6
COUNTS, ENDS = ("selecting", "first", "previous", "induction"), ("test", "begins", "heads")
DRAWN = ("adam+gd-heads", "adam", "adam+muon-heads")
"""Whose selecting heads are counted in the figure."""

SHOWS = (
    "A decoder of seven million parameters on the next token of movie reviews; only W_Q and W_K have "
    "different optimizers. Its heads begin to select when the loss leaves that of single words, under "
    "gradient descent first; few heads ever sink into the start token, those of the token before come last, "
    "and none learns induction. What was added to a head has few directions under gradient descent, more "
    "with Schatten-4 steps and most under Muon, at every look and, with intervals over three seeds, at equal "
    "train loss. Lines: means of the trainings that ended, bands: their range."
)
NOTES = (
    "One model, one corpus, read 4.3 times, constant steps that were not tuned. Three of fifteen "
    "trainings were cut by a deadline; all of them reach the loss at which the ranks are compared."
)


@OURS.figure(
    "language",
    "When the heads of a language model begin to select",
    shows=SHOWS,
    notes=NOTES,
    **facts("language"),
)
def experiment() -> Arrays:
    """Of every optimizer, by seed and look: losses, heads that select and of each kind, what was added.

    Of all trainings, NaN after a cut: fit (seeds, looks), the train loss; added (seeds, looks − 1, 3), the
    MEASURES; ended (seeds,). Of those that ended: test; copy, by how much random tokens are foretold better
    when they are read again; COUNTS (seeds, looks) of heads; begins (seeds, heads), the look at which a head
    begins to select, −1 for never; heads (seeds, heads, columns). tokens (looks,), in millions.
    """
    runs: dict[str, Any] = recorded("language")["runs"]
    arrays: dict[str, Any] = {}
    looks = max(len(run["tokens"]) for run in runs.values())
    for rule in RULES:
        found = [runs[name] for k in range(SEEDS) if (name := f"language-20-{rule}-{k}") in runs]
        done = [run for run in found if run["ended"]]
        if not done:
            continue
        copies = np.array([run["copy"] for run in done])
        arrays |= {
            f"tokens {rule}": np.array(done[0]["tokens"]) / MILLION,
            f"fit {rule}": np.array([_filled(run["fit"], looks) for run in found]),
            f"added {rule}": np.array([_filled(run["added"], looks - 1) for run in found]),
            f"ended {rule}": np.array([run["ended"] for run in found]),
            f"copy {rule}": copies[..., 0] - copies[..., 1],
        }
        arrays |= {f"{name} {rule}": np.array([run[name] for run in done]) for name in ENDS}
        arrays |= {f"{name} {rule}": np.array([run["counts"][name] for run in done]) for name in COUNTS}
    return arrays


def _filled(values: list[Any], looks: int) -> Float:
    """NaN at the looks that a training did not reach."""
    known = np.array(values, float)
    return np.concatenate([known, np.full((looks - len(known), *known.shape[1:]), np.nan)])


def level(arrays: Arrays, ended: bool = False) -> float:
    """The train loss that every training has reached, or every one that ended."""
    fits = [fit for rule in there(arrays) for fit in arrays[f"fit {rule}"]]
    return float(max(np.nanmin(fit) for fit in fits if not ended or np.isfinite(fit[-1])))


def at_loss(arrays: Arrays, rule: str, measure: str, loss: float) -> Float:
    """One number for each seed that passes a train loss: a measure there, between two looks."""
    k = MEASURES.index(measure)
    pairs = zip(arrays[f"fit {rule}"][:, 1:], arrays[f"added {rule}"][..., k], strict=True)
    return np.array([_passing(fit, values, loss) for fit, values in pairs if np.nanmin(fit) <= loss])


def _passing(fit: Float, values: Float, loss: float) -> float:
    below = int(np.argmax(fit <= loss))
    if below == 0:
        return float(values[0])
    share = (fit[below - 1] - loss) / (fit[below - 1] - fit[below])
    return float((1 - share) * values[below - 1] + share * values[below])


def there(arrays: Arrays) -> dict[str, Any]:
    """The optimizers with a training that ended."""
    return {rule: look for rule, look in RULES.items() if f"fit {rule}" in arrays}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Losses, heads that select, and ranks of what was added, by tokens; ranks at equal loss."""
    figure, ((losses, selecting), (ranks, equal)) = grid(2, 2, 5.4)
    rules = there(arrays)
    _curves(losses, arrays, rules, "fit")
    describe(losses, "train loss", "tokens, millions", "nats")
    for rule in (rule for rule in DRAWN if rule in rules):
        color, tokens = rules[rule][2], arrays[f"tokens {rule}"][1:]
        for name, style in (("selecting", "-"), ("first", "--"), ("previous", ":")):
            selecting.plot(tokens, arrays[f"{name} {rule}"][:, 1:].mean(0), style, color=color, lw=1.5)
    selecting.set_xscale("log")
    describe(selecting, "heads that select, sink (- -), look back (··)", "tokens, millions", "of 48 heads")
    _curves(ranks, arrays, rules, "added")
    ranks.set_yscale("log")
    ranks.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ranks.minorticks_off()
    describe(ranks, "stable rank of what was added", "tokens, millions", "‖W‖²_F / ‖W‖²")
    loss = level(arrays)
    rows = [(*look, at_loss(arrays, rule, "stable rank", loss)) for rule, look in rules.items()]
    ranked(equal, rows, (1, 2, 3, 4, 5))
    equal.set_xlim(1, 5.5)
    describe(equal, f"at equal train loss, {loss:.2f}", "‖W‖²_F / ‖W‖²")
    return figure


def _curves(ax: Axes, arrays: Arrays, rules: Mapping[str, Any], name: str) -> None:
    """Mean over seeds with their range, by tokens."""
    for rule, (words, _, color) in rules.items():
        values = arrays[f"{name} {rule}"][arrays[f"ended {rule}"]]
        values = values[..., 0] if values.ndim == 3 else values
        tokens = arrays[f"tokens {rule}"][-values.shape[1] :]
        tokens, values = tokens[tokens > 0], values[:, tokens > 0]
        ax.fill_between(tokens, values.min(0), values.max(0), color=color, alpha=0.25, lw=0)
        ax.plot(tokens, values.mean(0), color=color, lw=1.5, label=words)
    ax.set_xscale("log")
    if name == "fit":
        ax.legend(fontsize=7, frameon=False)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Whether the intervals of the ranks at equal loss are apart, in the order of the law's norms."""
    orders = (
        ("adam+gd-heads", "adam+schatten4-heads"),
        ("adam+schatten4-heads", "adam+muon-heads"),
        ("adam+gd-heads", "adam+muon-heads"),
    )
    found = []
    for low, high in orders:
        if not all(len(arrays.get(f"fit {rule}", ())) > 1 for rule in (low, high)):
            continue
        for measure in MEASURES[:2]:
            below, above = (interval(at_loss(arrays, rule, measure, level(arrays))) for rule in (low, high))
            apart = below[1] < above[0]
            what = f"{measure} at equal loss: interval of {RULES[low][0]} below that of {RULES[high][0]}"
            found.append(Check(what, CONJECTURED, LAW, 1.0, apart, exactly("yes or no")))
    return found


LAW = "the law of halves, carried over to a language model"
