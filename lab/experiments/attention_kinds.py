"""The atlas of attention kinds: margins, growth and sinks of every kind under three optimizers.

    python lab/experiments/attention_kinds.py [--seeds 20] [--steps 5000]     # one process, minutes

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1400)
    parser.add_argument("--steps", type=int, default=kinds.STEPS)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", help="print the table of these records instead")
    options = parser.parse_args()
    if options.join:
        rows = [row for file in options.join for row in json.loads(file.read_text())]
        for rule in kinds.RULES:
            for kind in kinds.KINDS:
                print(line(rows, kind, rule))
        return
    rows = []
    for rule in kinds.RULES:
        for kind in kinds.KINDS:
            for seed in range(options.first, options.first + options.seeds):
                rows.append(
                    {"rule": rule, "kind": kind, "seed": seed, **measured(kind, rule, seed, options.steps)}
                )
            print(line(rows, kind, rule), flush=True)
    if options.record:
        options.record.write_text(json.dumps(rows))


COLUMNS = ("share", "gap", "log excess", "size", "BOS", "harm", "besides", "silent gap")


def measured(kind: str, rule: str, seed: int, steps: int) -> dict[str, float]:
    """The share of the best margin and the growth of a run on equal losing scores; weights in silent rows."""
    tokens, v = equal_losers(kinds.N, kinds.T, kinds.D, seed)
    if kind == "sigmoid":
        tokens = att.Tokens(tokens.keys, tokens.queries, values=2 * tokens.values - 1)
    path = kinds.trained(kind, rule, tokens, v, steps)
    share = np.nan
    if not kind.startswith("QK"):
        share = kinds.share(kind, tokens, path, kinds.RULES[rule][1])
    silent_tokens, silent_v = kinds.silent_rows(seed)
    silent = kinds.trained(kind, rule, silent_tokens, silent_v, steps)
    size = path.gain[-1] if path.gain is not None else np.linalg.norm(path.final)
    with np.errstate(divide="ignore"):
        return {
            "share": share,
            "gap": kinds.least_gap(path, first_tokens(path.tokens)),
            "log excess": float(path.log_excess[-1]),
            "size": float(size),
            **{name: float(x) for name, x in kinds.sinks(kind, silent).items()},
            "silent gap": float(silent.log_excess[-1]),
        }


def line(rows: list[dict], kind: str, rule: str) -> str:
    return f"| {kind} | {rule} | " + " | ".join(summary(rows, kind, rule, name) for name in COLUMNS) + " |"


def summary(rows: list[dict], kind: str, rule: str, name: str) -> str:
    values = np.array([row[name] for row in rows if row["kind"] == kind and row["rule"] == rule])
    if np.isnan(values).all():
        return "–"
    return f"{np.median(values):.4g} [{values.min():.3g}, {values.max():.3g}]"


if __name__ == "__main__":
    main()
