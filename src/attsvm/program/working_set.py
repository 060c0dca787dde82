"""One loop for every norm: a pool of rows is solved, and the rows that its W violates join.

pool → engine → W, λ → margins of all rows → add the most violated ones → …, until none is
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.rows import Rows
from attsvm.tokens import Bool, Float

SATISFIED = 1e-11
"""Shortfall of a row, relative to the largest bound, that adds no row."""

FEWEST = 50
"""Rows that may be added in a round, however small the pool."""

ROUNDS = 300

Engine = Callable[[Rows], Found]
"""A pool → what was found on it. An engine may remember the pool before, of which it has kept these rows;
it may hand out a W before it has ended (`final` is False), to learn which rows that W violates."""


def solve(program: Constraints, engine: Engine, chosen: Bool) -> Answer:
    """The answer over all rows of one run, from a first choice of them (n, T)."""
    rows = Rows.of(program, chosen)
    for _ in range(ROUNDS):
        found = engine(rows)
        if not found.separable:
            break
        new = violated(program, found.W, chosen)
        if found.final and not new.any():
            break
        if found.kept is not None:
            chosen = rows.spread(found.kept.astype(float), chosen.shape) > 0
        if found.kept is not None or new.any():
            chosen = chosen | new
            rows = Rows.of(program, chosen)
    return rows.answer(found, program)


def violated(program: Constraints, W: Float, chosen: Bool) -> Bool:
    """Rows outside the pool whose margin is below the bound, but not more than the pool has.

    An early W violates many rows that the next one satisfies.
    """
    rest = program.active & ~chosen
    if not rest.any():
        return rest
    short = program.bound - program.margins(W)
    new = rest & (short > SATISFIED * program.bound.max())
    most = max(int(np.count_nonzero(chosen)), FEWEST)
    if np.count_nonzero(new) > most:
        new &= short >= np.partition(short[new], -most)[-most]
    return new
