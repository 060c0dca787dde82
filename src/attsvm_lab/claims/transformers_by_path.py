"""Transformers as SVMs, regularisation paths: the weight of least loss in growing balls."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import expit

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.transformers_setup import PAPER, draws, locally_optimal_selections
from attsvm_lab.experiment import solved

RADII = (100.0, 300.0, 1000.0)
RIDGES = (1e-100, 1e-300)
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
def the_path_of_W_tends_to_the_frobenius_direction(seed: int) -> Verdict:
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
def the_path_of_K_and_Q_tends_to_the_nuclear_direction(seed: int) -> Verdict:
    """The product K Qᵀ of least loss with ‖K‖² + ‖Q‖² ≤ 2R tends in direction to the nuclear solutions of
    the best tokens.

    For (K, Q), same draws. The solution need not be unique, so the margin ratio in the
    nuclear norm is judged: it is 1 on the whole set of solutions and nowhere else.

    Factors as wide as the tokens, m = d; narrower ones are two claims below.
    """
    return _ball(seed, factors=True, target=att.nuclear)


def _ball(seed: int, factors: bool, target: att.Norm) -> Verdict:
    path, v = _path(seed, factors)
    solution = solved(path.tokens, att.best_tokens(path.tokens, v), target)
    ball = att.nuclear if factors else att.frobenius
    return _tends(path, solution, f"the {ball} path tends to the {target} direction")


@lru_cache(maxsize=2)
def _path(seed: int, factors: bool, ridge: bool = False) -> tuple[att.Path, Float]:
    """The path of K and Q, or of W, in balls or under a ridge, and its heads; one for a claim and a twin."""
    tokens, v = att.datasets.sphere(3, 4, 5, seed=draws(seed, 4))
    weight: att.Weight = att.KeyQuery() if factors else att.FullWeight()
    ball = att.nuclear if factors else att.frobenius
    settings: Any = {"ridge": RIDGES, "starts": 6} if ridge else {"radii": RADII}
    return att.regularisation_path(tokens, att.Linear(v), weight=weight, norm=ball, **settings), v


# ---------------------------------------------------------------------- vanishing ridge


@claim(
    f"{PAPER}, vanishing ridge; the constant is derived",
    "recalled-H",
    removed="the Frobenius program: here the nuclear one",
    twin=lambda seed: _vanishing_ridge(seed, factors=False, target=att.nuclear),
)
def the_ridge_path_of_W_tends_to_the_frobenius_direction(seed: int) -> Verdict:
    """The minimiser of L(W) + λ‖W‖²/2 tends in direction to the Frobenius solution of the best tokens as
    λ → 0; its deficit in margin falls like D/log(1/λ).

    The pull e^(−m_j) c_j of a support token with margin m_j is its share α_j of what the ridge takes, so
    that m_j = Λ + log(c_j/α_j), with c_j = |ℓ'| (γ_best − γ_j) and Λ ~ log 1/λ; α are the multipliers of the
    program, of sum one. Then ‖W‖ is Σ α_j m_j in units of the program's, and 1 − margin ratio = D ‖W^mm‖/‖W‖
    with D = Σ α_j log(c_j/α_j) − min_j log(c_j/α_j) [derived]. Four draws (3, 4, 5), λ = 1e-100 and 1e-300.
    Wanted: margin ratio ≥ 0.99, and the deficit at 1e-300 within 10 % of that.
    """
    return _vanishing_ridge(seed, factors=False, target=att.frobenius)


@claim(
    f"{PAPER}, vanishing ridge; the constant is derived",
    "recalled-H",
    removed="K and Q pay the ridge: here W does",
    twin=lambda seed: _vanishing_ridge(seed, factors=False, target=att.nuclear),
)
def the_ridge_path_of_K_and_Q_tends_to_the_nuclear_direction(seed: int) -> Verdict:
    """With a ridge on the factors K Qᵀ tends to the nuclear solutions of the best tokens as the ridge
    vanishes; its deficit in margin falls as above.

    The least (‖K‖² + ‖Q‖²)/2 of K Qᵀ = W is its nuclear norm: with λ‖W‖²_*/2, which is run, minimisers are
    the same, at other λ. Same draws and λ. D with the multipliers of the nuclear program.
    """
    return _vanishing_ridge(seed, factors=True, target=att.nuclear)


def _vanishing_ridge(seed: int, factors: bool, target: att.Norm) -> Verdict:
    path, v = _path(seed, factors, ridge=True)
    solution = solved(path.tokens, att.best_tokens(path.tokens, v), target)
    return judge(
        f"the ridge path tends to the {target} direction",
        at_least("margin ratio", att.margin_ratio(path, solution)[:, -1].min(), 0.99),
        *_closes(path, solution, v, 0.1),
    )


def _closes(path: att.Path, solution: att.Solution, v: Float, off: float) -> list[Evidence]:
    """How far the deficit at the end of a path is from D over the norm in units of the program's."""
    size = path.norm(solution.norm)[:, -1] / np.asarray(solution.norm.value(solution.W))
    constant = (1 - att.margin_ratio(path, solution)[:, -1]) * size / _spread(solution, v)
    return [
        at_most("deficit · ‖W‖/‖W^mm‖ / D, away from 1", np.abs(constant - 1).max(), off),
        reported("‖W‖/‖W^mm‖", size.min()),
    ]


def _spread(solution: att.Solution, v: Float) -> Float:
    """D = Σ α_j log(c_j/α_j) − min_j log(c_j/α_j) over the support tokens of each run."""
    scores = att.scores(solution.tokens, v)
    best = np.where(solution.selected, scores, 0.0).sum(-1, keepdims=True)
    share = solution.token_multipliers / solution.token_multipliers.sum((-2, -1), keepdims=True)
    support = share > 1e-9
    pull = np.where(support, (best - scores) * expit(-best), 1.0)
    logs = np.log(pull / np.where(support, share, 1.0))
    return np.asarray((share * logs).sum((-2, -1)) - np.where(support, logs, np.inf).min((-2, -1)))


# ---------------------------------------------------------------------- narrow factors, m < d


@claim(
    f"{PAPER}, regularisation paths, m < d",
    "recalled-M",
    removed="m is the rank of the nuclear solution: here one less",
    twin={"narrower": 1},
)
def factors_as_wide_as_the_rank_reach_the_nuclear_direction(seed: int, narrower: int = 0) -> Verdict:
    """Factors K, Q of width m < d have the nuclear solutions as the limit of their path if m is the rank of
    one.

    Four of 16 draws (3, 4, 5) whose nuclear solution has rank two. m = 2, R = 1000. Wanted: margin
    ratio ≥ 1 − SMOOTHING, with a deficit within 10 % of D, as above. The twin has m = 1.

    Surprise: of twenty seeds one has a D so large that the ratio is 0.976 there, as D says; on another none
    of the four starts finds the least loss, which sixteen do.
    """
    drawn, heads = _of_rank_two(3, 4, 5, range(16 * seed, 16 * seed + 16), 4)
    tokens, v = _some(drawn, heads, slice(4))
    solution = solved(tokens, att.best_tokens(tokens, v), att.nuclear)
    weight = att.KeyQuery(2 - narrower)
    path = att.regularisation_path(
        tokens, att.Linear(v), weight=weight, norm=att.nuclear, radii=[300.0, 1000.0], starts=4
    )
    return judge(
        "narrow factors reach the nuclear direction",
        at_least("margin ratio", att.margin_ratio(path, solution)[:, -1].min(), 1 - SMOOTHING),
        *_closes(path, solution, v, 0.1),
    )


@claim(
    f"{PAPER}, regularisation paths, m < d",
    "recalled-M",
    removed="the bound on the rank: the program of rank one is replaced by the nuclear one",
    twin={"bounded": False},
)
def the_path_of_factors_of_width_one_tends_to_the_program_of_rank_one(
    seed: int, bounded: bool = True
) -> Verdict:
    """Where m is below the rank of every nuclear solution the path of K, Q tends to the program with
    rank W ≤ m, of a smaller margin.

    m = 1 and two examples: W = k qᵀ is known by qᵀz = (1, x) up to its length, and for every x the shortest
    k is a prompt program; x is searched for on a grid, then nearer. Of 48 draws (2, 3, 4) those with a
    nuclear solution of rank two, and of these the four that lose most by rank one. Wanted at R = 1000: the
    margin of that program to 1 − SMOOTHING, and no more than it. The twin wants the nuclear margin.
    """
    drawn, heads = _of_rank_two(2, 3, 4, range(48 * seed, 48 * seed + 48), 4)
    norms = np.array([_nuclear_and_rank_one(drawn.run(r), heads[r]) for r in range(len(heads))])
    four = np.argsort(norms[:, 1] / norms[:, 0])[-4:]
    tokens, v = _some(drawn, heads, four)
    solution = solved(tokens, att.best_tokens(tokens, v), att.nuclear)
    best = norms[four, 0] / norms[four, 1] if bounded else np.ones(4)
    path = att.regularisation_path(
        tokens, att.Linear(v), weight=att.KeyQuery(1), norm=att.nuclear, radii=[300.0, 1000.0], starts=8
    )
    ratio = att.margin_ratio(path, solution)[:, -1] / best
    return judge(
        "factors of width one tend to the program of rank one",
        at_least("margin ratio to the program of rank one", ratio.min(), 1 - SMOOTHING),
        at_most("the same, from above", ratio.max(), 1 + 1e-4),
        reported("least loss by rank one, in nuclear norm", (norms[four, 1] / norms[four, 0]).min() - 1),
    )


def _of_rank_two(n: int, T: int, d: int, seeds: range, least: int) -> tuple[att.Tokens, Float]:
    """The draws whose nuclear solution has rank two, clearly, if there are so many at least."""
    tokens, v = att.datasets.sphere(n, T, d, seed=seeds)
    sigma = np.linalg.svd(solved(tokens, att.best_tokens(tokens, v), att.nuclear).W, compute_uv=False)
    two = (sigma[:, 1] > 0.2 * sigma[:, 0]) & (sigma[:, 2:] < 1e-4 * sigma[:, :1]).all(-1)
    index = np.flatnonzero(two)
    if len(index) < least:
        raise ValueError(f"{len(index)} of {len(seeds)} draws have a nuclear solution of rank two.")
    return _some(tokens, v, index)


def _some(tokens: att.Tokens, v: Float, index: Any) -> tuple[att.Tokens, Float]:
    return att.Tokens(tokens.keys[index], tokens.queries[index], tokens.labels[index]), v[index]


def _nuclear_and_rank_one(tokens: att.Tokens, v: Float) -> tuple[float, float]:
    """The least nuclear norms of all weights that select the best tokens, and of those of rank one."""
    best = att.best_tokens(tokens, v)
    return float(att.nuclear.value(solved(tokens, best, att.nuclear).W)), _rank_one(tokens, best)


def _rank_one(tokens: att.Tokens, selected: Bool) -> float:
    """The least ‖k‖ ‖q‖ with (x_best − x_t)ᵀ k qᵀ z ≥ 1, for two examples."""
    gram = np.linalg.inv(tokens.queries @ tokens.queries.T)

    def sizes(x: Float) -> Float:
        """For qᵀz = (1, x), each x of length (k,)."""
        a = np.stack([np.ones_like(x), x], axis=-1)
        keys = np.sign(a)[:, :, None, None] * tokens.keys
        some = att.max_margin(att.Tokens(keys), selected, required=1 / np.abs(a))
        length = np.where(some.separable, np.linalg.norm(some.W[..., 0], axis=-1), np.inf)
        return np.asarray(length * np.sqrt(np.einsum("ki,ij,kj->k", a, gram, a)))

    logs = np.concatenate([np.linspace(-4, 4, 81)] * 2)
    sign = np.repeat([1.0, -1.0], 81)
    for spacing in (0.1, 0.005, 0.00025):
        size = sizes(sign * np.exp(logs))
        least = int(size.argmin())
        logs, sign = logs[least] + spacing * np.linspace(-1, 1, 41), np.full(41, sign[least])
    return float(size.min())


# ---------------------------------------------------------------------- local paths


@claim(
    f"{PAPER}, local regularisation paths",
    "recalled-M",
    removed="the tokens are locally optimal",
    twin={"stay": False},
)
def local_paths_tend_to_locally_optimal_directions(seed: int, stay: bool = True) -> Verdict:
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
            at_least(f"margin ratio, {norm}", ratio[:, -1].min(), 1 - SMOOTHING),
            reported(f"share of selections that stay, {norm}", float(np.mean(ratio[:, -1] >= 1 - SMOOTHING))),
        ]
    return judge("local paths tend to their own direction", *evidence)


def _tends(path: att.Path, solution: att.Solution, claim: str) -> Verdict:
    """Whether every run of a regularisation path tends to its solution, with a deficit of order 1/R."""
    ratio = att.margin_ratio(path, solution)
    growth = path.index[-1] / path.index[0]
    shrink = (1 - ratio[:, 0]) / np.maximum(1 - ratio[:, -1], 1e-12)
    return judge(
        claim,
        at_least("margin ratio", ratio[:, -1].min(), 1 - SMOOTHING),
        at_least("fall of the deficit, relative to that of 1/R", shrink.min() / growth, 0.5),
        reported("largest 1 − cosine", (1 - att.cosine(path.W, solution.W)[:, -1]).max()),
        numbers={"index": path.index, "margin ratio": ratio},
    )
