"""Solutions of programs as plain arrays with a runs axis, in the units of the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import read_only

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


class Optimum(NamedTuple):
    """r programs and their solutions. Read-only arrays: compiled code sees one type of each.

    keys (r, n, T, d), queries (r, n, e); anchor (r, n): the first selected token.
    exists (r, n, T): tokens with a row, x_anchor − x_t; tied (r, n, T): those whose row is an equality.
    required, price (r, n): the price is ∞ where the example must not fall short.
    W (r, d, e), size (r,): N(W); pull (r, n, T): the multipliers μ of min ½ N(W)², so that
    ∇(½ N²)(W) = Σ μ_j A_j.
    """

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    exists: Bool
    tied: Bool
    required: Float
    price: Float
    W: Float
    size: Float
    pull: Float

    @classmethod
    def of(cls, solution: Solution, multipliers: Float, size: Float) -> Optimum:
        """Those of a solution, of one run or of many.

        multipliers (…, n, T): its `token_multipliers`; size (…,): N(W).
        """
        tokens = solution.tokens.in_memory()
        runs = tokens.runs or 1
        n, T = tokens.n, tokens.T

        def over_runs(array: NDArray[Any], *shape: int) -> NDArray[Any]:
            return read_only(array if array.ndim > len(shape) else np.broadcast_to(array, (runs, *shape)))

        selected = over_runs(solution.selected, n, T)
        anchor = selected.argmax(-1)
        exists = over_runs(tokens.mask, n, T) & (anchor[..., None] != np.arange(T))
        pull = np.reshape(multipliers, (runs, n, T))
        if solution.slack is None:
            pull = pull * np.reshape(size, (runs, 1, 1))
        price = np.asarray(np.inf) if solution.slack is None else solution.slack
        return cls(
            over_runs(tokens.keys, n, T, tokens.d),
            over_runs(tokens.queries, n, tokens.e),
            read_only(anchor),
            read_only(exists),
            read_only(exists & selected),
            over_runs(solution.required, n),
            over_runs(price, n),
            over_runs(solution.W, tokens.d, tokens.e),
            over_runs(size),
            read_only(pull),
        )
