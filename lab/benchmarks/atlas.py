"""The atlas at a scale, every size by itself within a limit of seconds, and its record:

    python lab/benchmarks/atlas.py --scale paper --seconds 540 --out out/atlas

What `attsvm sweep lab/studies/atlas.toml --scale paper` computes, with a worker per core. All sizes wait in
one queue, in the order of the study; after each the record is written, so that a limit leaves whole sizes
behind. `--had lab/records/atlas.json` computes only what that record lacks, and adds it.
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

from attsvm._support.workers import preload, workers
from attsvm.numbers.threads import cores
from attsvm_lab.sweeps.atlas import TRAINING, name_of
from attsvm_lab.sweeps.batch import device
from attsvm_lab.sweeps.cell import as_cell
from attsvm_lab.sweeps.study import products
from attsvm_lab.sweeps.sweep import NEEDED, sweep

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
    asked.add_argument("--had", type=Path, help="a record whose cells, if of as many seeds, are kept")
    given, began = asked.parse_args(), time.perf_counter()
    study = tomllib.loads(STUDY.read_text(encoding="utf8"))
    scaled = study.pop("scale")[given.scale]
    study |= {key: value for key, value in scaled.items() if key not in ("data", "train")}
    if isinstance(scaled.get("train"), dict):
        study["train"] = [{**table, **scaled["train"]} for table in study["train"]]
    sizes = list(products(scaled.get("data", study["data"]), "data"))
    ways = list(products(study["train"], "train"))
    names = list(dict.fromkeys(_named(way, sizes[0])[0] for way in ways))
    had = json.loads(given.had.read_text(encoding="utf8")) if given.had else {"trainings": {}}
    preload(*NEEDED)
    found: list[dict[str, Any]] = []
    with workers(cores()) as pool, ThreadPoolExecutor(len(sizes)) as threads:
        pool.submit(device).result()
        waiting: dict[Future[Any], int] = {}
        for k, size in enumerate(sizes):
            own = {
                **study,
                "data": size,
                "train": [w for w in ways if not _has(had, w, size, study["seeds"])],
            }
            if not own["train"]:
                continue
            waiting[threads.submit(sweep, own, pool, out=given.out / str(k))] = k
            time.sleep(APART)
        left = given.seconds - (time.perf_counter() - began)
        try:
            for done in as_completed(waiting, timeout=left):
                folder = given.out / str(waiting[done])
                done.result()
                found.append(json.loads((folder / "atlas.json").read_text(encoding="utf8")))
                seconds = round(time.perf_counter() - began)
                _tell(given, names, had, found, seconds)
                print(f"{len(found)} of {len(waiting)} sizes, {seconds} s", flush=True)
        except TimeoutError:
            print(f"{given.seconds:g} s are over: {len(found)} of {len(waiting)} sizes", flush=True)
            os._exit(0)  # what is not finished is not waited for


def _has(had: dict[str, Any], way: dict[str, Any], size: dict[str, Any], seeds: int) -> bool:
    """Whether a record has this training at this size, on so many seeds."""
    name, told = _named(way, size)
    return bool(had["trainings"].get(name, {"sizes": {}})["sizes"].get(told, {"runs": 0})["runs"] >= seeds)


def _named(way: dict[str, Any], size: dict[str, Any]) -> tuple[str, str]:
    """A training and a size, as a record names them."""
    words = as_cell(size, way, (), "").words
    sizes = ", ".join(f"{name} = {value}" for name, value in size.items() if name != "model")
    return name_of({name: words[name] for name in TRAINING if name in words}), sizes


def _tell(
    given: argparse.Namespace,
    names: list[str],
    had: dict[str, Any],
    found: list[dict[str, Any]],
    seconds: int,
) -> None:
    """The record that was had and those of the sizes as one, and by what and in which time they were made.

    names: of the trainings, in the order of the study.
    """
    whole = deepcopy(found[0])
    trainings: dict[str, Any] = {}
    for record in (had, *found):
        for name, training in record["trainings"].items():
            told = trainings.setdefault(name, {**training, "sizes": {}})
            told["sizes"] |= training["sizes"]
    whole["trainings"] = {name: trainings[name] for name in names if name in trainings}
    whole["runs"] = sum(cell["runs"] for told in trainings.values() for cell in told["sizes"].values())
    whole |= {
        "name": "atlas",
        "scale": given.scale,
        "again": "attsvm sweep lab/studies/atlas.toml --scale one",
    }
    made = {
        "machine": given.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "command": f"python lab/benchmarks/atlas.py --scale {given.scale} --seconds {given.seconds:g}",
    }
    whole["made"] = [*had.get("made", []), made]
    text = json.dumps(whole, separators=(",", ":")) + "\n"
    (given.out / "atlas.json").write_text(text, encoding="utf8")


if __name__ == "__main__":
    main()
