"""Texts as a model reads them: tokens, words, pieces, and what was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool

LENGTH = 128
"""Tokens read of a text by default: time grows with the square of the length, memory does not."""

BATCH, TOKENS = 16, 4096
"""At most so many texts and tokens per forward pass; a single text may be longer."""

MAX_LISTED = 10
"""A message lists at most so many of the cut texts."""


class CutTexts(UserWarning):
    """Some texts are longer than what is read of them."""


@dataclass(frozen=True)
class Cut:
    """A text that was cut: `read` of its `tokens` were read, special ones included."""

    text: int
    read: int
    tokens: int


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Tokenised texts: ids, mask, word and special (n, T); pieces: the readable text of each token.

    word: the index of the word that a piece belongs to, −1 for special tokens.
    full_lengths (n,): tokens of each text before it was cut.
    """

    ids: NDArray[np.intp]
    mask: Bool
    word: NDArray[np.intp]
    special: Bool
    pieces: list[list[str]]
    full_lengths: NDArray[np.intp]

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Tokens read of each text (n,)."""
        return np.asarray(self.mask.sum(-1))

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts of which the end was not read."""
        return cuts(self.lengths, self.full_lengths)

    @property
    def sinks(self) -> Bool:
        """Where attention sinks are: the first token of every text, and special tokens (n, T)."""
        sinks = self.special.copy()
        sinks[:, 0] = True
        return sinks

    def batches(self, one_by_one: bool = False) -> list[Texts]:
        """The texts of each forward pass, without columns of padding only; one_by_one: one text per pass."""
        count = 1 if one_by_one else max(1, min(BATCH, TOKENS // self.ids.shape[1]))
        return [self.rows(slice(start, start + count)).trimmed() for start in range(0, len(self), count)]

    def rows(self, index: slice) -> Texts:
        """Some of the texts."""
        arrays = (self.ids, self.mask, self.word, self.special, self.pieces, self.full_lengths)
        return Texts(*(array[index] for array in arrays))  # type: ignore[arg-type]

    def trimmed(self) -> Texts:
        """The same texts without columns of padding only."""
        T = int(self.lengths.max())
        ids, mask = self.ids[:, :T], self.mask[:, :T]
        word, special = self.word[:, :T], self.special[:, :T]
        return Texts(ids, mask, word, special, [pieces[:T] for pieces in self.pieces], self.full_lengths)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Texts({len(self)} texts, {self.lengths.sum()} tokens, {len(self.cut)} cut)"


def cuts(lengths: NDArray[Any], full_lengths: NDArray[Any]) -> tuple[Cut, ...]:
    """The texts of which fewer tokens were read (n,) than they have (n,)."""
    counts = zip(lengths.tolist(), full_lengths.tolist(), strict=True)
    return tuple(Cut(i, read, tokens) for i, (read, tokens) in enumerate(counts) if read < tokens)


def cut_message(
    cut: Sequence[Cut],
    count: int,
    requested: int,
    *,
    option: str = "length=",
    lines: Sequence[int] | None = None,
) -> str:
    """How many of `count` texts were cut, which texts, and how to read them in full.

    requested: the caller's length; fewer tokens were read where the model takes no more.
    lines: the line of a file in which each text stands; without it texts are named by their index.
    """
    read, longest = cut[0].read, max(entry.tokens for entry in cut)
    names = [str(entry.text if lines is None else lines[entry.text]) for entry in cut]
    unit = "line" if lines else "text"
    listing = ", ".join(names[:MAX_LISTED]) + (" …" if len(names) > MAX_LISTED else "")
    message = (
        f"{len(cut)} of {count} texts cut after {read} tokens ({unit} {listing}; the longest has {longest}). "
    )
    if read < requested:
        return message + "The model takes no more: split the texts."
    return message + f"Pass {option}{longest} to read all."
