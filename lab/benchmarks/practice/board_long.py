"""Probes of short texts judged in long contexts: the board's texts inside 2,048 tokens that a decoder reads.

python lab/benchmarks/practice/board_long.py states smollm2.gguf CONTEXTS --sets tuning drawn     (with a GPU)
python lab/benchmarks/practice/board_long.py measure CONTEXTS --out lab/records/board_long.json --processes 16
python lab/benchmarks/practice/board_long.py joined STATES --out lab/records/board_long_joined.json
python lab/benchmarks/practice/board_long.py tables lab/records/board_long.json

A text is judged alone and among benign ones, at a place drawn by lot; the benign texts are those of
57_wikidatais_alive, in training others than in the test. The decoder reads the whole context, so the states
of the text know what stands before it. Probes are fitted on texts alone, or on texts within 256 tokens.
`joined` has states of texts that MiniLM read alone (board_states.py), joined to sequences of these lengths,
and a third way to fit: on every text alone and once more among others.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import board
import board_states
import numpy as np
import probe_peers as peers

from attsvm.probe import AttentionProbe, TokenStore, surround

BENIGN = "57_wikidatais_alive"
"""The set whose texts surround the others; sets of the same texts are not judged."""

TOKENS, LENGTHENED, CONTEXT = 128, 256, 2048
"""Word pieces of a text at most, of a lengthened training sequence and of a long context at least."""

TRAINING, TEST, ENCODER_LAYER = 250, 100, 6
WINDOW, STRIDE = 64, 32
METHODS = ("default", "positive", "mean", "max", "probelab attention", "multimax", "rolling")
WINDOWED = ("default", "mean")
"""Methods that are also judged by the largest score of windows of WINDOW tokens, STRIDE apart."""

Pieces = list[list[int]]


def judged_sets(group: str) -> list[str]:
    """The twenty tuning sets, or the thirty untouched ones of board.py, without sets of the benign texts."""
    sets = board_states.board_sets()
    of_group = board_states.tuning_sets(sets) if group == "tuning" else board.drawn(sets)
    return [name for name in of_group if "wikidata" not in name]


# ---------------------------------------------------------------------- states


def among(texts: Pieces, benign: Pieces, length: int, rng: np.random.Generator) -> Pieces:
    """Every text among benign ones at a drawn place, cut to `length` word pieces outside of the text."""
    contexts = []
    for text in texts:
        room = max(0, length - len(text))
        around: list[int] = []
        while len(around) < room:
            around += benign[int(rng.integers(len(benign)))]
        place = int(rng.integers(room + 1))
        contexts.append([*around[:place], *text, *around[place:room]])
    return contexts


def encode(encoder: board_states.Encoder, name: str, file: Path) -> str:
    """States of the training and the test texts of a set, alone and among benign texts."""
    began = time.perf_counter()
    data = board_states.folder()
    texts, labels = board_states.texts_and_labels(data, name)
    pieces = encoder.pieces(texts[: TRAINING + TEST])
    benign = encoder.pieces(board_states.texts_and_labels(data, BENIGN)[0])
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    half = len(benign) // 2
    of_training, of_test = pieces[:TRAINING], pieces[TRAINING:]
    parts = {
        "training": of_training,
        "lengthened": among(of_training, benign[:half], LENGTHENED, rng),
        "test": of_test,
        "context": among(of_test, benign[half:], CONTEXT, rng),
    }
    layer = encoder.layers[0]
    arrays = {"labels": labels[: len(pieces)], "layer": np.array(layer)}
    for part, rows in parts.items():
        arrays[part] = np.concatenate(encoder.states(rows)[layer])
        arrays[f"{part} lengths"] = np.array([len(row) for row in rows])
    with open(unfinished := file.with_suffix(".part"), "wb") as out:
        np.savez(out, **arrays)
    unfinished.replace(file)
    return f"{name}: {len(of_test)} test texts, {time.perf_counter() - began:.0f} s"


# ---------------------------------------------------------------------- scores


def windows(tokens: np.ndarray) -> list[np.ndarray]:
    """Windows of a sequence; a short one is its own window."""
    starts = range(0, max(1, len(tokens) - WINDOW + STRIDE), STRIDE)
    return [tokens[start : start + WINDOW] for start in starts]


def largest_window(scores: peers.Scores, store: TokenStore) -> np.ndarray:
    """The largest score of the windows of each sequence."""
    of_sequences = [windows(tokens) for tokens in store]
    flat = [window for of_sequence in of_sequences for window in of_sequence]
    of_windows = scores(TokenStore.from_flat(np.concatenate(flat), np.cumsum([0, *map(len, flat)])))
    return np.maximum.reduceat(of_windows, np.cumsum([0, *map(len, of_sequences[:-1])]))


def measured(file: Path, method: str, group: str) -> list[dict[str, object]]:
    """A row for each way to fit and to judge a method on a set."""
    warnings.simplefilter("ignore")
    with np.load(file, allow_pickle=False) as data:
        stores = {
            part: TokenStore.from_flat(data[part], np.cumsum([0, *data[f"{part} lengths"]]))
            for part in ("training", "lengthened", "test", "context")
        }
        labels, truth = data["labels"][:TRAINING], data["labels"][TRAINING:]
    rows = []
    for training in ("training", "lengthened"):
        fitted = board.METHODS[method](stores[training], labels, 0)
        scores = {"text": fitted(stores["test"]), "context": fitted(stores["context"])}
        if method in WINDOWED:
            scores["largest window"] = largest_window(fitted, stores["context"])
        for judged_on, of_test in scores.items():
            of_test = of_test.astype(float)
            row = {"group": group, "set": file.stem, "method": method}
            row |= {"fitted on": training, "judged on": judged_on}
            rows.append(row | numbers(of_test, truth))
    return rows


def measure(contexts: Path, file: Path, methods: list[str], processes: int) -> None:
    """Add what the record does not hold yet."""
    content = json.loads(file.read_text()) if file.exists() else []
    there = {(row["set"], row["method"]) for row in content}
    tuning = judged_sets("tuning")
    spawned = {"mp_context": get_context("spawn"), "initializer": board.compile_loops}
    with ProcessPoolExecutor(processes, **spawned) as pool:
        jobs = [
            pool.submit(measured, path, method, "tuning" if path.stem in tuning else "drawn")
            for method in methods
            for path in sorted(contexts.glob("*.npz"))
            if (path.stem, method) not in there
        ]
        for job in jobs:
            content += job.result()
            board.write(content, file)
            print(content[-1]["set"], content[-1]["method"], flush=True)


def joined(states: Path, file: Path) -> None:
    """Rows of the default on states of an encoder; what the record has is not measured again."""
    content = json.loads(file.read_text()) if file.exists() else []
    there = {row["set"] for row in content}
    pool = board_states.load(states, BENIGN, ENCODER_LAYER)
    for group in ("tuning", "drawn"):
        for name in (name for name in judged_sets(group) if name not in there):
            seed = zlib.crc32(name.encode())
            of_set = board_states.load(states, name, ENCODER_LAYER)
            lengthened = surround(of_set.training, pool.training, LENGTHENED, seed=seed)
            text, truth = of_set.test[:TEST], of_set.truth[:TEST]
            judged = {"text": text, "context": surround(text, pool.test, CONTEXT, seed=seed)}
            rows = np.arange(len(of_set.labels))
            fits = {"training": (of_set.training, rows), "lengthened": (lengthened, rows)}
            fits["both"] = [*of_set.training, *lengthened], np.tile(rows, 2)
            for fitted_on, (training, row) in fits.items():
                probe = AttentionProbe().fit(training, of_set.labels[row], groups=row)
                for judged_on, store in judged.items():
                    scores = probe.decision_function(store).astype(float)
                    of_fit = {"fitted on": fitted_on, "judged on": judged_on} | numbers(scores, truth)
                    content.append({"group": group, "set": name, "method": "default"} | of_fit)
            board.write(content, file)
            print(name, flush=True)


def numbers(scores: np.ndarray, truth: np.ndarray) -> dict[str, object]:
    area, loss = board.auc(board.places(scores, truth), truth), board.log_loss(scores, truth)
    return {"AUC": round(area, 4), "log loss": round(loss, 4)}


def tables(content: list[dict]) -> None:
    """Mean AUC over the sets of a group, and the difference from the default ± its standard error."""
    cases = list(dict.fromkeys((row["fitted on"], row["judged on"]) for row in content))
    auc = {(row["set"], row["method"], row["fitted on"], row["judged on"]): row["AUC"] for row in content}
    groups = {(row["group"], row["set"]): None for row in content}
    for group in dict.fromkeys(group for group, _ in groups):
        sets = [name for of, name in groups if of == group]
        heads = ["method", *(f"{fit}, {test}" for fit, test in cases)]
        print(f"\n{len(sets)} sets, {group}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        for method in dict.fromkeys(row["method"] for row in content):
            cells = []
            for case in cases:
                values = np.array([auc.get((name, method, *case), np.nan) for name in sets])
                difference = values - np.array([auc[name, "default", *case] for name in sets])
                error = difference.std(ddof=1) / len(sets) ** 0.5
                shown = f"{values.mean():.3f}"
                if method != "default":
                    shown += f" ({board.signed(difference.mean())} ± {error:.3f})"
                cells.append("–" if np.isnan(values).any() else shown)
            print(f"| {board.NAMES[method]} | {' | '.join(cells)} |")
        for fit in dict.fromkeys(fit for fit, _ in cases if fit != "training"):
            for test in ("text", "context"):
                gains = [
                    auc[name, "default", fit, test] - auc[name, "default", "training", test] for name in sets
                ]
                mean, error = np.mean(gains), np.std(gains, ddof=1) / len(sets) ** 0.5
                print(f"default, {fit} minus training, {test}: {board.signed(mean)} ± {error:.3f}")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    of_states, of_measure = commands.add_parser("states"), commands.add_parser("measure")
    of_states.add_argument("decoder", type=Path)
    of_states.add_argument("contexts", type=Path)
    of_states.add_argument("--sets", nargs="+", choices=["tuning", "drawn"], default=["tuning", "drawn"])
    of_measure.add_argument("contexts", type=Path)
    of_measure.add_argument("--out", type=Path, default=Path("lab/records/board_long.json"))
    of_measure.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    of_measure.add_argument("--processes", type=int, default=1)
    of_joined = commands.add_parser("joined")
    of_joined.add_argument("states", type=Path)
    of_joined.add_argument("--out", type=Path, default=Path("lab/records/board_long_joined.json"))
    commands.add_parser("tables").add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "tables":
        tables(json.loads(options.record.read_text()))
    elif options.command == "joined":
        joined(options.states, options.out)
    elif options.command == "measure":
        measure(options.contexts, options.out, options.methods, options.processes)
    else:
        options.contexts.mkdir(parents=True, exist_ok=True)
        encoder = board_states.Encoder.decoder(options.decoder)
        encoder.tokens = TOKENS
        for name in (name for group in options.sets for name in judged_sets(group)):
            if not (file := options.contexts / f"{name}.npz").exists():
                print(encode(encoder, name, file), flush=True)


if __name__ == "__main__":
    main()
