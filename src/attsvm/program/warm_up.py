"""Compile the loops of the programs ahead of time, so that no first call waits for them."""

from __future__ import annotations

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius, l1, nuclear
from attsvm.program.max_margin import max_margin, separable


def warm_up() -> None:
    """Solve one small problem of every kind: a matrix in each family of norms, prompts, a contradiction.

    Compiled code stays on disk for later processes. Loops for large problems are compiled at first use.
    """
    rng = np.random.default_rng(0)
    keys, queries = rng.standard_normal((2, 3, 4, 6)), rng.standard_normal((2, 3, 6))
    first = np.zeros((2, 3), int)
    matrix, prompt = Tokens(keys[0], queries[0]), Tokens(keys[0])
    for norm in (frobenius, nuclear, l1):
        max_margin(matrix, first[0], norm)
    separable(prompt, first[0])
    separable(Tokens(keys), first)
    contradictory = Tokens(keys[0, [0, 0]], queries[0, [0, 0]])
    separable(contradictory, [0, 1])
