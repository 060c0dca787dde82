"""Products beside plain K Qᵀ: three factors of a diagonal, and steps of W through its factors.

By Hölder's inequality L factors in lp imply l(p/L). Compositional Muon moves W = K Qᵀ by unit steps in the
spectral norm, to first order: the law names the same limit as for Muon on K and Q (docs/law_of_halves.md).
"""

from __future__ import annotations

from functools import partial

import numpy as np

import attsvm as att
from attsvm.claims.claim import claim
from attsvm.claims.instances import certified_share
from attsvm.claims.transformers_setup import draws
from attsvm.numbers import Float

conjecture = partial(claim, "ours: docs/law_of_halves.md", "conjecture")
DRAWS, ENOUGH = 8, 0.98


@conjecture(removed="the third: judged in l3, as if there were two factors", twin={"p": 3.0})
def three_factors_maximise_the_margin_of_a_third_of_p(seed: int, p: float = 2.0) -> att.Verdict:
    """Steepest descent in l6 on three factors of a diagonal reaches the best l2 margin of their product.

    Eight draws of sphere(2, 4, 16), logistic loss, start 1, 1, 0, 5,000 steps of 0.01. Wanted: median margin
    ratio ≥ 0.98.
    """
    tokens, v = att.datasets.sphere(2, 4, 16, seed=draws(seed, DRAWS))
    path = att.train(
        tokens,
        att.Linear(v),
        weight=att.Diagonal(depth=3),
        optimizer=att.steepest(att.Entrywise(6), 0.01),
        steps=5_000,
        record=[5_000],
        init=(np.ones(tokens.d), np.ones(tokens.d), np.zeros(tokens.d)),
    )
    prompts = att.Tokens(tokens.keys * tokens.queries[..., None, :])
    flat = path.changed(tokens=prompts, W=np.diagonal(path.W, axis1=-2, axis2=-1)[..., None], state=None)
    return _judged("l6 steps on three factors", certified_share(flat, att.Entrywise(p)), att.Entrywise(p))


@conjecture(removed="the norm: judged in the Frobenius norm", twin={"norm": att.frobenius})
def compositional_muon_reaches_the_spectral_margin(seed: int, norm: att.Norm = att.spectral) -> att.Verdict:
    """Compositional Muon on K and Q reaches the best spectral margin of its tokens, as Muon does.

    Eight draws of sphere(4, 4, 8), logistic loss, 1,600 steps of 0.1. Wanted: median margin ratio ≥ 0.98.
    """
    tokens, v = att.datasets.sphere(4, 4, 8, seed=draws(seed, DRAWS))
    rule = att.compositional(0.1)
    path = att.train(
        tokens, att.Linear(v), weight=att.KeyQuery(), optimizer=rule, steps=1_600, record=[1_600]
    )
    return _judged("compositional Muon", certified_share(path, norm), norm)


def _judged(who: str, share: Float, norm: att.Norm) -> att.Verdict:
    return att.judge(
        f"{who} reach the best {norm} margin",
        att.at_least(f"median {norm} margin ratio", np.median(share), ENOUGH),
        att.told(f"least {norm} margin ratio", share.min()),
    )
