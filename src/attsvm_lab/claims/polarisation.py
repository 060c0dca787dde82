"""Attention that is trained together with its values becomes sharp (Varre et al. 2026, arXiv 2603.06248).

One example, f = uᵀ softmax(a): keys and values are the identity, u is the trained head. The flow of a loss
with slope −γ is u' = γσ, a' = γσ ⊙ (u − σᵀu). (The printed flow has a slip in a sign.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.integrate import solve_ivp

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.experiment import Experiment

REFERENCE = "Varre et al. 2026, arXiv 2603.06248"
WIDTH, SIZE = 8, 0.1
RATE, STEPS = 0.1, 30_000
TIMES = (1e6, 1e100, 1e200)
"""The limits are approached like 1/log t, so that t must be huge; the flow is followed in log t."""
TARGETS = (1.0, 4.0, 16.0, 64.0)


@claim(
    f"{REFERENCE}, logistic loss; the rates are derived",
    "derived",
    removed="values that differ at the start: all entries of u are equal",
    twin={"equal": True},
    chosen_on=range(5),
)
def attention_and_values_trained_together_polarise(seed: int, equal: bool = False) -> Verdict:
    """Under logistic loss attention tends to the token of the largest value at the start, u_max ~ log t, and
    (1 − σ_max) log² t → 2(d − 1)/d.

    d = 8, u(0) of size 0.1, a(0) = 0. The flow in log t by LSODA, to t = 1e200; training by steps of 0.1 is
    held against it at t = 3,000. Wanted: the winner of u(0), u_max/log t within 1e-4 of 1 at 1e200, the ratio
    to the limit within 2 % of 1 there and falling since 1e6; descent's u_max within 0.1 % of the flow's.
    """
    begin = _start(seed, equal)
    u, log_losing, first = _flow(begin, lambda f: 1 / (1 + np.exp(f)), TIMES)
    limit, log_t = 2 * (WIDTH - 1) / WIDTH, np.log(TIMES)
    ratio = np.exp(log_losing) * log_t**2 / limit
    rule, tokens = att.gd(RATE), att.Tokens(np.eye(WIDTH)[None])
    path = Experiment(tokens, begin, rule, STEPS, options={"train_head": rule}).path
    largest = _flow(begin, lambda f: 1 / (1 + np.exp(f)), (RATE * STEPS,))[0].max()
    assert path.v is not None
    return judge(
        "attention and values polarise",
        at_most("|u_max/log t − 1| at 1e200", abs(float(u[-1].max() / log_t[-1]) - 1), 1e-4),
        at_most("(1 − σ_max) log² t over its limit, at 1e200", float(ratio[-1]), 1.02),
        at_least("the same", float(ratio[-1]), 0.98),
        at_most("the same, relative to 1e6", float(ratio[-1] / ratio[0]), 1.0),
        at_least("the winner is that of u(0)", float((first == begin.argmax()).all()), 1.0),
        at_most("descent's u_max away from the flow's", abs(float(path.v[-1].max() / largest) - 1), 1e-3),
    )


@claim(
    f"{REFERENCE}, squared loss",
    "text",
    removed="values that differ at the start: all entries of u are equal",
    twin={"equal": True},
    chosen_on=range(5),
)
def squared_loss_polarises_as_far_as_its_target_is_large(seed: int, equal: bool = False) -> Verdict:
    """Under squared loss attention becomes sharp, too, though the flow ends: the sharper, the larger the
    target.

    The same flow with γ = y − f, y = 1, 4, 16 and 64, to t = 1e4. Wanted: with every fourfold target at most
    four fifths as much attention off the winner, and at most 2 % with y = 16. With y = 1 the flow is over
    before it has polarised: half or more is left.
    """
    begin = _start(seed, equal)
    lost = np.array([np.exp(_flow(begin, partial(_residual, y), (1e4,))[1][-1]) for y in TARGETS])
    return judge(
        "squared loss polarises",
        at_least("attention off the winner, target 1", lost[0], 0.5),
        at_most("the same, target 16", lost[2], 0.02),
        at_most("largest of one target over that of the one before", (lost[1:] / lost[:-1]).max(), 0.8),
    )


def _residual(target: float, f: float) -> float:
    return target - f


def _start(seed: int, equal: bool) -> Float:
    drawn = SIZE * np.random.default_rng(seed).standard_normal(WIDTH)
    return np.full(WIDTH, abs(drawn[0])) if equal else drawn


def _flow(
    begin: Float, slope: Callable[[float], float], times: tuple[float, ...]
) -> tuple[Float, Float, Float]:
    """u (k, d), log(1 − σ_max) (k,) and the winner (k,) of the flow at some times."""

    def along(log_t: float, state: Float) -> Float:
        u, a = np.split(state, 2)
        sigma = np.exp(a - a.max())
        sigma /= sigma.sum()
        f = float(sigma @ u)
        pull = slope(f) * np.exp(log_t)
        return np.concatenate([pull * sigma, pull * sigma * (u - f)])

    span = np.log(1e-3), np.log(times[-1])
    both = np.concatenate([begin, np.zeros(WIDTH)])
    solution = solve_ivp(along, span, both, "LSODA", t_eval=np.log(times), rtol=1e-9, atol=1e-11).y.T
    u, a = solution[:, :WIDTH], solution[:, WIDTH:]
    losing = np.sort(a, axis=1)[:, :-1] - a.max(1, keepdims=True)
    total = np.exp(losing).sum(1)
    return u, np.log(total) - np.log1p(total), a.argmax(1)
