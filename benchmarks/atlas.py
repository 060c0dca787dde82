"""The atlas at a scale, every size by itself within a limit of seconds, and its record:

    python benchmarks/atlas.py --scale paper --seconds 540 --out out/atlas

What `attsvm sweep studies/atlas.toml --scale paper` computes, with a worker for every core. All sizes wait in
one queue, in the order of the study; after each the record is written, so that a limit leaves whole sizes
behind. `figures/records/atlas.json` was made so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attsvm.numbers.threads import cores
from attsvm.sweeps.batch import device
from attsvm.sweeps.grid import products
from attsvm.sweeps.sweep import NEEDED, sweep
from attsvm.workers import begin, workers

STUDY = Path(__file__).parents[1] / "studies" / "atlas.toml"
APART = 3.0
"""Seconds between the sizes: the jobs of one are all in the queue before those of the next."""


def main() -> None:
    """All sizes at once, and the record after each."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--scale", default="paper")
    asked.add_argument("--seconds", type=float, default=540)
    asked.add_argument("--out", type=Path, default=Path("out/atlas"))
    asked.add_argument("--machine", default=platform.machine())
    given, began = asked.parse_args(), time.perf_counter()
    study = tomllib.loads(STUDY.read_text(encoding="utf8"))
    scaled = study.pop("scale")[given.scale]
    study |= {key: value for key, value in scaled.items() if key not in ("data", "train")}
    if isinstance(scaled.get("train"), dict):
        study["train"] = [{**table, **scaled["train"]} for table in study["train"]]
    sizes = list(products(scaled.get("data", study["data"]), "data"))
    begin(*NEEDED)
    found: dict[int, dict[str, Any]] = {}
    with workers(cores()) as pool, ThreadPoolExecutor(len(sizes)) as threads:
        pool.submit(device).result()
        waiting: dict[Future[Any], int] = {}
        for k, size in enumerate(sizes):
            own = {**study, "data": size}
            waiting[threads.submit(sweep, own, pool, out=given.out / str(k))] = k
            time.sleep(APART)
        left = given.seconds - (time.perf_counter() - began)
        try:
            for done in as_completed(waiting, timeout=left):
                folder = given.out / str(waiting[done])
                done.result()
                found[waiting[done]] = json.loads((folder / "atlas.json").read_text(encoding="utf8"))
                seconds = round(time.perf_counter() - began)
                _tell(given, [found[k] for k in sorted(found)], seconds)
                print(f"{len(found)} of {len(sizes)} sizes, {seconds} s", flush=True)
        except TimeoutError:
            print(f"{given.seconds:g} s are over: {len(found)} of {len(sizes)} sizes", flush=True)
            os._exit(0)  # what is not finished is not waited for


def _tell(given: argparse.Namespace, records: list[dict[str, Any]], seconds: int) -> None:
    """The records of the sizes as one, and where, by what and in which time it was made."""
    whole = deepcopy(records[0])
    for other in records[1:]:
        whole["runs"] += other["runs"]
        for name, training in other["trainings"].items():
            whole["trainings"][name]["sizes"] |= training["sizes"]
    whole |= {"name": "atlas", "scale": given.scale, "again": "attsvm sweep studies/atlas.toml --scale one"}
    whole["made"] = {
        "machine": given.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "command": f"python benchmarks/atlas.py --scale {given.scale} --seconds {given.seconds:g}",
    }
    text = json.dumps(whole, separators=(",", ":")) + "\n"
    (given.out / "atlas.json").write_text(text, encoding="utf8")


if __name__ == "__main__":
    main()
