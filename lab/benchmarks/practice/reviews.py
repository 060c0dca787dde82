"""Movie reviews: AttentionProbe beside pooling, on frozen MiniLM token states.

python lab/benchmarks/practice/review_tokens.py CACHE.npz        (once)
python lab/benchmarks/practice/reviews.py CACHE.npz [--lexicon vader_lexicon.txt] [--only NAME …]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from files import find
from review_tokens import Reviews, load
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attsvm.probe import AttentionProbe

Outcome = dict[str, object]

POOLING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean pooling": lambda s: s.mean(0),
    "max pooling": lambda s: s.max(0),
    "[CLS]": lambda s: s[0],
    "last token": lambda s: s[-2],  # the one before [SEP]
}
GRID = {"head_ridge": [0.1, 0.3, 1.0], "prompt_ridge": [0.3, 1.0]}
FOLDS = 3


def pooled(pool: Callable[[np.ndarray], np.ndarray], train: Reviews, test: Reviews) -> Outcome:
    """Logistic regression on one vector per sentence, its C by cross-validation."""
    features, unseen = ([pool(s.astype(float)) for s in split.sequences] for split in (train, test))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    grid = {"logisticregression__C": np.logspace(-4, 0, 9)}
    search, searched = timed(lambda: GridSearchCV(model, grid, cv=FOLDS).fit(features, train.labels))
    _, spent = timed(lambda: search.best_estimator_.fit(features, train.labels))
    return outcome(search.predict(unseen), None, spent, searched, search.best_params_)


def attention_probe(train: Reviews, test: Reviews) -> Outcome:
    """Ours, its two ridges by cross-validation."""
    probe = AttentionProbe(max_iter=200, tol=1e-4)
    search = GridSearchCV(probe, GRID, cv=FOLDS, refit=False)
    search_result, searched = timed(lambda: search.fit(train.sequences, train.labels))
    _, spent = timed(
        lambda: probe.set_params(**search_result.best_params_).fit(train.sequences, train.labels)
    )
    return outcome(
        probe.predict(test.sequences),
        probe.select(test.sequences),
        spent,
        searched,
        search_result.best_params_,
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def outcome(predicted, selected, fit: float, search: float, settings: dict) -> Outcome:
    return {"predicted": predicted, "selected": selected, "fit": fit, "search": search, "settings": settings}


# ---------------------------------------------------------------------- judged


def lexicon(path: Path | None) -> set[str]:
    """Words with a human valence in the VADER lexicon; emoticons are left out."""
    if path is None:
        path = find("vader_lexicon.txt", None, "vaderSentiment", "vader_lexicon.txt")
    lines = (line.split("\t")[0] for line in path.read_text(encoding="utf8").splitlines() if line)
    return {entry.lower() for entry in lines if entry.isalpha() and len(entry) > 1}


def against(base: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Paired difference of accuracies, its standard error, and McNemar's exact p."""
    difference = right.astype(float) - base
    won, lost = int((difference > 0).sum()), int((difference < 0).sum())
    p = binomtest(won, won + lost).pvalue if won + lost else 1.0
    error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
    return {"gain": float(difference.mean()), "gain_error": error, "mcnemar_p": float(p)}


def bearing(test: Reviews, lexicon_words: set[str], selected: np.ndarray | None) -> float:
    """Share of the sentences with a lexicon word whose selected token belongs to one; None: by chance."""
    hits = [np.array([token in lexicon_words for token in tokens]) for tokens in test.words]
    share = [h.mean() if selected is None else h[selected[i]] for i, h in enumerate(hits) if h.any()]
    return float(np.mean(share))


def row_of(
    name: str, outcome: Outcome, test: Reviews, lexicon_words: set[str], base: np.ndarray
) -> dict[str, object]:
    """One row of the table."""
    right = outcome["predicted"] == test.labels
    error = float(np.std(right, ddof=1) / np.sqrt(len(right)))
    row: dict[str, object] = {"method": name, "accuracy": float(np.mean(right)), "error": error}
    row |= against(base, right)
    if outcome["selected"] is not None:
        row["lexicon"] = bearing(test, lexicon_words, outcome["selected"])
    return row | {key: outcome[key] for key in ("fit", "search", "settings")}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--lexicon", type=Path)
    methods = [*POOLING, "AttentionProbe"]
    parser.add_argument("--only", nargs="+", choices=methods, default=methods)
    options = parser.parse_args()
    (train, test), lexicon_words = load(options.cache), lexicon(options.lexicon)
    print(f"{len(train.labels)} training and {len(test.labels)} test sentences")
    print(f"selected a lexicon word, by chance: {bearing(test, lexicon_words, None):.3f}")
    rights: dict[str, np.ndarray] = {}
    for name in methods:
        if name in options.only or name == "mean pooling":
            is_probe = name not in POOLING
            outcome = attention_probe(train, test) if is_probe else pooled(POOLING[name], train, test)
            rights[name] = outcome["predicted"] == test.labels
            print(json.dumps(row_of(name, outcome, test, lexicon_words, rights["mean pooling"])), flush=True)


if __name__ == "__main__":
    main()
