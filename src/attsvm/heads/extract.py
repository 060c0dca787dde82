"""The heads of a model on texts, one `Head` after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.head import Head
from attsvm.heads.model import load
from attsvm.heads.record import record
from attsvm.heads.texts import LENGTH


def extract(
    model: Any,
    texts: Sequence[str],
    *,
    layers: Iterable[int] | None = None,
    queries: int | None = 256,
    above: float = 0.0,
    length: int = LENGTH,
    seed: int = 0,
) -> Iterator[Head]:
    """Every head of a model as `Tokens` and the W that gives the model's own attention.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`.
    queries: at most so many query positions per head, drawn with the seed; None takes all.
    above: only queries whose largest attention exceeds this number. A head without any is left out.
    length: at most so many tokens are read of each text; warns CutTexts where one is longer.
    Raises UnsupportedModel where no W gives the model's attention.
    """
    reader = load(model)
    for layer in record(reader, reader.tokenise(texts, length), layers):
        for head in range(layer.heads):
            at = sample(layer.at(head, above), queries, seed)
            if at.size:
                yield layer.head(head, at)


def sample(at: NDArray[np.intp], limit: int | None, seed: int) -> NDArray[np.intp]:
    """At most `limit` of the positions (2, k), without repetition, in their order."""
    if limit is None or at.shape[1] <= limit:
        return at
    return at[:, np.sort(np.random.default_rng(seed).choice(at.shape[1], limit, replace=False))]
