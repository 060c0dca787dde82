"""Networks with positive output weights as heads: label +1 selects a token, label −1 mixes several.

Such a head ψ is convex. The best attention of label +1 is on one token, and that of label −1 minimises ψ over
the hull of the tokens. So a linear or convex program knows beforehand what attention tends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.gen_svm import decaying, on_simplex
from attsvm_lab.claims.transformers_setup import PAPER, draws
from attsvm_lab.experiment import Experiment, solved

DRAWS, SIZE, HIDDEN = 16, (4, 5, 8), 16
"""Draws of a seed, (n, T, d) and hidden units; labels −1 and +1 in turn."""
CURVED = 4.0
"""Scale of the hidden weights of softplus: sharply curved, so that several tokens mix."""
RATE, STEPS = 4.0, 10_000
"""Plain steps of the smooth network; at a rate of 16 they overshoot the mixture."""
CLEAR = 0.03
"""Least share of a token that mixes, and least slope against one that does not, in a draw that is judged."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SoftplusNetwork:
    """h(r) = uᵀ log(1 + e^(Vᵀ r)) with V (c, h), u (h,), or runs of them."""

    V: Any
    u: Any
    axes: ClassVar[dict[str, int]] = {"V": 2, "u": 1}

    @property
    def width(self) -> int:
        return int(self.V.shape[-2])

    def value(self, pooled: jax.Array) -> jax.Array:
        return jax.nn.softplus(pooled @ self.V) @ self.u

    def gradient(self, pooled: jax.Array) -> jax.Array:
        return jnp.asarray((jax.nn.sigmoid(pooled @ self.V) * self.u) @ self.V.T)


class Networks(NamedTuple):
    """Problems (runs, n, T, d), each with a network V (runs, d, h), u (runs, h)."""

    tokens: att.Tokens
    V: Float
    u: Float

    @property
    def hidden(self) -> Float:
        """Vᵀ x of every token (runs, n, T, h): of a mixture it is the mixture of these."""
        return np.asarray(self.tokens.keys @ self.V[:, None])


def networks(seed: int, scale: float, sign: float = 1.0) -> Networks:
    """Unit tokens and queries; V Gaussian of a scale, u between 1/2 and 3/2 over scale and width."""
    drawn, _ = att.datasets.sphere(*SIZE, seed=draws(seed, DRAWS))
    labels = np.tile([-1.0, 1.0], (DRAWS, SIZE[0] // 2))
    rng = np.random.default_rng(seed)
    V = scale * rng.standard_normal((DRAWS, SIZE[2], HIDDEN))
    u = sign * rng.uniform(0.5, 1.5, (DRAWS, HIDDEN)) * 4 / (HIDDEN * scale)
    return Networks(att.Tokens(drawn.keys, drawn.queries, labels), V, u)


# ---------------------------------------------------------------------- ReLU


@claim(
    f"{PAPER}, ReLU heads with positive output weights",
    "derived",
    removed="positive output weights: they are negative, and the labels change places",
    twin={"sign": -1.0},
)
def a_relu_head_with_positive_weights_selects_for_one_label_and_mixes_for_the_other(
    seed: int, sign: float = 1.0
) -> Verdict:
    """Under uᵀ max(Vᵀ r, 0) with u > 0 inputs of label +1 end with attention on one token, and those of label
    −1 with the mixture of tokens of smallest value, which a linear program knows.

    16 draws (4, 5, 8), 16 hidden units, labels −1 and +1 in turn, normalised steps with momentum. The head is
    convex: no mixture is above its best token, and for label −1 the best attention is min over s of
    uᵀ max(Vᵀ Xᵀ s, 0). Measured for +1: the share of inputs with one token above 0.9; for −1: value and
    attention beside those of the linear program, whose value no attention can undercut.

    Surprise: the best mixture lies where hidden units switch, and there the gradient does not become small.
    Normalised steps without momentum cross the switch for ever: on seed 0 they end 2.8 % above the linear
    program where steps with momentum end 0.3 % above.
    """
    problem = networks(seed, 1.0, sign)
    rule = att.steepest(att.frobenius, decaying, 0.95)
    path = Experiment(problem.tokens, att.ReLUNetwork(problem.V, problem.u), rule, STEPS).path
    s, mixes = path.attention[:, -1], problem.tokens.labels < 0
    best = np.array([_least_value(*one) for one in _each(problem, mixes)])
    value, single = (
        (np.maximum(hidden, 0) * np.abs(problem.u)[:, None]).sum(-1)[mixes]
        for hidden in ((s[..., None] * problem.hidden).sum(-2), _best_single(problem))
    )
    above = (value - best[:, 0]) / single
    off = np.abs(s[mixes] - best[:, 1:]).max(-1)
    return judge(
        "label +1 selects, label −1 mixes",
        at_least("+1: share of inputs with one token above 0.9", (s[~mixes].max(-1) > 0.9).mean(), 0.9),
        at_most("−1: median value above the linear program's, of the best token's", np.median(above), 0.01),
        at_least("−1: the same, least", above.min(), -1e-9),
        at_most("−1: median of max |s − s*|", np.median(off), 0.02),
        at_most(
            "−1: median value of the linear program, of the best token's", np.median(best[:, 0] / single), 0.7
        ),
        reported("−1: tokens that mix in the linear program", (best[:, 1:] > 1e-9).sum(-1).mean()),
    )


def _each(problem: Networks, inputs: Bool) -> list[tuple[Float, Float]]:
    weights = np.broadcast_to(np.abs(problem.u)[:, None], (*inputs.shape, HIDDEN))
    return list(zip(problem.hidden[inputs], weights[inputs], strict=True))


def _least_value(hidden: Float, u: Float) -> Float:
    """min over s of uᵀ max(Σ s_t hidden_t, 0), and its s (1 + T,): a linear program with slacks."""
    T, h = hidden.shape
    answer = linprog(
        np.r_[np.zeros(T), u],
        A_ub=np.c_[hidden.T, -np.eye(h)],
        b_ub=np.zeros(h),
        A_eq=np.r_[np.ones(T), np.zeros(h)][None],
        b_eq=[1.0],
    )
    return np.r_[answer.fun, answer.x[:T]]


def _best_single(problem: Networks) -> Float:
    """The hidden units of the token of smallest value (runs, n, h)."""
    value = (np.maximum(problem.hidden, 0) * np.abs(problem.u)[:, None, None]).sum(-1)
    return np.take_along_axis(problem.hidden, value.argmin(-1)[..., None, None], axis=-2)[..., 0, :]


# ---------------------------------------------------------------------- a smooth network


@claim(
    f"{PAPER}, Gen-SVM, networks with positive output weights",
    "recalled-M",
    removed="tokens that mix are tied: one token of each input counts as selected",
    twin={"tied": False},
)
def a_smooth_network_grows_along_the_generalised_program(seed: int, tied: bool = True) -> Verdict:
    """Under a softplus network with positive output weights, W tends to ln t · W^mm + const. under gradient
    descent: the generalised SVM that ties the tokens of the best mixture of each input of label −1, and
    separates one token of each input of label +1.

    Setting as for ReLU, 10,000 plain steps of 4. Mixtures are known beforehand: min over s of the convex head
    on the hull. That ln t counts W^mm once, because slopes are as small as the attention that is left, is
    derived. Draws count that have a program, and whose mixtures are clear. Measured between the steps 1,000
    and 10,000, so that the finite part drops out: the growth beside W^mm ln 10, its cosine and length; and
    attention of label −1 beside the mixture. W itself is nearer to C · W^mm + W^fin than to W^mm.
    """
    path, mixtures, clear = _smooth(seed)
    each = [_growth(path, mixtures, int(r), tied) for r in np.flatnonzero(clear)]
    judged = np.array([numbers for numbers in each if numbers is not None]).reshape(-1, 5)
    enough = len(judged) >= 3
    off, length, missed, both, direction = np.median(judged, axis=0) if enough else np.ones(5)
    return judge(
        "W grows like ln t along the generalised program",
        at_most("median 1 − cosine of the growth", off, 0.05),
        at_most("|median length over ln 10 ‖W^mm‖ − 1|", abs(length - 1), 0.15),
        at_most("−1: median of max |s − s*|", missed, 0.02),
        at_most("median 1 − cosine to C W^mm + W^fin", both, 0.1),
        at_most("the same over that to W^mm alone", both / direction, 1.0),
        reported("draws", len(judged)),
        given={"three draws or more have a program and a clear mixture": enough},
    )


@lru_cache(maxsize=1)
def _smooth(seed: int) -> tuple[att.Path, Float, Bool]:
    """Runs, the best mixture of each input (runs, n, T), and which draws are clear."""
    problem = networks(seed, CURVED)
    head = SoftplusNetwork(problem.V, problem.u)
    path = Experiment(problem.tokens, head, att.gd(RATE), STEPS, record=[STEPS // 10]).path
    s, slope = best_mixture(problem)
    mixes = problem.tokens.labels < 0
    share = np.where(s > 0, s, 1.0).min(-1)
    against = np.where(s > 0, np.inf, slope - slope.min(-1, keepdims=True)).min(-1)
    clear = ((share >= CLEAR) & (against >= CLEAR) | ~mixes).all(-1)
    first = np.arange(SIZE[1]) == path.attention[:, -1].argmax(-1)[..., None]
    return path, np.where(mixes[..., None], s, first), clear


def best_mixture(problem: Networks) -> tuple[Float, Float]:
    """The attention of smallest value under softplus, and its slope in s, (runs, n, T): accelerated descent.

    Raises ValueError where the value is not known to be the smallest to 1e-8.
    """
    hidden, u = problem.hidden, problem.u[:, None]
    step = 4 / (u.max(-1) * np.linalg.norm(hidden, ord=2, axis=(-2, -1)) ** 2)[..., None]

    def slope(s: Float) -> Float:
        active = u / (1 + np.exp(-np.einsum("rnt,rnth->rnh", s, hidden)))
        return np.asarray(np.einsum("rnth,rnh->rnt", hidden, active))

    s = ahead = np.full(hidden.shape[:-1], 1 / SIZE[1])
    for k in range(5_000):
        moved = on_simplex(ahead - step * slope(ahead))
        ahead, s = moved + k / (k + 3) * (moved - s), moved
    at_s = slope(s)
    above = (at_s * s).sum(-1) - at_s.min(-1)  # of a convex function, an upper bound of its excess
    if above.max() > 1e-8:
        raise ValueError(f"a mixture is known to {above.max():.1g} only.")
    return np.where(s > 1e-6, s, 0.0), at_s


def _growth(path: att.Path, mixtures: Float, r: int, tied: bool) -> Any:
    """1 − cosine and length of the growth beside the program, what attention misses, and 1 − cosine of W."""
    mixed = mixtures[r] / mixtures[r].sum(-1, keepdims=True)
    tokens, mixes = path.tokens.run(r), path.tokens.labels[r] < 0
    selected = mixed > 0 if tied else mixed == mixed.max(-1, keepdims=True)
    try:
        program, finite = solved(tokens, selected).W, att.finite_part(tokens, mixed, mixed > 0)
    except (att.NotSeparable, ValueError):
        return None
    growth, W = path.W[r, -1] - path.W[r, -2], path.W[r, -1]
    scale = ((W - finite) * program).sum() / (program * program).sum()
    return [
        1 - _cosine(growth, program),
        (growth * program).sum() / (program * program).sum() / np.log(10),
        np.abs(path.attention[r, -1] - mixed)[mixes].max(),
        1 - _cosine(W, scale * program + finite),
        1 - _cosine(W, program),
    ]


def _cosine(a: Float, b: Float) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))
