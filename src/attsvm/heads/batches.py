"""Texts as a model reads them, end to end, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.model import Reader

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Read:
    """Tokens of all texts as the model reads them, and where the kept ones go: the last of each text.

    Text i is ids[offsets[i] : offsets[i + 1]]; its places in the files are places[i] … places[i + 1] − 1.
    """

    offsets: Offsets
    ids: Ids
    places: Offsets

    def text(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def kept(self) -> Ids:
        """The ids of the kept tokens."""
        counts = np.diff(self.places)
        return np.concatenate([self.text(i)[-count:] for i, count in enumerate(counts.tolist())])


def tokenised(reader: Reader, texts: Sequence[str], length: int) -> tuple[Offsets, Ids, NDArray[np.intp]]:
    """Offsets (n + 1,), ids (N,) of what is read, and how many tokens each text has (n,)."""
    texts = reader.checked(texts, length)
    parts, whole, most = list[list[int]](), list[int](), min(length, reader.longest)
    for start in range(0, len(texts), 1000):
        some = list(texts[start : start + 1000])
        coded = reader.coded(some)
        whole += map(len, coded)
        if max(map(len, coded)) > most:
            coded = reader.tokenizer(some, truncation=True, max_length=most)["input_ids"]
        parts += coded
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return offsets, np.concatenate(parts).astype(np.int32), np.array(whole)


def batches(offsets: Offsets, most: int) -> list[NDArray[np.intp]]:
    """Texts of similar length together, the longest first: what does not fit the memory says so at once."""
    lengths = np.diff(offsets)
    order, batches, start = np.argsort(-lengths, kind="stable"), [], 0
    while start < len(order):
        count = max(1, most // int(lengths[order[start]]))
        batches.append(np.sort(order[start : start + count]))
        start += count
    return batches
