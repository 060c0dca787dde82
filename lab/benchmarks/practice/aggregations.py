"""Whether other ways to sum up tokens, or a bias by position, would earn their place in AttentionProbe.

python lab/benchmarks/practice/aggregations.py uci vader --sentences SENTENCES
python lab/benchmarks/practice/aggregations.py long --sentences SENTENCES

The probe is fitted with softmax attention and the ridges of another set; on the test part its tokens are
summed up by
  softmax   Σ a_t (v · x_t)
  max       the largest v · x_t
  rolling   the largest softmax within ten neighbouring tokens (Kramár et al. 2026)
  ema       the largest running mean of a_t-weighted scores, half of it forgotten at every token
and, for `position`, fitted again with the token's place from either end as two more features.
`long`: fitted on single sentences of UCI, tested on eight of them, seven of which are the same for all, so
that one sentence decides: the failure of softmax at length that the literature names.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import real_sets
import sentence_sets
from sklearn.model_selection import StratifiedGroupKFold

from attsvm.probe import AttentionProbe, TokenStore

WINDOW, FADED = 10, 0.5
RIDGES = {"head_ridge": 0.1, "prompt_ridge": 1.0, "tol": 1e-4}
"""What the path chose on 2,000 Rotten-Tomatoes sentences, which are none of these."""


def softmax(logits: np.ndarray, values: np.ndarray) -> float:
    weights = np.exp(logits - logits.max())
    return float(weights @ values / weights.sum())


def rolling(logits: np.ndarray, values: np.ndarray) -> float:
    starts = range(max(1, len(values) - WINDOW + 1))
    return max(softmax(logits[s : s + WINDOW], values[s : s + WINDOW]) for s in starts)


def ema(logits: np.ndarray, values: np.ndarray) -> float:
    weights, best = np.exp(logits - logits.max()), -np.inf
    total = sums = 0.0
    for w, value in zip(weights, values, strict=True):
        total, sums = FADED * total + w, FADED * sums + w * value
        best = max(best, sums / max(total, 1e-300))
    return float(best)


WAYS = {"softmax": softmax, "max": lambda _, values: float(values.max()), "rolling": rolling, "ema": ema}


def summed(probe: AttentionProbe, store: TokenStore) -> dict[str, np.ndarray]:
    """Scores of sequences by every way."""
    tokens = [x.astype(float) - probe.mean_ for x in store]
    pairs = [(x @ probe.prompt_[:, 0], x @ probe.coef_[:, 0, 0]) for x in tokens]
    base = probe.intercept_[0] + probe.mean_ @ probe.coef_[:, 0, 0]
    return {name: np.array([aggregate(*pair) for pair in pairs]) + base for name, aggregate in WAYS.items()}


def with_places(store: TokenStore) -> TokenStore:
    """Two more features of every token: its place from the beginning and from the end."""
    places = np.concatenate([np.stack([np.arange(T), np.arange(T)[::-1]], 1) for T in store.lengths])
    flat = np.concatenate([np.concatenate(list(store)).astype(np.float32), places.astype(np.float32)], 1)
    return TokenStore.from_flat(flat, np.cumsum([0, *store.lengths]))


def longer(store: TokenStore, seed: int = 0) -> TokenStore:
    """Every sequence with seven others around it, at a random place; the others are the same for all."""
    rng = np.random.default_rng(seed)
    fillers = [store[int(i)] for i in rng.choice(len(store), 7, replace=False)]
    pieces = []
    for x in store:
        order = rng.integers(8)
        pieces.append(np.concatenate([*fillers[:order], x, *fillers[order:]]))
    return TokenStore.from_flat(np.concatenate(pieces), np.cumsum([0, *map(len, pieces)]))


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("sets", nargs="+", choices=["uci", "vader", "long"])
    parser.add_argument("--sentences", type=Path, required=True)
    options = parser.parse_args()
    for name in options.sets:
        store, labels, groups = sentence_sets.load(options.sentences / f"{name.replace('long', 'uci')}.npz")
        results: dict[str, tuple[np.ndarray, float]] = {}
        splitter = StratifiedGroupKFold(5, shuffle=True, random_state=0)
        for train, test in splitter.split(labels, labels, groups):
            probe = AttentionProbe(**RIDGES).fit(store[train], labels[train])
            scores = summed(probe, longer(store[test]) if name == "long" else store[test])
            if name != "long":
                placed = AttentionProbe(**RIDGES).fit(with_places(store[train]), labels[train])
                scores["position"] = placed.decision_function(with_places(store[test]))
            for way, of_test in scores.items():
                sums = results.setdefault(way, (np.zeros((3, len(labels))), 0.0))[0]
                sums[:, test] = real_sets.judge(of_test, labels[test])
        print(name)
        print("\n".join(json.dumps(row) for row in real_sets.rows(results, labels)), flush=True)


if __name__ == "__main__":
    main()
