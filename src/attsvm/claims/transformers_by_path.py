"""Transformers as SVMs, regularisation paths: the weight of least loss in growing balls."""

from __future__ import annotations

import numpy as np

from attsvm.claims.claim import Claim
from attsvm.claims.transformers_setup import PAPER, draws, locally_optimal_selections
from attsvm.datasets import sphere
from attsvm.norms import Norm, frobenius, nuclear
from attsvm.path import Path
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Solution
from attsvm.selection import best_tokens
from attsvm.training.heads import Linear
from attsvm.training.regularise import regularisation_path
from attsvm.training.weights import FullWeight, KeyQuery, Weight
from attsvm.verdict import Verdict, at_least, cosine, judge, margin_ratio, told

RADII = (100.0, 300.0, 1000.0)
CONE = 0.01
"""The theorem promises a cone that depends on α; this one tilts margins by up to about 0.4."""
SMOOTHING = 0.02
"""Softmax at radius R misses the best margin by O(log(nT)/(R·margin)): about 0.01 at R = 1,000 here."""


def the_path_of_W_tends_to_the_frobenius_direction(seed: int) -> Verdict:
    """The weight of least loss with ‖W‖_F ≤ R tends in direction to the Frobenius solution of the best
    tokens.

    Theorem B-2 for W: decreasing loss, unique best tokens, separable. Four draws (3, 4, 5), R = 100, 300,
    1000. Wanted: margin ratio ≥ 1 − SMOOTHING at the end, and a deficit that falls like 1/R.
    """
    return _ball(seed, FullWeight(), frobenius, target=frobenius)


def _path_of_KQ_against_frobenius(seed: int) -> Verdict:
    return _ball(seed, KeyQuery(), nuclear, target=frobenius)


def the_path_of_K_and_Q_tends_to_the_nuclear_direction(seed: int) -> Verdict:
    """The product K Qᵀ of least loss with ‖K‖² + ‖Q‖² ≤ 2R tends in direction to the nuclear solutions of
    the best tokens.

    Theorem B-2 for (K, Q), same draws. The solution need not be unique, so the margin ratio in the
    nuclear norm is judged: it is 1 on the whole set of solutions and nowhere else.
    """
    return _ball(seed, KeyQuery(), nuclear, target=nuclear)


def _path_of_W_against_nuclear(seed: int) -> Verdict:
    return _ball(seed, FullWeight(), frobenius, target=nuclear)


def _ball(seed: int, weight: Weight, ball: Norm, target: Norm) -> Verdict:
    tokens, v = sphere(3, 4, 5, seed=draws(seed, 4))
    solution = max_margin(tokens, best_tokens(tokens, v), target)
    path = regularisation_path(tokens, Linear(v), weight=weight, norm=ball, radii=RADII, starts=8)
    return _tends(path, solution, f"the {ball} path tends to the {target} direction")


def local_paths_tend_to_locally_optimal_directions(seed: int) -> Verdict:
    """The path kept in a cone around the solution of locally optimal tokens α tends to that solution, for
    the Frobenius and for the nuclear norm.

    Theorem B-7. Two draws (2, 3, 4), their locally optimal selections for each norm (enumerated, the first
    eight) that keep every better token at margin ≥ 1.5, in the cone 1 − cosine ≤ CONE. Wanted: margin
    ratio ≥ 1 − SMOOTHING on every one of them.
    """
    return _local(seed, stay=True)


def _local_paths_of_other_tokens(seed: int) -> Verdict:
    return _local(seed, stay=False)


def _local(seed: int, stay: bool) -> Verdict:
    evidence = []
    for norm in (frobenius, nuclear):
        solution, v = locally_optimal_selections(seed, norm, stay, runs=8)
        path = regularisation_path(
            solution.tokens, Linear(v), norm=norm, radii=RADII, around=solution, cone=CONE, starts=3
        )
        ratio = margin_ratio(path, solution)
        evidence += [
            at_least(f"margin ratio, {norm}", ratio[:, -1].min(), 1 - SMOOTHING),
            told(f"share of selections that stay, {norm}", float(np.mean(ratio[:, -1] >= 1 - SMOOTHING))),
        ]
    return judge("local paths tend to their own direction", *evidence)


def _tends(path: Path, solution: Solution, claim: str) -> Verdict:
    """Whether every run of a regularisation path tends to its solution, with a deficit of order 1/R."""
    ratio = margin_ratio(path, solution)
    growth = path.index[-1] / path.index[0]
    shrink = (1 - ratio[:, 0]) / np.maximum(1 - ratio[:, -1], 1e-12)
    return judge(
        claim,
        at_least("margin ratio", ratio[:, -1].min(), 1 - SMOOTHING),
        at_least("fall of the deficit, relative to that of 1/R", shrink.min() / growth, 0.5),
        told("largest 1 − cosine", (1 - cosine(path.W, solution.W)[:, -1]).max()),
        given={"the solution is certified": bool(np.all(solution.certified))},
        numbers={"index": path.index, "margin ratio": ratio},
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        the_path_of_W_tends_to_the_frobenius_direction,
        _path_of_KQ_against_frobenius,
        "W itself is bounded: here K and Q are",
        f"{PAPER}, Theorem B-2",
        "text",
    ),
    Claim(
        the_path_of_K_and_Q_tends_to_the_nuclear_direction,
        _path_of_W_against_nuclear,
        "K and Q are bounded: here W is",
        f"{PAPER}, Theorem B-2",
        "text",
    ),
    Claim(
        local_paths_tend_to_locally_optimal_directions,
        _local_paths_of_other_tokens,
        "the tokens are locally optimal",
        f"{PAPER}, Theorem B-7",
        "recalled-M",
    ),
)
