"""The study of benign overfitting at a scale, and its record:

    python benchmarks/benign_overfitting.py --scale paper --out out/benign_overfitting

What `attsvm sweep studies/benign_overfitting.toml --scale paper` computes, with a worker for every core.
`figures/records/benign_overfitting.json` was made so.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

from attsvm.numbers.threads import cores
from attsvm.sweeps.result import Sweep
from attsvm.sweeps.sweep import NEEDED, sweep
from attsvm.workers import begin, workers

STUDY = Path(__file__).parents[1] / "studies" / "benign_overfitting.toml"
AGAIN = "attsvm sweep studies/benign_overfitting.toml --scale one"


def main() -> None:
    """Run the study, and write what the figure draws."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--scale", default="paper")
    asked.add_argument("--out", type=Path, default=Path("out/benign_overfitting"))
    asked.add_argument("--record", type=Path, default=Path("benign_overfitting.json"))
    asked.add_argument("--machine", default=platform.machine())
    asked.add_argument("--commit", default="")
    given, began = asked.parse_args(), time.perf_counter()
    begin(*NEEDED)
    with workers(cores()) as pool:
        done = sweep(STUDY, pool, scale=given.scale, out=given.out)
    made = {
        "machine": given.machine,
        "seconds": round(time.perf_counter() - began),
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "commit": given.commit,
        "command": f"python benchmarks/benign_overfitting.py --scale {given.scale}",
    }
    told = {"made": made, "scale": given.scale, "again": AGAIN, "cells": [_cell(one) for one in cells(done)]}
    given.record.write_text(json.dumps(told, separators=(",", ":")) + "\n", encoding="utf8")
    print(f"{len(done.runs['cell']):,} runs, {made['seconds']} s")


def cells(done: Sweep) -> list[dict[str, object]]:
    """T, snr, lr and runs of every cell, and its quantities with their intervals."""
    found = []
    for cell in done.cells:
        words = {name: cell.words[name] for name in ("T", "snr", "lr", "steps")}
        own = {name.partition(":")[2]: (e.value, e.low, e.high) for name, e in cell.quantities.items()}
        found.append({**words, "runs": cell.runs, **own})
    return found


def _cell(cell: dict[str, object]) -> dict[str, object]:
    """With four digits that count, as JSON has them."""

    def plain(value: object) -> object:
        if isinstance(value, tuple):
            return [plain(part) for part in value]
        number = value.item() if hasattr(value, "item") else value
        return float(f"{number:.4g}") if isinstance(number, float) else number

    return {name: plain(value) for name, value in cell.items()}


if __name__ == "__main__":
    main()
