"""The accepted runs of the experiment with a ReLU head, on the authors' own draws:

    python lab/benchmarks/relu_runs.py

The first 500 accepted runs of each width, as the notebook counts them, or those of 20,000 seeds; about ten
minutes on two cores. Writes src/attsvm_lab/figures/records/relu.json, which the figure `relu-head` reads.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

from attsvm_lab.figures.transformers_as_svms.relu_head import NAME, RUNS, WIDTHS, accepted_runs

RECORD = Path(__file__).parents[2] / "src" / "attsvm_lab" / "figures" / "records" / f"{NAME}.json"
MOST = 20_000


def main() -> None:
    widths = {}
    for d in WIDTHS:
        accepted = accepted_runs(d, MOST, RUNS, chunk=1000)
        widths[str(d)] = {name: _digits(values) for name, values in accepted.items()}
        print(
            f"d = {d}: {len(accepted['textbook_leak'])} of {accepted['draws']} draws accepted",
            file=sys.stderr,
        )
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True).stdout
    record = {
        "machine": f"{platform.machine()} CPU",
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "commit": commit.strip(),
        "command": "python lab/benchmarks/relu_runs.py",
    }
    RECORD.write_text(json.dumps({"made": record, "widths": widths}) + "\n", encoding="utf8")


def _digits(values: object) -> object:
    """Four significant digits: the record is read by a drawing and by means."""
    if isinstance(values, int):
        return values
    return [float(f"{x:.4g}") for x in np.asarray(values, dtype=float)]


if __name__ == "__main__":
    main()
