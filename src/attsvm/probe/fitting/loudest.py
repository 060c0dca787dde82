"""A start for rare tokens: attention to those that stand out, in one read and without the labels."""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Float
from attsvm.probe.data.arithmetic import Arithmetic
from attsvm.probe.fitting.objective import Objective

WEAK = 0.1
"""Probes with no ridge above this are tried from here, too: from mean pooling one token of very many is not
seen. Strong ridges end at mean pooling anyhow."""


def loud_start(where: Arithmetic, objective: Objective, start: Float) -> Float:
    """A start (D,) whose first prompt looks for the loudest token of each sequence."""
    start, loud = start.copy(), loudest_prompt(where, objective)
    start[: len(loud)] = 2 * loud if objective.tied else loud  # half of it is its head's
    return start


def loudest_prompt(where: Arithmetic, objective: Objective) -> Float:
    """A prompt (d,) for standardised tokens that looks for the loudest one of each sequence.

        p = L m / max(‖m‖², L),   L = log T + 2,   m the mean over sequences of their token of largest norm

    T is the mean length: a token at m outweighs T others at 0 by e² in all. From mean pooling, where a token
    counts as 1/T, descent may never see that it tells; from here it does, if such tokens are loud.
    """
    store, standard = objective.store, objective.standard
    middle, inverse = where.factor(standard.mean), where.factor(1 / standard.scale)

    def summed(span: slice) -> tuple[Float]:
        x, segments = where.centred(store.read(span), middle) * inverse, where.segments(store.lengths[span])
        norms = where.widened((x * x).sum(1))
        loudest = where.widened(norms == segments.spread(segments.top(norms)))
        share = where.put(objective.training[0, span]) / segments.total(loudest)
        return (where.back((loudest * segments.spread(share))[None], x)[0],)

    mean = where.numpy(sum(part for (part,) in map(summed, store.spans(where.part // 8))))
    gap = np.log(store.lengths @ objective.training[0]) + 2
    return np.asarray(gap * mean / max(float(mean @ mean), gap))
