"""One informative location: one token carries the response; and the exact risk of erf-attention on such data.

"Attention Layers Provably Solve Single-location Regression" (Marion, Berthier, Biau, Boyer 2025,
arXiv 2410.01537).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm._support.validation import as_seeds, check_sizes, describe, is_finite
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs, on_sphere
from attsvm.numbers import Float

NODES = 120
"""Nodes of the Gauss-Hermite rule: its error is 1e-12 for λ up to 1, and 1e-6 at 2."""


class Truth(NamedTuple):
    """Hidden parameters of `one_location`: unit vectors k*, v* (d,), the place (n,), the response Y (n,)."""

    k: Float
    v: Float
    place: NDArray[np.intp]
    response: Float


def one_location(
    n: int = 100,
    T: int = 10,
    d: int = 400,
    seed: Seed = 0,
    *,
    variance: float = 0.5,
    noise: float = 0.0,
    fresh: int = 0,
) -> tuple[Tokens, Truth]:
    """One token of T, marked along k*, carries the response along v*; the others are noise.

        x_J ~ N(√(d/2) k*, variance · I),  x_t ~ N(0, I),  Y = x_Jᵀ v* + noise · N(0, 1),   k* ⊥ v*, J uniform

    Values are x_tᵀ v* − Y (n, T, 1): the prompt model of these tokens with `SquaredError()` is the regression
    for known v*. fresh: 0 for the training inputs, or the number of test inputs, from a separate stream, with
    the same k* and v*. Draw order: k*, v*; places, tokens, noise. Returns Tokens and the truth.
    """
    n, T, d, fresh = check_sizes(n=(n, 1), T=(T, 2), d=(d, 2), fresh=(fresh, 0))
    if not (is_finite(variance) and variance >= 0):
        raise ValueError(f"variance is {describe(variance)}. Pass a number of at least 0.")
    count, seed = fresh or n, as_seeds(seed)

    def directions(rng: np.random.Generator) -> dict[str, Float]:
        k, v = on_sphere(rng.standard_normal((2, d)))
        return {"k": k, "v": on_sphere(v - k * (k @ v))}

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        k_and_v = directions(rng)
        place, tokens = rng.integers(T, size=count), rng.standard_normal((count, T, d))
        return k_and_v | {"place": place.astype(float), "keys": tokens, "noise": rng.standard_normal(count)}

    arrays = draw_runs(draw, seed, test=bool(fresh))
    arrays |= draw_runs(directions, seed)  # test inputs have the directions of the training inputs
    k, v, keys = arrays["k"], arrays["v"], arrays["keys"]
    informative = (np.arange(T) == arrays["place"][..., None])[..., None]
    keys = np.where(informative, np.sqrt(d / 2) * k[..., None, None, :] + np.sqrt(variance) * keys, keys)
    along = np.matmul(keys, v[..., None, :, None])
    response = np.where(informative, along, 0).sum(-2)[..., 0] + noise * arrays["noise"]
    tokens = Tokens(keys, values=along - response[..., None, None])
    return tokens, Truth(k, v, arrays["place"].astype(np.intp), response)


# ---------------------------------------------------------------------- the exact risk


class Overlaps(NamedTuple):
    """k·k*, v·v*, k·v, v·k*, k·v* of unit vectors k and v, which determine the risk."""

    kappa: Float | float
    nu: Float | float
    mixed: Float | float
    value_on_key: Float | float
    key_on_value: Float | float


@dataclass(frozen=True)
class LocationRisk:
    """The risk E (Y − Σ_t erf(λ x_tᵀ k) x_tᵀ v)² of `one_location`, exactly, and its gradient.

    It is a sum of Gaussian means in one variable, xᵀk; the other directions of x are integrated in closed
    form. Each mean is computed by a Gauss-Hermite rule. Where k ⊥ v, k ⊥ v* and v ⊥ k* the risk is
    `on_manifold`.
    """

    d: int = 400
    T: int = 10
    variance: float = 0.5
    sharpness: float = 0.1
    noise: float = 0.0

    def on_manifold(self, kappa: Float | float, nu: Float | float) -> Float:
        """The risk in closed form, with γ² = variance.

        noise² + γ² − 2γ² ν erf(λκ√(d/(2 + 4λ²γ²))) + γ² ζ(λκ√(d/2), λγ) + (T − 1) ζ(0, λ)
        """
        from scipy.special import erf

        lam, var = self.sharpness, self.variance
        mean = erf(lam * kappa * np.sqrt(self.d / (2 + 4 * lam**2 * var)))
        square = zeta(lam * kappa * np.sqrt(self.d / 2), lam * np.sqrt(var))
        informative = var * (1 - 2 * nu * mean + square)
        return np.asarray(self.noise**2 + informative + (self.T - 1) * zeta(0.0, lam), dtype=float)

    def value(self, at: Overlaps) -> Float:
        return self._computed(at)[0]

    def gradient(self, at: Overlaps) -> Overlaps:
        """The derivative of the risk in each overlap."""
        return self._computed(at)[1]

    def _computed(self, at: Overlaps) -> tuple[Float, Overlaps]:
        kappa, nu, c, p, q = (np.asarray(x, dtype=float)[..., None] for x in at)
        root, var, count = np.sqrt(self.d / 2), self.variance, self.T - 1
        gamma, g, weight = np.sqrt(var), *_gaussian()
        f, slope = _erf(self.sharpness, root * kappa + gamma * g)
        plain, _ = _erf(self.sharpness, g)
        b, b_variance = root * p + gamma * c * g, var * (1 - c * c)
        read = q * g * gamma * b + var * (nu - c * q)  # E[x_Jᵀv · (Y − noise) | x_Jᵀk]
        dc_b, dp_b = gamma * g, root

        def mean(x: Float) -> Float:
            return np.asarray((x * weight).sum(-1))

        m0, dm0 = mean(c * plain * g), mean(plain * g)
        m1, informative = mean(f * b), mean(f * f * (b * b + b_variance) - 2 * f * read)
        noise_tokens = mean(plain**2 * (c * c * g * g + 1 - c * c))
        value = var + self.noise**2 + informative + 2 * count * m0 * m1
        value = value + count * noise_tokens + count * (count - 1) * m0**2
        across = 2 * count * m0
        by_kappa = mean(root * slope * (2 * f * (b * b + b_variance) - 2 * read)) + across * mean(
            root * slope * b
        )
        by_nu = mean(-2 * var * f)
        by_c = mean(f * f * (2 * b * dc_b - 2 * var * c) - 2 * f * (q * g * gamma * dc_b - var * q))
        by_c += across * mean(f * dc_b) + 2 * count * dm0 * m1 + 2 * count * (count - 1) * m0 * dm0
        by_c += count * mean(plain**2 * (2 * c * g * g - 2 * c))
        by_p = mean(2 * f * f * b * dp_b - 2 * f * q * g * gamma * dp_b) + across * mean(f * dp_b)
        by_q = mean(-2 * f * (g * gamma * b - var * c))
        return value, Overlaps(by_kappa, by_nu, by_c, by_p, by_q)


def zeta(t: Float | float, a: Float | float) -> Float:
    """E erf²(t + a G) = 1 − 8 OwenT(√2 t/√(1 + 2a²), 1/√(1 + 4a²)),  G ~ N(0, 1)."""
    from scipy.special import owens_t

    t, a = np.asarray(t, dtype=float), np.asarray(a, dtype=float)
    return np.asarray(1 - 8 * owens_t(np.sqrt(2) * t / np.sqrt(1 + 2 * a * a), 1 / np.sqrt(1 + 4 * a * a)))


def _erf(sharpness: float, x: Float) -> tuple[Float, Float]:
    """erf(λx) and its slope in x."""
    from scipy.special import erf

    return erf(sharpness * x), 2 * sharpness / np.sqrt(np.pi) * np.exp(-((sharpness * x) ** 2))


@cache
def _gaussian() -> tuple[Float, Float]:
    """Nodes and weights of a mean over N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, weights / np.sqrt(2 * np.pi)
