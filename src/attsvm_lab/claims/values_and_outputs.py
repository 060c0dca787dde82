"""A head trained along with attention: the weight tends to the offset program.

The theorem is proven in docs/lab/values_and_outputs.md.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict
from attsvm.numbers import Float
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import falling
from attsvm_lab.claims.transformers_setup import draws
from attsvm_lab.experiment import Experiment, limit_by_length, median_limit

theorem = partial(claim, "ours: docs/lab/values_and_outputs.md", "theorem for flows")
DRAWS, SIZE, STEPS, RATE = 8, (8, 3, 5), 8_000, 0.4
LEAST, ENOUGH = 0.95, 1.05
"""What is missing of a share at 1/N(W) = 0, extrapolated from two records, is right to a few percent."""


@theorem(removed="the offsets: the plain max-margin program", twin={"offsets": False})
def attention_beside_a_trained_head_follows_the_offset_program(seed: int, offsets: bool = True) -> Verdict:
    """With v trained along, W tends to the best of max min [Γ_i / N(W) + margins] over N(W) ≤ 1.

    Eight draws of sphere(8, 3, 5), logistic loss, 8,000 steps of 0.4 t^(−.55): spectral steps for W,
    normalised gradient descent of the same rate for v. Shares of the certified gain are extrapolated linearly
    in 1/N(W) from the records at half and all of the steps. Wanted: a median from 0.95 to 1.05. Hypotheses:
    the selection of a draw does not change in the last half, and its program has no negative row; three draws
    at least are so.
    """
    tokens, v = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    of_W, of_v = (att.steepest(norm, falling(RATE)) for norm in (att.spectral, att.frobenius))
    runs = Experiment(tokens, v, of_W, STEPS, options={"train_head": of_v}).settled_runs()
    shares = [one for run in runs if (one := _limit(run, offsets)) is not None]
    return median_limit("W follows the offset program", "share of the program's gain", shares, LEAST, ENOUGH)


def _limit(path: att.Path, offsets: bool) -> float | None:
    """The share of the gain that a run tends to; None where the hypotheses are false."""
    chosen = path.attention[-1].argmax(-1)
    tokens, length, shares = path.tokens, np.asarray(path.norm(att.spectral)), []
    for record in (-2, -1):
        label = _label_margins(tokens, chosen, np.asarray(path.v)[record])
        best = programs.offset_margin(tokens, chosen, att.spectral, offsets=label / length[record])
        if best.above.any() or not best.certified:
            return None
        if not offsets:
            best = programs.offset_margin(tokens, chosen, att.spectral, offsets=0.0)
        shares.append(best.share(path.W[record]))
    return limit_by_length(shares, length)


def _label_margins(tokens: att.Tokens, chosen: Float, v: Float) -> Float:
    return np.asarray(tokens.labels * (tokens.values[np.arange(tokens.n), chosen] @ v))
