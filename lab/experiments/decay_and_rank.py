"""Decay and the rank of W = K Qᵀ: optimizers, schedules and planted ranks.

    python lab/experiments/decay_and_rank.py --record decay.json         # two minutes of one core
    python lab/experiments/decay_and_rank.py --tables lab/records/decay_and_rank.json

Prints the tables of docs/lab/decay_and_rank.md, means over draws with 95 % intervals (Student's), and with
--figure FILE draws its figure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import attsvm as att
from attsvm_lab.claims import decay_and_rank as decay
from summary import here

RANKS = (1, 10)
STRENGTHS = (0.0, 2.0, 4.0, 8.0)
STEPS = 1_000
COLOURS = {"GD": "#0072b2", "Schatten 4": "#009e73", "Adam": "#e69f00", "Muon": "#d55e00"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    parser.add_argument("--figure", type=Path, help="draw the figure of the docs")
    options = parser.parse_args()
    if options.tables:
        record = json.loads(options.tables.read_text())
    else:
        seeds = range(options.first, options.first + options.draws)
        made = here() | {"command": "python lab/experiments/decay_and_rank.py"}
        record = {
            "made": made,
            "rows": measured(seeds),
            "programs": programs(seeds),
            "batches": in_batches(seeds),
        }
        if options.record:
            options.record.write_text(json.dumps(record))
    print_tables(record["rows"], record["programs"])
    print("\nstable rank with momentum 0.9, planted rank 1, by strength\n")
    for rule, batch in dict.fromkeys((row["rule"], row["batch"]) for row in record["batches"]):
        of_rule = select(record["batches"], rule=rule, batch=batch)
        print(rule, batch or "all", [cell(select(of_rule, decay=s), "stable") for s in STRENGTHS])
    if options.figure:
        figure(record["rows"], options.figure)


def measured(seeds: range) -> list[dict]:
    """A row for each optimizer, schedule, strength and draw."""
    rows = []
    cells = [(seed, rank) for rank in RANKS for seed in seeds]
    for schedule in decay.SCHEDULES:
        for rule in decay.RULES:
            norm = decay.RULES[rule].norm
            trained = decay.trained(cells, rule, STRENGTHS, schedule, STEPS)
            for strength, weights in zip(STRENGTHS, trained, strict=True):
                for (seed, rank), W in zip(cells, weights, strict=True):
                    train, fresh = decay.drawn(seed, rank)
                    labels = {"rule": rule, "schedule": schedule, "decay": strength}
                    numbers = {
                        "stable": float(decay.stable_rank(W)),
                        "numerical": int(decay.numerical_rank(W)),
                        "length": float(np.linalg.norm(W)),
                        "train": train.accuracy(W),
                        "test": fresh.accuracy(W),
                        "off": None if norm is None else decay.off_the_path(train, W, norm),
                    }
                    rows.append(labels | {"rank": rank, "seed": seed} | rounded(numbers))
            print(rule, schedule, flush=True)
    return rows


def in_batches(seeds: range) -> list[dict]:
    """Stable ranks at planted rank 1 with momentum 0.9, of all inputs and of batches of six."""
    cells, rows = [(seed, 1) for seed in seeds], []
    for rule in ("GD", "Muon"):
        for batch in (None, 6):
            trained = decay.trained(cells, rule, STRENGTHS, "constant", STEPS, batch, momentum=0.9)
            for strength, ranks in zip(STRENGTHS, decay.stable_rank(trained), strict=True):
                labels = {"rule": rule, "batch": batch, "decay": strength}
                rows += [
                    labels | {"seed": s} | rounded({"stable": x}) for s, x in zip(seeds, ranks, strict=True)
                ]
    return rows


def programs(seeds: range) -> list[dict]:
    """What is predicted at both ends: the max-margin weight without decay, the steepest weight at zero with
    strong decay. A row for each norm and draw; the certified program's numbers are None where it has none."""
    rows = []
    for seed, rank in ((seed, rank) for rank in RANKS for seed in seeds):
        train, fresh = decay.drawn(seed, rank)
        M = decay.descent(train, np.zeros((decay.D, decay.D)))
        U, _, Vh = np.linalg.svd(M)
        steepest = {"GD": np.outer(U[:, 0], Vh[0]), "Schatten 4": M, "Muon": U @ Vh}
        for rule, W in steepest.items():
            best = margin_weight(train, decay.RULES[rule].norm)
            numbers = {
                "steepest stable": float(decay.stable_rank(W)),
                "steepest test": fresh.accuracy(W),
                "program stable": None if best is None else float(decay.stable_rank(best)),
                "program test": None if best is None else fresh.accuracy(best),
            }
            rows.append({"rule": rule, "rank": rank, "seed": seed} | rounded(numbers))
    return rows


def margin_weight(train: decay.Inputs, norm: att.Norm) -> np.ndarray | None:
    """The certified max-margin weight; None where no W makes these choices, or none is certified."""
    try:
        solution = att.max_margin(att.Tokens(train.keys, train.queries), train.winners, norm)
    except att.NotSeparable:
        return None
    return solution.W if solution.certified else None


def rounded(numbers: dict) -> dict:
    return {name: x if x is None else float(f"{x:.5g}") for name, x in numbers.items()}


# ---------------------------------------------------------------------- tables


def print_tables(rows: list[dict], ends: list[dict]) -> None:
    draws = len({row["seed"] for row in rows})
    for title, name, scale in (("stable rank", "stable", 1), ("test accuracy, %", "test", 100)):
        print(f"\n{title}, constant rate, {draws} draws\n")
        columns = " | ".join(f"{strength:g}" for strength in STRENGTHS)
        print(f"| planted rank | optimizer | no decay, program | {columns} | steepest at 0 |")
        print("|" + "---|" * (4 + len(STRENGTHS)))
        for rank in RANKS:
            for rule in decay.RULES:
                own = [row for row in ends if (row["rule"], row["rank"]) == (rule, rank)]
                of_rule = select(rows, rule=rule, rank=rank, schedule="constant")
                cells = [cell(select(of_rule, decay=s), name, scale) for s in STRENGTHS]
                first, last = (cell(own, f"{end} {name}", scale) for end in ("program", "steepest"))
                print(f"| {rank} | {rule} | {first} | {' | '.join(cells)} | {last} |")
    print("\ntrain accuracy, %, constant rate, all planted ranks\n")
    for rule in decay.RULES:
        of_rule = select(rows, rule=rule, schedule="constant")
        print(rule, [cell(select(of_rule, decay=s), "train", 100) for s in STRENGTHS])
    for strength in (0.0, 4.0):
        print(f"\ndecay {strength:g}, planted ranks 1 and 10: stable rank, numerical rank, test accuracy %\n")
        print(f"| optimizer | {' | '.join(decay.SCHEDULES)} |\n|{'---|' * (1 + len(decay.SCHEDULES))}")
        for rule in decay.RULES:
            texts = []
            for schedule in decay.SCHEDULES:
                of_cell = select(rows, rule=rule, schedule=schedule, decay=strength)
                texts.append(
                    f"{cell(of_cell, 'stable')}; {cell(of_cell, 'numerical')}; {cell(of_cell, 'test', 100)}"
                )
            print(f"| {rule} | {' | '.join(texts)} |")
    print("\nchange by decay, draw by draw, constant rate: test accuracy %, stable rank\n")
    for rank in RANKS:
        for rule in decay.RULES:
            of_rule = select(rows, rule=rule, rank=rank, schedule="constant")
            print(rank, rule, *(f"{s:g}: {changes(of_rule, s)};" for s in STRENGTHS[1:]))
    solved = sum(row["program stable"] is not None for row in ends)
    print(f"\ncertified programs: {solved} of {len(ends)}")
    print("\n1 − alignment, median [least, largest] by strength\n")
    for rule in decay.RULES:
        of_rule = [row for row in rows if row["rule"] == rule and row["off"] is not None]
        for schedule in decay.SCHEDULES if of_rule else ():
            off = [
                [r["off"] for r in select(of_rule, schedule=schedule, decay=s)] for s in STRENGTHS if s >= 2
            ]
            print(rule, schedule, [f"{np.median(x):.2g} [{min(x):.2g}, {max(x):.2g}]" for x in off])


def select(rows: list[dict], **labels: object) -> list[dict]:
    return [row for row in rows if all(row[name] == value for name, value in labels.items())]


def changes(rows: list[dict], strength: float) -> str:
    """Of test accuracy and of the stable rank, from no decay to this one."""
    pairs = list(zip(select(rows, decay=0.0), select(rows, decay=strength), strict=True))
    test, stable = ([b[name] - a[name] for a, b in pairs] for name in ("test", "stable"))
    return f"{interval(test, 100)}, {interval(stable)}"


def cell(rows: list[dict], name: str, scale: float = 1) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    return interval(values, scale) if values else "–"


def interval(values: list[float], scale: float = 1) -> str:
    """Mean ± half of the 95 % interval of Student."""
    numbers = scale * np.asarray(values)
    half = student.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers))
    digits = 1 if scale > 1 else 2
    return f"{numbers.mean():.{digits}f} ± {half:.{digits}f}"


def figure(rows: list[dict], file: Path) -> None:
    """Stable rank and test accuracy by decay, a column for each planted rank."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0, 4.2), layout="constrained")
    axes = drawn.subplots(2, len(RANKS), sharex=True, sharey="row")
    for (name, scale), line in zip((("stable", 1), ("test", 100)), axes, strict=True):
        for rank, ax in zip(RANKS, line, strict=True):
            for rule, colour in COLOURS.items():
                of_rule = select(rows, rule=rule, rank=rank, schedule="constant")
                groups = [select(of_rule, decay=s) for s in STRENGTHS]
                values = [scale * float(np.mean([r[name] for r in group])) for group in groups]
                halves = [
                    scale * 1.96 * np.std([r[name] for r in group], ddof=1) / np.sqrt(len(group))
                    for group in groups
                ]
                places = np.arange(len(STRENGTHS))
                ax.errorbar(places, values, halves, color=colour, label=rule, lw=1.5, marker="o", ms=3)
            ax.set_xticks(range(len(STRENGTHS)), [f"{s:g}" for s in STRENGTHS])
            ax.tick_params(labelsize=8)
            ax.spines[["top", "right"]].set_visible(False)
            if name == "stable":
                ax.set_title(f"planted rank {rank}", fontsize=9)
            else:
                ax.set_xlabel("decay", fontsize=8)
    axes[0, 0].set_ylabel("stable rank of W", fontsize=8)
    axes[1, 0].set_ylabel("test accuracy, %", fontsize=8)
    axes[0, 0].legend(fontsize=7, frameon=False)
    drawn.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
