"""Rows as one hinge per example sees them: as long as they are, the rows of an example side by side."""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Float
from attsvm.program.frobenius.simplex import Hinges
from attsvm.program.rows import Rows


class Hinged:
    """The rows of a pool, k of g examples, in the units of the program.

    order (k,): their places in the pool; starts (g,): the first row of each example; group (k,): which of
    the g; asked (k,): the margins that they ask for; hinges: what the examples ask and pay.
    """

    def __init__(self, rows: Rows) -> None:
        self.order = np.argsort(rows.example, kind="stable")
        self.rows = rows.some(self.order)
        self.length, self.tied, self.example = self.rows.length, self.rows.tied, self.rows.example
        first = np.diff(self.example, prepend=-1) > 0
        self.starts, self.group = np.flatnonzero(first), np.cumsum(first) - 1
        self.asked = self.rows.bound * self.length
        edges = np.append(self.starts, len(rows))
        required, reached = self.most(self.asked), np.zeros(len(self.starts), bool)
        self.hinges = Hinges(edges, required, self.rows.price[self.starts], self.tied, reached)

    def margins(self, W: Float) -> Float:
        """(d, e) → (k,)."""
        return self.length * self.rows.margins(W)

    def combine(self, multipliers: Float) -> Float:
        """(k,) → (d, e)."""
        return self.rows.combine(multipliers * self.length)

    def most(self, values: Float) -> Float:
        """The largest value of an inequality of each example, zero at least: (k,) → (g,)."""
        return np.asarray(np.maximum.reduceat(np.where(self.tied, 0.0, np.maximum(values, 0.0)), self.starts))

    def least(self, values: Float) -> Float:
        """The least value of an inequality of each example, ∞ where it has none: (k,) → (g,)."""
        return np.asarray(np.minimum.reduceat(np.where(self.tied, np.inf, values), self.starts))

    def total(self, values: Float) -> Float:
        """The sum over the inequalities of each example: (k,) → (g,)."""
        return np.asarray(np.add.reduceat(np.where(self.tied, 0.0, values), self.starts))
