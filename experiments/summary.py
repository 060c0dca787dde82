"""From folders of trainings to the small records that the package draws:

    python experiments/summary.py RUNS [--heads HEADS.json]

RUNS is what drive.py gathered (OUT/small), HEADS.json what head_study.py wrote. Writes transformers.json, and
heads.json where heads were studied, into src/attsvm/figures/records.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

RECORDS = Path(__file__).parents[1] / "src" / "attsvm" / "figures" / "records"
CURVES = ("epoch", "train_accuracy", "test_accuracy", "pivotal", "soft_sparsity", "norm_last")
SHORT = 10
"""Letters of a commit."""
BINS = 40
"""Bins of 0.005 that are kept of a histogram; the last takes all larger weights."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--heads", type=Path, nargs="*", default=(), help="files of head_study.py")
    parser.add_argument("--heads-commit", default="unknown", help="of the code that studied the heads")
    parser.add_argument("--out", type=Path, default=RECORDS)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    folders = sorted(file.parent for file in given.runs.glob("*/records.jsonl"))
    runs = {folder.name: training(folder) for folder in folders}
    about = json.loads((folders[0] / "about.json").read_text(encoding="utf8"))
    made = {name: about[name] for name in ("machine", "versions")}
    made["commit"] = " and ".join(sorted({run["commit"] for run in runs.values()}))
    command = "python experiments/drive.py experiments/plan.txt out/runs"
    write(given.out / "transformers.json", {"made": made | {"command": command}, "runs": runs})
    if given.heads:
        heads: dict[str, Any] = {}
        same: dict[str, Any] = {}
        for file in given.heads:
            study = json.loads(file.read_text(encoding="utf8"))
            for kind, found in ((same, study.pop("same", {})), (heads, study)):
                kind |= {name: [head(one) for one in net] for name, net in found.items()}
        made = here(given.heads_commit) | {
            "command": "python experiments/head_study.py out/runs/small heads.json [--together …]"
        }
        write(given.out / "heads.json", {"made": made, "heads": heads, "same": same})


def here(commit: str) -> dict[str, Any]:
    """This machine, which solved the programs of heads that another one trained."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    return {"machine": f"{platform.machine()} CPU", "versions": versions, "commit": commit[:SHORT]}


def training(folder: Path) -> dict[str, Any]:
    """Curves by tested epoch, norms and entropies by layer, weights at the end, maps where there are any.

    trained: all epochs, tested or not; ended: whether the train accuracy reached its end. Soft sparsity,
    norms and pivotal words begin before the first epoch.
    """
    lines = (folder / "records.jsonl").read_text(encoding="utf8").splitlines()
    records = [json.loads(line) for line in lines]
    about = json.loads((folder / "about.json").read_text(encoding="utf8"))
    settings = about["settings"]
    out: dict[str, Any] = {"settings": {name: value for name, value in settings.items() if name != "until"}}
    out["commit"] = about["commit"][:SHORT]
    looked = [record for record in records if "heads" in record]
    tested = [record for record in looked if "test_accuracy" in record]
    for name in CURVES:
        if name in looked[-1]:
            whole = looked if name in looked[0] and name != "epoch" else tested
            out[name] = [_short(record[name]) for record in whole]
    out["trained"], out["ended"] = records[-1]["epoch"], records[-1]["train_accuracy"] >= settings["until"]
    out["layers"] = [layers(record["heads"]) for record in looked]
    if "temperature" in looked[-1]:
        out["temperature"] = [[_short(x) for x in record["temperature"]] for record in looked]
    out["seconds"] = _short(sum(record["seconds"] for record in records[1:]))
    if (folder / "last.json").is_file():
        out["last"] = last(json.loads((folder / "last.json").read_text(encoding="utf8")))
    maps = {
        file.stem[5:]: _map(load_file(file)["maps"]) for file in sorted(folder.glob("maps-*.safetensors"))
    }
    return out | ({"maps": maps} if maps else {})


def layers(heads: list[list[float]]) -> list[list[float]]:
    """[mean norm, mean entropy, mean top mass] of every layer."""
    rows = np.array(heads)
    means = [rows[rows[:, 0] == layer, 2:5].mean(0) for layer in np.unique(rows[:, 0])]
    return [[_short(x) for x in mean] for mean in means]


def last(found: dict[str, Any]) -> dict[str, Any]:
    """Weights at the end, the histograms cut to their first bins."""
    out = {name: value for name, value in found.items() if not name.startswith("histogram")}
    for name in ("query", "key", "value"):
        counts = found[f"histogram_{name}"]
        out[f"histogram_{name}"] = [*counts[: BINS - 1], sum(counts[BINS - 1 :])]
    return out


def head(found: dict[str, Any]) -> dict[str, Any]:
    """A head without what only matters while it is studied."""
    out = {name: _short(value) for name, value in found.items() if name != "margins"}
    for name, one in found.get("margins", {}).items():
        kept = {key: _short(one[key]) for key in ("ratio", "cosine") if one[key] is not None}
        out.setdefault("margins", {})[name] = kept | {"certified": one["certified"]}
    return out


def _map(maps: Any) -> list[list[int]]:
    """Attention of each picture's patches as bytes, 255 for its largest."""
    wide = maps.astype(float)
    return np.rint(255 * wide / wide.max(-1, keepdims=True)).astype(int).tolist()


def _short(x: Any) -> Any:
    return float(f"{x:.5g}") if isinstance(x, float) else x


def write(file: Path, record: dict[str, Any]) -> None:
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf8")
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
