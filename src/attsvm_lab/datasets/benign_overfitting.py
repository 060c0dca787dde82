"""Signal tokens among noise with some wrong labels: when does attention that fits all labels generalise?

Both models have two orthogonal signals, μ₊ = signal · e₁ and μ₋ = signal · e₂, and noise of unit variance in
every coordinate, so that the signal-to-noise ratio is signal/√d.

Training from zero stays in the span of the training tokens. `in_span=True` draws tokens in at most n T + 2
coordinates of that span instead of d: the first two are those of the signals, and the noise in the others is
the triangular factor of a Gaussian matrix (Bartlett 1933). The law, the losses and the gradients are the
same. Fresh noise is standard normal in these coordinates, too; a trained model ignores its coordinates
outside of the span.
"""

from __future__ import annotations

import numpy as np

from attsvm._support.validation import check_share, check_sizes, describe, is_finite
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs
from attsvm.numbers import Bool, Float

SIGNALS = 2


def signal_and_noise(
    n: int = 20,
    T: int = 8,
    d: int = 2000,
    signal: float = 20.0,
    seed: Seed = 0,
    *,
    weak: float = 0.1,
    flipped: float = 0.2,
    fresh: int = 0,
    in_span: bool = False,
) -> tuple[Tokens, Float]:
    """One strong signal, a weak one of the same class and a weak one of the other, on T tokens of noise.

        x₁ = μ_y + ε₁,  x₂ = weak μ_y + ε₂,  x₃ = weak μ_{−y} + ε₃,  x_t = ε_t,      ε ~ N(0, I_d)

    Classes alternate. `flipped_examples(n, flipped)` have wrong labels, equally many in both classes.
    fresh: 0 for the training inputs, or the number of test inputs. These have correct labels and a separate
        random stream; with equal n, T, d and in_span they have the coordinates of the training inputs.
    Draw order: noise along the signals, noise.
    Returns keys (n, T, d) and the fixed head (μ₊ − μ₋)/(√2 signal²).
    Reference: Sakamoto and Sato 2025, "Benign Overfitting in Token Selection of Attention Mechanism".
    """
    n, T, d, fresh = check_sizes(n=(n, 2), T=(T, 3), d=(d, SIGNALS + 1), fresh=(fresh, 0))
    if not (is_finite(signal) and signal):
        raise ValueError(
            f"signal is {describe(signal)}. Pass a number that is not 0: the head is its inverse."
        )
    classes = np.arange(fresh or n) % 2
    wrong = np.zeros(fresh, bool) if fresh else flipped_examples(n, flipped)
    strength = np.zeros((T, SIGNALS))
    strength[:3] = [(1, 0), (weak, 0), (0, weak)]
    means = signal * np.stack([strength, strength[:, ::-1]])[classes]

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        along = means + rng.standard_normal((len(classes), T, SIGNALS))
        return {"keys": _joined(along, _noise(rng, (len(classes), T), d, n * T, bool(fresh), in_span))}

    keys = draw_runs(draw, seed, test=bool(fresh))["keys"]
    labels = np.where((classes == 0) != wrong, 1.0, -1.0)
    head = np.zeros((*keys.shape[:-3], keys.shape[-1]))
    head[..., :SIGNALS] = np.array([1, -1]) / (np.sqrt(2) * signal)
    return Tokens(keys, labels=np.broadcast_to(labels, keys.shape[:-2])), head


def signal_beside_noise(
    n: int = 200,
    T: int = 2,
    d: int = 40_000,
    signal: float = 30.0,
    seed: Seed = 0,
    *,
    flipped: float = 0.05,
    fresh: int = 0,
    in_span: bool = False,
) -> tuple[Tokens, Float]:
    """A class token μ_y at a random place among T − 1 noise tokens, which are orthogonal to both signals.

        x_s = μ_y,  x_t = ξ_t ~ N(0, I − μ₊μ₊ᵀ/signal² − μ₋μ₋ᵀ/signal²),  t ≠ s

    Classes are equally likely, and each label is wrong with probability `flipped`. The first two coordinates
    are those of the signals: noise is zero there.
    fresh: as in `signal_and_noise`. Draw order: classes, wrong labels, places, noise.
    Returns keys (n, T, d) and the head v = 0, which the theory trains together with the prompt, from zero.
    Reference: Magen et al. 2025, "Benign Overfitting in Single-Head Attention", for T = 2.
    """
    n, T, d, fresh = check_sizes(n=(n, 2), T=(T, 2), d=(d, SIGNALS + 1), fresh=(fresh, 0))
    check_share("flipped", flipped)
    count = fresh or n

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        classes, wrong = rng.integers(2, size=count), rng.random(count) < (0 if fresh else flipped)
        place = np.arange(T) == rng.integers(T, size=count)[:, None]
        along = np.where(place[..., None], signal * np.eye(SIGNALS)[classes][:, None], 0.0)
        # Noise is drawn for the noise tokens only, so that the span has n (T − 1) directions of noise.
        noise = _noise(rng, (count, T - 1), d, n * (T - 1), bool(fresh), in_span)
        across = np.zeros((count, T, noise.shape[-1]))
        across[~place] = noise.reshape(-1, noise.shape[-1])
        return {"keys": _joined(along, across), "labels": np.where((classes == 0) != wrong, 1.0, -1.0)}

    arrays = draw_runs(draw, seed, test=bool(fresh))
    keys = arrays["keys"]
    return Tokens(keys, labels=arrays["labels"]), np.zeros((*keys.shape[:-3], keys.shape[-1]))


def flipped_examples(n: int, share: float) -> Bool:
    """Which of the n examples of `signal_and_noise` have a wrong label (n,): the first round(share · n)."""
    if not 0 <= share < 0.5:
        raise ValueError(f"flipped is {share}. Pass the share of wrong labels, 0 or more and below one half.")
    return np.arange(n) < round(share * n)


# ---------------------------------------------------------------------- noise


def _noise(
    rng: np.random.Generator, tokens: tuple[int, int], d: int, trained: int, fresh: bool, in_span: bool
) -> Float:
    """Standard normal noise across the signals (n, T, ·): in d − 2 coordinates, or those of the span."""
    across = d - SIGNALS
    width = min(trained, across) if in_span else across
    noise = rng.standard_normal((*tokens, width))
    if fresh or not in_span:
        return noise
    rows = np.tril(noise.reshape(-1, width))
    diagonal = np.arange(width)
    rows[diagonal, diagonal] = np.sqrt(rng.chisquare(across - diagonal))
    return np.asarray(rows.reshape(noise.shape))


def _joined(along: Float, across: Float) -> Float:
    return np.concatenate([along, across], axis=-1)
