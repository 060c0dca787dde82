"""Max-Margin Token Selection: a nonlinear head, and when it still selects one token."""

from __future__ import annotations

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.prompt_instances import PAPER, Axes, all_selections
from attsvm_lab.experiment import solved


@claim(
    f"{PAPER}, nonlinear heads, regularisation path",
    "recalled-M",
    removed="mixing tokens is strictly worse",
    twin={"strength": 1.0},
)
def a_head_that_mixing_hurts_selects_one_token_each(seed: int, strength: float = -0.5) -> Verdict:
    """With a nonlinear head for which mixing tokens is strictly worse than the best one, the
    regularisation path tends to p^mm of the best tokens.

    Hypotheses: a decreasing loss, h(r) = vᵀr + ½‖r‖² strictly convex and labels +1, so that mixing costs
    in proportion to the mixed mass; the best token has the largest h. The smallest loss is searched from
    everywhere and compared with the rays of all nine selections. Measured: the cosine at
    R = 30 ‖p^mm‖, where losses still differ in float64, and how it falls from a third of that: like 1/R²,
    by a factor ≥ 4 (9 in the limit).

    Networks as heads, and sets of equally good tokens: the claims of set_selection.py.
    """
    source, v = att.datasets.prompt_sphere(2, 3, 4, seed=seed)
    _, evidence = _path_to_best_tokens(att.Tokens(source.keys), v, strength)
    return judge("the path of a head that mixing hurts tends to p^mm", *evidence)


@claim(
    "Tarzanagh et al. 2023, Transformers as Support Vector Machines, heads that mixing hurts",
    "recalled-M",
    removed="mixing tokens is strictly worse",
    twin={"strength": 1.0},
    chosen_on=range(5),
)
def the_path_of_W_selects_one_token_each_if_mixing_hurts(seed: int, strength: float = -0.5) -> Verdict:
    """With a head for which mixing tokens is strictly worse than the best one, the regularisation path of W
    tends to the Frobenius solution W^mm of the best tokens.

    The same head, labels and loss as above, for W and two queries that are not parallel: a draw (2, 3, 4).
    Measured as above: 1 − cosine at R = 30 ‖W^mm‖, and how it falls from a third of that; and the rank of
    W^mm, which is two.
    """
    source, v = att.datasets.sphere(2, 3, 4, seed=seed)
    mm, evidence = _path_to_best_tokens(att.Tokens(source.keys, source.queries), v, strength)
    rank = float(np.linalg.matrix_rank(mm.W, tol=1e-3))
    evidence.insert(-1, at_least("rank of W^mm", rank, 2.0))  # before what is only reported
    return judge("the path of W for a head that mixing hurts tends to W^mm", *evidence)


def _path_to_best_tokens(
    tokens: att.Tokens, v: Float, strength: float
) -> tuple[att.Solution, list[Evidence]]:
    """The program of the tokens of largest h, and how near the path of smallest loss comes to it."""
    head = att.QuadraticPenalty(v, np.array(strength))
    mm = solved(tokens, (tokens.keys @ v - strength * (tokens.keys**2).sum(-1)).argmax(-1))
    path = _smallest_loss(tokens, head, np.linalg.norm(mm.W) * np.array([10.0, 30.0]))
    off = 1 - att.cosine(path.W, mm.W)
    return mm, [
        at_most("1 − cosine", off[-1], 0.01),
        at_most("the same, relative to a radius three times smaller", off[-1] / off[-2], 1 / 4),
        reported("least attention on a best token", path.attention[-1][mm.selected].min()),
    ]


def _smallest_loss(tokens: att.Tokens, head: att.QuadraticPenalty, radii: Float) -> att.Path:
    """The free search; where a ray of some selection has a smaller loss, the search around that ray.

    With a nonlinear head all free starts may miss the basin of the smallest loss.
    """
    free = att.regularisation_path(tokens, head, radii=radii, starts=4)
    axes = all_selections(tokens)[1]
    rule = att.steepest(att.frobenius, 0.1)
    rays = att.train(tokens, head, optimizer=rule, steps=1, init=radii[-1] * axes)
    best = rays.loss[:, 0].argmin()
    if free.loss[-1] <= rays.loss[best, 0]:
        return free
    return att.regularisation_path(tokens, head, radii=radii, around=Axes(axes[best]), cone=0.5, starts=4)
