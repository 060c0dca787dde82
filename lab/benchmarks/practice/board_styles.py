"""MiniLM states of the same texts in another style: no punctuation, typing errors, framed.

python lab/benchmarks/practice/board_styles.py OUT_FOLDER [--sets tuning|shifted|untouched]  (4 CPU minutes)

One file per set: layer 6, float16, the training rows of board_states.py and the first 250 test rows, in their
order. Of `shifted`, the sets that have shifted ones, the training rows alone. Upper case is no style here:
MiniLM's word pieces have no case.
"""

from __future__ import annotations

import argparse
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import board_states as states
import numpy as np
from board_shifts import drawn

from attsvm.probe import TokenStore

LAYER, UNTOUCHED = 6, 10
MISSPELT, SHORTEST = 0.3, 4
"""The share of words of at least so many letters that typos and lost letters change."""

BEFORE, AFTER = "Here is the text that we talked about. ", " Thank you for reading this, and have a nice day."


def without_punctuation(text: str, rng: np.random.Generator) -> str:
    return re.sub(r"[^\w\s]|_", " ", text)


def with_typos(text: str, rng: np.random.Generator) -> str:
    """Two neighbouring letters inside a word swapped; the first and the last letter stay."""

    def swapped(word: str) -> str:
        i = int(rng.integers(1, len(word) - 2))
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]

    return with_some_words(text, rng, swapped)


def with_lost_letters(text: str, rng: np.random.Generator) -> str:
    """As many words as typos change lose one of their inner letters."""

    def shortened(word: str) -> str:
        i = int(rng.integers(1, len(word) - 1))
        return word[:i] + word[i + 1 :]

    return with_some_words(text, rng, shortened)


def with_some_words(text: str, rng: np.random.Generator, changed: Callable[[str], str]) -> str:
    """The text with a share of its longer words changed."""

    def replacement(found: re.Match[str]) -> str:
        word = found.group()
        return word if rng.random() > MISSPELT else changed(word)

    return re.sub(rf"[^\W\d_]{{{SHORTEST},}}", replacement, text)


def framed(text: str, rng: np.random.Generator) -> str:
    return BEFORE + text + AFTER


STYLES: dict[str, Callable[[str, np.random.Generator], str]] = {
    "no punctuation": without_punctuation,
    "typos": with_typos,
    "framed": framed,
    "lost letters": with_lost_letters,
}

FOR_TESTS = ("framed", "lost letters")
"""Nothing is fitted on these. Lost letters are for the untouched sets, at the end."""


def encode(encoder: states.Encoder, data: Path, name: str, file: Path, parts: dict[str, slice]) -> str:
    """Write the states of these parts of a set in every style."""
    began, arrays = time.process_time(), {}
    texts, _ = states.texts_and_labels(data, name)
    for style, change in STYLES.items():
        for part, rows in parts.items():
            if part == "training" and style in FOR_TESTS:
                continue
            rng = np.random.default_rng(zlib.crc32(f"{name}, {style}, {part}".encode()))
            pieces = encoder.pieces([change(text[-15 * states.TOKENS :], rng) for text in texts[rows]])
            arrays[f"{style}, {part}"] = np.concatenate(encoder.states(pieces)[LAYER])
            arrays[f"{style}, {part}, lengths"] = np.array([len(each) for each in pieces])
    with open(unfinished := file.with_suffix(".part"), "wb") as out:
        np.savez(out, **arrays)
    unfinished.replace(file)
    return f"{name}: {time.process_time() - began:.0f} CPU s"


def load(folder: Path, name: str, style: str, part: str) -> TokenStore:
    """The rows of a part of a set in a style."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as data:
        lengths = data[f"{style}, {part}, lengths"]
        return TokenStore.from_flat(data[f"{style}, {part}"], np.cumsum([0, *lengths]))


def styles_of(folder: Path, name: str, part: str) -> list[str]:
    """The styles that the file of a set has."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as data:
        return [style for style in STYLES if f"{style}, {part}" in data.files]


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", choices=["tuning", "shifted", "untouched"], default="tuning")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = states.folder()
    sets = states.names(data)
    shifted = [name.removesuffix("_OOD") for name in sets if name.endswith("_OOD")]
    encoder = states.Encoder.minilm()
    upper, lower = (encoder.pieces([case("A Text.")]) for case in (str.upper, str.lower))
    print("upper case changes the word pieces:", upper != lower, flush=True)
    parts = {"training": slice(states.TRAINING)}
    if options.sets != "shifted":
        parts["test"] = slice(states.TRAINING, states.TRAINING + states.LEAST_TEST)
    chosen = {"tuning": states.tuning_sets(sets), "shifted": shifted, "untouched": drawn(UNTOUCHED)}
    for name in chosen[options.sets]:
        if not (file := options.out / f"{name}.npz").exists():
            print(encode(encoder, data, name, file, parts), flush=True)


if __name__ == "__main__":
    main()
