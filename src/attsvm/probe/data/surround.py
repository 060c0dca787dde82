"""Sequences inside of longer contexts, to fit or to judge a probe on."""

from __future__ import annotations

import numpy as np

from attsvm._support.validation import is_integer
from attsvm.probe.data.sequences import Sequences, as_store
from attsvm.probe.data.store import TokenStore


def surround(X: Sequences, benign: Sequences, length: int, *, seed: int = 0) -> TokenStore:
    """Every sequence among benign ones, `length` tokens or more in all; labels stay as they are.

        twice = [*train, *surround(train, benign, 256)]                        # for long contexts
        probe.fit(twice, np.tile(labels, 2), groups=np.tile(np.arange(len(labels)), 2))

    A probe that is fitted on short texts gives the tokens of a long context weights that it never learned.
    Fitted on both it keeps what it knows of the text alone.
    X, benign: inputs of `AttentionProbe` of one width. Benign sequences are drawn with replacement and stay
    whole; the place of the sequence among them is drawn, too. A sequence that is long enough is left alone.
    """
    store, pool = as_store(X), as_store(benign)
    if store.width != pool.width:
        raise ValueError(f"X has tokens {store.width} wide, benign {pool.width}. Pass states of one layer.")
    if not (is_integer(length) and length >= 1):
        raise ValueError(f"length is {length!r}. Pass a number of tokens, 1 or more.")
    rng, lengths = np.random.default_rng(seed), np.zeros(len(store), np.intp)
    pieces = list[np.ndarray]()
    for i, sequence in enumerate(store):
        context, lengths[i] = [sequence], len(sequence)
        while lengths[i] < length:
            context.append(pool[int(rng.integers(len(pool)))])
            lengths[i] += len(context[-1])
        place = int(rng.integers(len(context)))
        context[0], context[place] = context[place], context[0]
        pieces += context
    return TokenStore.from_flat(np.concatenate(pieces), np.cumsum([0, *lengths]))
