"""The atlas at a scale, size by size within a limit of seconds, and its record:

    python benchmarks/atlas.py --scale paper --seconds 480 --out out/atlas

What `attsvm sweep studies/atlas.toml --scale paper` computes, with a worker for every core. After each size
the record is written, so that a limit leaves whole sizes behind. `figures/records/atlas.json` was made so.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

from attsvm.numbers.threads import cores
from attsvm.sweeps.grid import products
from attsvm.sweeps.sweep import NEEDED, sweep
from attsvm.workers import begin, workers

STUDY = Path(__file__).parents[1] / "studies" / "atlas.toml"


def main() -> None:
    """Sizes one after the other, and the record after each."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--scale", default="paper")
    asked.add_argument("--seconds", type=float, default=480)
    asked.add_argument("--out", type=Path, default=Path("out/atlas"))
    asked.add_argument("--machine", default=platform.machine())
    given, began = asked.parse_args(), time.perf_counter()
    study = tomllib.loads(STUDY.read_text(encoding="utf8"))
    scaled = study.pop("scale")[given.scale]
    study |= {key: value for key, value in scaled.items() if key not in ("data", "train")}
    if isinstance(scaled.get("train"), dict):
        study["train"] = [{**table, **scaled["train"]} for table in study["train"]]
    sizes = list(products(scaled.get("data", study["data"]), "data"))
    longest = 0.0
    begin(*NEEDED)
    with workers(cores()) as pool:
        for k in range(len(sizes)):
            if time.perf_counter() - began + longest > given.seconds:
                break
            start = time.perf_counter()
            done = sweep({**study, "data": sizes[: k + 1]}, pool, out=given.out)
            longest = max(longest, time.perf_counter() - start)
            seconds = round(time.perf_counter() - began)
            print(f"{k + 1} of {len(sizes)} sizes, {len(done.runs['cell']):,} runs, {seconds} s", flush=True)
            _tell(given, seconds)


def _tell(given: argparse.Namespace, seconds: int) -> None:
    """Where, by what and in which time the record was made."""
    file = given.out / "atlas.json"
    record = json.loads(file.read_text(encoding="utf8"))
    record |= {"name": "atlas", "scale": given.scale, "again": "attsvm sweep studies/atlas.toml --scale one"}
    record["made"] = {
        "machine": given.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "command": f"python benchmarks/atlas.py --scale {given.scale}",
    }
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
