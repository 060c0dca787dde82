"""Weight decay: training ends inside a ball, and where in it.

Known of others: steepest descent with decoupled decay λ keeps N(W) ≤ 1/λ, and its steps are those of Frank
and Wolfe on that ball (for Adam and l∞ Xie and Li 2024, for Muon Chen, Li and Liu 2025). Ours: for attention
it ends on the regularisation path at that radius, and on K and Q, whose norms it keeps below 1/λ each, at
radius 1/λ² of the norm that the law of halves names (docs/law_of_halves.md).
"""

from __future__ import annotations

import math

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_most, judge
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import equal_losers
from attsvm_lab.experiment import Experiment

DECAY, DECAY_LR = 0.1, 0.03
DECAY_STEPS = round(10 / (DECAY * DECAY_LR))
"""What the start leaves fades like (1 − lr · decay)^t: e⁻¹⁰ after these."""
FACTOR_DECAY, FACTOR_LR = 0.3, 0.02
FACTOR_STEPS = round(10 / (FACTOR_DECAY * FACTOR_LR))
OVER, OFF = 0.02, 2e-3
"""What is left of the start, and of steps that do not settle: largest for l∞."""


@claim(
    "ours; for Adam and for Muon Xie and Li 2024, Chen et al. 2025",
    "conjecture",
    removed="the radius 1/λ: the path is taken at 2/λ",
    twin={"radius": 2 / DECAY},
)
def decay_ends_on_the_regularisation_path(seed: int, radius: float = 1 / DECAY) -> Verdict:
    """Steepest descent on W with decoupled weight decay λ ends at the least loss of the ball of radius 1/λ in
    its own norm: on the regularisation path.

    Frobenius, l∞ and spectral norm; λ = 0.1, 3,333 steps of 0.03; unit tokens (3, 4, 5), losing tokens of
    equal score. Wanted: an excess loss within 2 % of the path's, and a norm within 0.2 % of the radius.

    Surprise: in the l∞ norm the loss agrees but the weights need not: many weights of the ball are nearly as
    good.
    """
    tokens, v = equal_losers(3, 4, 5, seed)
    evidence = []
    for norm in (att.frobenius, att.linf, att.spectral):
        rule = att.steepest(norm, DECAY_LR, decay=DECAY)
        evidence += _on_the_path(Experiment(tokens, v, rule, DECAY_STEPS), norm, radius, seed)
    return judge("decay λ ends on the path at radius 1/λ", *evidence)


@claim(
    "ours: docs/law_of_halves.md",
    "conjecture",
    removed="the square: the path is taken at radius 1/λ",
    twin={"radius": 1 / FACTOR_DECAY},
)
def decay_of_factors_ends_on_the_path_at_the_squared_radius(
    seed: int, radius: float = 1 / FACTOR_DECAY**2
) -> Verdict:
    """Steepest descent in Schatten(p) on K and on Q with decay λ ends at the least loss of the Schatten(p/2)
    ball of radius 1/λ², p = 2, 4 and ∞.

    K and Q apart; λ = 0.3, 1,667 steps of 0.02; data as above. Wanted: an excess loss within 2 % of the
    path's, and a norm of W within 0.2 % of the radius.
    """
    tokens, v = equal_losers(3, 4, 5, seed)
    evidence = []
    for p, norm in ((2.0, att.nuclear), (4.0, att.frobenius), (math.inf, att.spectral)):
        rule = att.steepest(att.Schatten(p), FACTOR_LR, decay=FACTOR_DECAY)
        run = Experiment(tokens, v, rule, FACTOR_STEPS, att.KeyQuery(separate=True))
        evidence += _on_the_path(run, norm, radius, seed)
    return judge("decay λ of K and Q ends on the path at radius 1/λ²", *evidence)


def _on_the_path(run: Experiment, norm: att.Norm, radius: float, seed: int) -> list[Evidence]:
    """How far the loss is from the least one of the ball, and the norm from its radius."""
    head = att.Linear(run.v)
    path = att.regularisation_path(run.tokens, head, norm=norm, radii=[radius], starts=4, seed=seed)
    over = float(np.expm1(run.path.log_excess[-1] - path.log_excess[-1]))
    short = abs(1 - float(norm.value(run.path.final)) / radius)
    return [
        at_most(f"|excess loss / the {norm} path's − 1|", abs(over), OVER),
        at_most(f"|1 − {norm} norm / radius|", short, OFF),
    ]
