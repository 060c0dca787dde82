"""Mixtures of optimizers: Muon on matrices and signs on a bias maximise one hybrid margin.

What is predicted, and how it was measured, is in docs/lab/mixtures.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import falling
from attsvm_lab.claims.transformers_setup import draws
from attsvm_lab.experiment import Experiment, median_limit

REFERENCE = "ours: docs/lab/mixtures.md, after arXiv 2602.16340"
DRAWS, SIZE, RATIO = 8, (8, 4, 5), 0.3
SIZES, WIDTH = (5, 1), 6
LEAST, ENOUGH, LEAST_OF_FACTORS = 0.95, 1.05, 0.9
"""The limit of a share, extrapolated to 1/N(W) = 0, is right to a few percent; factors are slower."""


@partial(claim, REFERENCE, "theorem for flows")(
    removed="the norm of the bias: its length in place of its largest entry", twin={"bias": "frobenius"}
)
def muon_with_signs_on_a_bias_maximises_the_hybrid_margin(seed: int, bias: str = "linf") -> Verdict:
    """W = [W_z b], spectral steps for W_z and signs for b: the margin is best where the larger norm is one.

    Eight draws of sphere(8, 4, 5) with a 1 behind every query, logistic loss, 5,000 steps of 0.4 t^(−.55),
    those of b 0.3 times as long. Shares of the certified margin are extrapolated linearly in 1/N(W) from the
    records at half and all of the steps. Wanted: a median from 0.95 to 1.05. Hypothesis: in three draws at
    least the selection does not change in the last half.
    """
    rule = att.steepest(programs.HybridNorm(("spectral", "linf"), SIZES, (1.0, RATIO)), falling(0.4))
    norm = programs.HybridNorm(("spectral", bias), SIZES, (1.0, RATIO))
    return _hybrid(seed, att.FullWeight(), rule, 5_000, norm, LEAST)


@partial(claim, REFERENCE, "conjecture")(
    removed="the length of K b: its largest entry, in place of it", twin={"implied": False}
)
def beside_key_and_query_signs_on_a_bias_measure_a_length(seed: int, implied: bool = True) -> Verdict:
    """W = K [Q_z; b]ᵀ, spectral steps for K and Q_z and signs for b: the margin's norm has the length of K b.

    Setting as above, width m = 6, 8,000 steps of 0.1 t^(−.55). The norm is the larger of ‖W_z‖ and
    |K b|/(0.3 √m), because K may turn b into a corner of the cube of signs. Wanted: a median limit from 0.9
    to 1.05; after 40,000 steps it is nearer to one.
    """
    of_Q = programs.HybridNorm(("spectral", "linf"), SIZES, (1.0, RATIO), axis=0)
    rule = att.steepest((att.spectral, of_Q), falling(0.1))
    norm: Any = programs.HybridNorm(("spectral", "linf"), SIZES, (1.0, RATIO))
    if implied:
        norm = programs.norm_with_bias(of_Q, WIDTH)
    return _hybrid(seed, att.KeyQuery(rank=WIDTH), rule, 8_000, norm, LEAST_OF_FACTORS)


def _hybrid(seed: int, weight: Any, rule: Any, steps: int, norm: att.Norm, least: float) -> Verdict:
    drawn, v = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    one = np.ones((*drawn.queries.shape[:-1], 1))
    tokens = att.Tokens(drawn.keys, np.concatenate([drawn.queries, one], -1), labels=drawn.labels)
    limits = Experiment(tokens, v, rule, steps, weight).limits_by_length(norm)
    what = "the margin of the hybrid norm is the largest"
    return median_limit(what, "limit of the share", limits, least, ENOUGH)
