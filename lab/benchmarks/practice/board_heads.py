"""What parts AttentionProbe() from logistic regressions on pooled tokens, piece by piece, on five splits.

python lab/benchmarks/practice/board_heads.py measure STATES OUT --sets tuning                 (7 CPU minutes)
python lab/benchmarks/practice/board_heads.py measure STATES OUT --named 143_cancer_cat_Lung_Cancer
python lab/benchmarks/practice/board_heads.py record OUT --out lab/records/board_heads.json
python lab/benchmarks/practice/board_heads.py tables lab/records/board_heads.json

A *head* is a ridge logistic regression on one vector per text: the mean of its tokens, or its last token. Its
features are scaled by their spread over all tokens, as AttentionProbe scales them, or by their spread over
the pooled vectors, as is usual. Ridges are in units of the mean variance of these features. All heads and the
probe are chosen on the same three folds of the training rows.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import board
import board_states
import numpy as np
from board_splits import LAYERS, SPLITS
from real_sets import places
from scipy.optimize import minimize
from sklearn.model_selection import StratifiedKFold

from attsvm.probe import AttentionProbe
from attsvm.probe.fitting.attention import read_out
from attsvm.probe.fitting.fits import choose_ridges, fit_concepts
from attsvm.probe.fitting.folds import folds
from attsvm.probe.fitting.objective import Objective

RIDGES = 1 / (250 * np.logspace(-4, 0, 9))
"""Those of the board's mean pooling, from strong to weak."""

HEADS = {"even, tokens": 0, "even, pooled": 1, "last, pooled": 1}
"""Pooled vectors, and how their features are scaled: by the spread over tokens, or over the vectors."""

EVEN = 900
"""Prompt ridge / head ridge from which a candidate is mean pooling; with weak head ridges its prompt ridge
is 30."""

WEIGHTS = (0.0, 0.25, 0.5)


def auc(scores: np.ndarray, truth: np.ndarray) -> float:
    return board.auc(places(scores, truth), truth)


# ---------------------------------------------------------------------- one set, layer and split


def default_probe(b: board_states.BoardSet) -> dict[str, np.ndarray]:
    """AttentionProbe(): scores held out and in use, lowest held-out loss of even and attending candidates."""
    weights, options = np.ones(len(b.labels)), AttentionProbe()._fit_options()
    splits = folds(3, b.labels, None, weights)
    objective = Objective.of(b.training, b.labels[None, None].astype(float), weights, splits, 1)
    (choice,) = choose_ridges(objective, options)
    (fitted,) = fit_concepts(objective, options, [choice])
    centre = objective.standard.mean
    of_folds = read_out(b.training, [objective.weights_for_tokens(p) for p in choice.points], centre)[1]
    ratio, held_out = choice.path["prompt_ridge"] / choice.path["head_ridge"], choice.path["held_out"]
    even = (ratio > EVEN) | (choice.path["prompt_ridge"] == 30)
    return {
        "held": (of_folds[:, 0] * (splits == -1)).sum(0),
        "test": read_out(b.test, [fitted.weights], centre)[1][0, 0],
        "ridges": np.array([choice.head_ridge, choice.prompt_ridge]),
        "losses": np.array([held_out[part].min(initial=np.inf) for part in (even, ~even)]),
        "scale": objective.standard.scale,
    }


def pooled(b: board_states.BoardSet, name: str) -> tuple[np.ndarray, np.ndarray]:
    """One vector per text, of training and test."""
    last = name.startswith("last")
    vectors = ([x[-1] if last else x.astype(float).mean(0) for x in store] for store in (b.training, b.test))
    training, test = (np.array(of_store, float) for of_store in vectors)
    return training, test


def head_path(
    training: np.ndarray, test: np.ndarray, labels: np.ndarray, scale: np.ndarray
) -> dict[str, np.ndarray]:
    """Scores of every ridge (RIDGES, texts), held out and in use; variance: mean of the scaled features'."""
    varies = training.std(0) > 1e-9 * training.std(0).max()
    scale = np.where(varies, scale, np.inf)
    variance = ((training.std(0) / scale)[varies] ** 2).mean()
    centre, scale = training.mean(0), scale * np.sqrt(variance)
    _, _, axes = np.linalg.svd((training - centre) / scale, full_matrices=False)  # fewer rows than features
    rows, unseen = ((x - centre) / scale @ axes.T for x in (training, test))
    held = np.empty((len(RIDGES), len(labels)))
    for part, out in StratifiedKFold(3, shuffle=True, random_state=0).split(rows, labels):
        held[:, out] = fits(rows[part], labels[part], rows[out])
    return {"held": held, "test": fits(rows, labels, unseen), "variance": np.array(variance)}


def fits(rows: np.ndarray, labels: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    """Scores of unseen rows by the logistic regression of every ridge, each started at the one before."""
    signs, w, scores = 2.0 * labels - 1, np.zeros(rows.shape[1] + 1), []
    for ridge in RIDGES:

        def loss(w: np.ndarray, ridge: float = ridge) -> tuple[float, np.ndarray]:
            margins = signs * (rows @ w[:-1] + w[-1])
            slopes = -signs * np.exp(-np.logaddexp(0, margins)) / len(signs)
            value = np.logaddexp(0, -margins).mean() + ridge / 2 * w[:-1] @ w[:-1]
            return value, np.append(rows.T @ slopes + ridge * w[:-1], slopes.sum())

        w = minimize(loss, w, jac=True, method="L-BFGS-B", options={"maxiter": 300, "gtol": 1e-4}).x
        scores.append(unseen @ w[:-1] + w[-1])
    return np.array(scores)


def measure(states: Path, folder: Path, sets: list[str], layers: list[int], splits: list[int]) -> None:
    """A file for every set, layer and split."""
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    board.compile_loops()
    for split in splits:
        for name in sets:
            for layer in layers:
                if (file := folder / f"{name}, layer {layer}, split {split}.npz").exists():
                    continue
                b = board_states.load(states, name, layer, split)
                arrays = {f"default {key}": value for key, value in default_probe(b).items()}
                for head, of_vectors in HEADS.items():
                    training, test = pooled(b, head)
                    scale = training.std(0) if of_vectors else arrays["default scale"]
                    path = head_path(training, test, b.labels, scale)
                    arrays |= {f"{head} {key}": value for key, value in path.items()}
                six = AttentionProbe(cv=6).fit(b.training, b.labels).decision_function(b.test)
                arrays |= {"six folds test": six, "labels": b.labels, "truth": b.truth}
                np.savez(file, **{k: v.astype(np.float32) if v.ndim else v for k, v in arrays.items()})
        print("split", split, flush=True)


# ---------------------------------------------------------------------- numbers


def changes(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Test scores (n,) of the default, and of every change of it."""
    labels, held, test = data["labels"], {}, {}
    limit = 1.001 / data["even, tokens variance"]  # our strongest ridge is 1, in the spread of tokens
    eligible = np.flatnonzero(limit >= RIDGES)
    for head in HEADS:
        losses = np.array([board.log_loss(scores, labels) for scores in data[f"{head} held"]])
        best, capped = int(losses.argmin()), int(eligible[losses[eligible].argmin()])
        held[head], test[head] = data[f"{head} held"][best], data[f"{head} test"][best]
        test[f"{head}, capped"] = data[f"{head} test"][capped]
    default, of_default = data["default test"], board.log_loss(data["default held"], labels)
    out = {"default": default, "six folds": data["six folds test"]} | test
    for name, head in (("last", "last, pooled"), ("mean", "even, pooled")):
        lower = board.log_loss(held[head], labels) < of_default
        out[f"{name}: lowest held-out loss"] = test[head] if lower else default
        mixed = [board.log_loss((1 - w) * data["default held"] + w * held[head], labels) for w in WEIGHTS]
        for w, what in (WEIGHTS[int(np.argmin(mixed))], "weight by held-out loss"), (0.25, "a quarter"):
            out[f"{name}: {what}"] = (1 - w) * default + w * test[head]
    return out


def record(folder: Path, file: Path) -> None:
    """AUC and log loss of every change (splits,) by layer and set; the ridges of the default."""
    layers: dict[str, dict] = {}
    for path in sorted(folder.glob("*.npz")):
        name, layer, split = path.stem.rsplit(", ", 2)
        with np.load(path) as arrays:
            data = {key: arrays[key].astype(float) for key in arrays.files}
        of_set = layers.setdefault(layer.removeprefix("layer "), {}).setdefault(name, {})
        of_set.setdefault("splits", []).append(int(split.removeprefix("split ")))
        of_set.setdefault("ridges", []).append([round(float(r), 5) for r in data["default ridges"]])
        losses = [round(float(loss), 4) for loss in data["default losses"]]
        of_set.setdefault("held out: even, attending", []).append(losses)
        for change, scores in changes(data).items():
            numbers = auc(scores, data["truth"]), board.log_loss(scores, data["truth"])
            of_set.setdefault(change, []).append([round(number, 4) for number in numbers])
    tuning = board_states.tuning_sets(board_states.names(board_states.folder()))
    content = {"tuning": tuning, "layers": layers}
    board.write(content, file)


CHANGES = {
    "six folds": "six folds instead of three",
    "last: lowest held-out loss": "a lane for the last token: the lowest held-out loss wins",
    "last: weight by held-out loss": "mean with the last token's head, weight 0, ¼ or ½ by the held-out loss",
    "last: a quarter": "mean with the last token's head, weight ¼",
    "mean: lowest held-out loss": "a lane for mean pooling in its own scale, ridges to 40",
    "mean: weight by held-out loss": "mean with that head, weight 0, ¼ or ½ by the held-out loss",
    "mean: a quarter": "mean with that head, weight ¼",
}
PIECES = {
    "default": "default",
    "even, tokens, capped": "even",
    "even, tokens": "ridges to 40",
    "even, pooled, capped": "scale of the pooled",
    "even, pooled": "both",
}


def tables(content: dict) -> None:
    """The changes on the tuning sets, and the pieces set by set."""
    layers, sets = dict(sorted(content["layers"].items(), reverse=True)), content["tuning"]
    heads = [f"{number}, layer {layer}" for layer in layers for number in ("AUC", "log loss")]
    print(f"| change | {' | '.join(heads)} |\n{'|---' * 5}|")
    of_heads = {
        "scale of the pooled": ("even, pooled, capped", "even, tokens, capped"),
        "ridges to 40": ("even, tokens", "even, tokens, capped"),
        "both": ("even, pooled", "even, tokens, capped"),
    }
    rows = {f"mean pooling alone: {what}": pair for what, pair in of_heads.items()}
    rows |= {words: (change, "default") for change, words in CHANGES.items()}
    for words, (change, reference) in rows.items():
        cells = []
        for numbers in layers.values():
            of_sets = [numbers[name] for name in sets]
            d = np.array([np.mean(np.subtract(s[change], s[reference]), axis=0) for s in of_sets])
            errors = d.std(0, ddof=1) / np.sqrt(len(d))
            cells += [f"{board.signed(m, 4)} ± {e:.4f}" for m, e in zip(d.mean(0), errors, strict=True)]
        print(f"| {words} | {' | '.join(cells)} |")
    print(f"\n| layer | set | {' | '.join(PIECES.values())} |\n{'|---' * (2 + len(PIECES))}|")
    for layer, numbers in layers.items():
        for name, of_set in numbers.items():
            cells = [f"{np.mean(of_set[piece], axis=0)[0]:.3f}" for piece in PIECES]
            print(f"| {layer} | {name} | {' | '.join(cells)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    of_measure, of_record = commands.add_parser("measure"), commands.add_parser("record")
    of_measure.add_argument("states", type=Path)
    of_measure.add_argument("folder", type=Path)
    of_measure.add_argument("--sets", choices=["tuning", "all"], default="tuning")
    of_measure.add_argument("--named", nargs="+", help="these sets instead")
    of_measure.add_argument("--layers", type=int, nargs="+", default=list(LAYERS))
    of_measure.add_argument("--splits", type=int, nargs="+", default=list(SPLITS))
    of_record.add_argument("folder", type=Path)
    of_record.add_argument("--out", type=Path, default=Path("lab/records/board_heads.json"))
    commands.add_parser("tables").add_argument("record", type=Path)
    options = parser.parse_args()
    if options.command == "tables":
        return tables(json.loads(options.record.read_text()))
    if options.command == "record":
        return record(options.folder, options.out)
    sets = board_states.board_sets()
    chosen = options.named or (board_states.tuning_sets(sets) if options.sets == "tuning" else sets)
    return measure(options.states, options.folder, chosen, options.layers, options.splits)


if __name__ == "__main__":
    main()
