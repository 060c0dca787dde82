"""Remedies for shifted sets, chosen on texts in another style and judged on the shifted sets.

python lab/benchmarks/practice/board_remedies.py measure STATES STYLES SCORES --sets tuning   (3 CPU minutes)
python lab/benchmarks/practice/board_remedies.py measure STATES STYLES SCORES --sets shifted  (and: untouched)
python lab/benchmarks/practice/board_remedies.py record SCORES --out lab/records/board_remedies.json
python lab/benchmarks/practice/board_remedies.py tables lab/records/board_remedies.json

STATES is the folder of board_states.py, STYLES that of board_styles.py. All remedies see training rows alone.
"""

from __future__ import annotations

import argparse
import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import board
import board_states
import board_styles
import numpy as np
from board_shifts import drawn
from board_why import flatter
from real_sets import error, places

from attsvm.probe import AttentionProbe, TokenStore

LAYER = 6
NUMBERS = ("AUC", "TPR", "log loss", "above", "error")
"""Of a method on a test part: AUC above the default's, and its standard error."""

COPIES, DROPPED, REPLACED = 3, 0.5, 0.2
"""Copies of every sequence; the share of its tokens that is dropped, or replaced by tokens of others."""

LEARNED = ("typos", "no punctuation")
"""Styles that are added to the training rows by "other styles"."""

POOLED = 30.0
"""Prompt ridges from here on are mean pooling."""

AVERAGES = {
    "mean of default and mean pooling": ("default", "mean"),
    "mean of default and max pooling": ("default", "max"),
    "mean of default, mean and max pooling": ("default", "mean", "max"),
    "mean of mean and max pooling": ("mean", "max"),
    "mean of default, mean, max and last": ("default", "mean", "max", "last"),
    "mean of dropped and replaced tokens": ("dropped tokens", "replaced tokens"),
    "mean of default and other styles": ("default", "other styles"),
}
"""Means of the scores, which are log odds."""


def widest_within_error(probe: AttentionProbe, store: TokenStore, labels: np.ndarray) -> AttentionProbe:
    """The largest prompt ridge whose held-out loss is within a standard error of the lowest."""
    path = probe.path_
    behind = path["folds"] - path["folds"][path["held_out"].argmin()]
    errors = behind.std(1, ddof=1) / np.sqrt(behind.shape[1])
    eligible = behind.mean(1) <= errors
    strength = np.minimum(path["prompt_ridge"], POOLED)
    widest = eligible & (strength == strength[eligible].max())
    best = np.flatnonzero(widest)[path["held_out"][widest].argmin()]
    ridges = {name: float(path[name][best]) for name in ("head_ridge", "prompt_ridge")}
    return AttentionProbe(**ridges).fit(store, labels)


def copies(store: TokenStore, rng: np.random.Generator, dropped: float, replaced: float) -> list[np.ndarray]:
    """Every sequence, then COPIES − 1 times with tokens dropped or replaced; one token stays at least."""
    pool, sequences = np.concatenate(store.split()), list(store)
    for _ in range(COPIES - 1):
        for tokens in store:
            stays = rng.random(len(tokens)) >= dropped
            stays[rng.integers(len(tokens))] = True
            changed = np.array(tokens[stays])
            other = rng.random(len(changed)) < replaced
            changed[other] = pool[rng.integers(len(pool), size=other.sum())]
            sequences.append(changed)
    return sequences


def scores_of(
    training: TokenStore,
    labels: np.ndarray,
    tests: dict[str, TokenStore],
    styled: list[TokenStore],
    seed: int,
) -> dict[str, np.ndarray]:
    """Scores {"method, test": (n,)} of every method on every test part."""
    fitted: dict[str, Callable[[TokenStore], np.ndarray]] = {
        name: board.METHODS[name](training, labels, seed) for name in ("mean", "max", "last")
    }
    default = AttentionProbe().fit(training, labels)
    many, groups = np.tile(labels, COPIES), np.tile(np.arange(len(labels)), COPIES)
    own = list(training)
    probes = {
        "default": default,
        "half the prompt": flatter(default, 0.5),
        "a quarter of the prompt": flatter(default, 0.25),
        "widest within an error": widest_within_error(default, training, labels),
        "prompt_ridge=1": AttentionProbe(prompt_ridge=1.0).fit(training, labels),
        "prompt_ridge=10": AttentionProbe(prompt_ridge=10.0).fit(training, labels),
    }
    rng = np.random.default_rng(seed)
    for name, sequences in {
        "dropped tokens": copies(training, rng, DROPPED, 0.0),
        "replaced tokens": copies(training, rng, 0.0, REPLACED),
        "other styles": [*own, *styled[0], *styled[1]] if styled else [],
    }.items():
        if sequences:
            probes[name] = AttentionProbe().fit(sequences, many, groups=groups)
    fitted |= {name: probe.decision_function for name, probe in probes.items()}
    if styled:
        table = TokenStore.from_flat(np.concatenate([*own, *styled[0], *styled[1]]), np.cumsum(
            [0, *training.lengths, *styled[0].lengths, *styled[1].lengths]))  # fmt: skip
        fitted["mean pooling, other styles"] = board.METHODS["mean"](table, many, seed)
    return {
        f"{name}, {test}": of_store(store).astype(np.float32)
        for name, of_store in fitted.items()
        for test, store in tests.items()
    }


def measure(states: Path, styles: Path, folder: Path, sets: list[str], shifted: bool) -> None:
    """One file of scores per set."""
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    board.compile_loops()
    for name in sets:
        full = f"{name}_OOD" if shifted else name
        file, needed = folder / f"{full}.npz", [states / f"{name}.npz", states / f"{full}.npz"]
        if file.exists() or not all(f.exists() for f in [*needed, styles / f"{name}.npz"]):
            continue
        b = board_states.load(states, name, LAYER)
        tests, truths = {"same": b.test}, {"same": b.truth}
        if shifted:
            away = board_states.load(states, f"{name}_OOD", LAYER)
            tests["shifted"], truths["shifted"] = away.test, away.truth
        else:
            for style in board_styles.styles_of(styles, name, "test"):
                tests[style] = board_styles.load(styles, name, style, "test")
                truths[style] = b.truth[: len(tests[style])]
        styled = [board_styles.load(styles, name, style, "training") for style in LEARNED]
        scores = scores_of(b.training, b.labels, tests, styled, zlib.crc32(name.encode()))
        np.savez(file, **scores, **{f"truth, {test}": truth for test, truth in truths.items()})
        print(name, flush=True)


def rows_of(file: Path) -> list[dict[str, object]]:
    """AUC, TPR and log loss of every method and test of a set; AUC above the default's, with its error."""
    with np.load(file, allow_pickle=False) as data:
        arrays = {key: data[key] for key in data.files}
    truths = {k.removeprefix("truth, "): arrays.pop(k) for k in list(arrays) if k.startswith("truth, ")}
    rows = []
    for test, truth in truths.items():
        scores = {
            k.removesuffix(f", {test}"): v.astype(float) for k, v in arrays.items() if k.endswith(f", {test}")
        }
        scores |= {name: np.mean([scores[part] for part in parts], 0) for name, parts in AVERAGES.items()}
        reference = places(scores["default"], truth)
        for method, of_test in scores.items():
            of_method = places(of_test, truth)
            gain = of_method - reference
            numbers = (
                board.auc(of_method, truth),
                board.true_positives(of_test, truth),
                board.log_loss(of_test, truth),
                board.auc(gain, truth),
                error(gain, truth),
            )
            row = dict(zip(NUMBERS, (round(number, 4) for number in numbers), strict=True))
            rows.append({"set": file.stem, "method": method, "test": test, **row})
    return rows


def read(file: Path) -> list[dict[str, object]]:
    """The rows that `write` wrote."""
    content = json.loads(file.read_text())
    return [
        {"set": name, "test": test, "method": method, **dict(zip(content["numbers"], numbers, strict=True))}
        for name, tests in content["sets"].items()
        for test, of_methods in tests.items()
        for method, numbers in zip(content["methods"], of_methods, strict=True)
        if numbers is not None
    ]


def write(rows: list[dict], file: Path) -> None:
    """Every name once; a method that was not run has None."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    numbers = [key for key in rows[0] if key not in ("set", "method", "test")]
    sets: dict[str, dict[str, list]] = {}
    for row in rows:
        of_test = sets.setdefault(row["set"], {}).setdefault(row["test"], [None] * len(methods))
        of_test[methods.index(row["method"])] = [row[key] for key in numbers]
    content = {"methods": methods, "numbers": numbers, "sets": sets}
    file.write_text(json.dumps(content, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def tables(rows: list[dict]) -> None:
    """Means over sets; the difference from the default with the standard error over sets."""
    tuning = board_states.tuning_sets(board_states.names(board_states.folder()))
    parts = {
        "tuning sets": [row for row in rows if row["set"] in tuning],
        "shifted sets": [row for row in rows if row["set"].endswith("_OOD")],
        "untouched sets": [
            row for row in rows if row["set"] not in tuning and not row["set"].endswith("_OOD")
        ],
    }
    for title, chosen in parts.items():
        if not chosen:
            continue
        tests, methods = (list(dict.fromkeys(row[key] for row in chosen)) for key in ("test", "method"))
        sets = {row["set"] for row in chosen}
        print(f"\n{len(sets)} {title}; AUC and its difference from the default\n")
        print(f"| method | {' | '.join(tests)} | log loss, same | below the default > 2 errors, same |")
        print("|---" * (len(tests) + 3) + "|")
        for method in methods:
            cells = []
            for test in tests:
                of_test = [row for row in chosen if row["method"] == method and row["test"] == test]
                gains = np.array([row["above"] for row in of_test])
                spread = gains.std(ddof=1) / np.sqrt(len(gains))
                mean = np.mean([row["AUC"] for row in of_test])
                cells.append(f"{mean:.3f} ({gains.mean():+.3f} ± {spread:.3f})")
            same = [row for row in chosen if row["method"] == method and row["test"] == "same"]
            below = [row["set"].split("_")[0] for row in same if row["above"] < -2 * row["error"]]
            cells += [f"{np.mean([row['log loss'] for row in same]):.3f}", f"{len(below)}: {' '.join(below)}"]
            print(f"| {method} | {' | '.join(cells)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    of_measure, of_record = commands.add_parser("measure"), commands.add_parser("record")
    of_measure.add_argument("states", type=Path)
    of_measure.add_argument("styles", type=Path)
    of_measure.add_argument("scores", type=Path)
    of_measure.add_argument("--sets", choices=["tuning", "shifted", "untouched"], default="tuning")
    of_record.add_argument("scores", type=Path)
    of_record.add_argument("--out", type=Path, default=Path("lab/records/board_remedies.json"))
    commands.add_parser("tables").add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "tables":
        return tables(read(options.record))
    if options.command == "record":
        rows = [row for file in sorted(options.scores.glob("*.npz")) for row in rows_of(file)]
        write(rows, options.out)
        return tables(rows)
    sets = board_states.names(board_states.folder())
    shifted = options.sets == "shifted"
    chosen = [name.removesuffix("_OOD") for name in sets if name.endswith("_OOD")]
    chosen = chosen if shifted else board_states.tuning_sets(sets)
    chosen = drawn(board_styles.UNTOUCHED) if options.sets == "untouched" else chosen
    return measure(options.states, options.styles, options.scores, chosen, shifted)


if __name__ == "__main__":
    main()
