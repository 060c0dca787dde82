"""The compiled pass over a span of sequences: losses and gradients of probes, or derivatives of their scores.

For many tokens it is worth its compilation; few are left to NumPy (`objective.any_block`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float


def gradients(o: Any, where: Any, probes: Any, span: slice, weights: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of an `Objective`, as `any_block` finds them.

    weights: centre (d,), across (d, K·c), intercept (K, k).
    """
    (d, columns), (K, k) = weights[1].shape, weights[2].shape
    found = np.zeros((columns, d)), np.zeros(K), np.zeros(K), np.zeros((K, k))
    _run(
        o, where, probes, span, weights, (*found, np.empty((0, columns, d), where.dtype), np.empty((0, K, k)))
    )
    by_probe = np.empty_like(found[0])
    by_probe[_lanes(K, o.h, k)] = found[0]
    return by_probe, *found[1:]


def derivatives(o: Any, where: Any, probes: Any, span: slice, weights: tuple[Any, ...]) -> list[Any]:
    """√ω √L J (b·k, D) of every probe, by columns and intercept: J' ω L J is its Gauss–Newton matrix.

    ω: training weights; L: the curvature of the loss by the scores; J: the derivatives of the scores.
    """
    (d, columns), (K, k) = weights[1].shape, weights[2].shape
    b = k * len(o.store.lengths[span])
    rows, last = np.empty((b, columns, d), where.dtype), np.empty((b, K, k))
    nothing = np.empty((0, d)), np.empty(0), np.empty(0), np.empty((0, k))
    _run(o, where, probes, span, weights, (*nothing, rows, last))
    own = np.argsort(_lanes(K, o.h, k)).reshape(K, -1)
    return [np.hstack([rows[:, own[q]].reshape(b, -1), last[:, q]], dtype=rows.dtype) for q in range(K)]


def _lanes(K: int, h: int, k: int) -> NDArray[np.intp]:
    """Where the columns of the pass, the prompts of all probes first, are among those of K probes, K·c."""
    place = np.arange(K * h * (1 + k)).reshape(K, h * (1 + k))
    prompts, heads = place[:, :h], place[:, h:].reshape(K, h, k)
    return np.concatenate([prompts.ravel(), heads.transpose(2, 0, 1).ravel()])


def _run(
    o: Any, where: Any, probes: Any, span: slice, weights: tuple[Any, ...], found: tuple[Any, ...]
) -> None:
    from attsvm.numbers.halves import BRAIN, HALF
    from attsvm.probe.fitting.attending import attending_pass

    centre, across, intercept = weights
    (d, columns), (K, k) = across.shape, intercept.shape
    raw, starts = o.store.plain(span)
    lengths = o.store.lengths[span]
    longest, lanes = int(lengths.max()), _lanes(K, o.h, k)
    r, L = max(where.cached // d, longest), K * o.h
    narrow: list[tuple[int, int]] = [(r, d), (r, columns), (r, columns), (columns, d)]
    wide: list[tuple[int, int]] = [(longest, L), (longest, L), (6 + k, L), (K, k), (K, k)]
    rooms: list[Float] = [np.empty(shape, where.dtype) for shape in narrow] + [np.empty(s) for s in wide]
    attending_pass(
        raw,
        BRAIN if where.brain else HALF,
        (starts, lengths, span.start),
        tuple(map(np.ascontiguousarray, (centre, across[:, lanes], intercept))),
        (o.targets, o.training, o.held_out),
        (probes.concept, probes.fold),
        tuple(rooms),
        found,
    )
