"""The atlas at a scale, every size by itself within a limit of seconds, and its record:

    python lab/benchmarks/atlas.py --scale paper --seconds 540 --out out/atlas

What `attsvm sweep lab/studies/atlas.toml --scale paper` computes, with a worker per core. All sizes wait in
one queue, in the order of the study; after each the record is written, so that a limit leaves whole sizes
behind. `--had lab/records/atlas.json` computes only what that record lacks, and adds it. `--summary` prints
what a record says: for each training and size the program with the largest median, and the predicted one.

`--joint 12 --had lab/records/atlas.json` asks theory again, and judges so many draws of the heads that an
optimizer takes together by the joint program of all of them: minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
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

import numpy as np

import attsvm as att
from attsvm.numbers.threads import cores
from attsvm_lab import programs
from attsvm_lab.sweeps.atlas import JOINT, TRAINING, name_of, statistics, theory
from attsvm_lab.sweeps.batch import device
from attsvm_lab.sweeps.cell import OF_HEADS, as_cell
from attsvm_lab.sweeps.study import products
from attsvm_lab.sweeps.sweep import NEEDED, sweep
from attsvm_lab.workers import preload, workers

STUDY = Path(__file__).parents[1] / "studies" / "atlas.toml"
APART = 3.0
"""Seconds between the sizes: the jobs of one are all in the queue before those of the next."""


def main() -> None:
    """All sizes at once, and the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", type=Path, default=Path("out/atlas"))
    parser.add_argument("--machine", default=platform.machine())
    parser.add_argument("--had", type=Path, help="a record whose cells, if of as many seeds, are kept")
    parser.add_argument("--summary", type=Path, help="print what this record says, compute nothing")
    parser.add_argument("--joint", type=int, help="draws of heads together, judged by their joint program")
    options, began = parser.parse_args(), time.perf_counter()
    if options.summary:
        print("\n".join(summary(json.loads(options.summary.read_text(encoding="utf8")))))
        return
    study = tomllib.loads(STUDY.read_text(encoding="utf8"))
    scaled = study.pop("scale")[options.scale]
    study |= {key: value for key, value in scaled.items() if key not in ("data", "train")}
    if isinstance(scaled.get("train"), dict):
        study["train"] = [{**table, **scaled["train"]} for table in study["train"]]
    sizes = list(products(scaled.get("data", study["data"]), "data"))
    trainings = list(products(study["train"], "train"))
    if options.joint:
        record = json.loads(options.had.read_text(encoding="utf8"))
        judge_jointly(record, trainings, sizes, options.joint)
        options.had.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf8")
        return
    names = list(dict.fromkeys(_name_and_entry(training, sizes[0])[0] for training in trainings))
    had = json.loads(options.had.read_text(encoding="utf8")) if options.had else {"trainings": {}}
    preload(*NEEDED)
    records: list[dict[str, Any]] = []
    with workers(cores()) as pool, ThreadPoolExecutor(len(sizes)) as threads:
        pool.submit(device).result()
        waiting: dict[Future[Any], int] = {}
        for k, size in enumerate(sizes):
            quantities = {
                **study,
                "data": size,
                "train": [w for w in trainings if not _has(had, w, size, study["seeds"])],
            }
            if not quantities["train"]:
                continue
            waiting[threads.submit(sweep, quantities, pool, out=options.out / str(k))] = k
            time.sleep(APART)
        remaining = options.seconds - (time.perf_counter() - began)
        try:
            for job in as_completed(waiting, timeout=remaining):
                folder = options.out / str(waiting[job])
                job.result()
                records.append(json.loads((folder / "atlas.json").read_text(encoding="utf8")))
                seconds = round(time.perf_counter() - began)
                _write_atlas(options, names, had, records, seconds)
                print(f"{len(records)} of {len(waiting)} sizes, {seconds} s", flush=True)
        except TimeoutError:
            print(f"{options.seconds:g} s are over: {len(records)} of {len(waiting)} sizes", flush=True)
            os._exit(0)  # what is not finished is not waited for


def judge_jointly(
    record: dict[str, Any], trainings: list[dict[str, Any]], sizes: list[dict[str, Any]], draws: int
) -> None:
    """The limits of theory as they are now, and the column of joint programs, in a record."""
    for told in record["trainings"].values():
        told["theory"] = theory(told["words"])
    for size, training in itertools.product(sizes, trainings):
        name, entry = _name_and_entry(training, size)
        told = record["trainings"].get(name, {"theory": {}, "sizes": {}})
        if told["theory"].get("norm") == JOINT and entry in told["sizes"]:
            shares = _joint_shares(as_cell(size, training, (), ""), record["along"], draws)
            told["sizes"][entry]["shares"]["joint"] = shares
            print(f"{name} | {entry}: {100 * shares['median']:.1f} of {shares['runs']}", flush=True)
    record["programs"] = [*(name for name in record["programs"] if name != "joint"), "joint"]


def _joint_shares(cell: Any, along: list[float], draws: int) -> dict[str, Any]:
    """Statistics of the shares of the joint margin, as for other programs, where certified."""
    settings, (n, T, d, _) = cell.training, cell.shape
    arguments = settings.arguments()
    tokens, _ = att.datasets.sphere(n, T, d, seed=range(draws))
    of_heads = [range(OF_HEADS * h, OF_HEADS * h + draws) for h in range(settings.heads)]
    v = np.stack([att.datasets.sphere(n, T, d, seed=seeds)[1] for seeds in of_heads], 1)
    marks = [round(share * settings.steps) for share in along]
    limit = att.limit_norm(arguments["weight"], arguments["optimizer"])
    assert limit.layout is not None
    norm = programs.HeadsNorm(limit.layout, getattr(arguments["optimizer"].rule, "norm", att.frobenius))
    del arguments["train_head"]
    path = att.train(tokens, att.Linear(v), init=cell.start(range(draws)), record=marks, **arguments)
    curves = []
    for k in range(draws):
        run = path.run(k)
        solution = programs.max_margin_of_heads(run.tokens, run.selected, norm)
        if solution.certified:
            curves.append(
                programs.ratio_of_heads(run, solution, [int(np.argmin(abs(run.index - m))) for m in marks])
            )
    return statistics(JOINT, list(np.transpose(curves)), along, np.zeros(0))


def summary(record: dict[str, Any]) -> list[str]:
    """By training and size, in percent: the largest median over programs, and the predicted program's."""
    lines, held, predictions = [], 0, 0
    for name, training in record["trainings"].items():
        predicted = training["theory"].get("norm")
        for size, cell in training["sizes"].items():
            medians = {x["norm"]: x["median"] for x in cell["shares"].values() if x is not None}
            best = max(medians, key=lambda norm: medians[norm])
            line = f"{name} | {size}: {best} {100 * medians[best]:.1f} of {cell['runs']} draws"
            if predicted in medians:
                predictions, held = predictions + 1, held + (best == predicted)
                line += f", predicted {predicted} {100 * medians[predicted]:.1f}"
                line += "" if best == predicted else " <"
            rates = {x["norm"]: x["rate"] for x in cell["shares"].values() if x is not None}
            lines.append(f"{line}, rate {rates[best]}")
    return [*lines, f"{held} of {predictions} predictions have the largest median of their row"]


def _has(had: dict[str, Any], training: dict[str, Any], size: dict[str, Any], seeds: int) -> bool:
    """Whether a record has this training at this size, on so many seeds."""
    name, earlier = _name_and_entry(training, size)
    return bool(had["trainings"].get(name, {"sizes": {}})["sizes"].get(earlier, {"runs": 0})["runs"] >= seeds)


def _name_and_entry(training: dict[str, Any], size: dict[str, Any]) -> tuple[str, str]:
    """A training and a size, as a record names them."""
    cell_settings = as_cell(size, training, (), "").words
    sizes = ", ".join(f"{name} = {value}" for name, value in size.items() if name != "model")
    return name_of({name: cell_settings[name] for name in TRAINING if name in cell_settings}), sizes


def _write_atlas(
    options: argparse.Namespace,
    names: list[str],
    had: dict[str, Any],
    records: list[dict[str, Any]],
    seconds: int,
) -> None:
    """The record that was had and those of the sizes as one, and by what and in which time they were made.

    names: of the trainings, in the order of the study.
    """
    atlas = deepcopy(records[0])
    trainings: dict[str, Any] = {}
    for record in (had, *records):
        for name, training in record["trainings"].items():
            entry = trainings.setdefault(name, {**training, "sizes": {}})
            entry["sizes"] |= training["sizes"]
    atlas["trainings"] = {name: trainings[name] for name in names if name in trainings}
    atlas["runs"] = sum(cell["runs"] for entry in trainings.values() for cell in entry["sizes"].values())
    atlas |= {
        "name": "atlas",
        "scale": options.scale,
        "again": "attsvm sweep lab/studies/atlas.toml --scale one",
    }
    origin = {
        "machine": options.machine,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("numpy", "jax")},
        "command": f"python lab/benchmarks/atlas.py --scale {options.scale} --seconds {options.seconds:g}",
    }
    atlas["made"] = [*had.get("made", []), origin]
    text = json.dumps(atlas, separators=(",", ":")) + "\n"
    (options.out / "atlas.json").write_text(text, encoding="utf8")


if __name__ == "__main__":
    main()
