"""Whether the heads of trained encoders of reviews are at a stop: `head_kkt.py` on what drive.py left.

    python lab/experiments/encoder_stops.py out/factors --data out/data    # lab/records/encoder_stops.json
    python lab/experiments/encoder_stops.py --table                        # the numbers of the pages

Of every head at the initial weights and at the end: the gradient M of the mean loss of READ train reviews in
its W, without dropout and in float32, and where the head stands. Minutes of a CPU with some cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import attsvm
from attsvm._support.progress import ProgressLine
from data import reviews
from factors import rounded
from head_kkt import ascent, pairs, stable_rank, standing
from head_stop_table import stops
from optimizers import QUERY_KEY
from run import some
from summary import here, write
from tasks import Sentiment

READ, BATCH = 400, 20
FOUND = Path(__file__).parents[1] / "records" / "encoder_stops.json"
PRINTED = ("added", "of W", "of M", "alignment", "balance", "rank", "inside", "beyond")


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("out/factors"))
    parser.add_argument("--data", type=Path, default=Path("out/data"))
    parser.add_argument("--reviews", type=int, default=READ, help="train reviews that give the gradient")
    parser.add_argument("--record", type=Path, default=FOUND)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(table(json.loads(options.record.read_text(encoding="utf8"))["runs"])))
        return
    folders = [about.parent for about in sorted(options.runs.glob("*/about.json"))]
    halves = some(reviews(options.data), options.reviews)
    record: dict[str, Any] = {"made": here() | {"reviews": options.reviews}, "runs": {}}
    with ProgressLine(total=len(folders)) as line:
        for count, folder in enumerate(folders):
            line.show(folder.name, count)
            record["runs"][folder.name] = heads_of(folder, halves)
    write(options.record, rounded(record))


def heads_of(folder: Path, halves: Any) -> dict[str, Any]:
    """Where the heads of a training stand at its initial weights and at its end."""
    settings = json.loads((folder / "about.json").read_text(encoding="utf8"))["settings"]
    records = [json.loads(x) for x in (folder / "records.jsonl").read_text(encoding="utf8").splitlines()]
    task = Sentiment(halves, settings["size"], "cpu", batch=BATCH)
    torch.manual_seed(settings["seed"])
    model = task.make()
    model.dtype = torch.float32
    K0, Q0 = pairs(model)
    looks = {"start": rows_of(task, model, settings["optimizer"])}
    tensors = load_file(folder / "checkpoint.safetensors")
    model.load_state_dict({x.removeprefix("model."): tensors[x] for x in tensors if x.startswith("model.")})
    looks["end"] = rows_of(task, model, settings["optimizer"])
    K, Q = pairs(model)
    for row, rank in zip(looks["end"], stable_rank(K @ Q.mT - K0 @ Q0.mT).tolist(), strict=True):
        row["added"] = rank
    end = records[-1]
    tested = [x["test_accuracy"] for x in records if "test_accuracy" in x]
    facts = {name: settings[name] for name in ("optimizer", "seed", "lr")}
    facts |= {"epoch": end["epoch"], "loss": end.get("part_loss", end.get("train_loss")), "test": tested[-1]}
    return facts | {"width": K.shape[-1], "heads": looks}


def rows_of(task: Sentiment, model: Any, optimizer: str) -> list[dict[str, float]]:
    batches = list(task.batches(0, 1))
    M, _ = ascent(task, model, batches)
    K, Q = pairs(model)
    return [standing(*each, norm_of(optimizer)) for each in zip(K, Q, M, strict=True)]


def norm_of(optimizer: str) -> Any:
    """The norm of the steps of W_Q and W_K; of Adam, which has none, Frobenius."""
    return QUERY_KEY.get(optimizer.partition("+")[2].partition("-")[0], attsvm.frobenius)


def table(runs: dict[str, Any]) -> list[str]:
    """A line for each optimizer: mean over its heads and seeds at the end, stops, the largest alignment."""
    lines = []
    for optimizer in dict.fromkeys(run["optimizer"] for run in runs.values()):
        same = [run for run in runs.values() if run["optimizer"] == optimizer]
        words = [f"{optimizer}: {len(same)} seeds, test {np.mean([run['test'] for run in same]):.4f}"]
        for look in ("start", "end"):
            heads = [head for run in same for head in run["heads"][look]]
            means = [f"{x} {np.mean([h[x] for h in heads]):.3f}" for x in PRINTED if x in heads[0]]
            outwards = sum(head["inside"] > 0 for head in heads)
            largest = max(head["alignment"] for head in heads)
            words.append(f"{look}: {', '.join(means)}")
            at_stops = stops(heads, same[0]["width"])
            words.append(f"{outwards} of {len(heads)} heads with s > 0, {at_stops} stops")
            words.append(f"largest alignment {largest:.3f}")
        lines.append("; ".join(words))
    return lines


if __name__ == "__main__":
    main()
