"""Match and copy: find the token that equals the query, and return the next token.

Gonon, Cordonnier, Boumal 2026, arXiv 2602.07562: the setting of the theory. The first layer has already
written every token's predecessor beside the token, so that one softmax over pairs remains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm._support.validation import check_sizes
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs
from attsvm.numbers import Float


def match_and_copy(
    n: int = 8,
    T: int = 5,
    d: int = 16,
    seed: Seed = 0,
    *,
    query_noise: float = 0.0,
    target_noise: float = 0.0,
    fresh: int = 0,
) -> tuple[Tokens, NDArray[np.intp]]:
    """T pairs of neighbours in a Gaussian sequence; the query repeats the first of one pair, the target is
    its second.

        key_j = e_j,  value_j = e_(j+1) − e_(s+1),  query = e_s,      e_1 … e_(T+1) ~ N(0, I_d),  s uniform

    Values are reduced by the target, so that `SquaredError()` is the squared error of
    the copy, and the value of token s is zero. query_noise, target_noise: standard deviations of noise on the
    query and on the target. fresh: 0 for the training inputs, or the number of test inputs, from a separate
    stream. Draw order: e, s, noise of the query, noise of the target. Returns keys, values (n, T, d), queries
    (n, d), and s (n,).
    """
    n, T, d, fresh = check_sizes(n=(n, 1), T=(T, 2), d=(d, 1), fresh=(fresh, 0))
    count = fresh or n

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        e = rng.standard_normal((count, T + 1, d))
        place, example = rng.integers(T, size=count), np.arange(count)
        noise = rng.standard_normal((2, count, d))
        target = e[example, place + 1] + target_noise * noise[1]
        return {
            "keys": e[:, :-1],
            "queries": e[example, place] + query_noise * noise[0],
            "values": e[:, 1:] - target[:, None],
            "place": place.astype(float),
        }

    arrays = draw_runs(draw, seed, test=bool(fresh))
    tokens = Tokens(arrays["keys"], arrays["queries"], values=arrays["values"])
    return tokens, arrays["place"].astype(np.intp)
