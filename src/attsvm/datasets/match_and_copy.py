"""Match and copy: find the token that the query repeats, and return the one behind it.

"Gonon, Cordonnier, Boumal 2026", arXiv 2602.07562: the theory's setting, in which the first layer has already
written every token's predecessor beside it, so that one softmax over pairs is left.
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

    Values hold value − target, so that `SquaredError()` with loss=correlation is the squared error of the
    copy. Token s is the target, and its value is zero. query_noise, target_noise: standard deviations of what
    is added to the query and to the target. fresh: 0 for the training inputs, or so many test inputs, from a
    stream of their own. Draw order: e, s, noise of the query, noise of the target. Returns keys, values (n,
    T, d), queries (n, d), and s (n,).
    """
    n, T, d, fresh = check_sizes(n=(n, 1), T=(T, 2), d=(d, 1), fresh=(fresh, 0))
    count = fresh or n

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        e = rng.standard_normal((count, T + 1, d))
        place, all_ = rng.integers(T, size=count), np.arange(count)
        noise = rng.standard_normal((2, count, d))
        target = e[all_, place + 1] + target_noise * noise[1]
        return {
            "keys": e[:, :-1],
            "queries": e[all_, place] + query_noise * noise[0],
            "values": e[:, 1:] - target[:, None],
            "place": place.astype(float),
        }

    parts = draw_runs(draw, seed, test=bool(fresh))
    tokens = Tokens(parts["keys"], parts["queries"], values=parts["values"])
    return tokens, parts["place"].astype(np.intp)
