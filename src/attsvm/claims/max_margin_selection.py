"""Max-Margin Token Selection: where gradient descent and the regularisation path go."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attsvm.claims.claim import Claim
from attsvm.claims.prompt_instances import (
    CROWDED,
    HEAD,
    PAPER,
    all_selections,
    best_indices,
    enlarged,
    equal_losers,
    gradient,
    lipschitz,
    small,
    scored,
    unit,
)
from attsvm.norms import frobenius
from attsvm.path import Path
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Solution
from attsvm.selection import locally_optimal
from attsvm.tokens import Bool, Float, Tokens
from attsvm.training.heads import Linear
from attsvm.training.optimizers import gd, steepest
from attsvm.training.regularise import regularisation_path
from attsvm.training.train import train
from attsvm.training.weights import FullWeight
from attsvm.verdict import Verdict, at_least, at_most, cosine, judge, told

RADII = (100.0, 1_000.0, 10_000.0)
"""Where local runs start. "There is a radius R" in the theorems: one of these must do."""


# ---------------------------------------------------------------------- global


def the_regularisation_path_tends_to_the_best_direction(seed: int) -> Verdict:
    """The prompt of smallest loss in the ball of radius R has the direction of p^mm(best) as R → ∞.

    Hypotheses: a decreasing loss, one best token per input, p^mm exists; nothing about the other scores.
    Measured: 1 − cosine at R = 300 ‖p^mm‖; the offset from the ray stays bounded, so that it falls like
    1/R², and must do so by a factor ≥ 4 from R = 100 ‖p^mm‖ (9 in the limit).
    """
    tokens = small(seed)
    return _global_path(tokens, max_margin(tokens, best_indices(tokens)))


def _without_unique_best_tokens(seed: int) -> Verdict:
    tokens = small(seed)
    gamma = tokens.values[..., 0]
    second = np.sort(gamma, axis=-1)[:, -2:-1]
    tied = scored(tokens.keys, np.minimum(gamma, second))
    return _global_path(tied, max_margin(tied, best_indices(tokens)))


def _global_path(tokens: Tokens, solution: Solution) -> Verdict:
    radii = np.linalg.norm(solution.W) * np.array([10.0, 30.0, 100.0, 300.0])
    path = regularisation_path(tokens, Linear(HEAD), radii=radii, starts=4)
    off = 1 - cosine(path.W, solution.W)
    return judge(
        "W_R/R tends to p^mm(best)",
        at_most("1 − cosine at R = 300 ‖p^mm‖", off[-1], 1e-3),
        at_most("the same, relative to R = 100 ‖p^mm‖", off[-1] / off[-2], 1 / 4),
        numbers={"index": path.index, "cosine": 1 - off},
    )


def gradient_descent_from_anywhere_tends_to_the_best_direction(seed: int) -> Verdict:
    """Gradient descent with η ≤ 1/L_p from any start has ‖p(t)‖ → ∞ and p(t)/‖p(t)‖ → p^mm(best).

    Hypotheses: a decreasing loss, Assumption B (equal losing scores), p^mm exists. Twelve starts: the
    directions of random selections, wrong ones included, at length 3. Constant steps grow the prompt like
    p^mm ln t + offset, so the angle closes like 1/ln t only; the offset cancels in the growth between two
    steps. Measured: the direction and the length of p(10,000) − p(2,500), which tend to p^mm ln 4, and
    the least attention on the best tokens.
    """
    return _descent_from_anywhere(equal_losers(seed, CROWDED), seed)


def _without_equal_losing_scores(seed: int) -> Verdict:
    return _descent_from_anywhere(small(seed, CROWDED), seed)


def _descent_from_anywhere(tokens: Tokens, seed: int) -> Verdict:
    mm = max_margin(tokens, best_indices(tokens))
    chosen = np.random.default_rng(seed).integers(tokens.T, size=(12, tokens.n))
    starts = 3 * unit(max_margin(tokens, chosen).W)
    rate = 0.02
    run = train(tokens, Linear(HEAD), weight=FullWeight(), optimizer=gd(rate), steps=10_000, init=starts, record=[2_500])
    growth = run.W[:, -1:] - run.W[:, -2:-1]
    length = np.linalg.norm(growth[:, 0, :, 0], axis=-1) / (np.log(4) * np.linalg.norm(mm.W))
    keys, gamma = (np.linalg.norm(a, axis=(-2, -1), ord=2) for a in (tokens.keys, tokens.values))
    return judge(
        "gradient descent from anywhere tends to p^mm(best)",
        at_least("least cosine of the growth", cosine(growth, mm.W).min(), 0.99),
        at_least("least growth relative to ‖p^mm‖ ln 4", length.min(), 0.5),
        at_least("least attention on a best token", np.where(mm.selected, run.attention[:, -1], 1).min(), 0.9),
        told("cosine of the prompt itself, least", cosine(run.W, mm.W)[:, -1].min()),
        given={"η ≤ 1/L_p": rate <= 1 / lipschitz(gamma, keys)},
    )
