"""The random instances of the solver study: tokens of length one and a planted weight."""

from __future__ import annotations

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.numbers import Float

SHIFT = 0.1
"""How far the selected token is moved along the planted direction: the margin of `planted`."""


def planted(
    n: int, T: int, d: int, *, e: int | None = None, seed: int = 0, shift: float = SHIFT
) -> tuple[Tokens, np.ndarray]:
    """Unit Gaussian tokens; the token with the best planted score is selected and moved further.

        α_i = argmax_t x_tᵀ W₀ z_i,      x_α ← x_α + shift · W₀z_i / ‖W₀z_i‖

    e: width of the unit queries; e = 1 is the prompt model with W₀ a unit vector.
    Returns tokens with keys (n, T, d), queries (n, e), and the selected indices (n,).
    """
    rng = np.random.default_rng(seed)
    keys = unit(rng.standard_normal((n, T, d)))
    width = d if e is None else e
    if width == 1:
        queries, directions = None, np.tile(unit(rng.standard_normal(d)), (n, 1))
    else:
        queries = unit(rng.standard_normal((n, width)))
        directions = unit(queries @ rng.standard_normal((width, d)))
    best = np.argmax(np.einsum("ntd,nd->nt", keys, directions), axis=1)
    keys[np.arange(n), best] += shift * directions
    return Tokens(keys, queries), best  # type: ignore[arg-type]


def random_selection(n: int, T: int, d: int, *, seed: int = 0) -> tuple[Tokens, np.ndarray]:
    """The prompt model with a random selection: not separable as soon as n T is well above d."""
    rng = np.random.default_rng(seed)
    return Tokens(unit(rng.standard_normal((n, T, d)))), rng.integers(T, size=n)


def contradiction(
    n: int, T: int, d: int, *, e: int | None = None, seed: int = 0
) -> tuple[Tokens, np.ndarray]:
    """A planted instance whose last example repeats the one before it with another selection."""
    tokens, best = planted(n, T, d, e=e, seed=seed)
    keys, queries, selected = tokens.keys.copy(), tokens.queries.copy(), best.copy()
    keys[-1], queries[-1], selected[-1] = keys[-2], queries[-2], (selected[-2] + 1) % T
    return Tokens(keys, queries), selected


def features(tokens: Tokens, selected: np.ndarray) -> Float:
    """The rows vec((x_α − x_t) zᵀ) that a general solver needs: (n (T−1), d e)."""
    n, T, d = tokens.keys.shape
    selected_keys = tokens.keys[np.arange(n), selected]
    losing = np.arange(T) != selected[:, None]
    delta = (selected_keys[:, None] - tokens.keys)[losing]
    z = np.repeat(tokens.queries, T - 1, axis=0)
    return (delta[:, :, None] * z[:, None, :]).reshape(len(delta), d * tokens.e)


def unit(x: Float) -> Float:
    """Vectors of length one along the last axis."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))
