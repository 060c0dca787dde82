"""The atlas of attention kinds: margins, growth and sinks of every kind under three optimizers.

    python lab/experiments/attention_kinds.py --record kinds.json        # one process, five minutes of a core
    python lab/experiments/attention_kinds.py --tables lab/records/attention_kinds.json

Prints the tables of docs/lab/attention_kinds.md: medians over seeds with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import attsvm as att
from attsvm_lab.claims import attention_kinds as kinds
from attsvm_lab.claims.instances import equal_losers, first_tokens
from summary import here

TABLES = {
    "share of the best margin; of QK-norm, least gap over twice the gain": "share",
    "log(L − L*)": "log excess",
    "length, or the gain": "size",
    "weight of BOS in silent rows": "BOS",
    "weight of the learnt sink, or closed": "besides",
    "weight of tokens that harm in silent rows": "harm",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1400)
    parser.add_argument("--steps", type=int, default=kinds.STEPS)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    seeds = range(options.first, options.first + options.seeds)
    rows = []
    for rule in kinds.RULES:
        for kind in kinds.KINDS:
            rows += [{"rule": rule, "kind": kind, "seed": seed} for seed in seeds]
            for row in rows[-len(seeds) :]:
                row |= measured(kind, rule, row["seed"], options.steps)
            print(rule, kind, cell(rows, kind, rule, "share"), flush=True)
    if options.record:
        made = here() | {"command": "python lab/experiments/attention_kinds.py"}
        options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


def measured(kind: str, rule: str, seed: int, steps: int) -> dict[str, float | None]:
    """The share of the best margin and the growth of a run on equal losing scores; weights in silent rows.

    None stands for a number that is infinite: log(L − L*) of attention that is exactly one token.
    """
    tokens, v = equal_losers(kinds.N, kinds.T, kinds.D, seed)
    if kind == "sigmoid":
        tokens = att.Tokens(tokens.keys, tokens.queries, values=2 * tokens.values - 1)
    path = kinds.trained(kind, rule, tokens, v, steps)
    if path.gain is None:
        size = float(np.linalg.norm(path.final))
        share = kinds.share(kind, tokens, path, kinds.RULES[rule][1])
    else:
        size = float(path.gain[-1])
        share = kinds.least_gap(path, first_tokens(path.tokens)) / (2 * size)
    silent = kinds.trained(kind, rule, *kinds.silent_rows(seed), steps)
    numbers = {"share": share, "log excess": path.log_excess[-1], "size": size, **kinds.sinks(kind, silent)}
    return {name: float(f"{x:.4g}") if np.isfinite(x) else None for name, x in numbers.items()}


def print_tables(rows: list[dict]) -> None:
    for title, name in TABLES.items():
        print(f"\n| {title} | {' | '.join(kinds.RULES)} |\n|{'---|' * (1 + len(kinds.RULES))}")
        for kind in kinds.KINDS:
            print(f"| {kind} | {' | '.join(cell(rows, kind, rule, name) for rule in kinds.RULES)} |")


def cell(rows: list[dict], kind: str, rule: str, name: str) -> str:
    values = [row[name] for row in rows if row["kind"] == kind and row["rule"] == rule]
    if None in values:
        return "–"
    return f"{np.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


if __name__ == "__main__":
    main()
