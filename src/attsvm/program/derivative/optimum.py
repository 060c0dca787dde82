"""Solutions of programs as plain arrays with a runs axis, of moderate size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import read_only

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


FAR, LARGEST = 100, 1000
"""Binary exponents: of arrays that are scaled, because products of six may leave float64; and the largest one
of a power of two."""


class Units(NamedTuple):
    """Exponents (r,): keys, queries and required margins are 2^exponent times those of an `Optimum`."""

    keys: NDArray[np.int_]
    queries: NDArray[np.int_]
    required: NDArray[np.int_]

    @property
    def rows(self) -> NDArray[np.int_]:
        """Rows, and one over the multipliers λ, are 2^rows times those of the optimum."""
        return self.keys + self.queries

    @property
    def weight(self) -> NDArray[np.int_]:
        """W is 2^weight times that of the optimum; pulls and prices are 2^(weight − rows) times theirs."""
        return self.required - self.rows

    @classmethod
    def of(cls, *sizes: Float) -> Units:
        """Those of the largest of the sizes (r, n) of each run; 0 where it is near one."""
        exponents = np.frexp([size.max(-1) for size in sizes])[1]
        far = np.abs(exponents) > FAR
        return cls(*(np.clip(exponents, -LARGEST, LARGEST) * far if far.any() else 0 * exponents))


def times_power(array: Float, exponents: NDArray[np.int_]) -> Float:
    """array (r, …) times 2^exponents (r,): itself where all are 1."""
    if not exponents.any():
        return array
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(array, exponents.reshape(-1, *(1,) * (array.ndim - 1)))


class Optimum(NamedTuple):
    """r programs and their solutions. Read-only arrays: compiled code sees one type of each.

    keys (r, n, T, d), queries (r, n, e); anchor (r, n): the first selected token.
    exists (r, n, T): tokens with a row, x_anchor − x_t; tied (r, n, T): those whose row is an equality.
    required, price (r, n): the price is ∞ where the example must not fall short.
    W (r, d, e), size (r,): N(W); pull (r, n, T): the multipliers μ of min ½ N(W)², so that
    ∇(½ N²)(W) = Σ μ_j A_j.
    units: what all this was divided by.
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
    units: Units

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
        required = over_runs(solution.required, n)
        sizes = [np.reshape(x, (runs, n)) for x in (tokens.key_size, tokens.query_size)]
        units = Units.of(*sizes, required)
        if units.required.any():  # an example without a losing token sets no unit
            units = Units.of(*sizes, np.where((exists & ~selected).any(-1), required, 0.0))
        size = times_power(np.reshape(size, runs), -units.weight)
        pull, price = np.reshape(multipliers, (runs, n, T)), np.full((runs, n), np.inf)
        if solution.slack is None:
            pull = times_power(pull, units.rows) * size[:, None, None]
        else:
            pull = times_power(pull, units.rows - units.weight)
            price = times_power(over_runs(solution.slack, n), units.rows - units.weight)
        return cls(
            read_only(times_power(over_runs(tokens.keys, n, T, tokens.d), -units.keys)),
            read_only(times_power(over_runs(tokens.queries, n, tokens.e), -units.queries)),
            read_only(anchor),
            read_only(exists),
            read_only(exists & selected),
            read_only(times_power(required, -units.required)),
            read_only(price),
            read_only(times_power(over_runs(solution.W, tokens.d, tokens.e), -units.weight)),
            read_only(size),
            read_only(pull),
            units,
        )
