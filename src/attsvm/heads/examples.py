"""What an audit's page shows of the texts: a few queries of every head, and whole maps of some sentences."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.detectors import KINDS
from attsvm.heads.record import LayerRecord
from attsvm.heads.texts import Texts
from attsvm.numbers import Float

SHOWN = 3
"""Examples per head."""

MAP_BYTES = 8_000
"""Bytes of attention maps per head."""

LONGEST = 512
"""Up to so many tokens, the map of the shortest text is shown where no text fits into MAP_BYTES."""


@dataclass(frozen=True)
class Example:
    """One text read by one query: its pieces, the attention each receives, the kind of the selected piece.

    unread: tokens of the text that were cut off.
    """

    pieces: tuple[str, ...]
    query: int
    attention: tuple[float, ...]
    kind: str
    unread: int


def examples(
    layer: LayerRecord,
    head: int,
    texts: Texts,
    at: NDArray[np.intp],
    kind_of_query: NDArray[np.intp],
    seed: int,
) -> tuple[Example, ...]:
    """Examples of a head's queries at (2, k), which select tokens of the given kinds (k,)."""
    mass = layer.selected(head, at).mass
    rng = np.random.default_rng((seed, layer.layer, head))
    queries = representative(at[0], kind_of_query, mass, texts.special[at[0], at[1]], rng)
    return tuple(_example(layer, head, texts, at[:, k], KINDS[kind_of_query[k]]) for k in queries)


def representative(
    text: NDArray[np.intp],
    kind: NDArray[np.intp],
    mass: Float,
    special: NDArray[np.bool_],
    rng: np.random.Generator,
) -> list[int]:
    """Indices of SHOWN queries: the commonest kind first, each kind by its share and from its surer half,
    each query of another text.

    The surest queries alone would mislead: those of a previous-token head are first words, which attend to
    [CLS]. Queries of special tokens count only where there are no other queries.
    """
    candidates = np.flatnonzero(~special) if not special.all() else np.arange(len(special))
    queries: list[int] = []
    counts = np.bincount(kind[candidates], minlength=len(KINDS))
    places = _places(counts)
    for k in np.argsort(-counts, kind="stable"):
        count = places[k]
        of_kind = candidates[kind[candidates] == k]
        surer = of_kind[np.argsort(-mass[of_kind])][: max(count, (len(of_kind) + 1) // 2)]
        order = rng.permutation(surer).tolist()
        for _ in range(min(count, len(order))):
            used_texts = set(text[queries].tolist())
            queries.append(next((query for query in order if text[query] not in used_texts), order[0]))
            order.remove(queries[-1])
    return queries


def mapped_texts(texts: Texts, limit: int) -> list[int]:
    """The first texts whose maps fit into MAP_BYTES together, at most so many; if none does, the shortest,
    unless it is longer than LONGEST.
    """
    chosen_texts, free_bytes = list[int](), MAP_BYTES
    for text, length in enumerate(texts.lengths.tolist()):
        if len(chosen_texts) < limit and length**2 <= free_bytes:
            chosen_texts.append(text)
            free_bytes -= length**2
    shortest = int(texts.lengths.argmin())
    return chosen_texts or [shortest][: limit if texts.lengths[shortest] <= LONGEST else 0]


def maps(layer: LayerRecord, head: int, texts: Texts, limit: int) -> tuple[str, ...]:
    """One head's attention (T, T) on every mapped text: a byte per pair, 255 for attention one, in base64."""
    encoded = []
    for text in mapped_texts(texts, limit):
        count = int(texts.lengths[text])
        at = np.array([np.full(count, text), np.arange(count)])
        attention = layer.attention(head, at)[:, :count]
        encoded.append(b64encode(np.round(255 * attention).astype(np.uint8).tobytes()).decode("ascii"))
    return tuple(encoded)


# ---------------------------------------------------------------------- details


def _places(counts: NDArray[np.intp]) -> list[int]:
    """SHOWN places, allotted to the kinds by the largest remainders; none to a kind without a query."""
    shares = SHOWN * counts / max(counts.sum(), 1)
    places = shares.astype(int)
    missing = round(shares.sum()) - places.sum()
    places[np.argsort(places - shares, kind="stable")[:missing]] += 1
    return [int(count) for count in places]


def _example(layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp], kind: str) -> Example:
    text, position = map(int, at)
    count = int(texts.lengths[text])
    attention = layer.attention(head, at[:, None])[0, :count]
    return Example(
        pieces=tuple(texts.pieces[text][:count]),
        query=position,
        attention=tuple(round(float(a), 4) for a in attention),
        kind=kind,
        unread=int(texts.full_lengths[text]) - count,
    )
