"""Optimizers that survive saturation, as optax transformations.

Each receives the gradient as a mantissa and its logarithmic scale,

    update(grads, state, params, log_scale=Λ, log_excess=log(L − L*)),   true gradient = grads · e^Λ,

and with Λ = 0, the default, it is an ordinary optax transformation. Scale-free rules never look at Λ.
A tree of several parameters, such as (K, Q), counts as one vector for an entrywise norm and as one
block-diagonal matrix for a Schatten norm.

lr, momentum, decay and such may be a sequence, one number per run.

Any other optax optimizer is given the gradient at its true scale, which underflows once softmax
saturates; `scale_free(optimizer)` gives it the mantissa alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from attsvm._support.validation import describe, is_finite
from attsvm.norms import Norm, spectral
from attsvm.norms.layouts import HeadLayout
from attsvm.norms.names import as_norm
from attsvm.training.rules import (
    AROUND,
    Adam,
    Compositional,
    Foreign,
    GradientDescent,
    Mirror,
    Number,
    Optimizer,
    OverHeads,
    OverMatrices,
    PerBlock,
    Polyak,
    Rate,
    Rule,
    Steepest,
)


def steepest(
    norm: Norm | str | tuple[Norm | str, ...], lr: Rate, momentum: Number = 0.0, decay: Number = 0.0
) -> Optimizer:
    """Steepest descent in a norm, with unit steps in that norm times lr.

        W ← (1 − lr · decay) W − lr · argmax_{N(Δ) ≤ 1} ⟨M, Δ⟩,     M ← momentum · M + (1 − momentum) ∇L

    Frobenius: normalised GD. linf: sign descent. spectral: the exact Muon direction. l1: coordinate
    descent. Momentum averages the raw gradients (NMD of Fan et al. 2025), in log scale; for momentum of
    the normalised steps write scale_free(optax.chain(steepest(norm, lr), optax.trace(momentum))).
    decay: decoupled weight decay, of K and Q each where those are trained; it keeps N(W) ≤ 1/decay, inside of
    which the steps are those of Frank and Wolfe. lr · decay may be 1 at most.
    A tuple has a norm for each factor, (of K, of Q): each takes steps of length lr in its own.
    Singular values of a gradient that are only rounding get no step, so columns of zero in K and Q stay zero.
    """
    norms = tuple(map(as_norm, norm)) if isinstance(norm, tuple) else as_norm(norm)
    return Optimizer(Steepest(norms, _rate(lr), _momentum(momentum), _decay(decay, lr)))


def gd(lr: Rate) -> Optimizer:
    """Gradient descent at the true scale, W ← W − lr ∇L: it stops moving where ∇L underflows."""
    return Optimizer(GradientDescent(_rate(lr)))


def mirror(p: float, lr: Rate, normalised: bool = True) -> Optimizer:
    """Mirror descent with the entrywise potential ψ(W) = 1/p Σ |W_ij|^p, p > 1.

        U ← U − lr ∇L/‖∇L‖_q,   W = sign(U) |U|^(1/(p−1)),   1/p + 1/q = 1

    normalised=False keeps ∇L at its true scale. The state is the dual variable U = ∇ψ(W), because W
    underflows for p near 1; so nothing else may change the weights between two updates.
    Reference: Julistiono et al. 2024, "Optimizing Attention with Mirror Descent".
    """
    if not (is_finite(p) and p > 1):
        raise ValueError(f"p is {describe(p)}. Pass 1 < p < ∞: mirror needs a potential that is smooth.")
    return Optimizer(Mirror(float(p), _rate(lr), bool(normalised)))


def polyak(factor: Number = 1.0) -> Optimizer:
    """Polyak's step, W ← W − factor · (L − L*)/‖∇L‖² · ∇L, for a head whose best loss L* is known.

    Linear(v): L* is the loss of the best tokens. SquaredError(): zero, a token of each example on its target.
    The log scale cancels in the step length, so it neither under- nor overflows.
    Reference: Vasudeva et al. 2024, "Implicit Bias and Fast Convergence Rates for Self-attention".
    """
    return Optimizer(Polyak(_number("factor", factor, lambda x: x > 0, "a positive number")))


def adam(
    lr: Rate, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-8, decay: Number = 0.0
) -> Optimizer:
    """Adam, with both averages in log scale; with decay AdamW.

        M ← b1 M + (1 − b1) ∇L,   V ← b2 V + (1 − b2) ∇L²,   W ← (1 − lr · decay) W − lr M̂/(√V̂ + eps)

    M̂ = M/(1 − b1^t), V̂ = V/(1 − b2^t). Where ∇L falls below eps the steps die out, as everywhere; with
    eps = 0 they survive saturation. Signum, sign descent with momentum, is steepest(linf, lr, momentum).
    Reference: Kingma & Ba 2015; Loshchilov & Hutter 2019 (decay).
    """
    eps = _number("eps", eps, lambda x: x >= 0, "a number ≥ 0, such as 1e-8; 0 survives saturation")
    b1, b2 = _momentum(b1, "b1"), _momentum(b2, "b2")
    return Optimizer(Adam(_rate(lr), b1, b2, eps, _decay(decay, lr)))


def compositional(
    lr: Rate, ridge: Number = 0.01, norm: Norm | str = spectral, decay: Number = 0.0
) -> Optimizer:
    """Steps of K and Q that move W = K Qᵀ by unit steps in a norm times lr, to first order.

        K ← K − lr/2 · steepest(∇_K C⁻¹) C⁻¹,     C = (QᵀQ + ridge · I)^½;     its twin for Q

    Both parts of K Qᵀ move by at most lr/2 in the norm, however long K and Q are. spectral: compositional
    Muon. Needs weight=KeyQuery(), of several heads MultiHead(count, KeyQuery(), norm="apart").
    """
    ridge = _number("ridge", ridge, lambda x: x > 0, "a positive number, such as 0.01")
    return Optimizer(Compositional(as_norm(norm), _rate(lr), ridge, _decay(decay, lr)))


def scale_free(optimizer: optax.GradientTransformation) -> Optimizer:
    """Give an optax optimizer the gradient's mantissa instead of the true, underflowing gradient.

    Its entries are of order one at every step. Right for optimizers that do not use the gradient's
    length (Muon, Lion, sign steps); it changes what Adam averages.
    """
    return Optimizer(Foreign(_optax(optimizer), scaled=False))


def per_block(optimizer: optax.GradientTransformation) -> Optimizer:
    """Give every parameter array its own copy of the optimizer, and so its own normalisation."""
    return Optimizer(PerBlock(adapted(optimizer).rule))


def over_heads(optimizer: optax.GradientTransformation, norm: str | HeadLayout) -> Optimizer:
    """The optimizer of several heads: all as one, each by itself, or in matrices (weights.MultiHead)."""
    rule = adapted(optimizer).rule
    return Optimizer(OverMatrices(rule, norm) if isinstance(norm, HeadLayout) else OverHeads(rule, norm))


def adapted(optimizer: object) -> Optimizer:
    """The optimizer as one of ours; any other optax optimizer sees the gradient at its true scale."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    return Optimizer(Foreign(_optax(optimizer), scaled=True))


def needs_excess(rule: Rule, foreign: bool = False) -> bool:
    """Whether a step uses the excess loss L − L*; foreign: the answer for an optax chain."""
    if isinstance(rule, AROUND):
        return needs_excess(rule.rule, foreign)
    if isinstance(rule, Foreign):
        inner = rule.optimizer
        return needs_excess(inner.rule, foreign) if isinstance(inner, Optimizer) else foreign
    return isinstance(rule, Polyak)


# ---------------------------------------------------------------------- details


def _rate(lr: Rate) -> Rate:
    if callable(lr):
        return lr
    return _number("lr", lr, lambda x: x > 0, "a positive number or an optax schedule")


def _momentum(momentum: Number, name: str = "momentum") -> Number:
    return _number(name, momentum, lambda x: 0 <= x < 1, "a number in [0, 1)")


def _decay(decay: Number, lr: Rate) -> Number:
    decay = _number("decay", decay, lambda x: x >= 0, "a number ≥ 0, such as 0.01; 0 is none")
    rate = np.atleast_1d(0.0 if callable(lr) else lr)
    if 1 < rate.size != np.size(decay) > 1:
        return decay  # train() says whose runs differ
    product = rate * decay
    if product.max() > 1:
        worst = np.broadcast_to(rate, product.shape)[product.argmax()]
        raise ValueError(
            f"lr · decay is {product.max():g}: a step would turn the weight round. "
            f"Pass decay ≤ 1/lr = {1 / worst:g}."
        )
    return decay


def _number(name: str, value: Any, valid: Callable[[Any], bool], expected: str) -> Any:
    """A number, or a tuple of one per run."""
    several = isinstance(value, (list, tuple, range, np.ndarray)) and np.ndim(value) == 1 and len(value)
    each = [x.item() if isinstance(x, np.generic) else x for x in (value if several else [value])]
    for x in each:
        if not (is_finite(x) and valid(x)):
            raise ValueError(
                f"{name} is {describe(x)}. Pass {expected}{', for every run' if several else ''}."
            )
    return tuple(map(float, each)) if several else float(each[0])


def _optax(optimizer: object) -> optax.GradientTransformationExtraArgs:
    if hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"{type(optimizer).__name__} is an optimizer of torch, and this trains with JAX: pass one of "
            "attsvm, or train with torch and hand the weights to Path.of(tokens, weights)."
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"{optimizer!r} is not an optimizer. Pass steepest(norm, lr), gd(lr), mirror(p, lr), polyak() "
            "or an optax optimizer such as optax.adam(lr)."
        )
    return optax.with_extra_args_support(optimizer)
