"""What kind of token a head selects: itself, its neighbours, separators, its word, or content."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.texts import Texts

KINDS = ("first or separator", "itself", "previous", "next", "same word", "content")
"""In the order in which they are tried: a token that is several of them counts as the first.

same word: another piece of the query's word, or the same piece elsewhere in the text.
content: everything else.
"""


def kinds(
    texts: Texts, text: NDArray[np.intp], position: NDArray[np.intp], token: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Index into KINDS of what each query (text, position) selects (token); all arrays (k,)."""
    sink = (token == 0) | texts.special[text, token]
    word, own = texts.word[text, token], texts.word[text, position]
    same_word = (word == own) & (own >= 0)
    same_piece = texts.ids[text, token] == texts.ids[text, position]
    cases = [sink & (token != position), token == position, token == position - 1]
    cases += [token == position + 1, same_word | same_piece]
    return np.asarray(np.select(cases, range(5), default=5))


def shares(found: NDArray[np.intp]) -> dict[str, float]:
    """How often each kind occurs, as shares of one."""
    counts = np.bincount(found, minlength=len(KINDS)) / max(len(found), 1)
    return {name: float(share) for name, share in zip(KINDS, counts, strict=True)}
