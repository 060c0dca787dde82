"""The table of heads of small encoders, from lab/records/head_stops.json and without torch.

`python lab/experiments/head_stops.py table` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

SEEDS, WIDTH = 3, 16
"""WIDTH: of a head, m."""
STUDENT = 4.3027
"""Student's 97.5 % quantile for three seeds."""
STOP, PULL = 0.99, 1.01
"""The least alignment and the least σ/s of a stop, as in `attsvm.kkt_point`."""
STARTS = ("1", "0.1", "0.01")
"""Of W_Q and W_K at the start, by the usual size."""
OPTIMIZERS = {
    "gd": "gradient descent",
    "schatten4": "Schatten-4 steps, head by head",
    "muon": "Muon, head by head",
    "adam": "Adam",
}
HEADS = (
    "start",
    "W_Q, W_K by",
    "stable rank of what was added",
    "of the sum of gradients on the same path",
    "of M",
    "alignment",
    "largest at any look",
    "heads with s > 0",
    "stops",
    "test, %",
)


def stops(standings: Iterable[dict[str, float]], width: int) -> int:
    """How many heads are at a stop: at a KKT point of a rank below the width, with a pull above one."""
    return sum(
        row["alignment"] >= STOP and row["rank"] < width and row["beyond"] > PULL * row["inside"] > 0
        for row in standings
    )


def rows(runs: dict[str, Any]) -> list[list[str]]:
    """A row for each start and optimizer, and the last block trained alone: HEADS, at the end."""
    cells = [(f"{kind}-{start}", start, name) for start in STARTS for kind, name in OPTIMIZERS.items()]
    cells.append(("gd-1-rest", "1, then all else fixed", "gradient descent, last block"))
    lines = []
    for cell, start, name in cells:
        seeds = [runs[f"{cell}-{seed}"] for seed in range(SEEDS)]
        ranks = [interval([run[key][-1] for run in seeds]) for key in ("added", "gradients", "of M")]
        lines.append([start, name, *ranks, interval([run["alignment"][-1] for run in seeds])])
        looks = [heads_at(seeds, look) for look in range(len(seeds[0]["epoch"]))]
        largest = [max(head["alignment"] for head in heads) for heads in looks]
        best = int(np.argmax(largest))
        lines[-1].append(f"{largest[best]:.2f}, epoch {seeds[0]['epoch'][best]}".replace("-", "−"))
        outwards = sum(head["inside"] > 0 for head in looks[-1])
        found = max(stops(heads, WIDTH) for heads in looks)
        lines[-1] += [f"{outwards} of {len(looks[-1])}", str(found)]
        lines[-1].append(f"{100 * np.mean([run['test_accuracy'][-1] for run in seeds]):.1f}")
    return lines


def heads_at(seeds: list[dict[str, Any]], look: int) -> list[dict[str, float]]:
    """What is recorded of every head at one look."""
    out = []
    for run in seeds:
        columns = {name: values[look] for name, values in run["heads"].items()}
        out += [dict(zip(columns, head, strict=True)) for head in zip(*columns.values(), strict=True)]
    return out


def interval(values: list[float]) -> str:
    """Mean and 95 % interval over three seeds; the mean alone where the ends agree."""
    mean, half = float(np.mean(values)), STUDENT * float(np.std(values, ddof=1)) / np.sqrt(len(values))
    low, high = f"{mean - half:.2f}", f"{mean + half:.2f}"
    if low == high:
        return f"{mean:.3f}"
    return f"{mean:.2f} [{low}, {high}]".replace("-", "−")


def table(runs: dict[str, Any]) -> list[str]:
    """The lines of the page."""
    return [
        f"| {' | '.join(HEADS)} |",
        f"{'|---' * len(HEADS)}|",
        *(f"| {' | '.join(row)} |" for row in rows(runs)),
    ]
