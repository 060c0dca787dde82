"""Claims of "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention" (Sheen et al. 2024).

The flow on factors W = K Qᵀ is followed by descent with small or normalised steps, exponential loss,
on data where all losing tokens of an example score alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab import programs
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import equal_losers, first_tokens
from attsvm_lab.experiment import Experiment

N, T, D, WIDE = 3, 4, 5, 12
STEPS, RECORD = 30_000, (100, 1_000, 10_000)
ENOUGH = 0.97
"""Margin ratio after STEPS normalised steps: coordinates that start late catch up polynomially only."""
NORMALISED = att.steepest(att.frobenius, 0.1)
TIME, RATES = 10.0, (0.2, 0.05, 0.0125)
EXPONENTIAL = {"loss": att.exponential}
REFERENCE = "Sheen et al. 2024, arXiv 2403.08699"


# ---------------------------------------------------------------------- the conserved balance


@claim(
    f"{REFERENCE}, balance of the factors",
    "derived",
    removed="one common step: K and Q are normalised each by its own gradient",
    twin={"separate": True},
)
def key_query_descent_conserves_the_balance(seed: int, separate: bool = False) -> Verdict:
    """Gradient flow on (K, Q) conserves KᵀK − QᵀQ; gradient descent drifts from it in proportion to lr.

    One common step for K and Q; three rates over the same flow time 10. Every step adds
    lr² (∇_KᵀL ∇_KL − ∇_QᵀL ∇_QL), so the drift over a fixed time is linear in lr. Wanted: exponent of
    the drift in lr between 0.97 and 1.03, and a drift of at most 0.3 % of how far KᵀK itself moved.
    """
    drifts, moved = balance_drifts(seed, separate)
    rate = programs.fit_rate(RATES, drifts, last=100)
    return judge(
        "KᵀK − QᵀQ is conserved up to O(lr)",
        at_least("exponent of the drift in lr", rate.exponent, 0.97),
        at_most("the same exponent, from above", rate.exponent, 1.03),
        at_most("drift relative to the movement, smallest lr", drifts[-1] / moved, 0.003),
    )


def balance_drifts(seed: int, separate: bool = False) -> tuple[list[float], float]:
    """How far KᵀK − QᵀQ drifts in the time 10 at each of the RATES, and how far KᵀK moves at the last."""
    drifts, moved = [], 0.0
    for lr in RATES:
        rule = att.steepest(att.frobenius, lr) if separate else att.gd(lr)
        weight = att.KeyQuery(separate=separate)
        path = flow(seed, weight, rule, round(TIME / lr), att.uniform(seed), record=(1,)).path
        assert path.K is not None and path.Q is not None
        keys, queries = (np.swapaxes(A, -1, -2) @ A for A in (path.K, path.Q))
        drifts.append(float(np.linalg.norm((keys - queries)[-1] - (keys - queries)[0])))
        moved = float(np.linalg.norm(keys[-1] - keys[0]))
    return drifts, moved


# ---------------------------------------------------------------------- the norm of the limit


@claim(
    f"{REFERENCE}, main theorem",
    "paper",
    removed="gradient steps of K and Q: here spectral ones",
    twin={"norm": att.spectral},
)
def key_query_descent_tends_to_the_nuclear_direction(seed: int, norm: att.Norm = att.frobenius) -> Verdict:
    """Trained factors W = K Qᵀ tend to the max-margin direction of the nuclear norm.

    Separable best tokens, losing tokens of equal score, exponential loss, normalised descent from a
    random start. Wanted: nuclear margin ratio ≥ 0.97 after 30,000 steps.
    The broken twin trains the same factors by spectral steps, which do not prefer low rank. (W trained
    itself, whose limit is the Frobenius direction, reaches this nuclear margin on 3 of 20 seeds.)

    Partial: normalised descent from generic starts. The paper proves it of the flow, for factors aligned with
    the data at the start; what alignment decides is the subject of the last claim here.
    """
    runs = flow(seed, att.KeyQuery(), att.steepest(norm, 0.1), STEPS, att.uniform(seed))
    return _tends_to(runs, att.nuclear)


@claim(
    f"{REFERENCE}, diagonal regime",
    "recalled-M",
    removed="the factors: the diagonal itself is trained",
    twin=lambda seed: _diagonal_limit(seed, att.Diagonal(), np.zeros(WIDE)),
)
def diagonal_key_query_descent_tends_to_the_l1_direction(seed: int) -> Verdict:
    """Diagonal factors W = diag(k ⊙ q) tend to the sparsest max-margin diagonal: the l1 program.

        min ‖β‖₁  subject to  Σ_j β_j (x_best − x_t)_j z_j ≥ 1

    That is the prompt program of the keys x ⊙ z. Start k = 1, q = 0: no coordinate is ahead.
    Wanted: l1 margin ratio ≥ 0.97 after 30,000 normalised steps. The twin trains the diagonal itself.

    Surprise: the start matters at any finite time. A coordinate grows like t^(|g_j|/max|g|) only, so from
    random k, q one that starts behind may stay behind: on 20 seeds of these sizes, after 30,000 steps, two
    runs attend to other tokens than the best, and l1 ratios for the attended tokens go down to 0.11.
    """
    return _diagonal_limit(seed, att.Diagonal(2), (np.ones(WIDE), np.zeros(WIDE)))


def _diagonal_limit(seed: int, weight: att.Weight, init: Any) -> Verdict:
    return _tends_to(flow(seed, weight, NORMALISED, STEPS, init, d=WIDE), att.l1)


def _tends_to(run: Experiment, norm: att.Norm) -> Verdict:
    ratio, path = run.ratio(norm, first_tokens(run.tokens)), run.path
    return judge(
        f"W/N(W) tends to the {norm} max-margin direction",
        at_least("margin ratio", ratio[-1], ENOUGH),
        reported("margin ratio at a third of the steps", ratio[-2]),
        numbers={"index": path.index, "margin ratio": ratio},
    )


# ---------------------------------------------------------------------- aligned factors


@claim(
    f"{REFERENCE}, aligned regime",
    "recalled-M",
    removed="the alignment of Q(0) with the features",
    twin={"aligned": False},
)
def aligned_factors_stay_aligned(seed: int, aligned: bool = True) -> Verdict:
    """Factors whose singular spaces are the data's features at the start keep them: Uᵀ W V stays diagonal.

    Features: example i has query V_i and token differences along U_i, for orthogonal U and V; the start
    is K = U Λ_K, Q = V Λ_Q. Gradient descent, lr 0.05. Wanted: off-diagonal part of Uᵀ W V ≤ 1e-10 of
    its size (rounding), while W at least doubles. The twin turns Q(0) out of the features.
    """
    run, (U, V) = aligned_run(seed, aligned, att.gd(0.05), 20_000)
    path = run.path
    features = U.T @ path.W @ V
    off = features - features * np.eye(D)
    return judge(
        "Uᵀ W V stays diagonal",
        at_most("off-diagonal share of Uᵀ W V", att.frobenius.value(off[-1]) / path.norm()[-1], 1e-10),
        at_least("growth of W", path.norm()[-1] / path.norm()[0], 2.0),
    )


@claim(
    f"{REFERENCE}, aligned regime",
    "recalled-M",
    removed="the alignment of Q(0) with the features",
    twin={"aligned": False},
)
def aligned_factors_tend_to_the_diagonal_nuclear_direction(seed: int, aligned: bool = True) -> Verdict:
    """General weights whose singular spaces are aligned with the data's features at the start tend to the
    nuclear max-margin direction U diag(1/g) Vᵀ, g_i the least gap of feature i.

    The data of the claim above; 10,000 normalised steps of 0.05. Wanted: cosine to that direction ≥ 0.9999,
    nuclear margin ratio ≥ 0.999. The twin turns Q(0) out of the features.

    Surprise: the twin has the margin, too. A program on these data knows the diagonal of UᵀWV only, and every
    positive semidefinite matrix with that diagonal has the same nuclear norm: what an unaligned start put
    beside the diagonal may stay. Alignment decides which of the many solutions is reached, not the norm; nor
    do these data tell the nuclear from the Frobenius program, whose solution is the diagonal one.
    """
    run, (U, V) = aligned_run(seed, aligned, att.steepest(att.frobenius, 0.05), 10_000)
    path, share = run.path, run.share(att.nuclear, first_tokens(run.tokens))
    return judge(
        "aligned factors tend to the diagonal nuclear direction",
        at_least("cosine to it", att.cosine(path.W, diagonal_program(path, U, V))[-1], 0.9999),
        at_least("nuclear margin ratio", share, 0.999),
        at_most("the same, from above", share, 1 + 1e-9),
    )


def diagonal_program(path: att.Path, U: Float, V: Float) -> Float:
    """U diag(1/g) Vᵀ: the smallest diagonal in the features with margin 1, g_i the least gap of example i."""
    along = np.einsum("itd,di->it", path.tokens.keys, U)
    return np.asarray(U @ np.diag(1 / (along[:, :1] - along[:, 1:]).min(-1)) @ V.T)


def aligned_run(
    seed: int, aligned: bool, rule: Any, steps: int, record: Any = RECORD
) -> tuple[Experiment, tuple[Float, Float]]:
    """Factors on data of features U, V, started at K = U Λ_K, Q = V Λ_Q or, not aligned, Q = V R Λ_Q."""
    rng = np.random.Generator(np.random.PCG64(seed))
    U, V, R = (np.linalg.qr(rng.standard_normal((D, D)))[0] for _ in range(3))
    lengths = np.concatenate([np.full((D, 1), 1.0), -rng.random((D, T - 1))], axis=1)
    keys = lengths[..., None] * U.T[:, None, :]
    scores = np.zeros((D, T, 1))
    scores[:, 0] = 1
    start = [0.3 + 0.4 * rng.random(D) for _ in range(2)]
    K, Q = U * start[0], V @ (np.eye(D) if aligned else R) * start[1]
    tokens = att.Tokens(keys, V.T, values=scores)
    run = Experiment(tokens, np.ones(1), rule, steps, att.KeyQuery(), (K, Q), record, EXPONENTIAL)
    return run, (U, V)


# ---------------------------------------------------------------------- details


def flow(
    seed: int, weight: att.Weight, rule: Any, steps: int, start: Any, *, d: int = D, record: Any = RECORD
) -> Experiment:
    """Descent on the exponential loss, on the data of all claims here but those on aligned factors."""
    return Experiment(*equal_losers(N, T, d, seed), rule, steps, weight, start, record, EXPONENTIAL)
