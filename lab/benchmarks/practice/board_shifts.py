"""Where probes of the board break: shifted sets, and long contexts of joined states of an encoder.

Contexts that a decoder reads: board_long.py. Few labels: board_labels.py.

python lab/benchmarks/practice/board_shifts.py shifts STATES --out lab/records/board_shifts.json
python lab/benchmarks/practice/board_shifts.py long STATES --sets 8
python lab/benchmarks/practice/board_shifts.py tables STATES

STATES is the folder of board_states.py. What the record has is not measured again. The last layer of MiniLM.
"""

from __future__ import annotations

import argparse
import json
import warnings
import zlib
from pathlib import Path

import board
import board_states
import numpy as np
from board_long import BENIGN, CONTEXT, largest_window
from real_sets import error, places

from attsvm.probe import surround

LAYER = 6
SHIFTED = ["default", "mean", "last", "max", "positive"]
LENGTHENED, LONG_ROWS = 128, 80
"""Length of lengthened training sequences, and test rows of a long context."""

LONG, WINDOWED = ["default", "mean", "positive"], ["default", "mean"]

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
    sets = [name for name in board_states.names(board_states.folder()) if not name.endswith("_OOD")]
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


# ---------------------------------------------------------------------- long contexts


def long(states: Path, count: int) -> list[Row]:
    """Fitted on texts of at most 64 tokens, judged on the same texts within 2,048; and after lengthening."""
    pool, rows = board_states.load(states, BENIGN, LAYER), list[Row]()
    for name in drawn(count):
        seed = zlib.crc32(name.encode())
        b = board_states.load(states, name, LAYER)
        test, truth = b.test[:LONG_ROWS], b.truth[:LONG_ROWS]
        context = surround(test, pool.test, CONTEXT, seed=seed)
        lengthened = surround(b.training, pool.training, LENGTHENED, seed=seed)
        for method in LONG:
            scores = {}
            for what, training in (("", b.training), ("lengthened training, ", lengthened)):
                fitted = board.METHODS[method](training, b.labels, 0)
                scores[f"{what}the text alone"] = fitted(test)
                scores[f"{what}in context"] = fitted(context)
                if not what and method in WINDOWED:
                    scores["in context, largest window"] = largest_window(fitted, context)
            for where, of_test in scores.items():
                row = judged(of_test.astype(float), truth)
                rows.append({"set": name, "method": method, "test": where, **row})
        print(name, flush=True)
    return rows


def tables(content: dict[str, list[Row]]) -> None:
    """Means over sets, one table for each kind of shift."""
    for kind, rows in content.items():
        tests = list(dict.fromkeys(row["test"] for row in rows))
        for key in ("AUC", "TPR"):
            count = len({row["set"] for row in rows})
            print(f"\n{kind}, {key}, mean over {count} sets\n\n| method | {' | '.join(map(str, tests))} |")
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
    parser.add_argument("what", choices=["shifts", "long", "tables"])
    parser.add_argument("states", type=Path)
    parser.add_argument("--sets", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("lab/records/board_shifts.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    content = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.what == "tables":
        return tables(content)
    if options.what in content:
        raise SystemExit(f"{options.out} has {options.what} already.")
    board.compile_loops()
    measured = shifts(options.states) if options.what == "shifts" else long(options.states, options.sets)
    content[options.what] = measured
    options.out.write_text(json.dumps(content, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    return tables({options.what: content[options.what]})


if __name__ == "__main__":
    main()
