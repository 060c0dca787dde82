"""Few labels, wrong labels and rare positives on the board, and searches for few rows.

python lab/benchmarks/practice/board_labels.py STATES --sets tuning                    (2 CPU minutes)
python lab/benchmarks/practice/board_labels.py STATES --sets untouched --count 12
python lab/benchmarks/practice/board_labels.py STATES --sets tables

STATES is the folder of board_states.py. What the record has is not measured again. The last layer of MiniLM.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
import zlib
from pathlib import Path

import board
import board_states
import numpy as np
import probe_peers as peers
from board_remedies import read, widest_within_error, write
from board_shifts import drawn, judged

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.fitting import fits

LAYER = 6
FEW, DRAWS = (32, 64), 3
"""So few rows are drawn several times, from disjoint parts of the training rows."""

MORE, NOISE, POSITIVES = (125, 250), (0.1, 0.2), (0.1, 0.05)
METHODS = ("default", "mean", "last")


def among(heads: tuple[float, ...]) -> peers.Scores:
    """The default with other head ridges in its search; prompt ridges in the same ratios."""
    pooled = tuple((h, 1000 * h) for h in heads)

    def fit(store: TokenStore, labels: np.ndarray, seed: int) -> peers.Scores:
        kept = fits.HEAD, fits.POOLED, fits.STRONGER
        fits.HEAD, fits.POOLED, fits.STRONGER = heads, pooled, len(heads)
        try:
            return AttentionProbe().fit(store, labels).decision_function
        finally:
            fits.HEAD, fits.POOLED, fits.STRONGER = kept

    return fit


SEARCHES: dict[str, peers.Scores] = {
    "5 folds": peers.ours(cv=5),
    "10 folds": peers.ours(cv=10),
    "our mean pooling": peers.ours(prompt_ridge=30.0),
    "ridges 1 and 10, no search": peers.ours(head_ridge=1.0, prompt_ridge=10.0),
    "ridges 0.3 and 3, no search": peers.ours(head_ridge=0.3, prompt_ridge=3.0),
    "ridges 0.1 and 1, no search": peers.ours(head_ridge=0.1, prompt_ridge=1.0),
    "head ridges of 0.1 and more": among((1.0, 0.3, 0.1)),
    "head ridges 10 to 0.1": among((10.0, 3.0, 1.0, 0.3, 0.1)),
}
"""Tried with few rows, beside the default's search."""

AVERAGES = {
    "mean of default and last": ("default", "last"),
    "mean of default and mean": ("default", "mean"),
    "mean of default and ridges 0.3 and 3": ("default", "ridges 0.3 and 3, no search"),
}


def widest(store: TokenStore, labels: np.ndarray, seed: int) -> peers.Scores:
    """The standard-error rule of board_remedies.py."""
    return widest_within_error(AttentionProbe().fit(store, labels), store, labels).decision_function


def trainings(labels: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{"what": (rows, their labels)}; both classes have two rows at least."""
    n, parts = len(labels), dict[str, tuple[np.ndarray, np.ndarray]]()
    for count in FEW:
        for draw in range(DRAWS):
            rows = np.arange(draw * count, (draw + 1) * count)
            parts[f"{count} rows, draw {draw}"] = rows, labels[rows]
    for count in MORE:
        parts[f"{count} rows"] = np.arange(count), labels[:count]
    for share in NOISE:
        wrong = rng.permutation(n) < round(share * n)
        parts[f"{share:.0%} of the labels wrong"] = np.arange(n), labels ^ wrong
    for share in POSITIVES:
        negatives = np.flatnonzero(labels == 0)
        positives = np.flatnonzero(labels == 1)[: round(share / (1 - share) * len(negatives))]
        rows = np.sort(np.concatenate([negatives, positives]))
        parts[f"{share:.0%} positive"] = rows, labels[rows]
    return {what: (rows, y) for what, (rows, y) in parts.items() if min(y.sum(), (1 - y).sum()) >= 2}


def measure(states: Path, name: str) -> list[dict[str, object]]:
    """Every method with every training part of a set; searches with few rows only."""
    b = board_states.load(states, name, LAYER)
    rows, searches = list[dict[str, object]](), SEARCHES | {"widest within an error": widest}
    for what, (index, y) in trainings(b.labels, np.random.default_rng(zlib.crc32(name.encode()))).items():
        methods = {method: board.METHODS[method] for method in METHODS}
        methods |= searches if "draw" in what else {}
        scores = {name: fit(b.training[index], y, 0)(b.test).astype(float) for name, fit in methods.items()}
        scores |= {
            name: np.mean([scores[part] for part in parts], 0)
            for name, parts in AVERAGES.items()
            if set(parts) <= set(scores)
        }
        for method, of_test in scores.items():
            row = judged(of_test, b.truth, scores["default"])  # "above" is above the default
            rows.append({"set": name, "method": method, "test": what, **row})
    return rows


def tables(rows: list[dict]) -> None:
    """Means over sets, draws of a set averaged; differences from the default with the error over sets."""
    tuning = board_states.tuning_sets(board_states.names(board_states.folder()))
    for row in rows:
        row["test"] = row["test"].partition(", draw")[0]
    for title, chosen in {
        "tuning": [row for row in rows if row["set"] in tuning],
        "untouched": [row for row in rows if row["set"] not in tuning],
    }.items():
        if not chosen:
            continue
        tests, methods, sets = (
            list(dict.fromkeys(row[key] for row in chosen)) for key in ("test", "method", "set")
        )
        for key in ("AUC", "TPR", "log loss"):
            print(f"\n{title}, {len(sets)} sets, {key}\n\n| method | {' | '.join(tests)} |")
            print("|---" * (len(tests) + 1) + "|")
            values: dict[tuple, list[float]] = {}
            for row in chosen:
                values.setdefault((row["method"], row["test"], row["set"]), []).append(row[key])
            of = {
                place: np.mean(values.get(place, np.nan)) for place in itertools.product(methods, tests, sets)
            }
            for method in methods:
                cells = []
                for test in tests:
                    of_sets = np.array([of[method, test, name] for name in sets])
                    gain = of_sets - [of["default", test, name] for name in sets]
                    run = np.isfinite(gain)
                    if not run.any():
                        cells.append("–")
                        continue
                    spread = gain[run].std(ddof=1) / np.sqrt(run.sum())
                    cells.append(f"{of_sets[run].mean():.3f} ({gain[run].mean():+.3f} ± {spread:.3f})")
                print(f"| {method} | {' | '.join(cells)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("states", type=Path)
    parser.add_argument("--sets", choices=["tuning", "untouched", "tables"], default="tuning")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("lab/records/board_labels.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = read(options.out) if options.out.exists() else []
    if options.sets == "tables":
        return tables(rows)
    sets = board_states.tuning_sets(board_states.names(board_states.folder()))
    board.compile_loops()
    for name in sets if options.sets == "tuning" else drawn(options.count):
        if name in {row["set"] for row in rows} or not (options.states / f"{name}.npz").exists():
            continue
        rows += measure(options.states, name)
        write(rows, options.out)
        print(name, flush=True)
    return tables(rows)


if __name__ == "__main__":
    main()
