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
def solve_range(prompts: Prompts, s: State, out: tuple[Float, Float, Bool], start: int, stop: int) -> None:
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
    n, T = prompts.active.shape[1:]
    for i in range(n):
        for t in range(T):
            if not prompts.active[run, i, t]:
                continue
            count = s.sizes[COUNT]
            lengths[count] = put(prompts, run, i, t, s)
            names[count] = i * T + t
            if lengths[count] <= TINY and not prompts.tied[run, i, t] and prompts.required[run, i] > 0:
                return i * T + t
    return -1


@compiled
def put(prompts: Prompts, run: int, i: int, t: int, s: State) -> float:
    """Append one row to the pool, scaled to length one, unless it is zero; returns its length."""
    count = s.sizes[COUNT]
    first, token, row = prompts.keys[run, i, prompts.anchor[run, i]], prompts.keys[run, i, t], s.rows[count]
    square = 0.0
    for c in range(row.size):
        row[c] = prompts.query[run, i] * (first[c] - token[c])
        square += row[c] * row[c]
    length = np.sqrt(square)
    if length > TINY:
        tied = prompts.tied[run, i, t]
        for c in range(row.size):
            row[c] /= length
        s.bound[count] = 0.0 if tied else prompts.required[run, i] / length
        s.equality[count] = tied
        s.inside[count] = False
        s.reach[count] = -1.0
        s.sizes[COUNT] = count + 1
    return length


@compiled
def put_all(prompts: Prompts, names: NDArray[np.int64], s: State) -> Float:
    """Append the rows named i·T + t of run 0 to the pool; returns their lengths."""
    T = prompts.active.shape[2]
    lengths = np.empty(names.size)
    for j in range(names.size):
        lengths[j] = put(prompts, 0, names[j] // T, names[j] % T, s)
    return lengths


class Slacks(NamedTuple):
    """What is known about the rows of one run.

    length (n, T): |z_i| ‖x_a − x_t‖, negative where not yet measured.
    least, token (n, 2): the two least slacks of unit rows in each example, and their tokens.
    """

    length: Float
    least: Float
    token: NDArray[np.int64]


@compiled
def price(prompts: Prompts, examples: NDArray[np.intp], p: Float, out: Slacks) -> None:
    """Measure the two least slacks of the named examples (s,) at p (d,); run 0 only.

        slack_it = (z_i δ_itᵀ p − (1 − ε) required_i) / |z_i| ‖δ_it‖,   δ_it = x_a − x_t

    A zero row that asks for a margin has slack −∞.
    """
    T, d = prompts.keys.shape[2:]
    for i in examples:
        first = prompts.keys[0, i, prompts.anchor[0, i]]
        z, bound = prompts.query[0, i], (1 - SATISFIED) * prompts.required[0, i]
        least, second = np.inf, np.inf
        for t in range(T):
            if not prompts.active[0, i, t] or prompts.tied[0, i, t]:
                continue
            # One loop in one function: calls and views per token cost as much as the arithmetic.
            dot, token = 0.0, prompts.keys[0, i, t]
            for c in range(d):
                dot += (first[c] - token[c]) * p[c]
            length = out.length[i, t]
            if length < 0:
                square = 0.0
                for c in range(d):
                    square += (first[c] - token[c]) * (first[c] - token[c])
                length = out.length[i, t] = abs(z) * np.sqrt(square)
            if length <= TINY and bound == 0:
                continue
            slack = (z * dot - bound) / length if length > TINY else -np.inf
            if slack < least:
                second, out.token[i, 1] = least, out.token[i, 0]
                least, out.token[i, 0] = slack, t
            elif slack < second:
                second, out.token[i, 1] = slack, t
        out.least[i, 0], out.least[i, 1] = least, second
