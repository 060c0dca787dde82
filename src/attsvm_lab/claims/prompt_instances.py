"""The small random problems of the prompt claims, and the gradient of their loss in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

import attsvm as att
from attsvm.numbers import Float

PAPER = "Tarzanagh et al. 2023, Max-Margin Token Selection in Attention Mechanism"
HEAD = np.ones(1)
"""The head of every scored problem: a token's value is its score."""
SMALL, CROWDED = (2, 3, 4), (2, 6, 10)
"""(n, T, d) with d = n(T − 1), so that every selection is separable: nine of them, and 36. Few sizes for
all claims, because the training loop is compiled once per size."""


def scored(keys: Float, gamma: Float) -> att.Tokens:
    """Tokens of the prompt model whose value is their score γ (n, T)."""
    return att.Tokens(keys, values=gamma[..., None])


def small(seed: int, size: tuple[int, int, int] = SMALL) -> att.Tokens:
    """Unit tokens of a size (n, T, d) with the scores of a random unit head and random labels."""
    tokens, v = att.datasets.prompt_sphere(*size, seed=seed)
    return scored(tokens.keys, att.scores(tokens, v))


def equal_losers(seed: int, size: tuple[int, int, int] = SMALL) -> att.Tokens:
    """The same keys with one best token per input and one score for all others (Assumption B)."""
    tokens = small(seed, size)
    gamma = tokens.values[..., 0]
    best = gamma.max(-1, keepdims=True)
    losing = np.sort(gamma, axis=-1)[:, -2:-1]
    return scored(tokens.keys, np.where(gamma == best, best, losing))


def enlarged(tokens: att.Tokens, radius: float) -> att.Tokens:
    """The same problem in units of the radius: a prompt of length one stands for one of length R.

    Steps proportional to the radius then need no new step size, and so no new compilation.
    """
    return att.Tokens(radius * tokens.keys, tokens.queries, tokens.labels, tokens.mask, tokens.values)


@dataclass(frozen=True)
class Axes:
    """Directions W to search around, (d, 1), or (m, d, 1) with one run each."""

    W: Float


def all_selections(tokens: att.Tokens) -> tuple[list[att.Solution], Float]:
    """Every separable selection with its program, and the unit directions (selections, d, 1)."""
    solutions = att.selections(tokens)
    return solutions, np.stack([unit(solution.W) for solution in solutions])


def unit(W: Float) -> Float:
    """Weights (…, d, e) of Frobenius length one."""
    return np.asarray(W / np.linalg.norm(W, axis=(-2, -1), keepdims=True))


def best_indices(tokens: att.Tokens) -> Any:
    """The token of highest score in each input; the first one where scores tie."""
    return att.scores(tokens, HEAD).argmax(-1)


def log_slope(margin: Float) -> Float:
    """log |ℓ'(f)| of the logistic loss."""
    return -np.logaddexp(0.0, margin)


def gradient(gamma: Float, keys: Float, prompts: ArrayLike, slope: Any = log_slope) -> tuple[Float, Float]:
    """Gradient of the loss at prompts (m, d) as mantissa (m, d) and log scale (m,).

        ∇L = −1/n Σ_i |ℓ'(f_i)| Σ_{t<τ} s_t s_τ (γ_t − γ_τ)(k_t − k_τ)

    A covariance as a sum over pairs: no term cancels, and the code shares nothing with
    training, so that one checks the other. gamma (n, T), keys (n, T, d).
    """
    log_s = log_softmax(np.einsum("ntd,md->mnt", keys, np.asarray(prompts)), axis=-1)
    pairs = log_s[..., :, None] + log_s[..., None, :]
    pairs = pairs + slope((np.exp(log_s) * gamma).sum(-1))[..., None, None]
    pairs = np.where(np.eye(gamma.shape[-1], dtype=bool), -np.inf, pairs)
    log_scale = pairs.max((-3, -2, -1))
    weights = np.exp(pairs - log_scale[:, None, None, None])
    gaps = gamma[:, :, None] - gamma[:, None, :]
    differences = keys[:, :, None] - keys[:, None, :]
    total = np.einsum("mntu,ntu,ntud->md", weights, gaps, differences)
    return -total / (2 * len(gamma)), log_scale


def lipschitz(gamma_size: Float, key_size: Float) -> float:
    """The smoothness constant for the logistic loss, M₀ = ¼ and M₁ = 1.

        L_p = 1/n Σ_i (M₀ ‖v‖² ‖X_i‖² + 3 M₁ ‖v‖ ‖X_i‖) ‖K_i‖²

    gamma_size (n,): ‖v‖ ‖X_i‖, an upper bound of the scores' length; key_size (n,): ‖K_i‖ (spectral).
    """
    return float(((gamma_size**2 / 4 + 3 * gamma_size) * key_size**2).mean())
