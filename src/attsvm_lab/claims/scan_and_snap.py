"""Claims on "Scan and Snap" (Tian et al. 2023): which tokens one layer attends to first, and where it stops.

One query and N next tokens (classes). A text of class i is long: token l has the share P_il of it. Attention
on a token is s_il ∝ P_il e^(z_l), the attended text is f_i = s_i/‖s_i‖, and the decoder's logits are Y f_i.
Attention z and decoder Y are trained together from zero on the log-loss. A distinct token is one of the texts
of one class, a common token one of the texts of all. The abstract is known; this model is recalled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.instances import r2

PAPER = "Tian, Wang, Chen, Du 2023, Scan and Snap, arXiv 2305.16380"
CLASSES, COMMON, DISTINCT = 3, 4, 5
"""Next tokens; tokens of all their texts; tokens of the texts of each alone."""
EARLY_LR, EARLY_STEPS = 0.005, 10
"""Steps of both layers at the start, where the closed form of the second order holds."""
SLOWER, FASTER, STEPS = 0.1, 0.05, 2_000
"""Attention's rate beside the decoder's rate 1; the growth of both per step; log t = 103 at the end."""
LATE = 15.0
"""log t from which the growth of common logits is judged."""


class Scan(NamedTuple):
    """Records of a run: log of its time (k,), attention's logits (k, V), attention (k, N, V)."""

    log_time: Float
    logits: Float
    attention: Float


def token_shares(seed: int, common: int = COMMON) -> Float:
    """P (N, V), rows sum to one: common tokens first, then the distinct ones of each class.

    A common token's frequency differs between classes by up to 20 %, those of distinct tokens by up to 7
    times.
    """
    rng = np.random.default_rng(seed)
    frequency = np.zeros((CLASSES, common + CLASSES * DISTINCT))
    frequency[:, :common] = rng.uniform(0.5, 1.5, common) * rng.uniform(0.8, 1.2, (CLASSES, common))
    for i in range(CLASSES):
        start = common + i * DISTINCT
        frequency[i, start : start + DISTINCT] = rng.uniform(0.2, 1.5, DISTINCT)
    return np.asarray(frequency / frequency.sum(-1, keepdims=True))


def gradients(P: Float, z: Float, Y: Float, normalised: bool = True) -> tuple[Float, Float, Float]:
    """Attention (N, V), and minus the gradients of the mean log-loss in z (V,) and Y (V, N)."""
    weights = P * np.exp(z - z.max())
    s = weights / weights.sum(-1, keepdims=True)
    length = np.linalg.norm(s, axis=-1, keepdims=True) if normalised else np.ones((len(P), 1))
    f = s / length
    logits = f @ Y
    others = np.exp(logits - logits.max(-1, keepdims=True))
    others = others / others.sum(-1, keepdims=True) * (1 - np.eye(len(P)))
    # The label's residual = the sum of the others: one minus its probability cancels to 0 late in training.
    residual = (np.diag(others.sum(-1)) - others) / len(P)
    slope = residual @ Y.T
    if normalised:
        slope = (slope - f * (f * slope).sum(-1, keepdims=True)) / length
    return s, (s * (slope - (s * slope).sum(-1, keepdims=True))).sum(0), f.T @ residual


def scan(
    P: Float,
    rates: tuple[float, float],
    steps: int,
    record: Sequence[int],
    faster: float = 0.0,
    normalised: bool = True,
) -> Scan:
    """Descent from zero; rates: of attention and decoder, both times e^(faster k) in step k."""
    z, Y = np.zeros(P.shape[1]), np.zeros(P.shape[::-1])
    recorded, time, records = set(record), 0.0, []
    for step in range(1, steps + 1):
        length = math.exp(faster * step)
        s, dz, dY = gradients(P, z, Y, normalised)
        if step in recorded:
            records.append((math.log(time or 1.0), z, s))
        z, Y, time = z + rates[0] * length * dz, Y + rates[1] * length * dY, time + length
    return Scan(*(np.array(column) for column in zip(*records, strict=True)))


# ---------------------------------------------------------------------- the scan


@claim(
    f"{PAPER}, abstract",
    "paper summary",
    removed="common tokens: the classes share none",
    twin={"common": 0},
)
def attention_moves_to_distinct_tokens_by_the_square_of_their_frequency(
    seed: int, common: int = COMMON
) -> Verdict:
    """Attention starts uniform, leaves the tokens that occur with every next token, and moves to distinct
    tokens, most to those that co-occur most with the query.

    The abstract's words. Derived for the recalled model, to second order in time from zero, with the mean f̄
    of the attended texts over the N classes and lr the rates of both layers:

        z_l = lr² t²/(2N²) Σ_i f_il [(f_il − f̄_l) − f_il Σ_k f_ik (f_ik − f̄_k)],

    which for a distinct token is P_il² times a factor of its class, positive only where classes share tokens.
    Ten steps of 0.005. Wanted: every distinct logit rises, every common one falls, and all are within 2 % of
    the formula, relative to the largest. The twin's classes share no token, and nothing moves.

    Partial: one query, and texts so long that frequencies are shares.
    """
    P = token_shares(seed, common)
    z = scan(P, (EARLY_LR, EARLY_LR), EARLY_STEPS + 1, [EARLY_STEPS + 1]).logits[-1]
    growth = z / (EARLY_LR**2 * EARLY_STEPS * (EARLY_STEPS - 1) / 2)
    predicted = _second_order(P)
    return judge(
        "attention moves to distinct tokens by the square of their frequency",
        at_least("share of distinct tokens whose logit rises", (growth[common:] > 1e-6).mean(), 1.0),
        at_least("share of common tokens whose logit falls", (growth[:common] < -1e-6).sum() / COMMON, 1.0),
        at_most(
            "error of the formula",
            np.abs(growth - predicted).max() / max(np.abs(predicted).max(), 1e-6),
            0.02,
        ),
        reported("largest logit of a common token over the largest", growth.min() / growth.max()),
    )


def _second_order(P: Float) -> Float:
    """2 z/(lr² t²) for t → 0 (V,)."""
    f = P / np.linalg.norm(P, axis=-1, keepdims=True)
    apart = f - f.mean(0)
    return np.asarray((f * (apart - f * (f * apart).sum(-1, keepdims=True))).sum(0) / len(P) ** 2)


# ---------------------------------------------------------------------- the snap


@claim(
    f"{PAPER}, abstract",
    "paper summary",
    removed="the length of the attended text divided out",
    twin={"normalised": False},
)
def the_scan_stops_before_one_token_takes_all(seed: int, normalised: bool = True) -> Verdict:
    """Where the decoder learns faster than attention, the scan slows down and leaves a nearly fixed mixture
    of distinct tokens: no winner takes all.

    The abstract's words; that growth like log t becomes growth like log log t is recalled-M. Attention at a
    tenth of the decoder's rate, 2,000 steps that grow, log t = 103. Wanted: the largest share that a token
    has of the distinct tokens of its class ends at 1 to 1.4 times that of the start, and moves by at most
    2 % while log t doubles; from log t = 15 on the mean logit of common tokens is a line in log log t
    (R² ≥ 0.997) of slope −0.6 to −0.9. The twin does not divide the attended text by its length.

    Partial: one query; the step counts and embeddings of the paper's experiments are not known to us.

    Surprise: what stops the scan is that division. Without it one token of each class takes all at every
    ratio of rates that was tried, 0.1, 1 and 10; with it none does while steps are short enough.
    """
    run = _late(seed, normalised)
    distinct = run.attention[..., COMMON:]
    top = (distinct / distinct.sum(-1, keepdims=True)).max(-1)
    half = int(np.searchsorted(run.log_time, run.log_time[-1] / 2))
    late = run.log_time >= LATE
    x, common = np.log(run.log_time[late]), run.logits[late, :COMMON].mean(-1)
    return judge(
        "the scan stops before one token takes all",
        at_most("largest share at the end, over that of the start", (top[-1] / top[0]).max(), 1.4),
        at_least("the same, least over the classes", (top[-1] / top[0]).min(), 1.0),
        at_most("change of the shares while log t doubles", np.abs(top[-1] / top[half] - 1).max(), 0.02),
        at_least("R² of common logits against log log t", r2(x, common), 0.997),
        at_most("their slope", np.polyfit(x, common, 1)[0], -0.6),
        at_least("the same, from below", np.polyfit(x, common, 1)[0], -0.9),
        reported("attention left on common tokens", run.attention[-1, :, :COMMON].sum(-1).max()),
    )


@lru_cache(maxsize=4)
def _late(seed: int, normalised: bool) -> Scan:
    record = {1, *np.unique(np.geomspace(200, STEPS, 30).round()).astype(int).tolist()}
    return scan(token_shares(seed), (SLOWER, 1.0), STEPS, sorted(record), FASTER, normalised)
