"""Optimizers that survive saturation, as optax transformations.

Each receives the gradient as a mantissa and its logarithmic scale,

    update(grads, state, params, log_scale=Λ, log_excess=log(L − L*)),   true gradient = grads · e^Λ,

and with Λ = 0, the default, it is an ordinary optax transformation. Scale-free rules never look at Λ.
A tree of several parameters, such as (K, Q), counts as one vector for an entrywise norm and as one
block-diagonal matrix for a Schatten norm.

Any other optax optimizer is given the gradient at its true scale, which underflows once softmax
saturates; `scale_free(optimizer)` gives it the mantissa alone.
"""

from __future__ import annotations

import math

import optax

from attsvm.norms import Norm
from attsvm.training.rules import (
    GradientDescent,
    Mirror,
    Optimizer,
    PerBlock,
    Polyak,
    Rate,
    Rule,
    ScaleFree,
    Steepest,
    TrueScale,
)
from attsvm.words import told


def steepest(norm: Norm, lr: Rate, momentum: float = 0.0, decay: float = 0.0) -> Optimizer:
    """Steepest descent in a norm, with unit steps in that norm times lr.

        W ← (1 − lr · decay) W − lr · argmax_{N(Δ) ≤ 1} ⟨M, Δ⟩,     M ← momentum · M + (1 − momentum) ∇L

    Frobenius: normalised GD. linf: sign descent. spectral: the exact Muon direction. l1: coordinate
    descent. Momentum averages the raw gradients (NMD of Fan et al. 2025), in log scale; for momentum of
    the normalised steps write scale_free(optax.chain(steepest(norm, lr), optax.trace(momentum))).
    decay: decoupled weight decay, of K and Q each where those are trained; it keeps N(W) ≤ 1/decay, inside of
    which the steps are those of Frank and Wolfe. lr · decay may be 1 at most.
    """
    return Optimizer(Steepest(norm, _rate(lr), _momentum(momentum), _decay(decay, lr)))


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
    if not (_is_number(p) and p > 1):
        raise ValueError(f"p is {told(p)}. Pass 1 < p < ∞: mirror needs a potential that is smooth.")
    return Optimizer(Mirror(float(p), _rate(lr), bool(normalised)))


def polyak(factor: float = 1.0) -> Optimizer:
    """Polyak's step, W ← W − factor · (L − L*)/‖∇L‖² · ∇L, for a head whose best loss L* is known.

    The log scale cancels in the step length, so it neither under- nor overflows.
    Reference: Vasudeva et al. 2024, "Implicit Bias and Fast Convergence Rates for Self-attention".
    """
    if not (_is_number(factor) and factor > 0):
        raise ValueError(f"factor is {told(factor)}. Pass a positive number.")
    return Optimizer(Polyak(float(factor)))


def adam(lr: Rate) -> optax.GradientTransformation:
    """Adam as optax has it, at the true scale of the gradient; for the words of settings.py."""
    return optax.adam(_rate(lr))


def scale_free(optimizer: optax.GradientTransformation) -> Optimizer:
    """Give an optax optimizer the gradient's mantissa instead of the true, underflowing gradient.

    Its entries are of order one at every step. Right for optimizers that do not use the gradient's
    length (Muon, Lion, sign steps); it changes what Adam averages.
    """
    return Optimizer(ScaleFree(_optax(optimizer)))


def per_block(optimizer: optax.GradientTransformation) -> Optimizer:
    """Give every parameter array its own copy of the optimizer, and so its own normalisation."""
    return Optimizer(PerBlock(adapted(optimizer).rule))


def adapted(optimizer: object) -> Optimizer:
    """The optimizer as one of ours; any other optax optimizer sees the gradient at its true scale."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    return Optimizer(TrueScale(_optax(optimizer)))


def needs_excess(rule: Rule, foreign: bool = False) -> bool:
    """Whether a step uses the excess loss L − L*; `foreign` answers for an optax chain we cannot see into."""
    if isinstance(rule, PerBlock):
        return needs_excess(rule.rule, foreign)
    if isinstance(rule, (TrueScale, ScaleFree)):
        inner = rule.optimizer
        return needs_excess(inner.rule, foreign) if isinstance(inner, Optimizer) else foreign
    return isinstance(rule, Polyak)


# ---------------------------------------------------------------------- details


def _rate(lr: Rate) -> Rate:
    if callable(lr):
        return lr
    if not (_is_number(lr) and lr > 0):
        raise ValueError(f"lr is {told(lr)}. Pass a positive number or an optax schedule.")
    return float(lr)


def _momentum(momentum: float) -> float:
    if not (_is_number(momentum) and 0 <= momentum < 1):
        raise ValueError(f"momentum is {told(momentum)}. Pass a number in [0, 1).")
    return float(momentum)


def _decay(decay: float, lr: Rate) -> float:
    if not (_is_number(decay) and decay >= 0):
        raise ValueError(f"decay is {told(decay)}. Pass a number ≥ 0, such as 0.01; 0 is none.")
    if not callable(lr) and lr * decay > 1:
        raise ValueError(
            f"lr · decay is {lr * decay:g}: a step would turn the weight round. "
            f"Pass decay ≤ 1/lr = {1 / lr:g}."
        )
    return float(decay)


def _is_number(x: object) -> bool:
    """Whether float64 holds it: a whole number may be too large."""
    try:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
    except OverflowError:
        return False


def _optax(optimizer: object) -> optax.GradientTransformationExtraArgs:
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"{optimizer!r} is not an optimizer. Pass steepest(norm, lr), gd(lr), mirror(p, lr), polyak() "
            "or an optax optimizer such as optax.adam(lr)."
        )
    return optax.with_extra_args_support(optimizer)
