"""Global and local selections over a grid of sizes: 100,800 runs on random data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import counted, digits, exactly, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import OURS

LENGTHS, WIDTHS = (2, 5, 8), (2, 4, 8, 16)
COLORS = (GREEN, BLUE, ORANGE)
CELLS = tuple(product(LENGTHS, WIDTHS))
STEPS, RATE = 150, 0.5
LONGER = 750
"""Steps of the longer trainings of a mixed sample of all cells."""
TABLE = {(1, 5, 2): 1.00, (2, 5, 4): 0.77, (2, 5, 8): 0.82, (2, 5, 16): 0.94}
"""Global shares of an independent script, 200 runs each, 2,000 steps of 0.1."""


@OURS.figure(
    "fractions",
    "How often training is global, over a grid of sizes",
    shows=(
        "Solid: runs that select the best tokens; dotted: runs that end at a locally optimal selection, "
        "best included. More width helps, more inputs and more tokens hurt: with four inputs of eight "
        "tokens at d = 16 two runs in three end at another, locally optimal, selection. Filled points: "
        "d ≥ n(T − 1), where every selection is separable. Bands: two standard errors."
    ),
    notes=(
        "The papers show such bars for a few sizes, without code. Runs start at zero and take 150 steps "
        "of 0.5 in single precision instead of 2,000 of 0.1 in double, chosen for time after a look at "
        "1,800 runs; five times the steps change the global share by less than its sampling error. At d "
        "= 2 many runs are still on their way, or at a finite minimum, so that the dotted lines there "
        "are lower bounds."
    ),
    sizes=scales(runs=(100, 2_800, 10_000), inputs=((2,), (1, 2, 4), (1, 2, 4, 8))),
    seconds=37,
)
def experiment(runs: int, inputs: Sequence[int]) -> Arrays:
    """Counts of global and of local (global included) runs, (inputs, T, d), of `runs` per cell.

    longer (2, 2): both counts in a sample of all cells after 150 and after 750 steps, n = 2.
    """
    counts = np.zeros((2, len(inputs), len(CELLS)), dtype=int)
    for row, n in enumerate(inputs):
        for column, (T, d) in enumerate(CELLS):
            counts[:, row, column] = _count(_train(*_cell(n, T, d, runs), STEPS))
    mixed = _mixed(2, runs)
    longer = [_count(_train(*mixed, steps)) for steps in (STEPS, LONGER)]
    shape = (len(inputs), len(LENGTHS), len(WIDTHS))
    arrays: Arrays = {"inputs": np.array(inputs), "runs": np.array(runs), "longer": np.array(longer)}
    return arrays | {"global": counts[0].reshape(shape), "local": counts[1].reshape(shape)}


def _cell(n: int, T: int, d: int, runs: int) -> tuple[att.Tokens, Float]:
    """Unit tokens, a unit head and random labels: all cells as one shape, so that one program trains them.

    Missing tokens are masked; coordinates beyond d are zero, which changes no product.
    """
    rng = np.random.default_rng([n, T, d])
    keys, v = np.zeros((runs, n, max(LENGTHS), max(WIDTHS))), np.zeros((runs, max(WIDTHS)))
    keys[:, :, :T, :d] = _unit(rng.standard_normal((runs, n, T, d)))
    v[:, :d] = _unit(rng.standard_normal((runs, d)))
    labels = np.where(rng.standard_normal((runs, n)) < 0, -1.0, 1.0)
    mask = np.broadcast_to(np.arange(max(LENGTHS)) < T, keys.shape[:-1])
    return att.Tokens(keys, labels=labels, mask=mask), v


def _unit(x: Float) -> Float:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _mixed(n: int, runs: int) -> tuple[att.Tokens, Float]:
    """A sample of so many runs, equally many from every cell."""
    cells = [_cell(n, T, d, -(-runs // len(CELLS))) for T, d in CELLS]
    arrays = {k: np.concatenate([getattr(t, k) for t, _ in cells])[:runs] for k in ("keys", "labels", "mask")}
    return att.Tokens(**arrays), np.concatenate([v for _, v in cells])[:runs]


def _train(tokens: att.Tokens, v: Float, steps: int) -> tuple[att.Path, Float]:
    """Runs from zero in single precision, which is twice as fast; their programs use double precision."""
    single = att.Tokens(tokens.keys, labels=tokens.labels, mask=tokens.mask, dtype=np.float32)
    rule = att.steepest(att.frobenius, RATE)
    path = att.train(single, att.Linear(v), optimizer=rule, steps=steps, record=[steps])
    return path.changed(tokens=tokens, W=path.W.astype(float)), v


def _count(trained: tuple[att.Path, Float]) -> list[int]:
    kind = att.classify(*trained)
    return [int((kind == "global").sum()), int(np.isin(kind, ("global", "local")).sum())]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Shares against the width d with their sampling error, one panel per number of inputs."""
    figure, (axes,) = grid(1, len(arrays["inputs"]), 3.3)
    for ax, n, best, local in zip(axes, arrays["inputs"], arrays["global"], arrays["local"], strict=True):
        _panel(ax, int(n), best / arrays["runs"], local / arrays["runs"], int(arrays["runs"]))
    total = arrays["global"].size * int(arrays["runs"])
    label(axes[0], WIDTHS[0], 0.12, "solid: best tokens\ndotted: locally\noptimal ones", GREY)
    axes[0].set_ylabel(f"share of runs ({total:,} in all)")
    return figure


def _panel(ax: Axes, n: int, best: Float, local: Float, runs: int) -> None:
    for T, color, row, local_share in zip(LENGTHS, COLORS, best, local, strict=True):
        ax.plot(WIDTHS, local_share, color=color, ls=":", lw=1.2)
        band = 2 * np.sqrt(row * (1 - row) / runs)
        ax.fill_between(WIDTHS, row - band, row + band, color=color, alpha=0.3, lw=0)
        ax.plot(WIDTHS, row, color=color, lw=1.4)
        for d, share in zip(WIDTHS, row, strict=True):
            free = d >= n * (T - 1)
            ax.plot(d, share, "o", ms=4.5, mec=color, mfc=color if free else "white")
    for T, color, height in zip(LENGTHS, COLORS, _spaced(best[:, -1]), strict=True):
        label(ax, 17.5, height, f"T = {T}", color, va="center", annotation_clip=False)
    ax.set(xscale="log", xlabel="width d", ylim=(-0.02, 1.04), title=f"n = {n} input{'s' if n > 1 else ''}")
    ax.set_xticks(WIDTHS, [str(d) for d in WIDTHS])
    ax.minorticks_off()


def _spaced(heights: Float, gap: float = 0.05) -> Float:
    """Heights of labels, from the highest down, each at least a gap below the previous one."""
    placed = np.array(heights, dtype=float)
    for k in range(1, len(placed)):
        placed[k] = min(placed[k], placed[k - 1] - gap)
    return placed


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """One exact share, an independent table, and a sample with five times the steps."""
    runs, rows = int(arrays["runs"]), {int(n): k for k, n in enumerate(arrays["inputs"])}
    share, checked = arrays["global"] / runs, []
    if 1 in rows:
        quantity = "one input of two tokens: least global share"
        source = "one losing token: equal losing scores"
        checked.append(Check(quantity, DERIVED, source, 1.0, share[rows[1], 0].min(), exactly("every run")))
    for (n, T, d), published in TABLE.items():
        if n in rows:
            ours = share[rows[n], LENGTHS.index(T), WIDTHS.index(d)]
            accuracy = digits(2) + counted(float(ours), runs, published, 200)
            quantity = f"global share, n = {n}, T = {T}, d = {d}"
            checked.append(Check(quantity, RUN, "independent script, 200 runs", published, ours, accuracy))
    short, long = arrays["longer"][:, 0] / runs
    error = within(
        2 * float(np.sqrt(short * (1 - short) / runs)), "two standard errors of a share from so many runs"
    )
    quantity = f"global share of a sample, {LONGER} steps instead of {STEPS}"
    checked.append(Check(quantity, CONJECTURED, "expected: no change", short, long, error))
    return checked
