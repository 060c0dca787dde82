"""A small language model during training: when its heads begin to select, and what optimizers add to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.ours.head_ranks import MEASURES, interval, ranked
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

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
"""Optimizers whose selecting heads the figure counts."""

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
    """Of every optimizer, by seed and record: losses, heads that select and of each kind, what was added.

    Of all trainings, NaN after a cut: fit (seeds, k), the train loss; added (seeds, k − 1, 3), the MEASURES;
    ended (seeds,). Of finished trainings: test; copy, the gain in log-likelihood when random tokens are read
    again; COUNTS (seeds, k) of heads; begins (seeds, heads), the record at which a head begins to select, −1
    for never; heads (seeds, heads, columns). tokens (k,), in millions.
    """
    runs: dict[str, Any] = recorded("language")["runs"]
    arrays: dict[str, Any] = {}
    records = max(len(run["tokens"]) for run in runs.values())
    for rule in RULES:
        trained = [runs[name] for k in range(SEEDS) if (name := f"language-20-{rule}-{k}") in runs]
        finished = [run for run in trained if run["ended"]]
        if not finished:
            continue
        copies = np.array([run["copy"] for run in finished])
        arrays |= {
            f"tokens {rule}": np.array(finished[0]["tokens"]) / MILLION,
            f"fit {rule}": np.array([_filled(run["fit"], records) for run in trained]),
            f"added {rule}": np.array([_filled(run["added"], records - 1) for run in trained]),
            f"ended {rule}": np.array([run["ended"] for run in trained]),
            f"copy {rule}": copies[..., 0] - copies[..., 1],
        }
        arrays |= {f"{name} {rule}": np.array([run[name] for run in finished]) for name in ENDS}
        arrays |= {f"{name} {rule}": np.array([run["counts"][name] for run in finished]) for name in COUNTS}
    return arrays


def _filled(values: list[Any], records: int) -> Float:
    """The values, with NaN at the records that a training did not reach."""
    reached = np.array(values, float)
    return np.concatenate([reached, np.full((records - len(reached), *reached.shape[1:]), np.nan)])


def level(arrays: Arrays, finished: bool = False) -> float:
    """The train loss that every training has reached, or every finished one."""
    fits = [fit for rule in recorded_rules(arrays) for fit in arrays[f"fit {rule}"]]
    return float(max(np.nanmin(fit) for fit in fits if not finished or np.isfinite(fit[-1])))


def at_loss(arrays: Arrays, rule: str, measure: str, loss: float) -> Float:
    """A measure at a train loss, interpolated between records, for each seed that reaches this loss."""
    k = MEASURES.index(measure)
    pairs = zip(arrays[f"fit {rule}"][:, 1:], arrays[f"added {rule}"][..., k], strict=True)
    return np.array([_passing(fit, values, loss) for fit, values in pairs if np.nanmin(fit) <= loss])


def _passing(fit: Float, values: Float, loss: float) -> float:
    below = int(np.argmax(fit <= loss))
    if below == 0:
        return float(values[0])
    share = (fit[below - 1] - loss) / (fit[below - 1] - fit[below])
    return float((1 - share) * values[below - 1] + share * values[below])


def recorded_rules(arrays: Arrays) -> dict[str, Any]:
    """The optimizers with a finished training, and their names, norms and colours."""
    return {rule: style for rule, style in RULES.items() if f"fit {rule}" in arrays}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Losses, heads that select, and ranks of what was added, by tokens; ranks at equal loss."""
    figure, ((losses, selecting), (ranks, equal)) = grid(2, 2, 5.4)
    rules = recorded_rules(arrays)
    _curves(losses, arrays, rules, "fit")
    describe(losses, "train loss", "tokens, millions", "nats")
    for rule in (rule for rule in DRAWN if rule in rules):
        color, tokens = rules[rule][2], arrays[f"tokens {rule}"][1:]
        for name, line in (("selecting", "-"), ("first", "--"), ("previous", ":")):
            selecting.plot(tokens, arrays[f"{name} {rule}"][:, 1:].mean(0), line, color=color, lw=1.5)
    selecting.set_xscale("log")
    describe(selecting, "heads that select, sink (- -), look back (··)", "tokens, millions", "of 48 heads")
    _curves(ranks, arrays, rules, "added")
    ranks.set_yscale("log")
    ranks.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ranks.minorticks_off()
    describe(ranks, "stable rank of what was added", "tokens, millions", "‖W‖²_F / ‖W‖²")
    loss = level(arrays)
    rows = [(*style, at_loss(arrays, rule, "stable rank", loss)) for rule, style in rules.items()]
    ranked(equal, rows, (1, 2, 3, 4, 5))
    equal.set_xlim(1, 5.5)
    describe(equal, f"at equal train loss, {loss:.2f}", "‖W‖²_F / ‖W‖²")
    return figure


def _curves(ax: Axes, arrays: Arrays, rules: Mapping[str, Any], name: str) -> None:
    """Mean over seeds with their range, by tokens."""
    for rule, (label, _, color) in rules.items():
        values = arrays[f"{name} {rule}"][arrays[f"ended {rule}"]]
        values = values[..., 0] if values.ndim == 3 else values
        tokens = arrays[f"tokens {rule}"][-values.shape[1] :]
        tokens, values = tokens[tokens > 0], values[:, tokens > 0]
        ax.fill_between(tokens, values.min(0), values.max(0), color=color, alpha=0.25, lw=0)
        ax.plot(tokens, values.mean(0), color=color, lw=1.5, label=label)
    ax.set_xscale("log")
    if name == "fit":
        ax.legend(fontsize=7, frameon=False)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Whether the intervals of the ranks at equal loss are disjoint, in the order of the law's norms."""
    orders = (
        ("adam+gd-heads", "adam+schatten4-heads"),
        ("adam+schatten4-heads", "adam+muon-heads"),
        ("adam+gd-heads", "adam+muon-heads"),
    )
    rows = []
    for low, high in orders:
        if not all(len(arrays.get(f"fit {rule}", ())) > 1 for rule in (low, high)):
            continue
        for measure in MEASURES[:2]:
            below, above = (interval(at_loss(arrays, rule, measure, level(arrays))) for rule in (low, high))
            separated = below[1] < above[0]
            statement = f"{measure} at equal loss: interval of {RULES[low][0]} below that of {RULES[high][0]}"
            rows.append(Check(statement, CONJECTURED, LAW, 1.0, separated, exactly("yes or no")))
    return rows


LAW = "the law of halves, carried over to a language model"
