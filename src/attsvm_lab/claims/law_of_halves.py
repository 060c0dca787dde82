"""The law of halves: steepest descent in Schatten(p) on K and Q maximises the margin of W in Schatten(p/2).

Ours, and a conjecture: Tsilivis et al. 2024 ("Flavors of Margin", arXiv 2410.22069) prove for homogeneous
models that steepest descent tends to KKT points of the margin in its own norm of the parameters; softmax
attention is not homogeneous. By Hölder's inequality min N(K) N(Q) over K Qᵀ = W is Schatten(p/2)
(`attsvm.Factored`, docs/law_of_halves.md). Every run is judged by the programs of the selection it ended at.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.transformers_setup import draws
from attsvm_lab.experiment import Experiment

conjecture = partial(claim, "ours, after Tsilivis et al. 2024, arXiv 2410.22069", "conjecture")
ENOUGH, ABOVE, OTHERS = 0.98, 1.01, 0.95

DRAWS, SIZE = 4, (4, 4, 8)
NORMS = (att.nuclear, att.frobenius, att.spectral)
FACTORS: dict[float, tuple[float, int]] = {
    2.0: (0.01, 30_000),
    3.0: (0.014, 5_000),
    4.0: (0.01, 10_000),
    6.0: (0.014, 5_000),
    8.0: (0.014, 5_000),
    math.inf: (0.01, 10_000),
}
"""p → (lr, steps). W grows like (lr t)², and a step moves it by lr² t: longer steps do not settle."""
SETTLED = (0.007, 7_000)
"""The same for p = ∞ where every draw is judged: some do not settle with lr² t = 1."""

WIDE = (2, 4, 16)
DIAGONALS: dict[float, tuple[float, int]] = {
    2.0: (0.02, 40_000),
    **dict.fromkeys((2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0), (0.01, 20_000)),
    math.inf: (0.003, 40_000),
}


# ---------------------------------------------------------------------- factors of a matrix


@conjecture(removed="the halving: judged in the norm of the steps, Frobenius", twin={"norm": att.frobenius})
def factors_reach_the_nuclear_margin(seed: int, norm: att.Norm = att.nuclear) -> Verdict:
    """Normalised gradient descent on K and on Q, Schatten 2, reaches the best nuclear margin of its tokens.

    Four draws of sphere(4, 4, 8), logistic loss, K and Q normalised apart, 30,000 steps of 0.01. Wanted:
    least margin ratio ≥ 0.98, and in the Frobenius and the spectral norm a median ≤ 0.95.

    Surprise: how soon depends on the start. All draws start at the same K and Q here; from a start of its own
    one of twenty draws is at 0.953 after 30,000 steps and at 0.966 after 100,000. The four of 80 draws that
    are below 0.98 on seeds 700–719 are all above it after 300,000 steps.
    """
    return _reached(factors(seed, 2.0, *FACTORS[2.0]), "Schatten 2", norm)


@conjecture(removed="the halving: judged in the spectral norm", twin={"norm": att.spectral})
def factors_reach_the_frobenius_margin(seed: int, norm: att.Norm = att.frobenius) -> Verdict:
    """Steepest descent in Schatten 4 on K and on Q reaches the best Frobenius margin of its tokens, as if W
    itself were trained by gradient descent.

    Setting as above, 10,000 steps. Wanted: least margin ratio ≥ 0.98, and in the nuclear and the spectral
    norm a median ≤ 0.95.
    """
    return _reached(factors(seed, 4.0, *FACTORS[4.0]), "Schatten 4", norm)


@conjecture(removed="the halving: judged in the Frobenius norm", twin={"norm": att.frobenius})
def factors_reach_the_spectral_margin(seed: int, norm: att.Norm = att.spectral) -> Verdict:
    """Spectral descent on K and on Q, Muon's exact direction, reaches the best spectral margin of its tokens.

    Setting as above, 7,000 steps of 0.007. The ratio r(t) to the best margin closes like 1/t, so that its
    limit is taken as 2 r(t) − r(t/2). Wanted: least limit ≥ 0.98, median limit ≤ 1.01, and in the nuclear and
    the Frobenius norm a median ratio ≤ 0.95.

    Surprise: long steps undo it. A step moves W by lr times the length of the factors, lr² t, which grows:
    with 2,000 steps of 0.1 the least ratio of eight draws falls from 0.885 at a third of the steps to 0.827.
    Of 80 draws that took 10,000 steps of 0.01 seven were below 0.98 at the end: three were late, with a limit
    of one, and four undone: at 0.994 where lr² t = 0.5, and at 0.91 to 0.97 where it is 1. Here it is 0.34.
    """
    runs = factors(seed, math.inf, *SETTLED)
    return judge(
        f"spectral steps on K and Q reach the best {norm} margin",
        at_least(f"least limit of the {norm} margin ratio", runs.limit(norm).min(), ENOUGH),
        at_most("the same, median from above", np.median(runs.limit(norm)), ABOVE),
        *_below_in_others(runs, norm),
        reported(f"least {norm} margin ratio", runs.share(norm).min()),
    )


@conjecture(removed="the halving: judged in the Schatten norms of the steps", twin={"factor": 1.0})
def schatten_steps_on_factors_maximise_the_margin_of_half_p(seed: int, factor: float = 0.5) -> Verdict:
    """Steepest descent in Schatten(p) on K and on Q reaches the best Schatten(p/2) margin of its tokens, for
    p = 3, 6 and 8.

    Setting as above, 5,000 steps of 0.014, so that lr² t is 1 again. Wanted: least margin ratio ≥ 0.98 in
    Schatten 1.5, 3 and 4, and in the nuclear and the spectral norm the ratio that the program itself has
    there, to 0.02 in the median. (Bounds on those ratios alone do not tell: where the programs are near, both
    are.)
    """
    evidence = []
    for p in (3.0, 6.0, 8.0):
        norm, runs = att.Schatten(factor * p), factors(seed, p, *FACTORS[p])
        steps = f"margin ratio of Schatten {p:g} steps"
        evidence.append(at_least(f"least {norm} {steps}", runs.share(norm).min(), ENOUGH))
        for beside in (att.nuclear, att.spectral):
            of_program = 1 / beside.value(runs.solution(norm).W) / runs.solution(beside).margin
            off = np.median(np.abs(runs.share(beside) - of_program))
            evidence.append(at_most(f"{beside} {steps}, off the program's", off, 0.02))
    return judge(
        "steps in Schatten(p) on K and Q reach the best Schatten(p/2) margin",
        *evidence,
    )


@conjecture(removed="a width that is enough: K and Q have one column", twin={"width": 1})
def factors_as_wide_as_the_inputs_are_many_suffice(seed: int, width: int = SIZE[0]) -> Verdict:
    """K and Q of width min(n, d, e) reach the best margin: wider ones have nothing to add.

    Schatten 4 and the Frobenius program, setting as above with 5,000 steps of 0.014; width 4 of 8. Wanted:
    least margin ratio ≥ 0.98. Medians of 40 draws at width 1, 2, 3, 4, 8: 0.53, 0.86, 0.97, 0.998, 0.999.
    """
    ratio = factors(seed, 4.0, 0.014, 5_000, width).share(att.frobenius)
    return judge(
        f"K and Q of width {width} reach the best Frobenius margin",
        at_least("least Frobenius margin ratio", ratio.min(), ENOUGH),
    )


@conjecture(removed="the harmonic sum: judged in the arithmetic mean", twin={"harmonic": False})
def two_norms_of_the_factors_lead_to_their_harmonic_sum(seed: int, harmonic: bool = True) -> Verdict:
    """Steps in Schatten(p_K) on K and Schatten(p_Q) on Q reach the best Schatten(r) margin of their tokens,
    1/r = 1/p_K + 1/p_Q.

    (p_K, p_Q) = (∞, 2), (12, 2.4) and (2, 4), so r = 2, 2 and 4/3; two draws, setting as above with 5,000
    steps of 0.01. Wanted: least margin ratio ≥ 0.98. The twin is judged in half of the mean of p_K and p_Q.
    """
    tokens, v = att.datasets.sphere(*SIZE, seed=draws(seed, 2))
    evidence = []
    for p_K, p_Q in ((math.inf, 2.0), (12.0, 2.4), (2.0, 4.0)):
        steps = (att.Schatten(p_K), att.Schatten(p_Q))
        runs = Experiment(tokens, v, att.steepest(steps, 0.01), 5_000, att.KeyQuery())
        norm = att.Factored(steps).closed if harmonic else att.Schatten((p_K + p_Q) / 4)
        assert norm is not None
        name = f"least {norm} margin ratio of Schatten ({p_K:g}, {p_Q:g}) steps"
        evidence.append(at_least(name, runs.share(norm).min(), ENOUGH))
    return judge("steps in two norms reach the margin of their harmonic sum", *evidence)


def factors(seed: int, p: float, lr: float, steps: int, width: int | None = None) -> Experiment:
    """Schatten(p) steps on K and on Q, each normalised by itself, of the draws of a seed."""
    tokens, v = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    weight = att.KeyQuery(rank=width, separate=True)
    return Experiment(tokens, v, att.steepest(att.Schatten(p), lr), steps, weight)


def _reached(runs: Experiment, steps: str, norm: att.Norm) -> Verdict:
    return judge(
        f"steps in {steps} on K and Q reach the best {norm} margin",
        at_least(f"least {norm} margin ratio", runs.share(norm).min(), ENOUGH),
        *_below_in_others(runs, norm),
    )


def _below_in_others(runs: Experiment, norm: att.Norm) -> list[Evidence]:
    others = [other for other in NORMS if other != norm]
    return [at_most(f"median {one} margin ratio", np.median(runs.share(one)), OTHERS) for one in others]


# ---------------------------------------------------------------------- diagonal factors


@conjecture(removed="the halving: judged in the lp norm of the steps", twin={"factor": 1.0})
def lp_steps_on_diagonals_maximise_the_margin_of_half_p(seed: int, factor: float = 0.5) -> Verdict:
    """Steepest descent in lp on k and q, W = diag(k ⊙ q), reaches the best l(p/2) margin of the diagonal, for
    p = 3, 4, 6 and 8.

    Four draws of sphere(2, 4, 16), logistic loss, one norm of the pair, start k = 1, q = 0, 20,000 steps of
    0.01. The limit of the margin ratio is taken as above. Wanted for each p: least limit ≥ 0.98, median ≤
    1.01.

    Surprise: with 30,000 steps of 0.03 the l8 runs of wider draws fall from 0.94 to 0.67: lr² t is then 27.
    """
    return _diagonals(seed, {p: factor * p for p in (3.0, 4.0, 6.0, 8.0)})


@conjecture(
    removed="the halving: both judged in the l2 norm",
    twin=lambda seed: _diagonals(seed, {2.0: 2.0, math.inf: 2.0}, count=8, least=False),
)
def gd_and_sign_on_diagonals_maximise_the_l1_and_the_max_margin(seed: int) -> Verdict:
    """Normalised gradient descent on k and q reaches the best l1 margin of k ⊙ q, sign descent the best l∞
    margin.

    The ends of the law, p = 2 and ∞. Eight draws of sphere(2, 4, 16), start k = 1, q = 0, 40,000 steps of
    0.02 and of 0.003. Wanted: median margin ratio ≥ 0.98 for each.

    Surprise: both arrive slowly, so the median is judged. Of the first twenty draws the least is at 0.955
    (l1) and at 0.909 (l∞) at the end, and still rises.
    """
    return _diagonals(seed, {2.0: 1.0, math.inf: math.inf}, count=8, least=False)


def steps_on_diagonals(tokens: att.Tokens, v: Float, p: float) -> Experiment:
    """lp steps on k and q, from k = 1 and q = 0."""
    lr, steps = DIAGONALS[p]
    start = np.ones(tokens.d), np.zeros(tokens.d)
    return Experiment(tokens, v, att.steepest(att.Entrywise(p), lr), steps, att.Diagonal(2), start)


def _diagonals(seed: int, judged: dict[float, float], count: int = DRAWS, least: bool = True) -> Verdict:
    evidence = []
    for p, q in judged.items():
        runs = steps_on_diagonals(*att.datasets.sphere(*WIDE, seed=draws(seed, count)), p)
        norm = att.Entrywise(q)
        quantity = f"{norm} margin ratio of l{p:g} steps"
        if least:
            ends = runs.limit(norm)
            evidence.append(at_least(f"least limit of the {quantity}", ends.min(), ENOUGH))
            evidence.append(at_most(f"median limit of the {quantity}", np.median(ends), ABOVE))
        else:
            evidence.append(at_least(f"median {quantity}", np.median(runs.share(norm)), ENOUGH))
    return judge(
        "lp steps on k and q reach the best l(p/2) margin",
        *evidence,
    )
