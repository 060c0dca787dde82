"""Several heads, f(X) = Σ_h v_hᵀ Xᵀ softmax(X W_h z): what one norm over all of them does to each.

One joint norm: the program is min Σ N(W_h)² with every head's rows ≥ 1, so that a head is as long as its task
is hard. Muon on each head alone and on all of them side by side are different norms (docs/law_of_halves.md).
"""

from __future__ import annotations

from functools import partial

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.experiment import Experiment, solved

conjecture = partial(claim, "ours: docs/law_of_halves.md", "conjecture")
HEADS, SIZE = 3, (4, 4, 8)
STEPS, LR = 10_000, 0.1


@conjecture(removed="the joint norm: every head is normalised by itself", twin={"norm": "apart"})
def a_head_is_as_long_as_its_task_is_hard(seed: int, norm: str = "joint") -> Verdict:
    """Under normalised gradient descent in one norm of all heads, length times margin is the same for each.

    Three heads with values of their own on sphere(4, 4, 8), logistic loss, 10,000 steps of 0.1. Wanted: the
    products within 2 % of each other, and every head's Frobenius margin ratio ≥ 0.98. Hypothesis: the best
    margins differ by 10 % or more, or it would say nothing. Values are drawn until that is so, up to eight
    times.
    """
    for draw in range(8):
        path = _heads(seed, att.frobenius, norm, draw)
        ratio, margin = _judged(path, att.frobenius)
        if differ := bool(np.ptp(margin) > 0.1 * margin.mean()):
            break
    product = np.asarray(path.norm())[-1] * margin
    return judge(
        "a head is as long as its task is hard",
        at_most("spread of length × margin", np.ptp(product) / product.mean(), 0.02),
        at_least("least Frobenius margin ratio of a head", ratio.min(), 0.98),
        given={"the margins differ": differ},
    )


@conjecture(
    removed="a norm for each head: the heads side by side are one matrix", twin={"norm": "concatenated"}
)
def muon_per_head_maximises_the_spectral_margin_of_each(seed: int, norm: str = "apart") -> Verdict:
    """Spectral descent on each head by itself reaches the best spectral margin of every head.

    Setting as above. Wanted: least margin ratio of the three ≥ 0.98. The twin: spectral
    descent on [W_1 W_2 W_3] as one matrix, which does not.
    """
    ratio, _ = _judged(_heads(seed, att.spectral, norm), att.spectral)
    return judge(
        "Muon per head reaches every head's spectral margin",
        at_least("least spectral margin ratio of a head", ratio.min(), 0.98),
    )


def _judged(path: att.Path, norm: att.Norm) -> tuple[Float, Float]:
    """The margin ratio and the best margin of each head."""
    heads = [path.head(h) for h in range(HEADS)]
    best = [solved(head.tokens, head.selected, norm) for head in heads]
    ratio = [att.margin_ratio(head, solution)[-1] for head, solution in zip(heads, best, strict=True)]
    return np.array(ratio), np.array([float(solution.margin) for solution in best])


def _heads(seed: int, rule: att.Norm, norm: str, draw: int = 0) -> att.Path:
    tokens, _ = att.datasets.sphere(*SIZE, seed=seed)
    v = np.random.default_rng([1 + draw, seed]).standard_normal((HEADS, SIZE[2]))
    return Experiment(tokens, v, att.steepest(rule, LR), STEPS, att.MultiHead(HEADS, norm=norm)).path
