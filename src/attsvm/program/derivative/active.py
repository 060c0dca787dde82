"""Which rows are active at a solution, and how clearly each of them is or is not.

An interior point leaves every multiplier positive. Therefore a row is active where its multiplier is larger
than its slack, both relative to the program:

    share   μ_j |A_j| β / Σ μ_k b_k,     slack   (⟨A_j, W⟩ − b_j + ξ) / (|A_j| β),     β = max b_k / |A_k|
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled
from attsvm.program.constraints import TINY
from attsvm.program.derivative.optimum import Optimum


class ActiveRows(NamedTuple):
    """The active rows of r solutions.

    active (r, n, T): rows at their bounds; ties are.
    reference (r, n): of an example that falls short, the active token with the largest multiplier; else −1.
    shortfall (r, n): by how much it does; else 0.
    strictness (r,): the least of max(share, slack) over inequalities and examples; ∞ where there are none.
    """

    active: Bool
    reference: NDArray[np.int64]
    shortfall: Float
    strictness: Float


def active_rows(optimum: Optimum) -> ActiveRows:
    """The active rows of all runs."""
    runs, n, T = optimum.pull.shape
    active, reference = np.zeros((runs, n, T), bool), np.full((runs, n), -1)
    rows = ActiveRows(active, reference, np.zeros((runs, n)), np.full(runs, np.inf))
    classify(optimum, rows, np.empty((2, n, T)), np.empty(optimum.keys.shape[-1]))
    return rows


@compiled
def classify(optimum, rows, scratch, direction):  # type: ignore[no-untyped-def]
    """Fill the rows; scratch (2, n, T): lengths and margins of one run; direction (d,): W z."""
    runs, n, T, d = optimum.keys.shape
    e = optimum.queries.shape[2]
    keys, queries, W = optimum.keys, optimum.queries, optimum.W
    for run in range(runs):
        steepest, total = 0.0, 0.0
        for i in range(n):
            first, square = optimum.anchor[run, i], 0.0
            for q in range(e):
                square += queries[run, i, q] * queries[run, i, q]
            size = np.sqrt(square)
            for c in range(d):
                direction[c] = 0.0
                for q in range(e):
                    direction[c] += W[run, c, q] * queries[run, i, q]
            for t in range(T):
                if not optimum.exists[run, i, t]:
                    continue
                square, margin = 0.0, 0.0
                for c in range(d):
                    entry = keys[run, i, first, c] - keys[run, i, t, c]
                    square += entry * entry
                    margin += entry * direction[c]
                length = np.sqrt(square) * size
                scratch[0, i, t], scratch[1, i, t] = length, margin
                if not optimum.tied[run, i, t] and length > TINY:
                    steepest = max(steepest, optimum.required[run, i] / length)
                    total += optimum.pull[run, i, t] * optimum.required[run, i]
        strictness = np.inf
        for i in range(n):
            bound, price = optimum.required[run, i], optimum.price[run, i]
            short, pulled, longest = 0.0, 0.0, 0.0
            for t in range(T):
                if not optimum.exists[run, i, t] or optimum.tied[run, i, t]:
                    continue
                short = max(short, bound - scratch[1, i, t])
                pulled += optimum.pull[run, i, t]
                longest = max(longest, scratch[0, i, t])
            if price == np.inf:
                short = 0.0
            elif longest > TINY:  # where all its rows are zero, no W has the margin
                share = max(price - pulled, 0.0) * longest * steepest / total if total > 0.0 else 0.0
                slack = short / (longest * steepest) if steepest > 0.0 else 0.0
                strictness = min(strictness, max(share, slack))
                if not slack > share:
                    short = 0.0
            reference, most = -1, -np.inf
            for t in range(T):
                if not optimum.exists[run, i, t]:
                    continue
                if optimum.tied[run, i, t]:
                    rows.active[run, i, t] = True
                    continue
                length, share, slack = scratch[0, i, t], 0.0, 0.0
                if length > TINY and steepest > 0.0:
                    slack = (scratch[1, i, t] - bound + short) / (length * steepest)
                    if total > 0.0:
                        share = optimum.pull[run, i, t] * length * steepest / total
                rows.active[run, i, t] = share > slack
                if short > 0.0 and share - slack > most:
                    most, reference = share - slack, t
                # Scratch holds what decides, for the last loop: which token is the reference is known there.
                scratch[0, i, t] = max(share, slack)
            rows.reference[run, i], rows.shortfall[run, i] = reference, short
            if reference >= 0:
                rows.active[run, i, reference] = True
            for t in range(T):
                if optimum.exists[run, i, t] and not optimum.tied[run, i, t] and t != reference:
                    strictness = min(strictness, scratch[0, i, t])
        rows.strictness[run] = strictness
