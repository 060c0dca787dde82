"""The compiled pass over a span of sequences: losses and gradients of probes, or derivatives of their scores.

For many tokens it is worth its compilation; few are left to NumPy (`evaluation.any_block`).
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Array, Float, Index
from attsvm.probe.data.arithmetic import Host
from attsvm.probe.fitting.objective import Columns, Objective, Probes, Sums


def gradients(objective: Objective, where: Host, probes: Probes, columns: Columns, span: slice) -> Sums:
    """The sums over a span of sequences, as `any_block` finds them."""
    (d, wide), (K, k) = columns.across.shape, columns.intercept.shape
    found = Sums(np.zeros((wide, d)), np.zeros(K), np.zeros(K), np.zeros((K, k)))
    no_rows = np.empty((0, wide, d), where.dtype), np.empty((0, K, k))
    _run(objective, where, probes, columns, span, (*found, *no_rows))
    by_probe = np.empty_like(found.through)
    by_probe[_lanes(K, objective.h, k)] = found.through
    return found._replace(through=by_probe)


def derivatives(
    objective: Objective, where: Host, probes: Probes, columns: Columns, span: slice
) -> list[Float]:
    """√ω √L J (b·k, D) of every probe, by columns and intercept: J' ω L J is its Gauss–Newton matrix.

    ω: training weights; L: the curvature of the loss by the scores; J: the derivatives of the scores.
    """
    (d, wide), (K, k) = columns.across.shape, columns.intercept.shape
    b = k * len(objective.store.lengths[span])
    rows, last = np.empty((b, wide, d), where.dtype), np.empty((b, K, k))
    no_sums = np.empty((0, d)), np.empty(0), np.empty(0), np.empty((0, k))
    _run(objective, where, probes, columns, span, (*no_sums, rows, last))
    own = np.argsort(_lanes(K, objective.h, k)).reshape(K, -1)
    return [np.hstack([rows[:, own[q]].reshape(b, -1), last[:, q]], dtype=rows.dtype) for q in range(K)]


def _lanes(K: int, h: int, k: int) -> Index:
    """Where the columns of the pass, the prompts of all probes first, are among those of K probes, K·c."""
    place = np.arange(K * h * (1 + k)).reshape(K, h * (1 + k))
    prompts, heads = place[:, :h], place[:, h:].reshape(K, h, k)
    return np.concatenate([prompts.ravel(), heads.transpose(2, 0, 1).ravel()])


def _run(
    objective: Objective, where: Host, probes: Probes, columns: Columns, span: slice, found: tuple[Array, ...]
) -> None:
    """The pass, which adds to what was found, in the order of `attending_pass`."""
    from attsvm.numbers.halves import BRAIN, HALF
    from attsvm.probe.fitting.attending import attending_pass

    (d, wide), (K, k) = columns.across.shape, columns.intercept.shape
    raw, starts = objective.store.plain(span)
    lengths = objective.store.lengths[span]
    longest, lanes = int(lengths.max()), _lanes(K, objective.h, k)
    r, L = max(where.cached // d, longest), K * objective.h
    narrow: list[tuple[int, int]] = [(r, d), (r, wide), (r, wide), (wide, d)]
    double: list[tuple[int, int]] = [(longest, L), (longest, L), (6 + k, L), (K, k), (K, k)]
    rooms: list[Float] = [np.empty(shape, where.dtype) for shape in narrow] + [np.empty(s) for s in double]
    attending_pass(
        raw,
        BRAIN if where.brain else HALF,
        (starts, lengths, span.start),
        tuple(map(np.ascontiguousarray, (columns.centre, columns.across[:, lanes], columns.intercept))),
        (objective.targets, objective.training, objective.held_out),
        (probes.concept, probes.fold),
        tuple(rooms),
        found,
    )
