"""Attention probes beside their peers on reviews and on a needle, and what a probe costs at scale.

python lab/benchmarks/practice/review_tokens.py CACHE.npz --train 5000 --test 4000        (once)
python lab/benchmarks/practice/probes.py reviews CACHE.npz [--train 2000] [--seeds 2]
python lab/benchmarks/practice/probes.py needle
python lab/benchmarks/practice/probes.py scale | many CACHE.npz                       (memory, CPU; 36 probes)

Peers: probelab from the index where it is installed, and pooling with logistic regression. CPU seconds of the
whole process, methods interleaved; nothing is chosen on a test part.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import probe_peers
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV

from attsvm.probe import AttentionProbe, ProbeSuite, TokenStore

GRID = {"head_ridge": [1.0, 0.3, 0.1, 0.03, 0.01, 0.003], "prompt_ridge": [1.0, 0.1, 0.03]}


def stored(sequences: list[np.ndarray]) -> TokenStore:
    return TokenStore.from_flat(np.concatenate(sequences), np.cumsum([0, *map(len, sequences)]))


def print_row(name: str, scores: np.ndarray, labels: np.ndarray, cpu: float, **facts: object) -> None:
    """One row: accuracy, AUC, log loss, true positives at 1 % false positives, CPU seconds."""
    probability = 1 / (1 + np.exp(-scores))
    bar = np.quantile(scores[labels == 0], 0.99)
    row = {
        "method": name,
        "accuracy": round(float(((scores > 0) == labels).mean()), 4),
        "AUC": round(float(roc_auc_score(labels, scores)), 4),
        "log loss": round(float(log_loss(labels, probability)), 4),
        "TPR at 1 % FPR": round(float((scores[labels == 1] > bar).mean()), 3),
        "CPU s": round(cpu, 1),
    }
    print(json.dumps(row | facts), flush=True)


def ours(settings: dict, train, labels, test) -> tuple[np.ndarray, float, dict]:
    start = time.process_time()
    probe = AttentionProbe(**settings).fit(train, labels)
    spent = time.process_time() - start
    return probe.decision_function(test), spent, {"ridges": (probe.head_ridge_, probe.prompt_ridge_)}


def peer(fit, seed: int, train: TokenStore, labels, test: TokenStore) -> tuple[np.ndarray, float]:
    start = time.process_time()
    scores = fit(train, labels, seed)
    spent = time.process_time() - start
    return scores(test), spent


def compare(train: TokenStore, labels, test: TokenStore, truth, seeds: int, search: bool) -> None:
    """Every method on one split, in turns."""
    settings = {"AttentionProbe()": {}, 'features="auto"': {"features": "auto"}}
    for name, options_of_probe in settings.items():
        scores, spent, facts = ours(options_of_probe, train, labels, test)
        print_row(name, scores, truth, spent, **facts)
    scores, spent = peer(probe_peers.mean_pooling, 0, train, labels, test)
    print_row("mean pooling + logistic", scores, truth, spent)
    for kind in ("Attention", "MultiMax"):
        total: np.ndarray | float = 0.0
        spent = 0.0
        for seed in range(seeds):
            scores, single = peer(probe_peers.probelab(kind), seed, train, labels, test)
            total, spent = total + scores, spent + single
            print_row(f"probelab {kind}, seed {seed}", scores, truth, single)
        print_row(f"probelab {kind}, mean of {seeds}", np.asarray(total) / seeds, truth, spent)
    if search:
        start = time.process_time()
        grid = GridSearchCV(AttentionProbe(max_iter=200, tol=1e-4), GRID, cv=4, scoring="neg_log_loss")
        grid.fit(train, labels)
        spent = time.process_time() - start
        print_row("GridSearchCV", grid.decision_function(test), truth, spent, ridges=str(grid.best_params_))


def needle(n: int, seed: int, T: int = 256, d: int = 64) -> tuple[TokenStore, np.ndarray]:
    """Gaussian tokens; one of 256 carries a mark (4) and, in another direction, the class (± 3)."""
    rng = np.random.default_rng(seed)
    labels, x = rng.integers(0, 2, n), rng.standard_normal((n, T, d)).astype(np.float32)
    place = np.arange(n), rng.integers(0, T, n)
    x[(*place, 0)] += 4.0
    x[(*place, 1)] += 3.0 * (2 * labels - 1)
    return TokenStore.from_flat(x.astype(np.float16).reshape(n * T, d), np.arange(n + 1) * T), labels


def scale() -> None:
    """20,000 sequences of 32 tokens, 384 wide, float16 (0.46 GiB): memory above it, CPU of an evaluation."""
    rng = np.random.default_rng(0)
    n, T, d = 20_000, 32, 384
    x = np.empty((n, T, d), np.float16)
    for block in np.array_split(x, 100):
        block[...] = rng.standard_normal(block.shape, np.float32)
    labels = rng.integers(0, 2, n)
    x[np.arange(n), rng.integers(0, T, n), :2] = np.stack([np.full(n, 4.0), 3.0 * (2 * labels - 1)], 1)
    fixed = {"head_ridge": 0.01, "prompt_ridge": 0.01}
    AttentionProbe(**fixed).fit(x[:50], labels[:50])  # loops are compiled
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    probe = AttentionProbe(**fixed, max_iter=30, tol=1e-5).fit(x, labels)
    spent = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before) * 1024
    row = {"CPU s": spent, "steps": probe.n_iter_, "CPU s per step": spent / probe.n_iter_}
    print(json.dumps(row | {"memory / input": grown / x.nbytes}))
    block = x[:2000]
    distance = np.abs(probe.predict_proba(block) - probe.predict_proba(block.astype(np.float64))).max()
    print(json.dumps({"probabilities of float16 and float64 apart": float(distance)}))


def many_concepts(cache: Path) -> None:
    """36 probes with fixed ridges beside one, on the same tokens: the labels of 35 are noisy copies."""
    from review_tokens import load

    train, _ = load(cache)
    store, labels = stored(train.sequences[:2000]), train.labels[:2000]
    rng = np.random.default_rng(0)
    Y = np.stack([labels ^ (rng.random(2000) < 0.005 * c) for c in range(36)], 1)
    fixed = {"head_ridge": 0.1, "prompt_ridge": 1.0}
    for _ in range(2):
        start = time.process_time()
        ProbeSuite(**fixed).fit(store, Y[:, :1])
        single = time.process_time() - start
        start = time.process_time()
        ProbeSuite(**fixed).fit(store, Y)
        all_of_them = time.process_time() - start
        print(json.dumps({"one": single, "36": all_of_them, "ratio": all_of_them / single}), flush=True)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=["reviews", "needle", "scale", "many"])
    parser.add_argument("cache", type=Path, nargs="?")
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--search", action="store_true", help="GridSearchCV over the same ridges, too")
    options = parser.parse_args()
    if options.what == "scale":
        return scale()
    if options.what == "many":
        return many_concepts(options.cache)
    if options.what == "needle":
        (train, labels), (test, truth) = needle(1000, 0), needle(2000, 1)
    else:
        from review_tokens import load

        seen, unseen = load(options.cache)
        train, labels = stored(seen.sequences[: options.train]), seen.labels[: options.train]
        test, truth = stored(unseen.sequences), unseen.labels
    AttentionProbe(head_ridge=1, prompt_ridge=1).fit(train[:50], labels[:50])  # loops are compiled
    return compare(train, labels, test, truth, options.seeds, options.search)


if __name__ == "__main__":
    main()
