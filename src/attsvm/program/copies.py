"""Examples that repeat another one: their rows ask for what is asked for already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import FEW_KEYS, Constraints
from attsvm.program.engine import Answer

FEW_ROWS = 100
"""Rows up to which copies cost less than the search for them."""

EACH = tuple(field.name for field in fields(Constraints) if field.name != "unit")
"""What there is one of for each example."""


def without_copies(work: Callable[[Constraints], Answer], program: Constraints) -> Answer:
    """`work` on the examples of one run that repeat no other; the multipliers of the others are zero.

    An interior point of k rows costs k³, and of rows that are alike it needs only one.
    """
    if not program.fits() or not FEW_ROWS < program.active.size <= FEW_KEYS:
        return work(program)
    first = distinct(program)
    if len(first) == program.n:
        return work(program)
    answer = work(replace(program, **{name: getattr(program, name)[first] for name in EACH}))
    multipliers = np.zeros(program.active.shape)
    multipliers[first] = answer.multipliers
    return replace(answer, multipliers=multipliers)


def distinct(program: Constraints) -> NDArray[np.intp]:
    """The first of all examples that are alike bit by bit (k,)."""
    sums = program.keys[..., 0].sum(1) + program.queries.sum(1)
    if len(np.unique(sums)) == program.n:  # most programs have no copies, and one entry per token tells
        return np.arange(program.n)
    parts = [np.asarray(getattr(program, name), np.float64).reshape(program.n, -1) for name in EACH]
    flat = np.concatenate(parts, 1)
    bits = flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
    return np.sort(np.unique(bits, return_index=True)[1])
