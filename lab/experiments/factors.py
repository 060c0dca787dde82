"""From the trainings of plan-factors.txt to the record of what they wrote into W_Q and W_K:

    python lab/experiments/factors.py RUNS [--margins FILE …]

RUNS is what drive.py gathered (OUT/small), the files are of head_study.py: heads on their own selections, and
with --together on shared ones, one file per seed. Writes factors.json into src/attsvm_lab/figures/records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from summary import asked, here, layers, origin, read, write

JUDGED = ("ratio", "cosine", "added ratio", "added cosine", "certified")
"""What is kept of a head in a norm: share of the best margin and cosine to it, of W and of what was added."""
KEPT = 128
"""Singular values of what was added that are kept: the width of a head."""


def main(arguments: list[str] | None = None) -> None:
    options = asked(__doc__, arguments, margins="files of head_study.py")
    command = "python lab/experiments/drive.py lab/experiments/plan-factors.txt out/factors"
    record: dict[str, Any] = {"made": origin(options.folders[0], command)}
    record["runs"] = {folder.name: training(folder) for folder in options.folders}
    if options.margins:
        command = "python lab/experiments/head_study.py out/factors/small margins.json [--together …]"
        record["margins"] = {"made": here() | {"command": command}}
        for file in options.margins:
            for name, nets in _studied(file).items():
                record["margins"].setdefault(name, {}).update(nets)
    write(options.out / "factors.json", record)


def training(folder: Path) -> dict[str, Any]:
    """A training at its end, and by tested epoch what it had added.

    epochs: with the part of the last one; loss: of its last part; best, stop: test accuracies; curve: train
    loss, test accuracy, and means over heads of stable rank, effective rank and length; heads: these three of
    each head; spectrum: singular values by the largest one, mean over heads; norms: mean of each layer's
    heads, before training and by tested epoch.
    """
    records, about = read(folder)
    settings = about["settings"]
    last = json.loads((folder / "last.json").read_text(encoding="utf8"))
    tested, end = [record for record in records if "added" in record], records[-1]
    batches_of_epoch = max(record.get("batches", 0) for record in records)
    epochs = end["epoch"] - 1 + end["batches"] / batches_of_epoch if "batches" in end else end["epoch"]
    spectra = np.array(last["spectra"])
    out: dict[str, Any] = {
        "settings": {name: settings[name] for name in ("optimizer", "lr", "seed", "task", "enough")},
        "epochs": epochs,
        "loss": end.get("part_loss", end["train_loss"]),
        "best": max(record["test_accuracy"] for record in tested),
        "stop": tested[-1]["test_accuracy"],
        "curve": [_point(record) for record in tested],
        "heads": tested[-1]["added"],
        "spectrum": (spectra / spectra[:, :1]).mean(0)[:KEPT].tolist(),
        "norms": [[norm for norm, *_ in layers(record["heads"])] for record in (records[0], *tested)],
    }
    if "temperature" in tested[-1]:
        out["temperature"] = [records[0]["temperature"], tested[-1]["temperature"]]
    return rounded(out)


def _point(record: dict[str, Any]) -> list[float]:
    added = np.mean(record["added"], axis=0).tolist()
    return [record["epoch"], record["train_loss"], record["test_accuracy"], *added]


def _studied(file: Path) -> dict[str, Any]:
    """`own` or `same` → training → its heads: layer, attention on the selections, and of each norm a list.

    A norm's list: share of the best margin and cosine to it, of W and of what was added; certified or not.
    """
    study = json.loads(file.read_text(encoding="utf8"))
    shared_heads = study.pop("same", {})
    heads_of = {name.split("/")[0]: heads for name, heads in study.items() if name.endswith("/heads-last")}
    kinds = (("own", heads_of), ("same", shared_heads))
    return {kind: {name: [_head(head) for head in net] for name, net in nets.items()} for kind, nets in kinds}


def _head(head: dict[str, Any]) -> dict[str, Any]:
    out = {name: head[name] for name in ("layer", "head", "used", "mass")}
    return rounded(out | {norm: [values[key] for key in JUDGED] for norm, values in head["margins"].items()})


def rounded(value: Any) -> Any:
    """Floats to four digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
