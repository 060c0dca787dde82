"""Instances of "Max-Margin Token Selection in Attention Mechanism" (Tarzanagh et al. 2023).

All use the prompt model. The paper hides the score of a token in a coordinate that attention does not
see; here the values are that score alone (one wide) and the head is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.datasets.published import SEVERAL_INPUTS
from attsvm.datasets.random import Seed, draw_runs
from attsvm.numbers import Float


def single_input(third_score: float = 0.9) -> tuple[Tokens, Float]:
    """One input of three tokens in the plane whose third score decides local against global.

    Tokens (−0.1, 1), (1, 0), (0, 0) with scores 1, 0.9 and `third_score`. With 0.9 every run goes to
    token 0; with 0 the choice of token 1 is locally optimal too, and p(0) = (0, −1) goes there.
    Best prompt (−0.1, 1)/1.01; for token 1 it is (1, 0). Serves Figures 1a and 1b.
    """
    keys = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    return _scored(keys, np.array([[1.0, 0.9, third_score]]))


def several_inputs(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Three inputs of seven noisy tokens around (1, 0), (−1, 1)·3 and (−½, −½)·3; token 0 is best.

    Scores 1 for token 0 and ½ for the others, so Assumption B.2 holds and every run is global.
    seed: None for the published draw, otherwise fresh noise 0.2·N(0, 1). Serves Figure 1c.
    The drawn line of the paper solves with the score coordinate included (cost 0.31319) although the
    model does not see it; the tokens here are what the model sees.
    """
    shift = np.repeat([[1.0, 0.0], [-1.0, 1.0], [-0.5, -0.5]], [1, 3, 3], axis=0)
    if seed is None:
        noise = np.array(SEVERAL_INPUTS).reshape(3, 7, 3)[..., :2]
    else:
        noise = draw_runs(lambda rng: {"keys": rng.standard_normal((3, 7, 2))}, seed)["keys"]
    scores = np.tile([1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], (3, 1))
    return _scored(shift + 0.2 * noise, scores)


def two_scores(high: float = 10.0) -> tuple[Tokens, Float]:
    """Two inputs that differ only in the score of their best token, `high` against 1.

    Tokens (0, 0) and (1, ±1); the best prompt is (1, 0). On the way the linear loss leans to the high
    score, the logistic loss to the low one: p_y → ½ ln(high·|ℓ'(high)|/|ℓ'(1)|). Serves the
    experiment on the transient bias of the loss.
    """
    keys = np.array([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]]])
    return _scored(keys, np.array([[0.0, high], [0.0, 1.0]]))


def joint_training(third: Sequence[float] = (0.5, 1.0)) -> tuple[Tokens, Float]:
    """Three inputs with tokens (0, 0) and x_i for training prompt and head together.

    x_1 = (1, 1), x_2 = (1, −1), x_3 = `third`; labels +, −, +. With (0.5, 1) every label margin is
    tight and p goes to (4/3, 1/3); with (0.5, 1.5) the third is loose and p goes to the relaxed
    (1, 0) instead of (1.25, 0.25). v goes to (0, 1). Returns the paper's initial head (−1, 0); its
    initial prompt is (0, −1). Serves Figure 3.
    """
    point = np.asarray(third, dtype=float)
    if point.shape != (2,):
        raise ValueError(f"third has shape {point.shape}. Pass the two coordinates of x_3.")
    best = np.array([[1.0, 1.0], [1.0, -1.0], point])
    keys = np.stack([np.zeros((3, 2)), best], axis=1)
    return Tokens(keys, labels=np.array([1.0, -1.0, 1.0])), np.array([-1.0, 0.0])


def _scored(keys: Float, scores: Float) -> tuple[Tokens, Float]:
    return Tokens(keys, values=scores[..., None]), np.ones(1)
