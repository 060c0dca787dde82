"""Token numbers at the door: the sentences of a corpus, a prompt or a model, and the tokens that ask."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intp]


def as_ids(name: str, value: Any, axes: int, least: int, V: int) -> Ids:
    """Whole numbers from `least` to V − 1 with so many axes, as a copy that nobody writes to."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} is ragged. Pad it with −1, or use Corpus.of(sequences).") from None
    if array.ndim != axes or array.dtype.kind not in "iu":
        raise ValueError(f"{name} has shape {array.shape}, dtype {array.dtype}. Pass {axes}-d integers.")
    unknown = (array < least) | (array >= V)
    if unknown.any():
        where = tuple(map(int, np.argwhere(unknown)[0]))
        tokens = f"The vocabulary has the tokens 0…{V - 1}."
        raise ValueError(f"{name} has the unknown token {array[where]} at {where}. {tokens}")
    ids = array.astype(np.intp)
    ids.flags.writeable = False
    return ids


def as_sentences(ids: Any, V: int) -> Ids:
    """Sentences (n, T) of at least one token, −1 beyond their end and nowhere else."""
    rows = as_ids("ids", ids, 2, -1, V)
    if rows.size == 0:
        raise ValueError("there is no sentence. Pass ids (n, T) with at least one token each.")
    gone = rows < 0
    holes = (gone[:, :-1] & ~gone[:, 1:]).any(-1)
    if holes.any() or gone[:, 0].any():
        i = int(np.argmax(gone[:, 0] | holes))
        what = "is empty" if gone[i].all() else "has padding before its last token"
        raise ValueError(f"sentence {i} {what}: {rows[i].tolist()}. Put tokens first, then −1.")
    return rows


def as_queries(queries: Any, sentences: Ids, V: int) -> Ids:
    """The token that asks in each sentence (n,); None for the last of every sentence."""
    n = len(sentences)
    if queries is None:
        queries = sentences[np.arange(n), (sentences >= 0).sum(-1) - 1]
    asking = as_ids("queries", queries, 1, 0, V)
    if len(asking) != n:
        raise ValueError(f"queries has {len(asking)} entries but there are {n} sentences.")
    return asking
