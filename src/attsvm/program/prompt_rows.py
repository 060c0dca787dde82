"""Compiled passes over the rows of vector problems: whole small problems, and pricing of large ones.

Differences x_a − x_t are formed on the fly, so nothing is copied, and nothing cancels when the keys
share a large offset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.active_set import (
    ACTIVE,
    CONTRADICTORY,
    COUNT,
    ENTERING,
    TINY,
    State,
    advance,
    compiled,
    restart,
)
from attsvm.tokens import Bool, Float


SATISFIED = 1e-11
"""Shortfall of a row, relative to its bound, that needs no further round."""


class Prompts(NamedTuple):
    """Rows z (x_a − x_t)ᵀ p ≥ required of several runs.

    keys (r, n, T, d), query (r, n), anchor (r, n), active and tied (r, n, T), required (r, n).
    """

    keys: Float
    query: Float
    anchor: NDArray[np.int64]
    active: Bool
    tied: Bool
    required: Float


@compiled
def solve_range(
    prompts: Prompts, s: State, out: tuple[Float, Float, Bool], start: int, stop: int
) -> None:
    """Solve the runs start…stop with all their rows; out: W (r, d, 1), multipliers (r, n, T), separable (r,)."""
    n, T = prompts.active.shape[1:]
    W, multipliers, separable = out
    lengths = np.empty(n * T)
    names = np.empty(n * T, np.int64)
    for run in range(start, stop):
        restart(s)
        impossible = _load(prompts, run, s, lengths, names)
        if impossible >= 0:
            multipliers[run, impossible // T, impossible % T] = 1.0
            continue
        status = advance(s)
        separable[run] = status != CONTRADICTORY
        count = s.sizes[ACTIVE]
        for place in range(count):
            j = s.active[place]
            multipliers[run, names[j] // T, names[j] % T] = s.weight[place] / lengths[j]
        if status == CONTRADICTORY:
            j = s.sizes[ENTERING]
            multipliers[run, names[j] // T, names[j] % T] = s.weight[count] / lengths[j]
        else:
            W[run, :, 0] = s.p


@compiled
def _load(prompts: Prompts, run: int, s: State, lengths: Float, names: NDArray[np.int64]) -> int:
    """Put all rows of a run into the pool; returns the name i·T + t of an impossible row, or −1."""
    n, T, d = prompts.keys.shape[1:]
    count = 0
    for i in range(n):
        first = prompts.keys[run, i, prompts.anchor[run, i]]
        z = prompts.query[run, i]
        for t in range(T):
            if not prompts.active[run, i, t]:
                continue
            tied = prompts.tied[run, i, t]
            bound = 0.0 if tied else prompts.required[run, i]
            row, square = s.rows[count], 0.0
            for c in range(d):
                row[c] = z * (first[c] - prompts.keys[run, i, t, c])
                square += row[c] * row[c]
            length = np.sqrt(square)
            if length <= TINY:
                if bound > 0:
                    return i * T + t
                continue
            for c in range(d):
                row[c] /= length
            s.bound[count] = bound / length
            s.equality[count] = tied
            lengths[count] = length
            names[count] = i * T + t
            count += 1
    s.sizes[COUNT] = count
    return -1


@compiled
def price(prompts: Prompts, examples: NDArray[np.intp], p: Float, slack: Float, worst: NDArray[np.int64]) -> None:
    """The two least slacks of unit rows in each named example, and their tokens; run 0 only.

        slack_it = (z_i δ_itᵀ p − (1 − ε) required_i) / |z_i| ‖δ_it‖,   δ_it = x_a − x_t

    examples (s,), p (d,); out: slack (n, 2), worst (n, 2). A zero row that asks for a margin has
    slack −∞.
    """
    T, d = prompts.keys.shape[2:]
    for i in examples:
        first = prompts.keys[0, i, prompts.anchor[0, i]]
        z, bound = prompts.query[0, i], (1 - SATISFIED) * prompts.required[0, i]
        slack[i, :] = np.inf
        for t in range(T):
            if not prompts.active[0, i, t] or prompts.tied[0, i, t]:
                continue
            dot, square = 0.0, 0.0
            token = prompts.keys[0, i, t]
            for c in range(d):
                delta = first[c] - token[c]
                dot += delta * p[c]
                square += delta * delta
            length = abs(z) * np.sqrt(square)
            if length <= TINY:
                if bound == 0:
                    continue
                value = -np.inf
            else:
                value = (z * dot - bound) / length
            if value < slack[i, 0]:
                slack[i, 1], worst[i, 1] = slack[i, 0], worst[i, 0]
                slack[i, 0], worst[i, 0] = value, t
            elif value < slack[i, 1]:
                slack[i, 1], worst[i, 1] = value, t
