"""AttentionProbe and its peers on the 113 binary sets of arXiv 2502.16681, in states of frozen models.

python lab/benchmarks/practice/board_states.py STATES                                  (once: 11 CPU minutes)
python lab/benchmarks/practice/board.py measure STATES SCORES --sets tuning            (what is there stays)
python lab/benchmarks/practice/board.py measure STATES SCORES --sets all --layers 6 --methods default mean
python lab/benchmarks/practice/board.py record STATES SCORES --out lab/records/board.json     (adds to it)
python lab/benchmarks/practice/board.py tables lab/records/board.json               (as on docs/lab/board.md)

lab/records/board_stories.json is the same of stories15M, from the states of `board_states.py --decoder`;
board_smollm2.json and board_tinyllama.json of larger decoders. `--rows 250` fits on the first training rows.
Every method sees the training rows of a set alone, and chooses its settings there. Settings of ours may be
chosen on the twenty tuning sets; the others are for the table. Peers of 2601.11516 (MultiMax, the maximum of
rolling means) and the attention probe are those of the package probelab.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import board_states
import numpy as np
import probe_peers as peers
from real_sets import error, places

from attsvm.probe import TokenStore

METHODS: dict[str, Callable[..., peers.Scores]] = {
    "default": peers.ours(),
    "mean": peers.mean_pooling,
    "last": peers.last_token,
    "max": peers.max_pooling,
    "positive": peers.ours(positive=True),
    "probelab attention": peers.probelab("Attention"),
    "multimax": peers.probelab("MultiMax"),
    "rolling": peers.probelab("RollingAttention"),
    "auto": peers.ours(features="auto"),
    "and last": peers.ours(features=["linear", "last"]),
}

NAMES = {
    "default": "`AttentionProbe()`",
    "auto": '`AttentionProbe(features="auto")`',
    "and last": '`AttentionProbe(features=["linear", "last"])`',
    "positive": "`AttentionProbe(positive=True)`",
    "both": "mean of its score and the last token's",
    "mean": "mean pooling + logistic regression",
    "last": "last token + logistic regression",
    "max": "max pooling + logistic regression",
    "probelab attention": "probelab 0.1.0 Attention",
    "multimax": "probelab 0.1.0 MultiMax",
    "rolling": "probelab 0.1.0 RollingAttention",
}

NUMBERS = (
    *("AUC", "TPR at 1 % FPR", "log loss", "CPU s", "AUC above mean", "its error"),
    *("AUC below default", "error below default"),
)
ROWS = ("training", "test", "tokens")
RESAMPLES = 10_000

LOT, DRAWN = 541, 30
"""Methods that take long are run on so many of the untouched sets, drawn by this seed."""


def true_positives(scores: np.ndarray, labels: np.ndarray, share: float = 0.01) -> float:
    """The share of positives above the score that at most this share of the negatives exceeds."""
    negatives = np.sort(scores[labels == 0])[::-1]
    return float((scores[labels == 1] > negatives[int(share * len(negatives))]).mean())


def log_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.logaddexp(0, (1 - 2 * labels) * scores).mean())


def score_file(folder: Path, name: str, layer: int, method: str, rows: int | None = None) -> Path:
    """Where the test scores are; of a fit on the first training rows, if `rows` is given."""
    return folder / f"{name}, layer {layer}, {method}{f', {rows} rows' if rows else ''}.npz"


def split_folder(folder: Path, split: int) -> Path:
    """Where the scores of a split lie: those of split 0, the table's, are the folder's own."""
    return folder / f"split {split}" if split else folder


def measure(options: argparse.Namespace, sets: list[str]) -> None:
    """Every method on every split of these sets, in so many processes."""
    spawned = {"mp_context": get_context("spawn"), "initializer": compile_loops}
    with ProcessPoolExecutor(options.processes, **spawned) as pool:
        jobs = []
        for split in options.splits:
            folder = split_folder(options.scores, split)
            folder.mkdir(parents=True, exist_ok=True)
            for name in sets:
                layers = options.layers or board_states.layers_of(options.states, name)
                job = options.states, folder, (name, split), layers, options.methods, options.rows
                jobs.append(pool.submit(measured, *job))
        for job in jobs:
            job.result()


def measured(
    states: Path,
    folder: Path,
    board_split: tuple[str, int],
    layers: list[int],
    methods: list[str],
    rows: int | None,
) -> None:
    """Test scores and CPU seconds of every method on a split of a set, one file each."""
    warnings.simplefilter("ignore")
    name, split = board_split
    for layer in layers:  # several processes may share the work: a file that is there is left alone
        missing = [m for m in methods if not score_file(folder, name, layer, m, rows).exists()]
        if not missing:
            continue
        board_set = board_states.load(states, name, layer, split)
        if rows and len(board_set.labels) < rows:
            return
        for method in missing:
            start = time.process_time()
            scores = METHODS[method](board_set.training[:rows], board_set.labels[:rows], 0)
            spent = time.process_time() - start
            of_test = scores(board_set.test).astype(np.float32)
            np.savez(score_file(folder, name, layer, method, rows), scores=of_test, cpu=spent)
        print(name, layer, *missing, flush=True)


def compile_loops() -> None:
    """Small inputs, and those above two million numbers, have loops of their own."""
    rng = np.random.default_rng(0)
    for tokens in (4, 150):
        x = rng.standard_normal((50 * tokens, 384)).astype(np.float16)
        peers.ours()(TokenStore.from_flat(x, np.arange(51) * tokens), np.arange(50) % 2, 0)


def record(states: Path, folder: Path, file: Path, of_first: int | None = None) -> None:
    """Numbers of every set × layer × method that was measured; None where it was not.

    of_first: of the fits on so many first training rows; None: of those on all.

    What the file already holds stays, unless the folder has new scores of it.
    """
    board = board_states.board_sets()
    rows, numbers = recorded(file)
    for name in board:
        if not (states / f"{name}.npz").exists():
            continue
        with np.load(states / f"{name}.npz", allow_pickle=False) as data:
            training, labels, lengths = int(data["training"]), data["labels"], data["lengths"]
        for layer in board_states.layers_of(states, name):
            scores = {
                method: score_of_file(path)
                for method in METHODS
                if (path := score_file(folder, name, layer, method, of_first)).exists()
            }
            if {"default", "last"} <= scores.keys():
                (first, cpu), (second, more) = scores["default"], scores["last"]
                scores["both"] = (first + second) / 2, cpu + more
            if scores:
                rows[name] = [of_first or training, len(labels) - training, int(lengths.sum())]
            for method, (of_test, spent) in scores.items():
                peers_of_it = scores.get("mean"), scores.get("default")
                numbers[str(layer), method, name] = judged(of_test, labels[training:], peers_of_it, spent)
    sets = [name for name in board if name in rows]
    tables: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for layer in sorted({layer for layer, _, _ in numbers}, key=int):
        for method in NAMES:
            columns = [numbers.get((layer, method, name), [None] * len(NUMBERS)) for name in sets]
            if any(of_set[0] is not None for of_set in columns):
                by_key = {key: [of_set[i] for of_set in columns] for i, key in enumerate(NUMBERS)}
                tables.setdefault(layer, {})[method] = by_key
    content = {
        "sets": sets,
        "tuning": [name for name in board_states.tuning_sets(board) if name in sets],
        "drawn": drawn(board),
        "not run": [name for name in board if name not in sets],
        "rows": {key: [rows[name][i] for name in sets] for i, key in enumerate(ROWS)},
        "layers": tables,
    }
    write(content, file)


def write(content: object, file: Path) -> None:
    """JSON with a line for each row or method."""
    text = json.dumps(content, separators=(",", ":"))
    file.write_text(text.replace("},{", "},\n{").replace('},"', '},\n"') + "\n")


def recorded(file: Path) -> tuple[dict[str, list[int]], dict[tuple[str, str, str], list[float | None]]]:
    """ROWS by set, and NUMBERS by layer, method and set, of a record; both empty without one."""
    if not file.exists():
        return {}, {}
    content = json.loads(file.read_text())
    rows = {name: [content["rows"][key][place] for key in ROWS] for place, name in enumerate(content["sets"])}
    numbers = {}
    for layer, methods in content["layers"].items():
        for method, columns in methods.items():
            for place, name in enumerate(content["sets"]):
                if columns["AUC"][place] is not None:
                    of_set = [columns[key][place] if key in columns else None for key in NUMBERS]
                    numbers[layer, method, name] = of_set
    return rows, numbers


def score_of_file(path: Path) -> tuple[np.ndarray, float]:
    """Test scores and CPU seconds that `measure` wrote."""
    with np.load(path) as data:
        return data["scores"].astype(float), float(data["cpu"])


def judged(
    scores: np.ndarray, truth: np.ndarray, references: tuple[tuple | None, ...], spent: float
) -> list[float | None]:
    """The NUMBERS of a method on a set; the references are mean pooling and the default."""
    of_method = places(scores, truth)
    differences: list[float | None] = []
    for reference, sign in zip(references, (1, -1), strict=True):
        if reference is None:
            differences += [None, None]
        else:
            gain = sign * (of_method - places(reference[0], truth))
            differences += [round(auc(gain, truth), 4), round(error(gain, truth), 4)]
    numbers = auc(of_method, truth), true_positives(scores, truth), log_loss(scores, truth)
    return [*(round(number, 4) for number in numbers), round(spent, 2), *differences]


def auc(of_rows: np.ndarray, truth: np.ndarray) -> float:
    """The mean of `places`, each class weighted alike."""
    return float(np.mean([of_rows[truth == label].mean() for label in (0, 1)]))


def column(content: dict, layer: str, method: str, key: str, sets: list[str]) -> np.ndarray:
    """Numbers of a method on these sets; NaN where it was not run."""
    values = content["layers"][layer].get(method, {}).get(key, [None] * len(content["sets"]))
    of_set = dict(zip(content["sets"], values, strict=True))
    return np.array([np.nan if of_set[name] is None else of_set[name] for name in sets])


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % of the means of resampled sets."""
    drawn = np.random.default_rng(0).integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(1), [0.025, 0.975])
    return float(low), float(high)


def tables(content: dict) -> None:
    """The page's tables: a group of sets has the methods that were run on all of them."""
    tuning = content["tuning"]
    untouched = [name for name in content["sets"] if name not in tuning]
    for layer, methods in content["layers"].items():
        measured = {name for name in content["sets"] if shown(content, layer, "default", [name])}
        of_auto = [name for name in content["sets"] if shown(content, layer, "auto", [name])]
        groups = {"untouched": untouched, "tuning": tuning, "drawn": content["drawn"], "auto's": of_auto}
        for title, sets in groups.items():
            if not (sets := [name for name in sets if name in measured]):
                continue
            print(f"\nLayer {layer}, the {len(sets)} {title} sets\n")
            print("| method | AUC | TPR at 1 % FPR | log loss | CPU s |\n|---|---|---|---|---|")
            run = [method for method in NAMES if method in methods and shown(content, layer, method, sets)]
            for method in run:
                numbers = [column(content, layer, method, key, sets).mean() for key in NUMBERS[:4]]
                print(f"| {NAMES[method]} | {' | '.join(f'{value:.3f}' for value in numbers)} |")
            heads = "the default minus", "AUC [95 %]", "wins : losses", "beyond 2 SE", "TPR at 1 % FPR [95 %]"
            print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
            for method in (method for method in run if method != "default"):
                print_difference(content, layer, method, sets)
        for method in (method for method in NAMES if method in methods and method != "default"):
            print_losses(content, layer, method)
    every_set(content)


def shown(content: dict, layer: str, method: str, sets: list[str]) -> bool:
    """Whether a method was run on all of these sets."""
    return bool(sets) and bool(np.isfinite(column(content, layer, method, "AUC", sets)).all())


def signed(number: float, places: int = 3) -> str:
    """With so many places, and a minus sign instead of a hyphen."""
    return f"{number:+.{places}f}".replace("-", "−")


def beyond(content: dict, layer: str, method: str, sets: list[str]) -> tuple[list[str], list[str], int]:
    """Rows of the sets where the default is above, and below, a method by more than two errors of the
    difference; of how many sets."""
    keys, of = NUMBERS[6:], method
    if method == "mean":  # older rows have this difference only
        keys, of = NUMBERS[4:6], "default"
    gains, errors = (column(content, layer, of, key, sets) for key in keys)
    of_sets = zip(sets, gains, errors, strict=True)
    lines = np.array([f"| {layer} | {name} | {signed(g)} ± {e:.3f} |" for name, g, e in of_sets])
    above, below = lines[gains > 2 * errors].tolist(), lines[gains < -2 * errors].tolist()
    return above, below, int(np.isfinite(errors).sum())


def print_losses(content: dict, layer: str, method: str) -> None:
    """Names of the sets on which the default is below a method."""
    above, below, count = beyond(content, layer, method, content["sets"])
    where = f"above {NAMES[method]} by two standard errors on {len(above)}, below on {len(below)}"
    print(f"\nLayer {layer}, {count} sets: {where}")
    if below:
        print("\n| layer | set | difference ± error |\n|---|---|---|", *below, sep="\n")


def every_set(content: dict) -> None:
    """A row per set: AUC of each method that was run on it, and the default above mean pooling."""
    columns = [
        (layer, method)
        for layer in reversed(content["layers"])
        for method in ("default", "mean", "last", "max")
        if any(value is not None for value in content["layers"][layer].get(method, {}).get("AUC", []))
    ]
    heads = [f"{layer}: {method}" for layer, method in columns]
    heads += [f"{layer}: default − mean ± error" for layer in reversed(content["layers"])]
    print(f"\n| set | {' | '.join(heads)} |\n{'|---' * (len(heads) + 1)}|")
    for name in content["sets"]:
        cells = [column(content, layer, method, "AUC", [name])[0] for layer, method in columns]
        shown = ["–" if np.isnan(value) else f"{value:.3f}" for value in cells]
        for layer in reversed(content["layers"]):
            gain, of_gain = (column(content, layer, "default", key, [name])[0] for key in NUMBERS[4:6])
            shown.append("–" if np.isnan(gain) else f"{signed(gain)} ± {of_gain:.3f}")
        print(f"| {name}{' (tuning)' if name in content['tuning'] else ''} | {' | '.join(shown)} |")


def print_difference(content: dict, layer: str, method: str, sets: list[str]) -> None:
    """One row: the mean difference over sets, its interval, on how many sets it is above and below zero."""
    cells = []
    for key in NUMBERS[:2]:
        differences = column(content, layer, "default", key, sets) - column(content, layer, method, key, sets)
        low, high = interval(differences)
        cells.append(f"{signed(differences.mean())} [{signed(low)}, {signed(high)}]")
        if key == "AUC":
            cells.append(f"{(differences > 0).sum()} : {(differences < 0).sum()}")
            above, below, count = beyond(content, layer, method, sets)
            cells.append(f"{len(above)} : {len(below)}" if count == len(sets) else "–")
    print(f"| {NAMES[method]} | {' | '.join(cells)} |")


def drawn(board: list[str]) -> list[str]:
    """The untouched sets on which methods that take long are run."""
    tuning = board_states.tuning_sets(board)
    others = [name for name in board if name not in tuning]
    return np.random.default_rng(LOT).permutation(others)[:DRAWN].tolist()


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    of_measure, of_record = commands.add_parser("measure"), commands.add_parser("record")
    for command in (of_measure, of_record):
        command.add_argument("states", type=Path)
        command.add_argument("scores", type=Path)
        command.add_argument("--rows", type=int, help="fits on so many first training rows; all, without")
    of_measure.add_argument("--sets", choices=["tuning", "others", "lot", "all"], default="all")
    of_measure.add_argument("--layers", type=int, nargs="+", help="all that have states, without")
    of_measure.add_argument("--processes", type=int, default=1)
    of_measure.add_argument("--splits", type=int, nargs="+", default=[0], help="0 is that of the tables")
    of_measure.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS)[:5])
    of_record.add_argument("--out", type=Path, default=Path("lab/records/board.json"))
    commands.add_parser("tables").add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "tables":
        tables(json.loads(options.record.read_text()))
    elif options.command == "record":
        record(options.states, options.scores, options.out, options.rows)
    else:
        sets = board_states.board_sets()
        tuning = board_states.tuning_sets(sets)
        others = [name for name in sets if name not in tuning]
        chosen = {"tuning": tuning, "others": others, "lot": drawn(sets), "all": sets}[options.sets]
        measure(options, [name for name in chosen if (options.states / f"{name}.npz").exists()])


if __name__ == "__main__":
    main()
