"""Whole attention maps of a few sentences, small enough for a page."""

from __future__ import annotations

from base64 import b64encode

import numpy as np

from attsvm.heads.record import LayerRecord
from attsvm.heads.texts import Texts

MAP_BYTES = 8_000
"""Bytes of attention maps per head."""

LONGEST = 512
"""Tokens of the longest text whose map is shown where none fits."""


def shown(texts: Texts, most: int) -> list[int]:
    """The first texts whose maps fit into MAP_BYTES together, at most so many; if none does, the shortest,
    unless it is longer than LONGEST.
    """
    chosen, left = list[int](), MAP_BYTES
    for text, length in enumerate(texts.lengths.tolist()):
        if len(chosen) < most and length**2 <= left:
            chosen.append(text)
            left -= length**2
    shortest = int(texts.lengths.argmin())
    return chosen or [shortest][: most if texts.lengths[shortest] <= LONGEST else 0]


def maps(layer: LayerRecord, head: int, texts: Texts, most: int) -> tuple[str, ...]:
    """One head's attention (T, T) on every shown text: a byte per pair, 255 for attention one, in base64."""
    found = []
    for text in shown(texts, most):
        count = int(texts.lengths[text])
        at = np.array([np.full(count, text), np.arange(count)])
        attention = layer.attention(head, at)[:, :count]
        found.append(b64encode(np.round(255 * attention).astype(np.uint8).tobytes()).decode("ascii"))
    return tuple(found)
