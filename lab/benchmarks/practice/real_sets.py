"""AttentionProbe beside its peers on real sets it was not developed on, by nested cross-validation.

python lab/benchmarks/practice/sentence_sets.py SENTENCES --data FOLDER                        (once)
python lab/benchmarks/practice/real_sets.py uci vader --sentences SENTENCES [--out FILE]
python lab/benchmarks/practice/real_sets.py musk1 musk2 elephant fox tiger --data FOLDER --repeats 2

Every method sees a training part, chooses its settings there and is judged on the rest: five folds of
sentences, with the sentences of one document in one fold, or ten of bags. AUC with DeLong's standard error,
and how far behind the first, with the standard error of that difference on the same sequences.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import multiple_instance
import numpy as np
import probe_peers as peers
import sentence_sets
from joblib import Parallel, delayed
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedGroupKFold

from attsvm.probe import TokenStore

METHODS = {
    "AttentionProbe()": peers.ours(),
    'AttentionProbe(features="auto")': peers.ours(features="auto"),
    "mean pooling + logistic": peers.mean_pooling,
    "max pooling + logistic": peers.max_pooling,
    "EleutherAI, after the recipe": peers.eleuther,
    "probelab Attention": peers.probelab("Attention"),
    "probelab MultiMax": peers.probelab("MultiMax"),
}


def load(name: str, options: argparse.Namespace) -> tuple[TokenStore, np.ndarray, np.ndarray]:
    if name in multiple_instance.SETS:
        bags, labels = multiple_instance.load(name, options.data)
        flat = np.concatenate(bags).astype(np.float32)
        offsets = np.cumsum([0, *map(len, bags)])
        return TokenStore.from_flat(flat, offsets), labels, np.arange(len(labels))
    return sentence_sets.load(options.sentences / f"{name}.npz")


def places(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For every sequence the share of the other class on its right side: the mean of either is the AUC."""
    ranks, ranked = rankdata(scores), np.empty(len(scores))
    for label, sign in ((1, 1.0), (0, -1.0)):
        of_class = labels == label
        beaten = (ranks[of_class] - rankdata(scores[of_class])) / (~of_class).sum()
        ranked[of_class] = beaten if sign > 0 else 1 - beaten
    return ranked


def judge(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Place, rightness and log loss (3, n) of sequences."""
    margins = (2 * labels - 1) * scores
    return np.stack([places(scores, labels), margins > 0, np.logaddexp(0, -margins)])


def error(of_sequences: np.ndarray, labels: np.ndarray) -> float:
    """Standard error of a mean of places (DeLong, DeLong & Clarke-Pearson 1988), also of differences."""
    by_class = [of_sequences[labels == label] for label in (0, 1)]
    return float(np.sqrt(sum(values.var(ddof=1) / len(values) for values in by_class)))


def one_fold(store: TokenStore, labels: np.ndarray, fold, fit, seed: int) -> tuple[np.ndarray, float]:
    """Judgements of the test part, and CPU seconds of the fit."""
    warnings.simplefilter("ignore")
    train, test = fold
    start = time.process_time()
    scores = fit(store[train], labels[train], seed)
    spent = time.process_time() - start
    return judge(scores(store[test]), labels[test]), spent


def measure(store: TokenStore, labels, groups, methods: dict, folds: int, options) -> dict:
    """For every method judgements (3, n), each the mean over repeats, and CPU seconds of all fits."""
    splits = [
        (fold, repeat)
        for repeat in range(options.repeats)
        for fold in StratifiedGroupKFold(folds, shuffle=True, random_state=repeat).split(
            labels, labels, groups
        )
    ]
    jobs = [(name, fold, repeat) for name in methods for fold, repeat in splits]
    results = Parallel(n_jobs=options.jobs)(
        delayed(one_fold)(store, labels, fold, methods[name], repeat) for name, fold, repeat in jobs
    )
    sums = {name: (np.zeros((3, len(labels))), 0.0) for name in methods}
    for (name, (_, test), _), (of_fold, spent) in zip(jobs, results, strict=True):
        total, spent_before = sums[name]
        total[:, test] += of_fold / options.repeats
        sums[name] = total, spent_before + spent
    return sums


def auc(sums: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean([sums[0, labels == label].mean() for label in (0, 1)]))


def rows(results: dict[str, tuple[np.ndarray, float]], labels: np.ndarray) -> list[dict]:
    best = max((sums for sums, _ in results.values()), key=lambda sums: auc(sums, labels))
    return [
        {
            "method": name,
            "AUC": round(auc(sums, labels), 4),
            "error": round(error(sums[0], labels), 4),
            "behind": round(auc(best, labels) - auc(sums, labels), 4),
            "error of behind": round(error(best[0] - sums[0], labels), 4),
            "accuracy": round(float(sums[1].mean()), 4),
            "log loss": round(float(sums[2].mean()), 4),
            "CPU s": round(spent, 1),
        }
        for name, (sums, spent) in results.items()
    ]


def stored_results(file: Path) -> dict[str, tuple[np.ndarray, float]]:
    """What an earlier call measured."""
    with np.load(file) as data:
        return {name[4:]: (data[name[4:]], float(data[name])) for name in data if name.startswith("CPU ")}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="+", choices=["uci", "vader", *multiple_instance.SETS])
    parser.add_argument("--sentences", type=Path, help="folder written by sentence_sets.py")
    parser.add_argument("--data", type=Path, help="folder of the bags, as for multiple_instance.py")
    parser.add_argument("--methods", nargs="+", help="words that the names of the methods to run begin with")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, help="a folder for judgements; what is there is not measured again"
    )
    options = parser.parse_args()
    methods = {k: v for k, v in METHODS.items() if any(k.startswith(m) for m in options.methods or [""])}
    for name in options.sets:
        store, labels, groups = load(name, options)
        print(json.dumps({"set": name, "store": repr(store), "positive": float(labels.mean())}), flush=True)
        file = None if options.out is None else options.out / f"{name}.npz"
        results = {} if file is None or not file.exists() else stored_results(file)
        for method in [m for m in methods if m not in results]:
            folds = 10 if name in multiple_instance.SETS else 5
            results |= measure(store, labels, groups, {method: methods[method]}, folds, options)
            print(json.dumps(rows({method: results[method]}, labels)[0]), flush=True)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                cpu = {f"CPU {m}": spent for m, (_, spent) in results.items()}
                np.savez(file, labels=labels, **{m: sums for m, (sums, _) in results.items()}, **cpu)
        print("\n".join(json.dumps(row) for row in rows(results, labels)), flush=True)


if __name__ == "__main__":
    main()
