"""Programs of a head: the margins of W, and of its factors K and Q, as shares of the certified best ones."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attsvm.comparison.verdict import cosine
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, Schatten, frobenius, linf, nuclear, spectral
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable, Solution

NORMS: dict[str, Norm] = {
    "Frobenius": frobenius,
    "nuclear": nuclear,
    "spectral": spectral,
    "l1.1": Entrywise(1.1),
    "l3": Entrywise(3),
    "linf": linf,
}


FACTORS: dict[str, Norm] = {"nuclear": frobenius, "l1.1": NORMS["l1.1"], "l3": NORMS["l3"]}
"""A norm of W, and N of its factors with `rows_gain` N(K) N(Q) ≥ that norm of Kᵀ Q: so a best margin in it
bounds what factors can have. Where N is Frobenius some reach it. For lp and factors of r rows:

    ‖Σ_j k_j q_jᵀ‖_p ≤ Σ_j ‖k_j‖_p ‖q_j‖_p ≤ (Σ_j ‖k_j‖_p² Σ_j ‖q_j‖_p²)^½ ≤ r^max(0, 1 − 2/p) ‖K‖_p ‖Q‖_p
"""
ROUNDS, FAINT = 3, 1e-3
"""For other N: how often K and Q are solved for in turn, and rows that count as none, by the largest."""


def margins(
    tokens: Tokens, selected: Any, weights: dict[str, Any], name: str, factors: tuple[Any, Any] | None = None
) -> dict[str, Any]:
    """Of each weight its margin in the norm, its share of the certified best one, and the cosine to it.

    factors: K and Q of the first weight, see `of_factors`.
    """
    start, norm, conflict, solution = time.process_time(), NORMS[name], "", None
    spanned_tokens, basis = spanned(tokens) if isinstance(norm, Schatten) else (tokens, np.eye(tokens.e))
    try:
        solution = max_margin(spanned_tokens, selected, norm)
    except NotSeparable as error:
        conflict = str(error)[:120]
    record: dict[str, Any] = {"best": None if solution is None else _short(solution.margin)}
    for kind, W in weights.items():
        margin = least_margin(tokens, selected, W) / float(norm.value(W))
        record[f"{kind}own"] = _short(margin)
        record[f"{kind}ratio"] = None if solution is None else _short(margin / solution.margin)
        record[f"{kind}cosine"] = None if solution is None else _short(cosine(W[None], solution.W @ basis)[0])
    if factors is not None and solution is not None and name in FACTORS:
        record |= of_factors(tokens, selected, *factors, FACTORS[name], solution)
    certified = solution is not None and bool(solution.certified)
    seconds = round(time.process_time() - start, 2)
    return record | {"certified": certified, "conflict": conflict, "seconds": seconds}


def of_factors(
    tokens: Tokens, selected: Any, K: Any, Q: Any, N: Norm, solution: Solution
) -> dict[str, float]:
    """The margin of factors as a share of the best that factors can have.

        F(W) = min N(K) N(Q)  over  Kᵀ Q = W

    That is what steps in N on K and Q make small by the law of halves. No factors have more than `solution`,
    so that the share is at least `factors ratio`. Where N is Frobenius some have as much; for p < 2 the share
    is at most `factors most`, by factors that were found.
    """
    margin = factors_margin(tokens, selected, K, Q, N)
    out = {"factors ratio": _short(margin / solution.margin / rows_gain(N, len(K)))}
    if N.p < 2 and (margin_bound := found_factors(tokens, selected, N, solution.W)) > 0:
        out["factors most"] = _short(margin / margin_bound)
    return out


def rows_gain(N: Norm, rows: int) -> float:
    """How much more margin a row of K and of Q has when it is cut into so many equal ones: none if p ≤ 2."""
    return float(rows ** max(0.0, 1 - 2 / N.p))


def found_factors(tokens: Tokens, selected: Any, N: Norm, W: Any) -> float:
    """A margin that some factors have: from the singular directions of W on the queries, K and Q in turn.

    With one of them fixed the other is a program, whose answer has no smaller a margin. A local best.
    """
    _, basis = spanned(tokens)
    _, sizes, directions = np.linalg.svd(W @ basis.T, full_matrices=False)
    Q, largest = np.sqrt(sizes)[:, None] * directions @ basis, 0.0
    for _ in range(ROUNDS):
        try:
            K = _loud(
                max_margin(Tokens(tokens.keys, tokens.queries @ Q.T, mask=tokens.mask), selected, N).W.T
            )
            Q = max_margin(Tokens(tokens.keys @ K.T, tokens.queries, mask=tokens.mask), selected, N).W
        except NotSeparable:  # a faint piece was needed
            break
        largest = max(largest, factors_margin(tokens, selected, K, Q, N))
        Q = _loud(Q)
    return largest


def factors_margin(tokens: Tokens, selected: Any, K: Any, Q: Any, N: Norm) -> float:
    """margin(Kᵀ Q) / (N(K) N(Q))."""
    return least_margin(tokens, selected, K.T @ Q) / float(N.value(K) * N.value(Q))


def _loud(factor: Any) -> Any:
    """A factor without its faint rows: programs with coordinates of very different lengths take long."""
    sizes = np.abs(factor).max(1)
    return factor[sizes > FAINT * sizes.max()]


def spanned(tokens: Tokens) -> tuple[Tokens, Any]:
    """The program in an orthonormal basis (r, e) of the queries, few of many dimensions: W = W' basis.

    A row is (x_s − x_t) z_iᵀ. What W does beside the queries changes no margin and no Schatten norm for the
    better, and W' has the singular values of W' basis: the program is the same, and so is its certificate.
    """
    _, sizes, directions = np.linalg.svd(np.asarray(tokens.queries), full_matrices=False)
    basis = directions[sizes > len(sizes) * np.finfo(float).eps * sizes[0]]
    return Tokens(tokens.keys, tokens.queries @ basis.T, mask=tokens.mask), basis


def least_margin(tokens: Tokens, selected: Any, W: Any) -> float:
    """The least x_sᵀ W z − x_tᵀ W z over queries and their other tokens t."""
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries, optimize=True)
    rows = np.arange(len(selected))
    losing = np.where(tokens.mask, logits, -np.inf)
    losing[rows, selected] = -np.inf
    return float((logits[rows, selected] - losing.max(1)).min())


def _short(x: Any) -> float:
    return float(f"{float(x):.6g}")
