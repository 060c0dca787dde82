"""From the trainings of plan-language.txt to the package's record:

    python lab/experiments/language_record.py RUNS [--heads HEADS.json]

RUNS is what drive.py gathered (OUT/small), HEADS.json what language_heads.py wrote. Writes language.json into
src/attsvm_lab/figures/records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import language
from factors import JUDGED, rounded
from language import BATCH, COLUMNS, LENGTH, SELECTS, mark
from summary import asked, here, origin, read, write

CURVES = ("top mass", "first", "previous", "induction")
"""Columns that are kept of every head at every look, of the trainings of seed 0."""
KINDS = {"first": language.SINKS, "previous": language.REACHES_BACK, "induction": language.INDUCES}


def main(arguments: list[str] | None = None) -> None:
    options = asked(__doc__, arguments, heads="the file of language_heads.py")
    command = "python lab/experiments/drive.py lab/experiments/plan-language.txt out/language"
    record: dict[str, Any] = {"made": origin(options.folders[0], command)}
    record |= {"selects": SELECTS, "kinds": KINDS, "columns": COLUMNS}
    record["runs"] = {folder.name: training(folder) for folder in options.folders}
    if options.heads:
        command = "python lab/experiments/language_heads.py out/language/small heads.json"
        record["programs"] = {"made": here() | {"command": command}, "same": {}, "own": {}}
    for file in options.heads:
        nets = json.loads(file.read_text(encoding="utf8"))
        record["programs"]["same"] |= {name: _heads(pair) for name, pair in nets.pop("same").items()}
        record["programs"]["own"] |= {name: _heads(net) for name, net in nets.items()}
    write(options.out / "language.json", record)


def training(folder: Path) -> dict[str, Any]:
    """A training at its looks, the first of them before it began.

    tokens, fit, test: of every look; copy: losses on random tokens and on the same read again; means: of all
    columns over heads; counts: heads that select, and of each kind; begins: by head, the look at which it
    begins to select, −1 for never; heads: all columns at the end; added: by look after the first, means over
    heads of stable rank, effective rank and length, and of each head at the end; spectrum: at the end;
    curves: of seed 0.
    """
    records, about = read(folder)
    settings = about["settings"]
    table = np.array([record["heads"] for record in records])  # looks, heads, columns
    finished = records[-1]["epoch"] >= settings["epochs"]
    started = selecting(table)
    out: dict[str, Any] = {
        "settings": {name: settings[name] for name in ("optimizer", "lr", "seed")},
        "ended": finished,
        "tokens": [mark(record["epoch"]) * BATCH * LENGTH for record in records],
        "fit": [record["fit_loss"] for record in records],
        "test": [record.get("test_loss") for record in records[1:]],
        "copy": [record["copy"] for record in records],
        "means": table[:, :, 2:].mean(1).tolist(),
        "counts": {"selecting": started.sum(1).tolist()} | _counts(table),
        "begins": np.where(started.any(0), started.argmax(0), -1).tolist(),
        "heads": table[-1, :, 2:].tolist(),
        "added": [np.mean(record["added"], 0).tolist() for record in records[1:]],
        "added heads": records[-1]["added"],
        "spectrum": records[-1]["spectrum"],
        "seconds": sum(record["train_seconds"] for record in records[1:]),
    }
    if settings["seed"] == 0:
        out["curves"] = {name: table[:, :, COLUMNS.index(name)].T.tolist() for name in CURVES}
    return rounded(out)


def selecting(table: Any) -> Any:
    """Whether each head selects at each look (looks, heads): one of SELECTS is passed."""
    return np.any([table[:, :, COLUMNS.index(name)] >= least for name, least in SELECTS.items()], axis=0)


def _counts(table: Any) -> dict[str, list[int]]:
    """Heads of each kind at each look."""
    return {
        name: (table[:, :, COLUMNS.index(name)] >= least).sum(1).tolist() for name, least in KINDS.items()
    }


def _heads(heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kept heads of a net, or two heads on equal choices."""
    return [rounded(head | {"own": _judged(head["own"])}) for head in heads]


def _judged(head: dict[str, Any]) -> dict[str, Any]:
    """What is known of a head on its choices, JUDGED by norm; a head before training has nothing added."""
    norms = head.pop("margins", {})
    return head | {norm: [values.get(key) for key in JUDGED] for norm, values in norms.items()}


if __name__ == "__main__":
    main()
