"""Which optimizer of K and Q finds a planted truth, by its rank, the number of inputs and their noise:

    python lab/benchmarks/when_it_matters.py --draws 16 --out out/when.json     trains and solves
    python lab/benchmarks/when_it_matters.py --draw out/when.json               figure and table of the docs

Gaussian tokens, d = 12, T = 5; the winner of an input is the token with the largest x W* z + noise, W* of
rank r with equal singular values and length one. Trained on n inputs (the winner has the value 1, all others
0; logistic loss), tested on 2,000 fresh ones without noise. Beside it: what the certified program picks.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import attsvm as att

D, T, FRESH = 12, 5, 2_000
RANKS, INPUTS, NOISES = (1, 2, 4, 12), (20, 40, 80), (0.0, 0.5)
STEPS = 3_000
RULES: dict[str, tuple[att.Norm, Any]] = {
    "GD": (att.nuclear, att.steepest(att.frobenius, 0.02)),
    "Schatten 4": (att.frobenius, att.steepest(att.Schatten(4), 0.02)),
    "Muon": (att.spectral, att.steepest(att.spectral, 0.01)),
    "sign": (None, att.steepest(att.linf, 0.003)),
    "Adam": (None, att.adam(0.003, b2=0.95, eps=0)),
}
"""The optimizer of K and Q, and the program that the law of halves names, where it names one."""

COLOURS = {"GD": "#0072b2", "Schatten 4": "#009e73", "Muon": "#d55e00", "sign": "#cc79a7", "Adam": "#e69f00"}


def drawn(seed: int, rank: int, n: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, queries and winners of n inputs and of the fresh ones behind them."""
    rng = np.random.default_rng([seed, rank])
    U, V = (np.linalg.qr(rng.standard_normal((D, D)))[0][:, :rank] for _ in range(2))
    keys, queries = rng.standard_normal((FRESH + n, T, D)), rng.standard_normal((FRESH + n, D))
    scores = np.einsum("ntd,de,ne->nt", keys, U @ V.T / math.sqrt(rank), queries)
    scores[:n] += noise * rng.standard_normal((n, T))
    return keys, queries, scores.argmax(-1)


def picked(W: np.ndarray, keys: np.ndarray, queries: np.ndarray, winners: np.ndarray, n: int) -> float:
    """Share of the fresh inputs on which W picks the winner."""
    picks = np.einsum("ntd,de,ne->nt", keys[n:], W, queries[n:], optimize=True).argmax(-1)
    return float((picks == winners[n:]).mean())


def trained(n: int, cells: list[tuple[int, int, float]]) -> dict[str, list[float]]:
    """What K and Q of every optimizer pick on fresh inputs, one number per cell (seed, rank, noise)."""
    data = [drawn(seed, rank, n, noise) for seed, rank, noise in cells]
    keys, queries = (np.stack([arrays[k][:n] for arrays in data]) for k in (0, 1))
    values = np.stack([np.eye(T)[arrays[2][:n]] for arrays in data])[..., None]
    tokens = att.Tokens(keys, queries, values=values)
    picks = {}
    for name, (_, rule) in RULES.items():
        path = att.train(
            tokens,
            att.Linear(np.ones(1)),
            weight=att.KeyQuery(),
            optimizer=rule,
            steps=STEPS,
            record=[STEPS],
            init=att.gaussian([seed for seed, _, _ in cells], 0.1),
        )
        picks[name] = [picked(W, *arrays, n) for W, arrays in zip(path.final, data, strict=True)]
        print(f"n = {n}, {name}", flush=True)
    return picks


def predicted(cell: tuple[int, int, float, int]) -> list[float | None]:
    """The same of the certified programs; None where the inputs are not separable."""
    seed, rank, noise, n = cell
    keys, queries, winners = drawn(seed, rank, n, noise)
    tokens, solutions = att.Tokens(keys[:n], queries[:n]), []
    for norm, _ in RULES.values():
        try:
            solution = None if norm is None else att.max_margin(tokens, winners[:n], norm)
        except att.NotSeparable:
            solution = None
        certified = solution is not None and solution.certified
        solutions.append(
            picked(solution.W, keys, queries, winners, n) if solution is not None and certified else None
        )
    return solutions


def measured(draws: int, workers: int) -> dict[str, Any]:
    """Means and standard errors over draws, in percent."""
    cells = [(seed, rank, noise) for rank in RANKS for noise in NOISES for seed in range(draws)]
    jobs = [(*cell, n) for n in INPUTS for cell in cells]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = pool.map(predicted, jobs, chunksize=4)
        runs = {n: trained(n, cells) for n in INPUTS}
        programs = dict(zip(jobs, waiting, strict=True))
    table = []
    for n in INPUTS:
        for rank in RANKS:
            for noise in NOISES:
                at = [k for k, cell in enumerate(cells) if cell[1:] == (rank, noise)]
                row: dict[str, Any] = {"n": n, "rank": rank, "noise": noise}
                row["trained"] = {name: _mean([runs[n][name][k] for k in at]) for name in RULES}
                records = [programs[*cells[k], n] for k in at]
                row["program"] = {
                    name: _mean([record[i] for record in records]) for i, name in enumerate(RULES)
                }
                table.append(row)
    return {"d": D, "T": T, "draws": draws, "steps": STEPS, "rows": table}


def _mean(shares: list[float | None]) -> list[float] | None:
    """Mean and standard error in percent, None where fewer than half of the draws have a number."""
    numbers = [100 * share for share in shares if share is not None]
    if 2 * len(numbers) < len(shares) or len(numbers) < 2:
        return None
    return [
        round(float(np.mean(numbers)), 2),
        round(float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers)), 2),
    ]


def table(record: dict[str, Any]) -> None:
    """The table of the docs."""
    names = list(RULES)
    print(f"| noise | n | rank | {' | '.join(names)} |\n{'|---' * (3 + len(names))}|")
    for row in sorted(record["rows"], key=lambda row: (row["noise"], row["n"], row["rank"])):
        best = max(names, key=lambda name: row["trained"][name][0])
        cells = []
        for name in names:
            mean, error = row["trained"][name]
            program = row["program"][name]
            text = f"{mean:.1f} ± {error:.1f}"
            text = f"**{text}**" if name == best else text
            cells.append(text + (f" ({program[0]:.1f})" if program else ""))
        print(f"| {row['noise']:g} | {row['n']} | {row['rank']} | {' | '.join(cells)} |")


def figure(record: dict[str, Any], file: Path) -> None:
    """Who wins, by rank and n, one panel per noise: pale where the lead is below two standard errors."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.2, 2.6), layout="constrained")
    for ax, noise in zip(drawn.subplots(1, len(NOISES), sharey=True), NOISES, strict=True):
        for row in (row for row in record["rows"] if row["noise"] == noise):
            order = sorted(row["trained"], key=lambda name: -row["trained"][name][0])
            (first, e1), (second, e2) = (row["trained"][name] for name in order[:2])
            x, y = RANKS.index(row["rank"]), INPUTS.index(row["n"])
            clear = first - second >= 2 * math.hypot(e1, e2)
            ax.add_patch(_square(x, y, COLOURS[order[0]], 0.85 if clear else 0.35))
            ax.text(x, y, f"{order[0]}\n{first:.0f} %", ha="center", va="center", fontsize=7)
        ax.set(xlim=(-0.5, len(RANKS) - 0.5), ylim=(-0.5, len(INPUTS) - 0.5), xlabel="rank of the truth")
        ax.set_xticks(range(len(RANKS)), map(str, RANKS))
        ax.set_yticks(range(len(INPUTS)), map(str, INPUTS))
        ax.set_title(f"noise {noise:g}", fontsize=9)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=8)
    drawn.axes[0].set_ylabel("inputs n")
    drawn.savefig(file, metadata={"Date": None})


def _square(x: float, y: float, colour: str, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=colour, alpha=alpha, lw=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("when.json"))
    parser.add_argument("--draw", type=Path)
    options = parser.parse_args()
    if options.draw:
        made = json.loads(options.draw.read_text(encoding="utf8"))
        table(made)
        figure(made, options.draw.with_suffix(".svg"))
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        made = measured(options.draws, options.workers)
        options.out.write_text(json.dumps(made, indent=0) + "\n", encoding="utf8")
        table(made)
