"""Languages of two symbols, every string of every length: even pairs, and parity.

"How Transformers Learn Regular Language Recognition" (Huang, Liang, Yang 2025, arXiv 2505.00926).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm._support.validation import check_sizes
from attsvm.data.tokens import Tokens
from attsvm.numbers import Float

LONGEST = 12
"""The largest L: there are L 2^L strings in memory."""


def even_pairs(L: int = 6) -> tuple[Tokens, Float]:
    """All strings of 1 … L symbols; the label is +1 where the first symbol is the last one.

        key of symbol w at place l:  E_l^w = e_(2l + w),  l = 0 … L − 1, w = 0, 1;  query: the last token

    The set is not random. A string of l symbols occurs 2^(L − l) times, so that every length has the same
    weight: the paper's loss, the sum of the mean losses of all lengths, is L times the mean loss. (Even
    pairs: the symbol changes an even number of times.) Keys (L 2^L, L, 2L), masked beyond the end of a
    string; the head is the paper's start, zeros (2L,).
    """
    symbols, mask = _strings(L)
    last = symbols[np.arange(len(symbols)), mask.sum(-1) - 1]
    return _tokens(symbols, mask, symbols[:, 0] == last), np.zeros(2 * L)


def parity(L: int = 6) -> tuple[Tokens, Float]:
    """The same strings; the label is +1 where the number of ones is even.

    One layer does not learn it. A model of `even_pairs` computes it in steps: compare the first and the last
    symbol, append 0 if they are equal and 1 otherwise, drop the first. After l − 1 steps the appended symbol
    is the parity of the l symbols.
    """
    symbols, mask = _strings(L)
    return _tokens(symbols, mask, (symbols * mask).sum(-1) % 2 == 0), np.zeros(2 * L)


def _strings(L: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Symbols (n, L) of all strings, zero beyond their ends, and where there are symbols (n, L)."""
    (L,) = check_sizes(L=(L, 1))
    if L > LONGEST:
        raise ValueError(f"L is {L}. Pass 1 … {LONGEST}: there are L 2^L strings, copies included.")
    lengths = np.repeat(np.arange(1, L + 1), 2**L)
    mask = np.arange(L) < lengths[:, None]
    # The number of a string among those of its length; copies share it.
    number = np.tile(np.arange(2**L), L) >> (L - lengths)
    return (number[:, None] >> np.arange(L)) % 2 * mask, mask


def _tokens(symbols: NDArray[np.intp], mask: NDArray[np.bool_], positive: NDArray[np.bool_]) -> Tokens:
    keys = np.eye(2 * mask.shape[1])[2 * np.arange(mask.shape[1]) + symbols] * mask[..., None]
    return Tokens.self_attention(keys, at=-1, labels=np.where(positive, 1.0, -1.0), mask=mask)
