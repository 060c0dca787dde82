"""The objective and its gradient, for many probes in one read of the tokens."""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.numbers import Array, Index
from attsvm.probe.data.arithmetic import Arithmetic, Host, total
from attsvm.probe.fitting.attention import log_loss, on_tokens, read_products
from attsvm.probe.fitting.compiled_pass import gradients
from attsvm.probe.fitting.curvature import affordable, gauss_newton
from attsvm.probe.fitting.objective import Columns, Evaluation, Objective, Probes, Sums


def evaluate(objective: Objective, where: Arithmetic, points: Array, probes: Probes) -> Evaluation:
    """Value and gradient of K probes at points (K, D), which are where the arithmetic is."""
    store, standard, K, d = objective.store, objective.standard, len(probes), objective.store.width
    h, k = objective.h, objective.k
    c, scale = h * (1 + k), where.put(standard.scale)
    columns, intercept = points[:, : c * d].reshape(K, c, d), points[:, c * d :]
    across = where.narrowed(columns / scale).reshape(K * c, d).T
    factors = Columns(where.factor(standard.mean), across, intercept)

    many = where if isinstance(where, Host) and store.numbers > where.part else None
    if many is None:
        block = partial(any_block, objective, where, probes, factors)
    else:
        block = partial(gradients, objective, many, probes, factors)
    sums = total(where.each(block, store.spans(where.part)))
    ridges = np.stack([probes.prompt_ridge, probes.head_ridge], 1)[:, np.repeat([0, 1], [h, h * k])]
    shrink = where.put(ridges)[:, :, None] * columns
    value = sums.loss + (shrink * columns).sum((1, 2)) / 2
    gradient = (sums.through.reshape(K, c, d) / scale + shrink).reshape(K, c * d)
    gradient = objective.within(where, where.xp.concatenate([gradient, sums.on_intercept], 1))
    done = Evaluation(where.numpy(value), gradient, where.numpy(sums.held_out))
    if many is None or objective.tied:
        return done

    def curvature(which: Index) -> list[Array]:
        return gauss_newton(objective, many, points[which], probes.take(which))

    return done._replace(curvature=curvature, known=affordable(objective))


def any_block(objective: Objective, where: Arithmetic, probes: Probes, columns: Columns, span: slice) -> Sums:
    """The sums over a span of sequences, in any library; `compiled_pass.gradients` is its twin."""
    x, products = where.through(objective.store.read(span), columns.centre, columns.across)
    segments = where.segments(objective.store.lengths[span])
    seen = read_products(where, segments, products, columns.intercept, objective.h)
    losses, pull = log_loss(where.xp, seen.scores, where.put(objective.targets[:, :, span][probes.concept]))
    weights = objective.training, objective.held_out
    training, held = (where.put(each[:, span][probes.fold]) for each in weights)
    pull = pull * training[:, None]
    coefficients = on_tokens(where.xp, segments, seen, pull)
    through = where.back(coefficients.reshape(columns.across.shape[1], -1), x)
    return Sums(through, (losses * training).sum(-1), (losses * held).sum(-1), pull.sum(-1))
