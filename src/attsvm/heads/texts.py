"""Texts as a model reads them: tokens, words, pieces, and what was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool

LENGTH = 128
"""Tokens read of a text unless told otherwise: time grows with the square of it, memory does not."""

BATCH, TOKENS = 16, 4096
"""Texts and tokens per forward pass, at most; one text may be longer."""

NAMED = 10
"""Cut texts that are named one by one."""


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
    """Tokenised texts: ids, mask, word and special (n, T); pieces: what each token reads.

    word: the index of the word a piece belongs to, −1 for special tokens.
    whole (n,): tokens of each text before it was cut.
    """

    ids: NDArray[np.intp]
    mask: Bool
    word: NDArray[np.intp]
    special: Bool
    pieces: list[list[str]]
    whole: NDArray[np.intp]

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Tokens read of each text (n,)."""
        return np.asarray(self.mask.sum(-1))

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts of which the end was not read."""
        return cuts(self.lengths, self.whole)

    @property
    def drains(self) -> Bool:
        """Where sinks are: the first token of every text and special ones (n, T)."""
        found = self.special.copy()
        found[:, 0] = True
        return found

    def batches(self) -> list[slice]:
        """The texts of each forward pass."""
        count = max(1, min(BATCH, TOKENS // self.ids.shape[1]))
        return [slice(start, start + count) for start in range(0, len(self), count)]

    def first(self, count: int) -> Texts:
        """The first texts."""
        arrays = (self.ids, self.mask, self.word, self.special, self.pieces, self.whole)
        return Texts(*(array[:count] for array in arrays))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Texts({len(self)} texts, {self.lengths.sum()} tokens, {len(self.cut)} cut)"


def cuts(lengths: NDArray[Any], whole: NDArray[Any]) -> tuple[Cut, ...]:
    """The texts of which fewer tokens were read (n,) than they have (n,)."""
    counts = zip(lengths.tolist(), whole.tolist(), strict=True)
    return tuple(Cut(i, read, all_) for i, (read, all_) in enumerate(counts) if read < all_)


def cut_in_words(
    cut: Sequence[Cut], count: int, asked: int, *, option: str = "length=", lines: Sequence[int] | None = None
) -> str:
    """How many of `count` texts were cut, where, and the way to read them whole.

    asked: the length asked for; a smaller one was read where the model takes no more.
    lines: the line of a file in which each text stands; without it texts are named by their index.
    """
    read, longest = cut[0].read, max(one.tokens for one in cut)
    names = [str(one.text if lines is None else lines[one.text]) for one in cut]
    places = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    said = f"{len(cut)} of {count} texts cut after {read} tokens ({'line' if lines else 'text'} {places}; "
    said += f"the longest has {longest}). "
    return said + (
        "The model takes no more: split the texts."
        if read < asked
        else f"Pass {option}{longest} to read all."
    )
