"""From folders of trainings to the small records that the package draws:

    python lab/experiments/summary.py RUNS [--heads HEADS.json …] [--pairs PAIR.json …]

RUNS is what drive.py gathered (OUT/small), HEADS.json what head_study.py wrote, PAIR.json what it wrote with
--together of two trainings that share their seed. Writes transformers.json, and heads.json where heads were
studied, into src/attsvm_lab/figures/records. A recorded training stays unless RUNS has one of the same name
that went as far or farther, recorded heads unless the files have some of the same name. Each training says of
which commit it is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

RECORDS = Path(__file__).parents[2] / "src" / "attsvm_lab" / "figures" / "records"
CURVES = ("epoch", "train_accuracy", "test_accuracy", "pivotal", "soft_sparsity", "norm_last")
LATER = 12
"""Norms and entropies by layer are kept of the start, of this look and of the last one."""
SHORT = 10
"""Letters of a commit."""
JUDGED = ("ratio", "cosine", "added ratio", "added cosine", "factors ratio", "factors most")
"""What is kept of a head in a norm."""
BINS = 40
"""Bins of 0.005 that are kept of a histogram; the last takes all larger weights."""


def main(arguments: list[str] | None = None) -> None:
    options = asked(__doc__, arguments, heads="files of head_study.py", pairs="others, of two nets of a seed")
    record = merged(
        options.out / "transformers.json", {folder.name: training(folder) for folder in options.folders}
    )
    write(options.out / "transformers.json", record)
    if options.heads or options.pairs:
        file = options.out / "heads.json"
        write(file, studied(file, options.heads, options.pairs, record["runs"]))


def asked(about: str | None, arguments: list[str] | None, **files: str) -> argparse.Namespace:
    """The words of a script that writes a record: RUNS, whose trainings are `folders`, and more files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=form)
    parser.add_argument("runs", type=Path)
    for name, help_text in files.items():
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=(), help=help_text)
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    options.folders = sorted(file.parent for file in options.runs.glob("*/records.jsonl"))
    if not options.folders:
        parser.error(f"no trainings in {options.runs}. Pass what drive.py gathered: OUT/small.")
    return options


def studied(file: Path, heads: list[Path], pairs: list[Path], runs: dict[str, Any]) -> dict[str, Any]:
    """The record with what head_study.py found: on own selections by layer, and of two nets on the same ones.

    layers: training → its layers at the end; of a net before training with /heads-0000. pairs: `A beside B` →
    heads of A on selections that B makes, too. last: epochs after which these heads are.
    """
    earlier: dict[str, Any] = {"made": here(), "last": {}, "layers": {}, "pairs": {}}
    if file.is_file():
        earlier = json.loads(file.read_text(encoding="utf8"))
    commits = {*earlier["made"]["commit"].split(" and "), commit()[:SHORT]}
    origin = earlier["made"] | {"commit": " and ".join(sorted(commits))}
    origin["command"] = "python lab/experiments/head_study.py out/runs/small heads.json [--together …]"
    layers, both = {}, {}
    for own in map(_read, heads):
        layers |= {name.removesuffix("/heads-last"): by_layer(net) for name, net in own.items()}
    for shared_study in (study["same"] for study in map(_read, pairs)):
        for name, partner in (tuple(shared_study), tuple(shared_study)[::-1]):
            both[f"{name} beside {partner}"] = [head(record) for record in shared_study[name]]
    last = {name: runs[name]["trained"] for name in (x.split()[0] for x in (*layers, *both)) if name in runs}
    additions = {"last": last, "layers": layers, "pairs": both}
    return {"made": origin} | {
        name: dict(sorted((earlier[name] | new).items())) for name, new in additions.items()
    }


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf8")))


def merged(file: Path, new: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The record with new trainings in it. One that is there stays if it went farther."""
    earlier = json.loads(file.read_text(encoding="utf8")) if file.is_file() else {"runs": {}}
    runs = dict(earlier["runs"])
    origin = earlier.get("made") or dict(next(iter(new.values()))["made"])
    for name, run in new.items():
        old = runs.get(name, {"ended": False, "trained": 0})
        if (run["ended"], run["trained"]) < (old["ended"], old["trained"]):
            print(f"{name}: the recorded one stays, {old['trained']} epochs; the new has {run['trained']}")
            continue
        runs[name] = run
    facts = {name: origin[name] for name in ("machine", "versions")}
    for run in runs.values():
        if run.get("made") == facts:
            del run["made"]  # as most
    facts["commit"] = " and ".join(sorted({run["commit"] for run in runs.values()}))
    facts["command"] = "python lab/experiments/drive.py lab/experiments/plan.txt out/runs"
    return {"made": facts, "runs": dict(sorted(runs.items()))}


def here() -> dict[str, Any]:
    """This machine, which solved the programs of heads that another one trained, and this code."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    return {"machine": f"{platform.machine()} CPU", "versions": versions, "commit": commit()[:SHORT]}


def commit() -> str:
    """That of this code; ATTSVM_COMMIT where a copy of it has no history."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return os.environ.get("ATTSVM_COMMIT") or result.stdout.strip() or "unknown"


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of a training, and what about.json says of it."""
    lines = (folder / "records.jsonl").read_text(encoding="utf8").splitlines()
    about = json.loads((folder / "about.json").read_text(encoding="utf8"))
    return [json.loads(line) for line in lines], about


def origin(folder: Path, command: str) -> dict[str, Any]:
    """Where, with what and by which command a training was made."""
    about = read(folder)[1]
    facts = {name: about[name] for name in ("machine", "versions")} | {"commit": about["commit"][:SHORT]}
    return facts | {"command": command}


def training(folder: Path) -> dict[str, Any]:
    """Curves by tested epoch, norms and entropies by layer, weights at the end, maps where epochs were kept.

    trained: all epochs, tested or not; ended: whether the train accuracy or the number of epochs reached its
    end. Soft sparsity, norms and pivotal words begin before the first epoch. made: the machine, where the
    record's is another.
    """
    records, about = read(folder)
    settings = about["settings"]
    stated = {x: value for x, value in settings.items() if x != "until" and value is not None}
    out: dict[str, Any] = {"settings": stated}
    out["commit"], out["made"] = about["commit"][:SHORT], {x: about[x] for x in ("machine", "versions")}
    looked = [record for record in records if "heads" in record]
    tested = [record for record in looked if "test_accuracy" in record]
    for name in CURVES:
        if name in looked[-1]:
            with_curve = looked if name in looked[0] and name != "epoch" else tested
            out[name] = [_short(record[name]) for record in with_curve]
    end = records[-1]
    out["trained"] = end["epoch"]
    out["ended"] = end["train_accuracy"] >= settings["until"] or end["epoch"] >= settings["epochs"]
    ends = (looked[0], looked[min(LATER, len(looked) - 1)], looked[-1])
    out["layers"] = [layers(record["heads"]) for record in ends]
    if "temperature" in looked[-1]:
        out["temperature"] = [[_short(x) for x in record["temperature"]] for record in ends]
    out["seconds"] = _short(sum(record["seconds"] for record in records[1:]))
    if (folder / "last.json").is_file():
        out["last"] = last(json.loads((folder / "last.json").read_text(encoding="utf8")))
    maps = {
        file.stem[5:]: _map(load_file(file)["maps"]) for file in sorted(folder.glob("maps-*.safetensors"))
    }
    return out | ({"maps": maps} if len(maps) > 1 else {})


def layers(heads: list[list[float]]) -> list[list[float]]:
    """[mean norm, mean entropy, mean top mass] of every layer."""
    rows = np.array(heads)
    means = [rows[rows[:, 0] == layer, 2:5].mean(0) for layer in np.unique(rows[:, 0])]
    return [[_short(x) for x in mean] for mean in means]


def last(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights at the end, the histograms cut to their first bins; spectra are kept by factors.py."""
    out = {name: x for name, x in weights.items() if not name.startswith(("histogram", "spectra"))}
    for name in ("query", "key", "value"):
        counts = weights[f"histogram_{name}"]
        out[f"histogram_{name}"] = [*counts[: BINS - 1], sum(counts[BINS - 1 :])]
    return out


def head(record: dict[str, Any]) -> dict[str, Any]:
    """A head without what only matters while it is studied."""
    out = {name: _short(value) for name, value in record.items() if name != "margins"}
    for name, margin in record.get("margins", {}).items():
        values = {key: _short(margin[key]) for key in JUDGED if margin.get(key) is not None}
        out.setdefault("margins", {})[name] = values | {"certified": margin["certified"]}
    return out


def by_layer(net: list[dict[str, Any]]) -> list[list[float]]:
    """[surest attention, share of the Frobenius margin, cosine to it], mean over the heads of every layer."""
    rows = [
        (head_record["layer"], head_record["mass"], head_record["margins"]["Frobenius"])
        for head_record in net
    ]
    if not all(margin["certified"] for *_, margin in rows):
        raise ValueError("a program of these heads is not certified. Study them again.")
    means = []
    for layer in sorted({layer for layer, *_ in rows}):
        head_rows = [(mass, margin["ratio"], margin["cosine"]) for at, mass, margin in rows if at == layer]
        means.append([_short(float(x)) for x in np.mean(head_rows, 0)])
    return means


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
