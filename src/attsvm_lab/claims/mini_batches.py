"""Mini-batches: what one example at a time does to the margin that an optimizer maximises.

Known for linear models: Adam on single examples can leave the l∞ margin for the l2 one, Signum keeps l∞ at
every batch size if it remembers for long (Baek et al., arXiv 2510.26303). Ours: the same for attention.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import falling
from attsvm_lab.claims.transformers_setup import draws
from attsvm_lab.experiment import Experiment, limit_by_length, median_limit

REFERENCE = "ours, for attention; linear models: Baek et al. 2025, arXiv 2510.26303"
conjecture = partial(claim, REFERENCE, "conjecture")
DRAWS, SIZE, LR, STEPS, MEMORY = 8, (4, 4, 8), 0.03, 6_000, 0.9
RULES = {
    "Signum": att.steepest(att.linf, LR, momentum=MEMORY),
    "sign": att.steepest(att.linf, LR),
    "Adam": att.adam(LR, MEMORY, MEMORY, eps=0),
}
ENOUGH, FAR = 0.98, 0.75


@conjecture(removed="the momentum: sign descent on single examples", twin={"name": "sign"})
def signum_keeps_the_max_norm_margin_in_batches_of_one(seed: int, name: str = "Signum") -> Verdict:
    """Sign descent with momentum reaches the best l∞ margin of its tokens from single examples, as from all.

    Eight draws of sphere(4, 4, 8), logistic loss, momentum 0.9, 6,000 steps of 0.03; batches of one are
    shuffled anew every epoch. Wanted: median margin ratio ≥ 0.98 for both.

    Surprise: a longer memory is worse. Gradients vanish exponentially, and with momentum 0.99 the average is
    of larger ones, a hundred steps old: 0.62 from all examples, 0.56 from single ones.
    """
    evidence = [
        at_least(
            f"median l∞ margin ratio, {words}", np.median(_runs(seed, name, batch).share(att.linf)), ENOUGH
        )
        for batch, words in ((None, "all examples"), (1, "batches of one"))
    ]
    return judge(f"{name} reaches the l∞ margin", *evidence)


@conjecture(removed="the batches of one: all examples at every step", twin={"batch": None})
def adam_in_batches_of_one_leaves_the_max_norm_margin(seed: int, batch: int | None = 1) -> Verdict:
    """Adam on single examples ends far from the best l∞ margin, and nearer to the Frobenius one than on all.

    Setting as above, b1 = b2 = 0.9, eps = 0. Wanted: median l∞ margin ratio ≤ 0.75, and a median Frobenius
    ratio that is 0.02 or more above that of all examples.

    Surprise: it does not reach the Frobenius margin either, 0.83 of it. With b2 = 0.999 and steps of one
    length Adam on all examples leaves l∞ too (0.55): it divides by gradients of a thousand steps ago.
    """
    runs = _runs(seed, "Adam", batch)
    far, near = (np.median(runs.share(norm)) for norm in (att.linf, att.frobenius))
    all_ = np.median(_runs(seed, "Adam", None).share(att.frobenius))
    return judge(
        "Adam leaves the l∞ margin",
        at_most("median l∞ margin ratio", far, FAR),
        at_least("median Frobenius margin ratio, less that of all examples", near - all_, 0.02),
        reported("median Frobenius margin ratio", near),
    )


@conjecture(
    removed="the norm of its multipliers: the l∞ margin of all examples at once", twin={"norm": "linf"}
)
def adam_in_batches_of_one_tends_to_the_fixed_point_of_its_norm(
    seed: int, norm: str = "of its multipliers"
) -> Verdict:
    """Adam on single examples tends to the margin of `adam_margin`, in a norm that its own multipliers set.

    Eight draws of sphere(8, 4, 6), logistic loss, b1 = 0.9, b2 = 0.95, eps = 0, 16,000 steps of 0.2 t^(−.55).
    Shares are extrapolated linearly in 1/N(W) from the records at half and all of the steps. Wanted: a median
    from 0.95 to 1.05. Hypothesis: in three draws at least the selection does not change in the last half.
    """
    tokens, v = att.datasets.sphere(8, 4, 6, seed=draws(seed, DRAWS))
    rule = att.adam(falling(0.2), 0.9, 0.95, eps=0)
    runs = Experiment(tokens, v, rule, 16_000, options={"batch": att.Batches(1)})
    if norm == "linf":
        limits = runs.limits_by_length(att.linf)
    else:
        paths = runs.settled_runs()
        programs_of = [(path.W[-2:], programs.adam_margin(path.tokens, path.selected)) for path in paths]
        limits = [limit_by_length([*map(one.share, W)], [*map(one.value, W)]) for W, one in programs_of]
    return median_limit("Adam tends to its fixed point", "limit of the share", limits, 0.95, 1.05)


def _runs(seed: int, name: str, batch: int | None) -> Experiment:
    tokens, v = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    batches = None if batch is None else att.Batches(batch)
    return Experiment(tokens, v, RULES[name], STEPS, options={"batch": batches})
