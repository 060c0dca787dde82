"""What heads are known for: induction, duplicate tokens, sinks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.head import Place
from attsvm.heads.model import Reader
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.texts import Texts

REPEATS, HALF = 8, 32
"""Random sequences of HALF tokens, each read twice in a row."""

Scores = dict[str, float]


def on_repeats(reader: Reader, layers: Iterable[int], seed: int = 0) -> dict[Place, Scores]:
    """Attention of every head on random tokens u_1 … u_L u_1 … u_L, mean over the second half.

        induction: from u_j to the token after the earlier u_j
        duplicate token: from u_j to the earlier u_j

    Tokens are random, so that no meaning helps. Chance is about one over the tokens that a query sees.
    Reference: Olsson et al. 2022, "In-context learning and induction heads".
    """
    texts, first = repeats(reader, seed)
    found = {}
    for layer in record(reader, texts, layers):
        text, j = np.divmod(np.arange(REPEATS * HALF), HALF)
        earlier = first + j
        for head in range(layer.heads):
            to = layer.attention(head, np.array([text, earlier + HALF]))
            after, same = (float(to[np.arange(len(to)), earlier + k].mean()) for k in (1, 0))
            found[layer.layer, head] = {"induction": after, "duplicate token": same}
    return found


def repeats(reader: Reader, seed: int) -> tuple[Texts, int]:
    """The random texts, framed by the model's special tokens, and the position of the first random one."""
    frame = list(reader.tokenizer(["a"])["input_ids"][0])
    special = np.isin(frame, reader.tokenizer.all_special_ids)
    inner = np.flatnonzero(~special)
    before, after = (frame[: inner[0]], frame[inner[-1] + 1 :]) if inner.size else (frame, [])
    usual = np.setdiff1d(np.arange(reader.model.config.vocab_size), reader.tokenizer.all_special_ids)
    once = np.random.default_rng(seed).choice(usual, (REPEATS, HALF))
    sides = [np.tile(np.array(side, int), (REPEATS, 1)) for side in (before, after)]
    ids = np.concatenate([sides[0], once, once, sides[1]], axis=1)
    everywhere, nowhere = np.ones(ids.shape, bool), np.full(ids.shape, -1)
    whole = np.full(REPEATS, ids.shape[1])
    return Texts(ids, everywhere, nowhere, ~everywhere, [], whole), len(before)


def sink(layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp]) -> float:
    """Mean attention on the first token and on special ones, of queries at (2, k) that are neither.

    Reference: Xiao et al. 2023, "Efficient streaming language models with attention sinks".
    """
    others = at[:, ~texts.drains[at[0], at[1]]]
    return float(layer.selected(head, others).sink.mean()) if others.size else float("nan")
