"""Descent as the published code runs it: the textbook softmax gradient, which cancels at saturation.

It reproduces published numbers only; to train, use `attsvm.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

import attsvm as att
from attsvm.numbers import Float

RATE = 0.1
MACHINE = 2.2e-16
"""Float64 epsilon: the published code adds it to every norm in a divisor; also its ridge on (K, Q)."""
Read = Callable[[Float], tuple[Float, Float]]
"""Maps attention (…, n, T) to the head's outputs (…, n) and their derivatives by attention (…, n, T)."""


def linear_head(tokens: att.Tokens, v: Float) -> Read:
    """h(r) = vᵀ r, v (…, c): outputs Σ_t s_t x_tᵀ v, slopes X v."""
    values = np.matmul(tokens.values, v[..., None, :, None])[..., 0]
    return lambda s: ((s * values).sum(-1), values)


def relu_head(tokens: att.Tokens, V: Float) -> Read:
    """h(r) = 1ᵀ max(Vᵀ r, 0), V (runs, d, h): slopes X V 1[Vᵀ r > 0]."""

    def read(s: Float) -> tuple[Float, Float]:
        hidden = np.matmul(np.matmul(s[..., None, :], tokens.values)[..., 0, :], V)
        pull = np.matmul((hidden > 0).astype(float), V.swapaxes(1, 2))
        return np.maximum(hidden, 0).sum(-1), np.matmul(tokens.values, pull[..., None])[..., 0]

    return read


def textbook_descent(
    tokens: att.Tokens, read: Read, start: Sequence[Float], record: NDArray[np.int64], ridge: float = 0.0
) -> Float:
    """Weights W (runs, k, d, e) at the recorded steps of normalised descent with the usual gradient.

        ∇L = mean_i ℓ'(f_i) Y_i X_iᵀ [s_i ⊙ (g_i − s_iᵀ g_i)] z_iᵀ,   g_i = slopes of the head

    start: (W,) or (K, Q), each with a runs axis. A step moves each by 0.1 along its own gradient divided by
    (its norm + ε). ridge · (‖K‖² + ‖Q‖²) is added to the loss.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines", experiments.
    """
    blocks, recorded = list(start), []
    record_steps = set(record.tolist())
    for step in range(int(record[-1]) + 1):
        W = blocks[0] if len(blocks) == 1 else np.matmul(blocks[0], blocks[1].swapaxes(1, 2))
        if step in record_steps:
            recorded.append(W)
        G = gradient(tokens, read, W)
        pulls = [G] if len(blocks) == 1 else [np.matmul(G, blocks[1]), np.matmul(G.swapaxes(1, 2), blocks[0])]
        if ridge:
            pulls = [pull + 2 * ridge * block for pull, block in zip(pulls, blocks, strict=True)]
        sizes = [np.sqrt((pull * pull).sum((1, 2), keepdims=True)) for pull in pulls]
        moves = [RATE / (size + MACHINE) * pull for size, pull in zip(sizes, pulls, strict=True)]
        blocks = [block - move for block, move in zip(blocks, moves, strict=True)]
    return np.stack(recorded, axis=1)


def textbook_mirror(tokens: att.Tokens, v: Float, start: Float, p: float, steps: int) -> Float:
    """End of normalised mirror descent with the textbook gradient, W (runs, d, e), from start (runs, d, e).

        U ← U − 0.1 ∇L/(‖∇L‖_q + ε),   W = sign(U) |U|^(1/(p−1)),   1/p + 1/q = 1

    Reference: Julistiono et al. 2024, "Optimizing Attention with Mirror Descent", synthetic experiments.
    """
    q, read, U = p / (p - 1), linear_head(tokens, v), np.sign(start) * np.abs(start) ** (p - 1)
    for _ in range(steps):
        G = gradient(tokens, read, np.sign(U) * np.abs(U) ** (1 / (p - 1)))
        size = (np.abs(G) ** q).sum((-2, -1), keepdims=True) ** (1 / q)
        U = U - RATE * G / (size + MACHINE)
    return np.asarray(np.sign(U) * np.abs(U) ** (1 / (p - 1)))


def attention(tokens: att.Tokens, W: Float) -> Float:
    """Softmax of the logits (…, n, T), W (…, d, e)."""
    projected = np.matmul(tokens.queries, W.swapaxes(-1, -2))
    return np.asarray(softmax(np.matmul(tokens.keys, projected[..., None])[..., 0], axis=-1))


def gradient(tokens: att.Tokens, read: Read, W: Float) -> Float:
    """∇L (…, d, e) of the logistic loss, by the formula of `textbook_descent`."""
    s = attention(tokens, W)
    outputs, slopes = read(s)
    return _of_weight(tokens, s, _of_outputs(tokens, outputs), slopes)


def joint_gradient(tokens: att.Tokens, W: Float, v: Float) -> tuple[Float, Float]:
    """∇L in W (…, d, e) and in the linear head v (…, c):  ∇_v L = mean_i ℓ'(f_i) Y_i s_iᵀ X_i."""
    s = attention(tokens, W)
    outputs, slopes = linear_head(tokens, v)(s)
    outer = _of_outputs(tokens, outputs)
    of_head = np.matmul((outer[..., None] * s)[..., None, :], tokens.values)[..., 0, :].sum(-2)
    return _of_weight(tokens, s, outer, slopes), of_head


def _of_outputs(tokens: att.Tokens, outputs: Float) -> Float:
    """∂L/∂out (…, n): −Y σ(−Y out)/n."""
    return np.asarray(-tokens.labels * expit(-tokens.labels * outputs) / tokens.n)


def _of_weight(tokens: att.Tokens, s: Float, outer: Float, slopes: Float) -> Float:
    residual = outer[..., None] * s * (slopes - (s * slopes).sum(-1, keepdims=True))
    sums = np.matmul(residual[..., None, :], tokens.keys)[..., 0, :]
    return np.asarray(np.matmul(sums.swapaxes(-1, -2), tokens.queries))
