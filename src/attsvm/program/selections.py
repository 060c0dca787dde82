"""`selections` enumerates the separable, or locally optimal, selections of a small problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import track

from attsvm.data.selection import locally_optimal
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms import Norm, frobenius
from attsvm.program.max_margin import max_margin, separable
from attsvm.program.solution import Solution

LIMIT = 200_000
"""Largest number of partial selections examined at once."""


def selections(tokens: Tokens, v: ArrayLike | None = None, norm: Norm | str = frobenius) -> list[Solution]:
    """Every selection of one token per example that can end a training run, with its solution.

    With a head v: the locally optimal selections; without: all that are separable. Examples are added
    one at a time and a choice that is already infeasible is never extended, so far fewer than Tⁿ
    programs are solved. tokens: keys (n, T, d), no runs axis. Raises ValueError beyond 200,000
    partial selections.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection", Theorems on local convergence.
    """
    if as_tokens(tokens).runs is not None:
        raise ValueError("selections takes tokens without a runs axis: pass tokens.run(k).")
    tokens = tokens.in_memory()
    partial = np.zeros((1, 0), dtype=np.intp)
    console = Console(stderr=True)
    for i in track(
        range(tokens.n), "selections", console=console, transient=True, disable=not console.is_terminal
    ):
        extended = _extend(partial, np.flatnonzero(tokens.mask[i]))
        first = Tokens(tokens.keys[: i + 1], tokens.queries[: i + 1], mask=tokens.mask[: i + 1])
        partial = extended[separable(first, extended)]
        if not len(partial):
            return []
    solutions = max_margin(tokens, partial, norm)
    ends = solutions.separable
    if v is not None:
        ends = ends & locally_optimal(tokens, v, solutions)
    return [solutions.run(int(k)) for k in np.flatnonzero(ends)]


def _extend(partial: NDArray[np.intp], options: NDArray[np.intp]) -> NDArray[np.intp]:
    count = len(partial) * len(options)
    if count > LIMIT:
        raise ValueError(
            f"{count} partial selections are feasible so far, more than {LIMIT}. "
            "Enumerate a smaller problem: fewer examples, fewer tokens or a smaller width."
        )
    return np.column_stack([np.repeat(partial, len(options), axis=0), np.tile(options, len(partial))])
