"""Where probes of the board break: shifted sets. Long contexts: board_long.py. Few labels: board_labels.py.

python lab/benchmarks/practice/board_shifts.py STATES --out lab/records/board_shifts.json
python lab/benchmarks/practice/board_shifts.py                                      (the record's tables)

STATES is the folder of board_states.py. The last layer of MiniLM.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import board
import board_states
import numpy as np
from real_sets import error, places

LAYER = 6
SHIFTED = ["default", "mean", "last", "max", "positive"]
LOT = 545

Row = dict[str, object]


def judged(scores: np.ndarray, truth: np.ndarray, mean: np.ndarray | None = None) -> Row:
    """AUC, true positives at 1 % false ones, log loss; AUC above mean pooling and its standard error."""
    of_method = places(scores, truth)
    row: Row = {"AUC": round(board.auc(of_method, truth), 4)}
    row["TPR"] = round(board.true_positives(scores, truth), 4)
    row["log loss"] = round(board.log_loss(scores, truth), 4)
    if mean is not None:
        gain = of_method - places(mean, truth)
        row |= {"above": round(board.auc(gain, truth), 4), "error": round(error(gain, truth), 4)}
    return row


def drawn(count: int) -> list[str]:
    """Sets drawn by lot from those on which no setting was chosen; the surrounding texts are not judged."""
    sets = board_states.board_sets()
    tuning = board_states.tuning_sets(sets)
    untouched = [name for name in sets if name not in tuning and "wikidata" not in name]
    return np.random.default_rng(LOT).permutation(untouched)[:count].tolist()


def shifts(states: Path) -> list[Row]:
    """Fitted on a set, judged on its own test rows and on its shifted ones."""
    rows: list[Row] = []
    for name in board_states.names(board_states.folder()):
        if not name.endswith("_OOD"):
            continue
        home = board_states.load(states, name.removesuffix("_OOD"), LAYER)
        away = board_states.load(states, name, LAYER)
        tests = {"same": (home.test, home.truth), "shifted": (away.test, away.truth)}
        of_mean = {}
        for method in ["mean", *(method for method in SHIFTED if method != "mean")]:
            scores = board.METHODS[method](home.training, home.labels, 0)
            for where, (store, truth) in tests.items():
                of_test = scores(store).astype(float)
                of_mean.setdefault(where, of_test)
                rows.append(
                    {"set": name, "method": method, "test": where, **judged(of_test, truth, of_mean[where])}
                )
        print(name, flush=True)
    return rows


def tables(rows: list[Row]) -> None:
    """Means over sets."""
    tests = list(dict.fromkeys(row["test"] for row in rows))
    for key in ("AUC", "TPR"):
        count = len({row["set"] for row in rows})
        print(f"\n{key}, mean over {count} sets\n\n| method | {' | '.join(map(str, tests))} |")
        print("|---" * (len(tests) + 1) + "|")
        for method in dict.fromkeys(row["method"] for row in rows):
            of_tests = [
                np.mean([row[key] for row in rows if row["method"] == method and row["test"] == test])
                for test in tests
            ]
            print(f"| {board.NAMES[str(method)]} | {' | '.join(f'{value:.3f}' for value in of_tests)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("states", type=Path, nargs="?", help="without it the record's tables are printed")
    parser.add_argument("--out", type=Path, default=Path("lab/records/board_shifts.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.states:
        board.compile_loops()
        rows = shifts(options.states)
        board.write(rows, options.out)
    tables(json.loads(options.out.read_text()))


if __name__ == "__main__":
    main()
