"""A few queries that show what a head does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.kinds import KINDS
from attsvm.heads.record import LayerRecord
from attsvm.heads.texts import Texts
from attsvm.numbers import Float

SHOWN = 3
"""Examples per head."""


@dataclass(frozen=True)
class Example:
    """One text read by one query: its pieces, the attention each receives, the kind of the selected one.

    unread: tokens of the text that were cut off.
    """

    pieces: tuple[str, ...]
    query: int
    attention: tuple[float, ...]
    kind: str
    unread: int


def examples(
    layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp], found: NDArray[np.intp], seed: int
) -> tuple[Example, ...]:
    """Examples of a head's queries at (2, k), which select tokens of the kinds found (k,)."""
    mass = layer.selected(head, at).mass
    rng = np.random.default_rng((seed, layer.layer, head))
    chosen = representative(at[0], found, mass, texts.special[at[0], at[1]], rng)
    return tuple(_example(layer, head, texts, at[:, k], KINDS[found[k]]) for k in chosen)


def representative(
    text: NDArray[np.intp],
    kind: NDArray[np.intp],
    mass: Float,
    special: NDArray[np.bool_],
    rng: np.random.Generator,
) -> list[int]:
    """Indices of SHOWN queries: the commonest kind first, each kind by its share and from its surer half,
    each query of another text.

    The surest queries alone would mislead: those of a previous-token head are first words, which look at
    [CLS]. A special token asks only where no word does.
    """
    among = np.flatnonzero(~special) if not special.all() else np.arange(len(special))
    chosen: list[int] = []
    counts = np.bincount(kind[among], minlength=len(KINDS))
    places = _places(counts)
    for k in np.argsort(-counts, kind="stable"):
        count = places[k]
        same = among[kind[among] == k]
        surer = same[np.argsort(-mass[same])][: max(count, (len(same) + 1) // 2)]
        order = rng.permutation(surer).tolist()
        for _ in range(min(count, len(order))):
            seen = set(text[chosen].tolist())
            chosen.append(next((query for query in order if text[query] not in seen), order[0]))
            order.remove(chosen[-1])
    return chosen


def _places(counts: NDArray[np.intp]) -> list[int]:
    """SHOWN places shared out by the largest remainders; none without a query."""
    shares = SHOWN * counts / max(counts.sum(), 1)
    places = shares.astype(int)
    left = round(shares.sum()) - places.sum()
    places[np.argsort(places - shares, kind="stable")[:left]] += 1
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
        unread=int(texts.whole[text]) - count,
    )
