"""What an attention head selects: kinds of tokens, and the patterns that heads are known for.

The patterns are induction, duplicate tokens and attention sinks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.head import Place
from attsvm.heads.model import Reader
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.texts import Texts

KINDS = ("first or separator", "itself", "previous", "next", "same word", "content")
"""In the order in which they are tried: a token of several kinds counts as the first of them.

same word: another piece of the query's word, or the same piece elsewhere in the text.
content: all other tokens.
"""

REPEATS, HALF = 8, 32
"""Random sequences of HALF tokens, each read twice in a row."""

Scores = dict[str, float]


def kinds(
    texts: Texts, text: NDArray[np.intp], position: NDArray[np.intp], token: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Index into KINDS of the token that each query (text, position) selects; all arrays (k,)."""
    sink = (token == 0) | texts.special[text, token]
    token_word, query_word = texts.word[text, token], texts.word[text, position]
    same_word = (token_word == query_word) & (query_word >= 0)
    same_piece = texts.ids[text, token] == texts.ids[text, position]
    cases = [sink & (token != position), token == position, token == position - 1]
    cases += [token == position + 1, same_word | same_piece]
    return np.asarray(np.select(cases, range(5), default=5))


def shares(kind_of_query: NDArray[np.intp]) -> dict[str, float]:
    """How often each kind occurs, as shares of one."""
    counts = np.bincount(kind_of_query, minlength=len(KINDS)) / max(len(kind_of_query), 1)
    return {name: float(share) for name, share in zip(KINDS, counts, strict=True)}


def on_repeats(reader: Reader, layers: Iterable[int], seed: int = 0) -> dict[Place, Scores]:
    """Attention of every head on random tokens u_1 … u_L u_1 … u_L, mean over the second half.

        induction: from u_j to the token after the earlier u_j
        duplicate token: from u_j to the earlier u_j

    Tokens are random, so that no meaning helps. Chance is about one over the tokens that a query sees.
    Reference: Olsson et al. 2022, "In-context learning and induction heads".
    """
    texts, start = repeats(reader, seed)
    scores = {}
    for layer in record(reader, texts, layers):
        text, j = np.divmod(np.arange(REPEATS * HALF), HALF)
        earlier = start + j
        for head in range(layer.heads):
            to = layer.attention(head, np.array([text, earlier + HALF]))
            induction, duplicate = (float(to[np.arange(len(to)), earlier + k].mean()) for k in (1, 0))
            scores[layer.layer, head] = {"induction": induction, "duplicate token": duplicate}
    return scores


def repeats(reader: Reader, seed: int) -> tuple[Texts, int]:
    """The random texts, framed by the model's special tokens, and the position of the first random token."""
    frame = list(reader.tokenizer(["a"])["input_ids"][0])
    special = np.isin(frame, reader.tokenizer.all_special_ids)
    inner = np.flatnonzero(~special)
    prefix, suffix = (frame[: inner[0]], frame[inner[-1] + 1 :]) if inner.size else (frame, [])
    ordinary = np.setdiff1d(np.arange(reader.model.config.vocab_size), reader.tokenizer.all_special_ids)
    sequences = np.random.default_rng(seed).choice(ordinary, (REPEATS, HALF))
    sides = [np.tile(np.array(side, int), (REPEATS, 1)) for side in (prefix, suffix)]
    ids = np.concatenate([sides[0], sequences, sequences, sides[1]], axis=1)
    mask, lengths = np.ones(ids.shape, bool), np.full(REPEATS, ids.shape[1])
    return Texts(ids, mask, np.full(ids.shape, -1), ~mask, [], lengths), len(prefix)


def sink(layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp]) -> float:
    """Mean attention on the first token and on special tokens, of queries at (2, k) that are neither.

    Reference: Xiao et al. 2023, "Efficient streaming language models with attention sinks".
    """
    ordinary = at[:, ~texts.sinks[at[0], at[1]]]
    return float(layer.selected(head, ordinary).sink.mean()) if ordinary.size else float("nan")
