"""Decay and the rank of W = K Qᵀ: which way it goes is a matter of the optimizer, not of decay.

Decoupled decay ends on the regularisation path (weight_decay.py), so that strong decay leads to a small
ball. There the point of least loss is the radius times the unit weight that falls fastest at zero: the first
singular pair of −∇L(0) in the nuclear norm of gradient descent, −∇L(0) itself in the Frobenius norm of
Schatten-4 steps, its polar factor in Muon's spectral norm. Proofs and tables: docs/lab/decay_and_rank.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge
from attsvm.numbers import Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.claims.clipped_logits import DUAL

N, T, D, FRESH = 60, 5, 10, 1_000
RANDOM = 0.2
"""Share of the training inputs whose winner is drawn at random."""
STEPS = 2_000
LENGTH = 0.003
"""Root mean square of the entries of a step, at most: equal for all optimizers, as where Muon takes Adam's
rate."""
ABOVE = 0.01
"""Singular values above this share of the largest count in the numerical rank."""
START = 0.1
ours = partial(claim, "ours: docs/lab/decay_and_rank.md", "derived")


@dataclass(frozen=True)
class Rule:
    """An optimizer of K and of Q, each by itself. norm: that of W by the law of halves, None if it names
    none."""

    lr: float
    step: Callable[..., Any]
    norm: att.Norm | None = None

    def decay(self, strength: float) -> float:
        """The decoupled decay that shrinks a weight by LENGTH · strength at each step."""
        return LENGTH * strength / self.lr

    def radius(self, strength: float) -> float:
        """That of the ball of W in which decay keeps it."""
        return self.decay(strength) ** -2


RULES = {
    "GD": Rule(LENGTH * D, partial(att.steepest, att.frobenius), att.nuclear),
    "Schatten 4": Rule(LENGTH * D**0.75, partial(att.steepest, att.Schatten(4)), att.frobenius),
    "Adam": Rule(LENGTH, partial(att.adam, b2=0.95, eps=0.0)),
    "Muon": Rule(LENGTH * D**0.5, partial(att.steepest, att.spectral), att.spectral),
}
SCHEDULES: dict[str, Callable[[float, int], Any]] = {
    "constant": lambda lr, steps: optax.constant_schedule(lr),
    "WSD": lambda lr, steps: optax.join_schedules(
        [
            optax.linear_schedule(lr / (steps // 20), lr, steps // 20),
            optax.constant_schedule(lr),
            optax.linear_schedule(lr, 0.0, steps // 5),
        ],
        [steps // 20, steps - steps // 5],
    ),
    "cosine": lambda lr, steps: optax.cosine_decay_schedule(lr, steps),
}
"""WSD: warm-up over a twentieth, then constant, then linear to zero over the last fifth."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of a planted truth. keys (n, T, d), queries (n, d), winners (n,); some winners may be random."""

    keys: Float
    queries: Float
    winners: NDArray[np.intp]

    def accuracy(self, W: Float) -> float:
        """Share of the inputs on which W picks the winner."""
        logits = np.einsum("ntd,de,ne->nt", self.keys, W, self.queries, optimize=True)
        return float((logits.argmax(-1) == self.winners).mean())


@lru_cache(maxsize=256)
def drawn(seed: int, rank: int) -> tuple[Inputs, Inputs]:
    """The training inputs and the fresh ones: Gaussian tokens, the winner has the largest xᵀ W* z.

    W* has `rank` equal singular values. Fresh winners are never random.
    """
    rng = np.random.default_rng([seed, rank])
    U, V = (np.linalg.qr(rng.standard_normal((D, D)))[0][:, :rank] for _ in range(2))
    keys, queries = rng.standard_normal((N + FRESH, T, D)), rng.standard_normal((N + FRESH, D))
    winners = np.einsum("ntd,de,ne->nt", keys, U @ V.T, queries, optimize=True).argmax(-1)
    random = np.append(rng.random(N) < RANDOM, np.zeros(FRESH, bool))
    winners[random] = rng.integers(0, T, random.sum())
    train, fresh = slice(0, N), slice(N, None)
    first, second = (Inputs(keys[part], queries[part], winners[part]) for part in (train, fresh))
    return first, second


def tokens_of(cells: Sequence[tuple[int, int]]) -> att.Tokens:
    """The training inputs of draws (seed, rank), one run each: the winner has the value 1, all others 0."""
    inputs = [drawn(*cell)[0] for cell in cells]
    values = np.stack([np.eye(T)[each.winners] for each in inputs])[..., None]
    return att.Tokens(
        np.stack([x.keys for x in inputs]), np.stack([x.queries for x in inputs]), values=values
    )


def trained(
    cells: Sequence[tuple[int, int]],
    rule: str,
    strengths: Sequence[float],
    schedule: str = "constant",
    steps: int = STEPS,
    batch: int | None = None,
    **options: float,
) -> Float:
    """W (strengths, cells, d, d) of every strength on every draw; options: others of the optimizer."""
    several = [cell for _ in strengths for cell in cells]
    decays = [RULES[rule].decay(strength) for strength in strengths for _ in cells]
    optimizer = RULES[rule].step(lr=SCHEDULES[schedule](RULES[rule].lr, steps), decay=decays, **options)
    path = att.train(
        tokens_of(several),
        att.Linear(np.ones(1)),
        weight=att.KeyQuery(separate=True),
        optimizer=optimizer,
        steps=steps,
        batch=None if batch is None else att.Batches(batch),
        record=[steps],
        init=att.gaussian([seed for seed, _ in several], START),
    )
    return np.asarray(path.final).reshape(len(strengths), len(cells), D, D)


def stable_rank(W: Float) -> Float:
    """Σσ² over the largest σ²."""
    sizes = np.linalg.svd(W, compute_uv=False)
    return np.asarray((sizes**2).sum(-1) / sizes[..., 0] ** 2)


def numerical_rank(W: Float) -> NDArray[np.intp]:
    """How many singular values are above a hundredth of the largest."""
    sizes = np.linalg.svd(W, compute_uv=False)
    return np.asarray((sizes > ABOVE * sizes[..., :1]).sum(-1))


def descent(inputs: Inputs, W: Float) -> Float:
    """−∇L(W) of the mean logistic loss, where the winner has the score 1 and all others 0."""
    logits = np.einsum("ntd,de,ne->nt", inputs.keys, W, inputs.queries, optimize=True)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    every = np.arange(len(inputs.winners))
    won = weights[every, inputs.winners]
    slopes = -weights * (won / (1 + np.exp(won)))[:, None]
    slopes[every, inputs.winners] = 0
    slopes[every, inputs.winners] = -slopes.sum(-1)  # the direct formula cancels in saturation
    return np.einsum("nt,ntd,ne->de", slopes, inputs.keys, inputs.queries, optimize=True) / len(every)


def off_the_path(inputs: Inputs, W: Float, norm: att.Norm) -> float:
    """1 − ⟨−∇L, W⟩ over N*(∇L) N(W): zero where W is stationary for the loss on its ball of the norm."""
    M = descent(inputs, W)
    return 1 - float((M * W).sum()) / (float(DUAL[norm].value(M)) * float(norm.value(W)))


# ---------------------------------------------------------------------- claims

STRONG, STRONGEST = 8.0, 32.0
FALL, RISE = 0.95, 1.5
"""Stable ranks under strong decay over those without: at most 0.88, and at least 2.55, on the seeds of the
choice."""
STEEPEST = 0.98
"""Of the steepest fall of the loss at zero: at least 0.989 on the seeds of the choice, where gradient
descent has two singular values of nearly one size to choose from."""


@ours(removed="the optimizer's own norm: that of the next one", twin={"shift": 1})
def strong_decay_leads_to_the_weight_that_falls_fastest_at_zero(seed: int, shift: int = 0) -> Verdict:
    """Under strong decay W = K Qᵀ ends at the weight that falls fastest at zero in the norm of the law of
    halves: the first singular pair of −∇L(0) under gradient descent, −∇L(0) itself under Schatten-4 steps,
    its polar factor under Muon.

    60 inputs of 5 Gaussian tokens, d = 10, winners planted with rank 1, a fifth of them random; 2,000 steps,
    decay 32. Wanted: ⟨−∇L(0), W⟩ ≥ 0.98 of N*(∇L(0)) N(W), N nuclear, Frobenius, spectral. The twin
    exchanges the norms.
    """
    rules = [name for name, rule in RULES.items() if rule.norm is not None]
    inputs, evidence = drawn(seed, 1)[0], []
    M = descent(inputs, np.zeros((D, D)))
    for index, name in enumerate(rules):
        norm: Any = RULES[rules[(index + shift) % len(rules)]].norm
        W = trained([(seed, 1)], name, [STRONGEST])[0, 0]
        share = float((M * W).sum()) / (float(DUAL[norm].value(M)) * float(norm.value(W)))
        evidence.append(at_least(f"share of the steepest fall in {norm}, {name}", share, STEEPEST))
    return judge("strong decay leads to the weight that falls fastest at zero", *evidence)


@ours(
    removed="the roles: Muon's rank falls and gradient descent's rises", twin={"falls": "Muon", "rises": "GD"}
)
def decay_lowers_the_rank_under_gradient_descent_and_raises_it_under_muon(
    seed: int, falls: str = "GD", rises: str = "Muon"
) -> Verdict:
    """Strong decay lowers the stable rank of W = K Qᵀ under gradient descent and raises it under Muon, whose
    steps have the same length, on the same inputs.

    Data as above; decay 8 beside none. Wanted: a stable rank at most 0.95 times, and at least 1.5 times, that
    without decay. The twin exchanges the two optimizers.
    """
    quotient = {}
    for name in (falls, rises):
        without, strong = stable_rank(trained([(seed, 1)], name, [0.0, STRONG])[:, 0])
        quotient[name] = float(strong / without)
    return judge(
        "decay lowers the rank of one optimizer and raises that of the other",
        at_most(f"stable rank under decay over that without, {falls}", quotient[falls], FALL),
        at_least(f"the same, {rises}", quotient[rises], RISE),
    )
