"""The default beside mean pooling and the last token on five splits of every set of the board.

python lab/benchmarks/practice/board.py measure STATES SCORES --methods default mean last --splits 1 2 3 4
python lab/benchmarks/practice/board_splits.py record STATES SCORES --out lab/records/board_splits.json
python lab/benchmarks/practice/board_splits.py tables lab/records/board_splits.json

Split 0 is that of board.json; each of the others takes the rows of a set in another order, the first 250 for
training. The test parts of the splits share rows, so their errors do not average out: the error of a mean
over splits is the mean of the errors (DeLong), as though all splits had one test part. `corrected_t` is from
the spread of the splits instead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import board
import board_states
import numpy as np
from real_sets import error, places
from scipy.stats import t as student

SPLITS, LAYERS = (0, 1, 2, 3, 4), (3, 6)
MEASURED = ("default", "mean", "last")
REFERENCES = {"mean": "mean pooling", "last": "the last token"}
MIXTURES = {
    "quarter": ("its mean with the last token, weights ¾ and ¼", 0.25),
    "half": ("its mean with the last token, weights ½ and ½", 0.5),
}
"""Means of the scores of the default and of the last token's logistic regression, which has this weight."""

WORDS = REFERENCES | {name: words for name, (words, _) in MIXTURES.items()}


class Differences(NamedTuple):
    """The default minus a reference (sets, splits): AUCs, and their DeLong errors."""

    gains: np.ndarray
    errors: np.ndarray

    def over(self, splits: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Mean over splits of each set, and its error: that of one split, in the mean."""
        columns = list(splits)
        return self.gains[:, columns].mean(1), self.errors[:, columns].mean(1)


def corrected_t(gains: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The corrected resampled t of each set (Nadeau & Bengio 2003); share: test rows / training rows."""
    J = gains.shape[1]
    spread = np.sqrt((1 / J + share) * gains.var(1, ddof=1))
    return np.divide(gains.mean(1), spread, out=np.zeros(len(gains)), where=spread > 0)


def record(states: Path, folder: Path, file: Path) -> None:
    """AUC of every method, and its difference from the default, set by set and split by split."""
    board_sets = board_states.board_sets()
    sets = [name for name in board_sets if all(path.exists() for path in files(folder, name))]
    layers: dict[str, dict] = {
        str(layer): {m: {"AUC": [], "gain": [], "error": []} for m in ("default", *WORDS)} for layer in LAYERS
    }
    rows = []
    for name in sets:
        with np.load(states / f"{name}.npz", allow_pickle=False) as data:
            training, labels = int(data["training"]), data["labels"]
        rows.append([training, len(labels) - training])
        for layer, methods in layers.items():
            of_splits = [numbers(folder, name, int(layer), split, labels, training) for split in SPLITS]
            for method, columns in methods.items():
                for key in columns if method != "default" else ["AUC"]:
                    columns[key].append([of_split[method][key] for of_split in of_splits])
    for methods in layers.values():
        methods["default"] = {"AUC": methods["default"]["AUC"]}
    tuning = [name for name in board_states.tuning_sets(board_sets) if name in sets]
    content = {"sets": sets, "tuning": tuning, "splits": SPLITS, "rows": rows, "layers": layers}
    board.write(content, file)


def files(folder: Path, name: str) -> list[Path]:
    """Scores of all splits, layers and methods of a set."""
    return [
        board.score_file(board.split_folder(folder, split), name, layer, method)
        for split in SPLITS
        for layer in LAYERS
        for method in MEASURED
    ]


def numbers(
    folder: Path, name: str, layer: int, split: int, labels: np.ndarray, training: int
) -> dict[str, dict[str, float]]:
    """Of every method: its AUC, and the gain of the default over it with its error."""
    order = board_states.row_order(name, len(labels), split) if split else np.arange(len(labels))
    truth, of_split, rounded = labels[order][training:], board.split_folder(folder, split), {}
    scores = {m: board.score_of_file(board.score_file(of_split, name, layer, m))[0] for m in MEASURED}
    for mixture, (_, weight) in MIXTURES.items():
        scores[mixture] = (1 - weight) * scores["default"] + weight * scores["last"]
    ranked = {method: places(of_method, truth) for method, of_method in scores.items()}
    for method, of_rows in ranked.items():
        gain = ranked["default"] - of_rows
        values = {"AUC": board.auc(of_rows, truth), "gain": board.auc(gain, truth)}
        rounded[method] = {key: round(value, 4) for key, value in values.items()}
        rounded[method]["error"] = round(error(gain, truth), 4)
    return rounded


def differences(content: dict, layer: str, method: str) -> Differences:
    columns = content["layers"][layer][method]
    return Differences(np.array(columns["gain"]), np.array(columns["error"]))


def tables(content: dict) -> None:
    """The page's tables: how many sets the default wins and loses, which losses repeat, all losses."""
    sets = np.array(content["sets"])
    share = np.array([test / training for training, test in content["rows"]])
    untouched = ~np.isin(sets, content["tuning"])
    heads = "layer", "the default minus", "AUC [95 %]", "beyond 2 errors", "four new splits", "corrected t"
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for layer in reversed(content["layers"]):
        for method, words in WORDS.items():
            of = differences(content, layer, method)
            gain = of.over(SPLITS)[0][untouched]
            low, high = board.interval(gain)
            cells = [f"{board.signed(gain.mean())} [{board.signed(low)}, {board.signed(high)}]"]
            for splits in (SPLITS, SPLITS[1:]):
                gains, errors = of.over(splits)
                cells.append(f"{(gains > 2 * errors).sum()} : {(gains < -2 * errors).sum()}")
            t, limit = corrected_t(of.gains, share), student.ppf(0.975, len(SPLITS) - 1)
            cells.append(f"{(t > limit).sum()} : {(t < -limit).sum()}")
            print(f"| {layer} | {words} | {' | '.join(cells)} |")
    for method in REFERENCES:
        print_losses(content, method)


def print_losses(content: dict, method: str) -> None:
    """Sets on which the default is below a reference, on split 0 or in the mean of five."""
    print(f"\nThe default below {REFERENCES[method]}\n")
    heads = "layer", "set", "split 0", "four new splits", "all five", "splits below 0", "corrected t"
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    share = np.array([test / training for training, test in content["rows"]])
    for layer in reversed(content["layers"]):
        of = differences(content, layer, method)
        t, below = corrected_t(of.gains, share), (of.gains < 0).sum(1)
        parts = [of.over(splits) for splits in (SPLITS[:1], SPLITS[1:], SPLITS)]
        lost = [gains < -2 * errors for gains, errors in parts]
        for place in np.flatnonzero(lost[0] | lost[2]):
            cells = [f"{board.signed(g[place])} ± {e[place]:.3f}" for g, e in parts]
            cells[2] = f"**{cells[2]}**" if lost[2][place] else cells[2]
            cells += [str(below[place]), board.signed(t[place], 1)]
            print(f"| {layer} | {content['sets'][place]} | {' | '.join(cells)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    of_record = commands.add_parser("record")
    of_record.add_argument("states", type=Path)
    of_record.add_argument("scores", type=Path)
    of_record.add_argument("--out", type=Path, default=Path("lab/records/board_splits.json"))
    commands.add_parser("tables").add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "tables":
        return tables(json.loads(options.record.read_text()))
    return record(options.states, options.scores, options.out)


if __name__ == "__main__":
    main()
