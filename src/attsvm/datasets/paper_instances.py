"""Small instances of three papers, most of them in the plane.

Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism": the prompt model. The paper adds a
coordinate for the score of a token, which attention ignores; here the values are the score alone (one wide)
and the head is 1. Tarzanagh et al. 2023, "Transformers as Support Vector Machines", and Julistiono et al.
2024, "Optimizing Attention with Mirror Descent": weights W.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.datasets.published import SEVERAL_INPUTS, TWO_CLOUDS, TWO_FANS
from attsvm.datasets.random import Seed, draw_runs, on_sphere
from attsvm.numbers import Float


def single_input(third_score: float = 0.9) -> tuple[Tokens, Float]:
    """One input of three tokens in the plane. The third score decides whether a run can end at token 1.

    Tokens (−0.1, 1), (1, 0), (0, 0) with scores 1, 0.9 and `third_score`. With 0.9 every run selects token 0.
    With 0 token 1 is locally optimal too, and the run from p(0) = (0, −1) selects it. The max-margin prompt
    is (−0.1, 1)/1.01, that of token 1 is (1, 0). Figures 1a and 1b.
    """
    keys = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    return _scored(keys, np.array([[1.0, 0.9, third_score]]))


def several_inputs(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Three inputs of seven noisy tokens around (1, 0), (−1, 1)·3 and (−½, −½)·3; token 0 is best.

    Token 0 has score 1 and the others ½, so that Assumption B.2 holds and every run is global. The line in
    the paper's figure is the solution with the score as a coordinate (cost 0.31319), which the model ignores;
    the tokens here leave it out. seed: None for the published draw, otherwise fresh noise 0.2·N(0, 1). Figure
    1c.
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

    Tokens (0, 0) and (1, ±1); the max-margin prompt is (1, 0). During training the linear loss favours the
    input with the high score, the logistic loss the other: p_y → ½ ln(high·|ℓ'(high)|/|ℓ'(1)|). For the
    experiment on the transient bias of the loss.
    """
    keys = np.array([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]]])
    return _scored(keys, np.array([[0.0, high], [0.0, 1.0]]))


def joint_training(third: Sequence[float] = (0.5, 1.0)) -> tuple[Tokens, Float]:
    """Three inputs with tokens (0, 0) and x_i for training prompt and head together.

    x_1 = (1, 1), x_2 = (1, −1), x_3 = `third`; labels +, −, +. With (0.5, 1) every label margin is tight and
    p tends to (4/3, 1/3). With (0.5, 1.5) the third is loose and p tends to the relaxed solution (1, 0)
    instead of (1.25, 0.25). v tends to (0, 1). Returns the paper's initial head (−1, 0); its initial prompt
    is (0, −1). Figure 3.
    """
    point = np.asarray(third, dtype=float)
    if point.shape != (2,):
        raise ValueError(f"third has shape {point.shape}. Pass the two coordinates of x_3.")
    best = np.array([[1.0, 1.0], [1.0, -1.0], point])
    keys = np.stack([np.zeros((3, 2)), best], axis=1)
    return Tokens(keys, labels=np.array([1.0, -1.0, 1.0])), np.array([-1.0, 0.0])


def two_clouds(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Two inputs of three tokens in the plane, noise 0.3 around (−1, 0) and (1, 0).

    The rays W z_i of the Frobenius and the nuclear program differ visibly: slopes 7.79 and 14.4 for z_1.
    seed: None for the published draw. Draw order: v, keys, queries. Figure 1 of "Transformers as SVMs".
    """
    normals = _normals(TWO_CLOUDS, 3, seed)
    keys = 0.3 * normals["keys"] + np.array([[[-1.0, 0.0]], [[1.0, 0.0]]])
    return Tokens(keys, on_sphere(normals["queries"])), on_sphere(normals["v"])


def two_fans(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Two inputs of five tokens in the plane: token 0 at (1, ±½), the others noise 0.5 at (−1, 0).

    Slopes of the rays W z_i of the Frobenius program: 1.30 and −1.67. seed: None for the published draw.
    Draw order: v, keys, queries. Figure 3 of "Transformers as SVMs".
    """
    normals = _normals(TWO_FANS, 5, seed)
    keys = 0.5 * normals["keys"] + np.array([-1.0, 0.0])
    keys[..., 0, :] = [[1.0, 0.5], [1.0, -0.5]]
    return Tokens(keys, on_sphere(normals["queries"])), on_sphere(normals["v"])


def joint_mirror() -> tuple[Tokens, Float]:
    """Two inputs of three tokens in the plane, queries = first tokens, head trained from zero.

    Joint normalised lp steps (0.1) from W = 0, v = 0 select tokens (1, 0) for p = 1.75 and p = 2, and (0, 0)
    for p = 3. Returns the paper's initial head (0, 0). For the joint experiment of "Mirror Descent".
    """
    keys = np.array(
        [
            [[-2.7, 1.2], [1.4, 2.1], [1.3, -0.1]],
            [[0.4, -2.2], [-1.1, -0.4], [0.9, 0.1]],
        ]
    )
    return Tokens.self_attention(keys, at=0, labels=np.array([1.0, -1.0])), np.zeros(2)


def _scored(keys: Float, scores: Float) -> tuple[Tokens, Float]:
    return Tokens(keys, values=scores[..., None]), np.ones(1)


def _normals(published: tuple[float, ...], T: int, seed: Seed | None) -> dict[str, Float]:
    if seed is None:
        v, keys, queries = np.split(np.array(published), [2, 2 + 4 * T])
        return {"v": v, "keys": keys.reshape(2, T, 2), "queries": queries.reshape(2, 2)}

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        shapes = {"v": (2,), "keys": (2, T, 2), "queries": (2, 2)}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    return draw_runs(draw, seed)
