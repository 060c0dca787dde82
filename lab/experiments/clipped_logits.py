"""What a clip of the logits costs: gaps of clipped runs over τ, beside what their programs predict.

    python lab/experiments/clipped_logits.py --record clips.json         # some minutes of one core
    python lab/experiments/clipped_logits.py --tables lab/records/clipped_logits.json

Prints the tables of docs/lab/clipped_logits.md: medians over draws with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

import attsvm as att
from attsvm_lab.claims import clipped_logits as clips
from attsvm_lab.claims.instances import equal_losers, first_tokens, solved
from summary import here

SIZES = ((4, 5, 10), (8, 5, 6))
LIMITS = (5.0, 20.0, 80.0)
PATHS = 5
"""Draws on which the loss is compared with the least one of the ball, by multi-start descent."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=1600)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    rows = [
        row for size in SIZES for row in measured(size, range(options.first, options.first + options.draws))
    ]
    if options.record:
        made = here() | {"command": "python lab/experiments/clipped_logits.py"}
        options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


def measured(size: tuple[int, int, int], seeds: range) -> list[dict]:
    """A row for each draw, optimizer and limit."""
    drawn = [equal_losers(*size, seed)[0] for seed in seeds]
    kept = [(seed, tokens) for seed, tokens in zip(seeds, drawn, strict=True) if separable(tokens)]
    batch = clips.Batch.of([tokens for _, tokens in kept])
    best = [clips.best_gap(tokens) for _, tokens in kept]
    bounded = [has_a_bound(tokens) for _, tokens in kept]
    rows = []
    for rule, (norm, _) in clips.RULES.items():
        predicted = [clips.gap_of(t, solved(t, first_tokens(t), norm).W) for _, t in kept]
        for limit in LIMITS:
            W = clips.clipped(batch, rule, limit)
            M, gaps, largest = batch.descent(W), batch.gaps(W), batch.logits(W).max((-2, -1))
            for i, (seed, tokens) in enumerate(kept):
                row = {
                    "gap / τ": gaps[i] / limit,
                    "alignment": clips.alignment(M[i], W[i], norm),
                    "largest / τ": largest[i] / limit,
                    "predicted": predicted[i],
                    "best": best[i].gap,
                    "slack of the certificate": best[i].bound - best[i].gap,
                    "over": over_the_path(tokens, W[i], norm) if limit == LIMITS[0] and i < PATHS else None,
                }
                numbers = {k: x if x is None else float(f"{x:.6g}") for k, x in row.items()}
                labels = {"size": size, "rule": rule, "limit": limit, "seed": seed}
                rows.append(labels | numbers | {"signed bound": bounded[i]})
            print(size, rule, limit, len(kept), "draws", flush=True)
    return rows


def separable(tokens: att.Tokens) -> bool:
    return bool(att.max_margin(tokens, first_tokens(tokens)).separable)


def has_a_bound(tokens: att.Tokens) -> bool:
    """Whether the gap is bounded where the largest logit alone is, not the least."""
    products = np.einsum("ntd,ne->ntde", tokens.keys, tokens.queries).reshape(tokens.n, tokens.T, -1)
    rows = (products[:, :1] - products[:, 1:]).reshape(-1, products.shape[-1])
    everything = products.reshape(-1, products.shape[-1])
    solution = linprog(
        np.append(np.zeros(rows.shape[1]), -1.0),
        A_ub=np.block([[-rows, np.ones((len(rows), 1))], [everything, np.zeros((len(everything), 1))]]),
        b_ub=np.append(np.zeros(len(rows)), np.ones(len(everything))),
        bounds=(None, None),
    )
    return solution.status == 0


def over_the_path(tokens: att.Tokens, W: np.ndarray, norm: att.Norm) -> float:
    """The excess loss of W over the least one found on its ball, minus one."""
    radius, head = float(norm.value(W)), att.Linear(np.ones(1))
    path = att.regularisation_path(tokens, head, norm=norm, radii=[radius], starts=4)
    logits = clips.Batch.of([tokens]).logits(W[None])[0]
    weights = np.exp(logits - logits.max(1, keepdims=True))
    losing = (weights / weights.sum(1, keepdims=True))[:, 1:].sum(1)
    excess = np.log1p(np.expm1(losing) / (1 + np.e)).mean()
    return float(np.expm1(np.log(excess) - path.log_excess[-1]))


def print_tables(rows: list[dict]) -> None:
    for size in SIZES:
        here_rows = [row for row in rows if tuple(row["size"]) == size]
        seeds = {row["seed"] for row in here_rows}
        print(f"\n(n, T, d) = {size}, {len(seeds)} draws\n")
        print(f"| steps | {' | '.join(f'τ = {x:g}' for x in LIMITS)} | τ → ∞, predicted | best of any W |")
        print("|" + "---|" * (3 + len(LIMITS)))
        for rule in clips.RULES:
            of_rule = [row for row in here_rows if row["rule"] == rule]
            cells = [cell([r["gap / τ"] for r in of_rule if r["limit"] == limit]) for limit in LIMITS]
            last = [r for r in of_rule if r["limit"] == LIMITS[-1]]
            cells += [cell([row[name] for row in last]) for name in ("predicted", "best")]
            print(f"| {rule} | {' | '.join(cells)} |")
        off = max(1 - row["alignment"] for row in here_rows)
        over = [abs(row["over"]) for row in here_rows if row["over"] is not None]
        slack = max(row["slack of the certificate"] for row in here_rows)
        print(f"largest 1 − alignment {off:.2g}, largest slack of a certificate {slack:.2g}")
        print(f"largest |excess loss over the path − 1| {max(over):.2g}, of {len(over)} runs")
        bounded = sum(row["signed bound"] for row in last)
        print(f"bounded where the largest logit alone is: {bounded} of {len(last)}")


def cell(values: list[float]) -> str:
    return f"{np.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


if __name__ == "__main__":
    main()
