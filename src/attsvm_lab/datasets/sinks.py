"""A task that creates an attention sink: the mean of all tokens at a trigger, zero elsewhere.

"Attention Sinks Are Provably Necessary in Softmax Transformers" (Ran-Milo 2026, arXiv 2603.11487).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm._support.validation import check_sizes
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs
from attsvm.numbers import Bool, Float


def trigger_means(n: int, T: int = 16, d: int = 16, seed: Seed = 0, *, fresh: int = 0) -> tuple[Tokens, Bool]:
    """Targets: at the trigger the mean of all previous tokens but BOS, elsewhere zero. One example per query.

        x_1 = e_0 (BOS);  trigger: e_1 + content;  others: e_(d−1) + content;  content U(−1, 1) in 2 … d − 2

    Each query attends to the tokens up to its own. The query of BOS attends to one token and is left out, so
    that there are n (T − 1) examples. Values (n (T − 1), T, d − 1) are the tokens without the coordinate of
    BOS, in which BOS is zero, minus the target: `SquaredError()` is the task. The trigger's place is uniform
    on 3 … T.
    fresh: 0 for the training sequences, or the number of test sequences, from a separate stream. Draw order:
    content, places. Also returns the selection: BOS for every query but the trigger's, there all other
    visible tokens.
    """
    n, T, d, fresh = check_sizes(n=(n, 1), T=(T, 3), d=(d, 4), fresh=(fresh, 0))
    count = fresh or n

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        content = 2 * rng.random((count, T - 1, d - 3)) - 1
        return _rows(content, rng.integers(2, T, size=count))

    arrays = draw_runs(draw, seed, test=bool(fresh))
    mask = arrays["mask"].astype(bool)
    tokens = Tokens(arrays["keys"], arrays["queries"], mask=mask, values=arrays["values"])
    return tokens, arrays["selected"].astype(bool)


def _rows(content: Float, place: NDArray[np.int64]) -> dict[str, Float]:
    """The examples of sequences with this content (n, T − 1, d − 3) and these places of the trigger (n,)."""
    n, T, d = len(content), content.shape[1] + 1, content.shape[2] + 3
    x = np.zeros((n, T, d))
    x[:, 0, 0] = 1
    x[:, 1:, 2:-1] = content
    x[:, 1:, -1] = 1
    x[np.arange(n), place, 1], x[np.arange(n), place, -1] = 1, 0
    row = np.arange(1, T)
    visible = np.broadcast_to(np.arange(T) <= row[:, None], (n, T - 1, T))
    at_trigger = (row == place[:, None])[..., None]
    selected = visible & (at_trigger == (np.arange(T) > 0))
    outputs = np.where(np.arange(T)[:, None] > 0, x[..., 1:], 0)
    means = np.cumsum(outputs, axis=1)[:, 1:] / row[:, None]
    values = outputs[:, None] - np.where(at_trigger, means, 0)[:, :, None]
    keys = np.broadcast_to(x[:, None], (n, T - 1, T, d))
    arrays = {"keys": keys, "queries": x[:, 1:], "mask": visible, "values": values, "selected": selected}
    return {name: a.reshape(n * (T - 1), *a.shape[2:]).astype(float) for name, a in arrays.items()}
