"""Tables and a picture of docs/law_of_halves.md, by name; factors and diagonals by default:

    python lab/benchmarks/law_of_halves.py factors

factors, diagonals: 100 draws from seed 3000 on, which chose no setting, with the settings of
claims/law_of_halves.py. Each cell is the least and the median share of the certified best margin, in percent.
exponents: of which Schatten norm does a run have the largest share, on a fine grid? Starts of their own and
shrinking steps, from seed 6000 on. A few minutes each, one core.
picture: docs/images/waiting.svg, gradient descent at a stop beside Schatten-4 steps and Muon. Half a minute.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import attsvm as att
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, ORANGE, label, plain_powers, write_svg
from attsvm_lab.claims.law_of_halves import DIAGONALS, FACTORS, SIZE, WIDE, trained_diagonals

SEEDS = range(3000, 3100)
BETWEEN = (0.01, 10_000)
ROWS: tuple[int | None, float, int] = (16, 0.002, 20_000)
"""Rank, step and steps in the longest row: the max-norm may need factors as wide as d + e."""

GRID = (
    1,
    1.05,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.6,
    1.75,
    1.9,
    2,
    2.1,
    2.25,
    2.5,
    2.75,
    3,
    3.5,
    3.75,
    4,
    4.25,
    4.5,
    5,
    6,
    8,
    12,
    24,
)
"""Exponents r of the programs, beside ∞."""
SHRINKING = (0.2, 0.55)
"""c and a of the steps c (k + 1)^−a: their sum is infinite and that of squares finite, as Theorem 8 asks."""
SIZES = {(4, 4, 8): (32, 30_000), (8, 6, 16): (12, 10_000), (8, 6, 32): (6, 10_000)}
"""(n, T, d) → draws and steps."""


def exponents() -> None:
    """Of all Schatten(r) on a grid, the one of which a run has the largest share."""
    names = (
        "(n, T, d)",
        "steps of K and Q",
        "r predicted",
        "it leads",
        "a neighbour leads",
        "median r that leads",
        "its share, least / median",
    )
    _head(names[0], list(names[1:]))
    scale, power = SHRINKING
    grid = np.array([*GRID, math.inf])
    for size, (draws, steps) in SIZES.items():
        seeds = range(6000, 6000 + draws)
        tokens, v = att.datasets.sphere(*size, seed=seeds)
        rng = np.random.default_rng(seeds.start)
        start = {name: 0.1 * rng.standard_normal((draws, size[2], size[2])) for name in "KQ"}
        for p in (2.0, 3.0, 4.0, 8.0, math.inf):
            rule = att.steepest(att.Schatten(p), lambda k: scale * (k + 1.0) ** -power)
            options: Any = {"weight": att.KeyQuery(), "optimizer": rule, "init": start, "record": [steps]}
            path = att.train(tokens, att.Linear(v), steps=steps, **options)
            shares = np.array([_share(path, att.Schatten(r)) for r in grid])
            leader, predicted = shares.argmax(0), int(np.flatnonzero(grid == p / 2)[0])
            near = int((np.abs(leader - predicted) == 1).sum())
            least, median = shares[predicted].min(), np.median(shares[predicted])
            cells = (
                f"Schatten {p:g}",
                f"{p / 2:g}",
                f"{(leader == predicted).sum()} of {draws}",
                str(near),
                f"{np.median(grid[leader]):g}",
            )
            print(f"| {size} | {' | '.join(cells)} | {least:.1f} / {median:.1f} |", flush=True)


def factors() -> None:
    """Steps in Schatten(p) and in the longest row on K and Q, apart, against all programs that they imply."""
    tokens, v = att.datasets.sphere(*SIZE, seed=SEEDS)
    programs = [*(att.Schatten(p) for p in (1, 1.5, 2, 3, 4, math.inf)), att.MaxNorm()]
    _head("steps of K and Q", [str(norm) for norm in programs])
    for norm_of_steps in [*(att.Schatten(p) for p in (2.0, 3.0, 4.0, 6.0, 8.0, math.inf)), att.LongestRow()]:
        rank, lr, steps = ROWS
        if isinstance(norm_of_steps, att.Schatten):
            rank, (lr, steps) = None, BETWEEN if norm_of_steps.p in (3, 6, 8) else FACTORS[norm_of_steps.p]
        rule = att.steepest(norm_of_steps, lr)
        weight = att.KeyQuery(rank, separate=True)
        path = att.train(tokens, att.Linear(v), weight=weight, optimizer=rule, steps=steps, record=[steps])
        _row(str(norm_of_steps), [_share(path, norm) for norm in programs])


def diagonals() -> None:
    """Steps in lp on k and q together against the lq programs of the diagonal."""
    tokens, v = att.datasets.sphere(*WIDE, seed=SEEDS)
    norms = [att.Entrywise(q) for q in (1, 1.25, 1.5, 2, 2.5, 3, 4, 6, math.inf)]
    _head("steps of k and q", [f"l{norm.p:g}" for norm in norms])
    for p in DIAGONALS:
        flat = trained_diagonals(tokens, v, p)
        _row(f"l{p:g}", [_share(flat, norm) for norm in norms])


PICTURED, TRAINED, PREDICTED_AT = 410, 20_000, 5_000
"""Seed, steps, and the step at which the power of gradient descent is read off its multipliers."""


def picture() -> None:
    """One draw from near rank one, three kinds of steps: the second singular value of W over the first."""
    write_svg(_picture(), Path(__file__).parents[2] / "docs" / "images" / "waiting.svg")


def _picture() -> Figure:
    figure, ((ax,),) = grid(1, 1, 3.2, width=6.4)
    near, kinds = {"textcoords": "offset points"}, {2.0: ORANGE, 4.0: GREEN, math.inf: BLUE}
    for p, color in kinds.items():
        run, v = _from_near_rank_one(p)
        of_K, of_Q = (np.linalg.svd(X, compute_uv=False) for X in (run.K, run.Q))
        spare = of_K[:, 1] * of_Q[:, 1] / (of_K[:, 0] * of_Q[:, 0])
        ax.loglog(run.index[1:], spare[1:], color=color)
        if p > 2:
            name, down = ("Schatten 4", -8) if p == 4 else ("Muon", 2)
            label(ax, TRAINED, spare[-1], name, color, xytext=(6, down), **near)
            continue
        label(ax, 30, spare[30], "gradient descent", color, xytext=(0, 6), **near)
        early = run.index <= PREDICTED_AT
        parts = {"W": run.W, "K": run.K, "Q": run.Q, "index": run.index}
        stop = att.kkt_point(run.changed(**{name: part[early] for name, part in parts.items()}), v)
        leaves, last = PREDICTED_AT + stop.steps_to_leave, spare[early][-1]
        rise = (leaves / PREDICTED_AT) ** stop.exponent
        ax.loglog([PREDICTED_AT, leaves], [last, last * rise], "--", color=color)
        power = f"predicted at step {PREDICTED_AT:,}: power {stop.exponent:.2f}"
        text = f"{power},\nit leaves after {leaves:.1g} steps"
        label(ax, leaves, 1e-11, text, color, xytext=(0, 0), ha="right", **near)
    describe(ax, "", "steps of 0.003 on K and Q", "second singular value of W\nover the first")
    plain_powers(ax)
    return figure


def _from_near_rank_one(p: float) -> tuple[att.Path, np.ndarray]:
    """A run of Schatten(p) steps from one column of K and of Q and noise of 1e-7, and its head."""
    tokens, v = att.datasets.sphere(*SIZE, seed=PICTURED)
    rng, start = np.random.default_rng(PICTURED), {}
    for name in "KQ":
        column = rng.standard_normal(8)
        start[name] = 1e-7 * rng.standard_normal((8, 8))
        start[name][:, 0] += 0.3 * column / np.linalg.norm(column)
    options: Any = {
        "weight": att.KeyQuery(),
        "optimizer": att.steepest(att.Schatten(p), 0.003),
        "init": start,
        "record": np.unique(np.append(np.geomspace(1, TRAINED, 160).astype(int), PREDICTED_AT)),
    }
    return att.train(tokens, att.Linear(v), steps=TRAINED, **options), v


def _share(path: att.Path, norm: att.Norm) -> np.ndarray:
    solution = att.max_margin(path.tokens, path.selected, norm)
    assert np.all(solution.certified), str(norm)
    return 100 * att.margin_ratio(path, solution)[:, -1]


def _head(first: str, names: list[str]) -> None:
    print(f"\n| {first} | {' | '.join(names)} |\n{'|---' * (1 + len(names))}|", flush=True)


def _row(name: str, shares: list[np.ndarray]) -> None:
    cells = [f"{share.min():.1f} / {np.median(share):.1f}" for share in shares]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["factors", "diagonals"]:
        {"factors": factors, "diagonals": diagonals, "exponents": exponents, "picture": picture}[name]()
