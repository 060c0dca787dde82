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

from attsvm._support.workers import preload, workers
from attsvm.numbers.threads import cores
from attsvm_lab.sweeps.plugins import plugin
from attsvm_lab.sweeps.result import Sweep
from attsvm_lab.sweeps.sweep import NEEDED, sweep

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "lab" / "studies"


def main() -> None:
    """Studies one after the other; the record of each as soon as it is finished."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="+")
    asked.add_argument("--scale", default="paper")
    asked.add_argument("--out", type=Path, default=Path("out"))
    asked.add_argument("--finished", type=Path)
    asked.add_argument("--later", action="store_true")
    asked.add_argument("--workers", type=int, default=cores())
    asked.add_argument("--machine", default=platform.machine())
    given = asked.parse_args()
    if given.finished:
        made = json.loads((given.finished / "made.json").read_text(encoding="utf8"))
        _record(given.names[0], Sweep.load(given.finished), made, given.out)
        return
    preload(*NEEDED)
    with workers(given.workers) as pool:
        for name in given.names:
            began, folder = time.perf_counter(), given.out / name
            done = sweep(STUDIES / f"{name}.toml", pool, scale=given.scale, out=folder)
            made = _made(given, name, round(time.perf_counter() - began))
            (folder / "made.json").write_text(json.dumps(made), encoding="utf8")
            if not given.later:
                _record(name, done, made, given.out)
            print(f"{name}: {len(done.runs['cell']):,} runs, {made['seconds']} s", flush=True)


def _record(name: str, done: Sweep, made: dict[str, object], out: Path) -> None:
    """What the study found, and by what."""
    told = {"name": name, "title": done.facts["title"], "scale": done.facts["scale"]}
    told |= {"runs": len(done.runs["cell"]), "again": f"attsvm sweep studies/{name}.toml --scale one"}
    told |= plugin(f"{name}:summary", str(STUDIES))(done) | {"made": made}
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    (out / f"{name}.json").write_text(text + "\n", encoding="utf8")


def _made(given: argparse.Namespace, name: str, seconds: int) -> dict[str, object]:
    """Where, by what and in which time."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": given.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "commit": commit or "unknown",
        "command": f"python lab/benchmarks/phases.py {name} --scale {given.scale}",
    }


if __name__ == "__main__":
    main()
