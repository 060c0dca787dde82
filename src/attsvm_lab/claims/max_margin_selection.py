"""Max-Margin Token Selection: where gradient descent and the regularisation path go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float
from attsvm_lab.claims.claim import REFUTED, claim
from attsvm_lab.claims.prompt_instances import (
    HEAD,
    PAPER,
    best_indices,
    enlarged,
    lipschitz,
    log_slope,
    scored,
    small,
    unit,
)
from attsvm_lab.experiment import Experiment, solved

RATE = 0.02
"""Constant step; each claim checks that it is at most 1/L_p. One value, because it is compiled in."""
PAIR = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
"""Two inputs, the best token first, on which gradient descent keeps a losing token for ever."""


# ---------------------------------------------------------------------- global


@claim(
    f"{PAPER}, global regularisation path", "recalled-H", removed="unique best tokens", twin={"unique": False}
)
def the_regularisation_path_tends_to_the_best_direction(seed: int, unique: bool = True) -> Verdict:
    """The prompt of smallest loss in the ball of radius R has the direction of p^mm(best) as R → ∞.

    Hypotheses: a decreasing loss, one best token per input, p^mm exists; nothing about the other scores.
    Measured: 1 − cosine at R = 300 ‖p^mm‖; the offset from the ray stays bounded, so that it falls like
    1/R², and must do so by a factor ≥ 4 from R = 100 ‖p^mm‖ (9 in the limit).
    """
    tokens = small(seed)
    best, gamma = best_indices(tokens), tokens.values[..., 0]
    if not unique:
        tokens = scored(tokens.keys, np.minimum(gamma, np.sort(gamma, axis=-1)[:, -2:-1]))
    solution = solved(tokens, best)
    radii = np.linalg.norm(solution.W) * np.array([10.0, 30.0, 100.0, 300.0])
    path = att.regularisation_path(tokens, att.Linear(HEAD), radii=radii, starts=4)
    off = 1 - att.cosine(path.W, solution.W)
    return judge(
        "W_R/R tends to p^mm(best)",
        at_most("1 − cosine at R = 300 ‖p^mm‖", off[-1], 1e-3),
        at_most("the same, relative to R = 100 ‖p^mm‖", off[-1] / off[-2], 1 / 4),
        numbers={"index": path.index, "cosine": 1 - off},
    )


@claim(
    f"{PAPER}, global convergence of gradient descent, for n = 1",
    "recalled-H",
    removed="Assumption B: equal losing scores",
    twin={"equal": False},
)
def gradient_descent_on_one_input_tends_to_its_best_token_from_anywhere(
    seed: int, equal: bool = True
) -> Verdict:
    """With one input, gradient descent with η ≤ 1/L_p from any start has p(t)/‖p(t)‖ → p^mm(best).

    Hypotheses: n = 1, a decreasing loss, Assumption B (equal losing scores), p^mm exists. Eight tokens
    around the circle, one start on the direction of each. Constant steps grow the prompt like p^mm ln t
    plus a bounded offset, so that the angle closes like 1/ln t only; the offset cancels in the growth
    between two steps. Measured: the direction of p(20,000) − p(5,000) for constant steps from length 2,
    and the direction of the prompt itself after 4,000 normalised steps from length 20.

    Partial: one input only; for two it is false, as the next claim shows.
    """
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * (np.arange(8) + 0.3 * rng.random(8)) / 8
    gamma = np.where(np.arange(8) == 0, 1.0, 0.0 if equal else rng.uniform(-1, 1, 8))
    tokens = scored(np.stack([np.cos(angle), np.sin(angle)], -1)[None], gamma[None])
    mm = solved(tokens, [0])
    towards = unit(solved(tokens, np.arange(8)[:, None]).W)
    constant = Experiment(tokens, HEAD, att.gd(RATE), 20_000, start=2 * towards, record=[5_000]).path
    rule = att.steepest(att.frobenius, 0.02)
    normalised = Experiment(enlarged(tokens, 20), HEAD, rule, 4_000, start=towards).path
    return judge(
        "gradient descent on one input tends to p^mm(best)",
        at_least(
            "least cosine of the growth, constant steps", att.cosine(_growth(constant), mm.W).min(), 0.99
        ),
        at_most(
            "largest 1 − cosine, normalised steps", 1 - att.cosine(normalised.W, mm.W)[:, -1].min(), 1e-6
        ),
        reported("least cosine, constant steps", att.cosine(constant.W, mm.W)[:, -1].min()),
        given={"η ≤ 1/L_p": _short_steps(tokens)},
    )


@claim(
    f"{PAPER}, global convergence of gradient descent, for any n",
    REFUTED,
    removed="Assumption B: a third token scores between the two",
    twin={"keys": np.concatenate([PAIR, [[[-1.0, -1.0]]] * 2], axis=1), "scores": (1.0, 0.0, 0.5)},
)
def gradient_descent_from_anywhere_tends_to_the_best_direction(
    seed: int, keys: Float = PAIR, scores: Sequence[float] = (1.0, 0.0)
) -> Verdict:
    """With any number of inputs, gradient descent from any start tends to p^mm(best) under Assumption B.

    Refuted for n ≥ 2, as recalled. Two inputs of two tokens, so that Assumption B is empty, with
    differences best − other r_1 = (1, 0) and r_2 = (−2, 1): p^mm(best) = (1, 3). From p(0) = (R, 0) the
    first input pulls along r_1 with e^(−R), the second along r_2 with e^(−2R) only: p grows along (1, 0)
    for ever and the second input keeps its losing token. The choice (best, losing) is locally optimal,
    since (1, 0) is its program and only input 1 supports it; so the local theorem, which is true,
    contradicts this one. Input 2 saturates before it can turn. True are the case n = 1 and, for every n,
    ‖p(t)‖ → ∞: see the neighbouring claims. Here the pair is rotated at random and run from R = 10
    with normalised steps and from R = 5 with constant steps η ≤ 1/L_p.
    """
    angle = np.random.default_rng(seed).uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    tokens = scored(keys @ turn, np.array([scores, scores]))
    start = turn[0][None, :, None]
    run = Experiment(tokens, HEAD, att.steepest(att.frobenius, 0.1), 2_000, start=10 * start).path
    constant = Experiment(tokens, HEAD, att.gd(RATE), 20_000, start=5 * start, record=[5_000]).path
    mm = solved(tokens, np.zeros((1, 2), int))
    return judge(
        "gradient descent from anywhere tends to p^mm(best)",
        at_least("cosine, normalised steps", att.cosine(run.W, mm.W)[0, -1], 0.999),
        at_least("cosine of the growth, constant steps", att.cosine(_growth(constant), mm.W)[0, -1], 0.99),
        reported("attention of input 2 on its best token", run.attention[0, -1, 1, 0]),
        reported("norm", run.norm()[0, -1]),
        given={"η ≤ 1/L_p": _short_steps(tokens), "p^mm(best) exists": bool(mm.separable[0])},
    )


@claim(
    f"{PAPER}, global convergence of gradient descent, growth of the norm",
    "recalled-H",
    removed="p^mm(best) exists",
    twin={"separable": False},
)
def gradient_descent_never_stops_growing(seed: int, separable: bool = True) -> Verdict:
    """Under Assumption B gradient descent with η ≤ 1/L_p from any start has ‖p(t)‖ → ∞.

    Hypotheses: a decreasing loss, Assumption B (scores 1 and 0), p^mm(best) exists; any n. Nine random
    starts, 20,000 steps. p grows like ln t times the program of the inputs that it wins, because the others
    saturate and pull no more. That program's product with p^mm is at least the square of its length, and so
    at least ¼: no two unit tokens are further apart than 2 [derived]. Measured: the growth of ⟨p, p^mm⟩ per
    unit of ln t over the second half. In the twin the best token is the mean of the others, and p^mm is that
    of the tokens before this change.
    """
    axis = solved(_two_scores(seed, True), [0, 0]).W
    tokens = _two_scores(seed, separable)
    starts = np.random.default_rng(0).standard_normal((9, tokens.d, 1))
    run = Experiment(tokens, HEAD, att.gd(RATE), 20_000, start=starts).path
    growth = (_growth(run)[:, 0] * axis).sum((-2, -1)) / np.log(2)
    return judge(
        "‖p(t)‖ → ∞",
        at_least("least growth of ⟨p, p^mm⟩ per unit of ln t", growth.min(), 0.25),
        reported("least norm at the end", run.norm()[:, -1].min()),
        given={"η ≤ 1/L_p": _short_steps(tokens)},
    )


def _two_scores(seed: int, separable: bool) -> att.Tokens:
    """Unit tokens, of which the first scores 1 and the others 0; else it lies amid the others."""
    keys = small(seed).keys.copy()
    if not separable:
        keys[:, 0] = keys[:, 1:].mean(1)
    return scored(keys, np.arange(keys.shape[1]) == np.zeros((len(keys), 1)))


# ---------------------------------------------------------------------- transient bias


@claim(
    f"{PAPER}, experiment on the transient bias of the loss",
    "derived",
    removed="losing tokens score zero",
    twin={"losing": 0.5},
)
def the_loss_bends_the_path_by_half_the_log_ratio_of_its_pulls(seed: int, losing: float = 0.0) -> Verdict:
    """On two inputs that differ in the score of their best token only, C against 1, the path keeps the
    offset p_y → ½ ln(C |ℓ'(C)| / |ℓ'(1)|) from its limit direction (1, 0).

    Hypothesis: losing tokens of score 0, so that the pull of a nearly selected token is |ℓ'(γ)| γ. The
    linear loss bends to the high score, logistic and exponential to the low one. C is drawn from 2 … 8.
    Measured: p_y after 1,000 normalised steps of 0.1 against the closed form, to rounding (1e-10: the offset
    attracts, so that errors do not add up), and |p_y/p_x| ≤ 0.03 there.
    """
    high = np.random.default_rng(seed).uniform(2, 8)
    keys = att.datasets.two_scores(high)[0].keys
    tokens = scored(keys, np.array([[losing * high, high], [0.0, 1.0]]))
    slopes: dict[att.Loss, float] = {
        att.correlation: 0.0,
        att.logistic: float(log_slope(np.array(high)) - log_slope(np.array(1.0))),
        att.exponential: 1 - high,
    }
    errors, sideways = [], []
    for loss, slope in slopes.items():
        rule = att.steepest(att.frobenius, 0.1)
        run = Experiment(tokens, HEAD, rule, 1_000, options={"loss": loss}).path
        expected = (np.log(high) + slope) / 2
        errors.append(abs(run.final[1, 0] - expected))
        sideways.append(abs(run.final[1, 0] / run.final[0, 0]))
    return judge(
        "p_y → ½ ln(C |ℓ'(C)| / |ℓ'(1)|)",
        *(
            at_most(f"error, {loss}", e, 1e-10)
            for loss, e in zip(("linear", "logistic", "exponential"), errors, strict=True)
        ),
        at_most("largest |p_y/p_x|", max(sideways), 0.03),
    )


# ---------------------------------------------------------------------- details


def _growth(run: att.Path) -> Float:
    """The last weight minus the one recorded before it, (runs, 1, d, e)."""
    return run.W[:, -1:] - run.W[:, -2:-1]


def _short_steps(tokens: att.Tokens) -> bool:
    keys, gamma = (np.linalg.norm(a, ord=2, axis=(-2, -1)) for a in (tokens.keys, tokens.values))
    return 1 / lipschitz(gamma, keys) >= RATE
