"""Compiled passes over the rows of vector problems: whole small problems, and pricing of large ones.

In large ones differences x_a − x_t are formed on the fly, so nothing is copied, and nothing cancels
when the keys share a large offset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.compiled import compiled
from attsvm.program.frobenius.active_set import COUNT, TINY, State
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
def append(prompts: Prompts, run: int, names: NDArray[np.int64], s: State, lengths: Float) -> None:
    """Put the rows named i·T + t into the pool, at length one; zero rows are left out.

    names (k,) in; lengths (k,) out. One call for all rows: the arrays of the state travel by value.
    """
    T, d = prompts.keys.shape[2:]
    count = s.sizes[COUNT]
    for j in range(names.size):
        i, t = names[j] // T, names[j] % T
        z, a = prompts.query[run, i], prompts.anchor[run, i]
        square = 0.0
        for c in range(d):
            s.rows[count, c] = z * (prompts.keys[run, i, a, c] - prompts.keys[run, i, t, c])
            square += s.rows[count, c] * s.rows[count, c]
        lengths[j] = np.sqrt(square)
        if lengths[j] <= TINY:
            continue
        for c in range(d):
            s.rows[count, c] /= lengths[j]
        tied = prompts.tied[run, i, t]
        s.bound[count] = 0.0 if tied else prompts.required[run, i] / lengths[j]
        s.equality[count] = tied
        s.inside[count] = False
        s.reach[count] = -1.0
        count += 1
    s.sizes[COUNT] = count


class Slacks(NamedTuple):
    """What is known about the rows of one run.

    length (n, T): |z_i| ‖x_a − x_t‖, negative before it is measured.
    slack, round (n, T): the slack of the row at length one when it was last measured, and the round.
    least, token (n, 2): the two least slacks of each example in this round, and their tokens.
    """

    length: Float
    slack: Float
    round: NDArray[np.int16]
    least: Float
    token: NDArray[np.int64]


@compiled
def price(prompts: Prompts, examples: NDArray[np.intp], p: Float, moved: Float, out: Slacks) -> None:
    """Measure the rows of the named examples (s,) that may be violated at p (d,); run 0 only.

        slack_it = (z_i δ_itᵀ p − (1 − ε) required_i) / |z_i| ‖δ_it‖,   δ_it = x_a − x_t

    moved (r,): the distance of p from the points of all rounds before. A slack changes by no more,
    so a row with a larger one holds and is not read. A zero row that asks for a margin has slack −∞.
    """
    T, d = prompts.keys.shape[2:]
    for i in examples:
        first = prompts.keys[0, i, prompts.anchor[0, i]]
        z, bound = prompts.query[0, i], (1 - SATISFIED) * prompts.required[0, i]
        least, second = np.inf, np.inf
        for t in range(T):
            if out.slack[i, t] >= moved[out.round[i, t]]:
                continue
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
            impossible = -np.inf if bound > 0 else np.inf
            slack = (z * dot - bound) / length if length > TINY else impossible
            out.slack[i, t], out.round[i, t] = slack, moved.size
            if slack < least:
                second, out.token[i, 1] = least, out.token[i, 0]
                least, out.token[i, 0] = slack, t
            elif slack < second:
                second, out.token[i, 1] = slack, t
        out.least[i, 0], out.least[i, 1] = least, second
