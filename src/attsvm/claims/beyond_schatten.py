"""Norms of factors that are no function of singular values: rows and entries of K and Q.

F(W) = min N(K) N(Q) over K Qᵀ = W is the max-norm γ₂ where N is the length of the longest row. Where N is the
largest entry, m F lies between γ₂ and, for m → ∞, 1.7823 γ₂ (Grothendieck): docs/law_of_halves.md.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

import attsvm as att
from attsvm.claims.claim import claim
from attsvm.claims.instances import certified_share
from attsvm.claims.transformers_setup import draws
from attsvm.numbers import Float

REFERENCE = "ours: docs/law_of_halves.md, after Tsilivis et al. 2024, arXiv 2410.22069"
conjecture = partial(claim, REFERENCE, "conjecture")
DRAWS, SIZE, WIDTH = 4, (4, 4, 8), 16
RULES = {"row": att.steepest(att.LongestRow(), 0.005), "sign": att.steepest(att.linf, 0.003)}
STEPS = 10_000
GROTHENDIECK = 1.7823
GAMMA = att.MaxNorm()
ENOUGH, OTHERS = 0.98, 0.95


@conjecture(removed="the norm γ₂: judged in the nuclear norm", twin={"norm": att.nuclear})
def row_steps_on_factors_maximise_the_max_norm_margin(seed: int, norm: att.Norm = GAMMA) -> att.Verdict:
    """Steps that give every row of K and of Q the same length reach the best γ₂ margin of their tokens.

    Four draws of sphere(4, 4, 8), logistic loss, width 16, K and Q apart, 10,000 steps of 0.005. Wanted:
    least margin ratio ≥ 0.98, and in the nuclear, the Frobenius and the spectral norm medians ≤ 0.95.

    Surprise: long steps undo it. With steps of 0.01 the least of eight draws is at 0.83.
    """
    others = (other for other in (att.nuclear, att.frobenius, att.spectral) if other != norm)
    return att.judge(
        f"row steps on K and Q reach the best {norm} margin",
        att.at_least(f"least {norm} margin ratio", _share(seed, "row", norm).min(), ENOUGH),
        *(
            att.at_most(f"median {other} margin ratio", np.median(_share(seed, "row", other)), OTHERS)
            for other in others
        ),
    )


@conjecture(removed="the norm γ₂: the same bracket of the spectral margin", twin={"norm": att.spectral})
def sign_steps_on_factors_stay_in_the_bracket_of_grothendieck(
    seed: int, norm: att.Norm = GAMMA
) -> att.Verdict:
    """Sign descent on K and on Q has a share of the best γ₂ margin between 1/1.7823 and 1.

    Setting as above, steps of 0.003. Wanted: least share ≥ 0.561. The upper end is that of every run.
    """
    share = _share(seed, "sign", norm)
    return att.judge(
        "sign steps on K and Q stay in the bracket",
        att.at_least(f"least {norm} margin ratio", share.min(), 1 / GROTHENDIECK),
        att.told(f"median {norm} margin ratio", np.median(share)),
    )


def _share(seed: int, name: str, norm: att.Norm) -> Float:
    return certified_share(_trained(seed, name), norm)


@lru_cache(maxsize=2)
def _trained(seed: int, name: str) -> att.Path:
    tokens, v = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    return att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery(rank=WIDTH, separate=True),
        optimizer=RULES[name],
        steps=STEPS,
        record=[STEPS],
    )
