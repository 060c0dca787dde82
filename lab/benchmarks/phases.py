"""The phase diagrams of docs/phases.md: run a study at a scale, and write its record.

    python lab/benchmarks/phases.py basins --scale paper
    python lab/benchmarks/phases.py basins --finished out/basins

What `attsvm sweep lab/studies/NAME.toml --scale paper` computes, and what `summary` of NAME.py makes
of it: OUT/NAME.json, which is kept as src/attsvm_lab/figures/records/NAME.json. --finished: the folder of a
study that was run before, whose record alone is made; --later leaves it to that. --workers: processes, by
default one for every core.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from attsvm.numbers.threads import cores
from attsvm_lab.sweeps.plugins import plugin
from attsvm_lab.sweeps.result import Sweep
from attsvm_lab.sweeps.sweep import NEEDED, sweep
from attsvm_lab.workers import preload, workers

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "lab" / "studies"


def main() -> None:
    """Studies one after the other; the record of each as soon as it is finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--finished", type=Path)
    parser.add_argument("--later", action="store_true")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--machine", default=platform.machine())
    options = parser.parse_args()
    if options.finished:
        origin = json.loads((options.finished / "made.json").read_text(encoding="utf8"))
        _record(options.names[0], Sweep.load(options.finished), origin, options.out)
        return
    preload(*NEEDED)
    with workers(options.workers) as pool:
        for name in options.names:
            began, folder = time.perf_counter(), options.out / name
            study = sweep(STUDIES / f"{name}.toml", pool, scale=options.scale, out=folder)
            origin = _origin(options, name, round(time.perf_counter() - began))
            (folder / "made.json").write_text(json.dumps(origin), encoding="utf8")
            if not options.later:
                _record(name, study, origin, options.out)
            print(f"{name}: {len(study.runs['cell']):,} runs, {origin['seconds']} s", flush=True)


def _record(name: str, study: Sweep, origin: dict[str, object], out: Path) -> None:
    """What the study found, and by what."""
    record = {"name": name, "title": study.facts["title"], "scale": study.facts["scale"]}
    record |= {"runs": len(study.runs["cell"]), "again": f"attsvm sweep studies/{name}.toml --scale one"}
    record |= plugin(f"{name}:summary", str(STUDIES))(study) | {"made": origin}
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    (out / f"{name}.json").write_text(text + "\n", encoding="utf8")


def _origin(options: argparse.Namespace, name: str, seconds: int) -> dict[str, object]:
    """Where, by what and in which time."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": options.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "commit": commit or "unknown",
        "command": f"python lab/benchmarks/phases.py {name} --scale {options.scale}",
    }


if __name__ == "__main__":
    main()
