"""Transformers as SVMs, regularisation paths: the weight of least loss in growing balls."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import attsvm as att
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import solved
from attsvm_lab.claims.transformers_setup import PAPER, draws, locally_optimal_selections

RADII = (100.0, 300.0, 1000.0)
CONE = 0.01
"""The theorem promises a cone that depends on α; this one tilts margins by up to about 0.4."""
SMOOTHING = 0.02
"""Softmax at radius R misses the best margin by O(log(nT)/(R·margin)): about 0.01 at R = 1,000 here."""


@claim(
    f"{PAPER}, regularisation paths",
    "text",
    removed="W itself is bounded: here K and Q are",
    twin=lambda seed: _ball(seed, factors=True, target=att.frobenius),
)
def the_path_of_W_tends_to_the_frobenius_direction(seed: int) -> att.Verdict:
    """The weight of least loss with ‖W‖_F ≤ R tends in direction to the Frobenius solution of the best
    tokens.

    For W: decreasing loss, unique best tokens, separable. Four draws (3, 4, 5), R = 100, 300,
    1000. Wanted: margin ratio ≥ 1 − SMOOTHING at the end, and a deficit that falls like 1/R.
    """
    return _ball(seed, factors=False, target=att.frobenius)


@claim(
    f"{PAPER}, regularisation paths",
    "text",
    removed="K and Q are bounded: here W is",
    twin=lambda seed: _ball(seed, factors=False, target=att.nuclear),
)
def the_path_of_K_and_Q_tends_to_the_nuclear_direction(seed: int) -> att.Verdict:
    """The product K Qᵀ of least loss with ‖K‖² + ‖Q‖² ≤ 2R tends in direction to the nuclear solutions of
    the best tokens.

    For (K, Q), same draws. The solution need not be unique, so the margin ratio in the
    nuclear norm is judged: it is 1 on the whole set of solutions and nowhere else.

    Partial: factors as wide as the tokens, m = d; the program with a bound on the rank, m < d, is not
    here.
    """
    return _ball(seed, factors=True, target=att.nuclear)


def _ball(seed: int, factors: bool, target: att.Norm) -> att.Verdict:
    tokens, v = att.datasets.sphere(3, 4, 5, seed=draws(seed, 4))
    solution = solved(tokens, att.best_tokens(tokens, v), target)
    ball = att.nuclear if factors else att.frobenius
    return _tends(_path(seed, factors), solution, f"the {ball} path tends to the {target} direction")


@lru_cache(maxsize=2)
def _path(seed: int, factors: bool) -> att.Path:
    """The path of K and Q, or of W: one for a claim and for the twin of the other."""
    tokens, v = att.datasets.sphere(3, 4, 5, seed=draws(seed, 4))
    weight: att.Weight = att.KeyQuery() if factors else att.FullWeight()
    ball = att.nuclear if factors else att.frobenius
    return att.regularisation_path(tokens, att.Linear(v), weight=weight, norm=ball, radii=RADII)


@claim(
    f"{PAPER}, local regularisation paths",
    "recalled-M",
    removed="the tokens are locally optimal",
    twin={"stay": False},
)
def local_paths_tend_to_locally_optimal_directions(seed: int, stay: bool = True) -> att.Verdict:
    """The path kept in a cone around the solution of locally optimal tokens α tends to that solution, for
    the Frobenius and for the nuclear norm.

    Two draws (2, 3, 4), their locally optimal selections for each norm (enumerated, the first
    eight) that keep every better token at margin ≥ 1.5, in the cone 1 − cosine ≤ CONE. Wanted: margin
    ratio ≥ 1 − SMOOTHING on every one of them.

    Partial: only selections whose better-scoring tokens have margin ≥ 1.5; the theorem has all locally
    optimal ones.
    """
    evidence = []
    for norm in (att.frobenius, att.nuclear):
        solution, v = locally_optimal_selections(seed, norm, stay, runs=8)
        path = att.regularisation_path(
            solution.tokens, att.Linear(v), norm=norm, radii=RADII, around=solution, cone=CONE, starts=3
        )
        ratio = att.margin_ratio(path, solution)
        evidence += [
            att.at_least(f"margin ratio, {norm}", ratio[:, -1].min(), 1 - SMOOTHING),
            att.reported(
                f"share of selections that stay, {norm}", float(np.mean(ratio[:, -1] >= 1 - SMOOTHING))
            ),
        ]
    return att.judge("local paths tend to their own direction", *evidence)


def _tends(path: att.Path, solution: att.Solution, claim: str) -> att.Verdict:
    """Whether every run of a regularisation path tends to its solution, with a deficit of order 1/R."""
    ratio = att.margin_ratio(path, solution)
    growth = path.index[-1] / path.index[0]
    shrink = (1 - ratio[:, 0]) / np.maximum(1 - ratio[:, -1], 1e-12)
    return att.judge(
        claim,
        att.at_least("margin ratio", ratio[:, -1].min(), 1 - SMOOTHING),
        att.at_least("fall of the deficit, relative to that of 1/R", shrink.min() / growth, 0.5),
        att.reported("largest 1 − cosine", (1 - att.cosine(path.W, solution.W)[:, -1]).max()),
        numbers={"index": path.index, "margin ratio": ratio},
    )
