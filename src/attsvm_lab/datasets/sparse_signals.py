"""A signal in few of many tokens, and in how many examples one prompt can select it.

"High-dimensional Analysis of Single-layer Attention for Sparse-token Classification" (Barnfield, Cui, Lu
2026, arXiv 2509.25153), and the capacity of selection, which is ours.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import pi, sqrt

import numpy as np

from attsvm._support.validation import as_seeds, check_share, check_sizes, describe, is_finite
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, draw_runs, on_sphere
from attsvm.numbers import Float

SAMPLES = 1 << 16
"""Low-discrepancy points of a mean in the capacity; its error is about a thousandth of it."""


def sparse_signals(
    n: int = 200,
    T: int = 10,
    d: int = 100,
    strength: float = 5.0,
    seed: Seed = 0,
    *,
    rows: int = 1,
    share: float = 0.5,
    fresh: int = 0,
) -> tuple[Tokens, Float]:
    """Gaussian noise, and in the examples of one class a common signal on `rows` random tokens of T.

        y = +1 (with probability share):  X = strength · v ξᵀ + Z;     y = −1:  X = Z,   Z ~ N(0, 1), |ξ| = 1

    fresh: 0 for the training inputs, or the number of test inputs, from a separate stream, with the same ξ.
    Draw order: ξ; labels, Z, places. Returns keys (n, T, d), labels (n,), and ξ (d,), for prompt and head.
    """
    n, T, d, rows, fresh = check_sizes(n=(n, 1), T=(T, 1), d=(d, 1), rows=(rows, 1), fresh=(fresh, 0))
    check_share("share", share)
    if rows > T:
        raise ValueError(f"rows is {rows} of T={T} tokens. Pass 1 … {T}: so many carry the signal.")
    count, seed = fresh or n, as_seeds(seed)

    def signal(rng: np.random.Generator) -> dict[str, Float]:
        return {"xi": on_sphere(rng.standard_normal(d))}

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        arrays = signal(rng)
        arrays["labels"] = np.where(rng.random(count) < share, 1.0, -1.0)
        arrays["noise"] = rng.standard_normal((count, T, d))
        order = np.argsort(rng.random((count, T)), axis=1)
        return arrays | {"marked": (order < rows) * (arrays["labels"][:, None] > 0) * 1.0}

    arrays = draw_runs(draw, seed, test=bool(fresh))
    xi = draw_runs(signal, seed)["xi"]  # test inputs have the signal of the training inputs
    keys = arrays["noise"] + strength * arrays["marked"][..., None] * xi[..., None, None, :]
    return Tokens(keys, labels=arrays["labels"]), xi


def planted(
    n: int = 32, T: int = 8, d: int = 32, strength: float = 0.0, seed: Seed = 0
) -> tuple[Tokens, Float]:
    """Gaussian tokens with a signal on the first token of every example, which is to be selected.

        x_1 = strength · ξ + z_1,  x_t = z_t,     z ~ N(0, I_d),  |ξ| = 1

    The value of the first token is 1, that of the others 0, and the head is 1, so that the first token is the
    best one. Draw order: ξ, z. Returns keys (n, T, d), values (n, T, 1) and the head (1,).
    """
    n, T, d = check_sizes(n=(n, 1), T=(T, 1), d=(d, 1))

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        xi, keys = on_sphere(rng.standard_normal(d)), rng.standard_normal((n, T, d))
        keys[:, 0] += strength * xi
        return {"keys": keys}

    keys = draw_runs(draw, seed)["keys"]
    values = np.zeros((*keys.shape[:-1], 1))
    values[..., 0, :] = 1
    return Tokens(keys, values=values), np.ones((*keys.shape[:-3], 1))


def capacity(T: int, strength: float = 0.0) -> float:
    """Examples per dimension, n/d, up to which a prompt selects the first token of `planted` in all of them.

        n*/d = max_s (1 − s²) / D(s · strength),     D(τ) = E dist²(g + τ e_1, C),  g ~ N(0, I_T)

    C = {u: u_1 ≥ u_t for all t}, s the share of the prompt along ξ. Without a signal it is the kinematic
    formula (Amelunxen et al. 2014): d random directions meet the cone Cⁿ when d exceeds n D(0). D(0) = 1/2
    for T = 2, which is Cover's n* = 2d; it grows with log T. The formula is the limit for large d; it is
    computed exactly without a signal (there `separable_share` is one half), else to about a thousandth.
    """
    (T,) = check_sizes(T=(T, 2))
    if not is_finite(strength):
        raise ValueError(f"strength is {describe(strength)}. Pass a number.")
    strength = abs(strength)  # ξ and −ξ are as likely
    if not strength:
        return float(1 / (face_shares(T) @ np.arange(T)))
    from scipy.optimize import minimize_scalar

    def inverse(s: float) -> float:
        return cone_distance(T, s * strength) / (1 - s * s)

    return float(1 / minimize_scalar(inverse, bounds=(0, 1 - 1e-6), method="bounded").fun)


def cone_distance(T: int, shift: float) -> float:
    """D(τ) = E dist²(g + τ e_1, C), the mean over SAMPLES fixed points.

    The nearest point of C raises the first entry and lowers all larger entries to one level. The level is the
    largest mean of the first entry and some of the largest other entries.
    """
    first, ordered, sums = _points(T)
    first = first + shift
    level = np.maximum(first, ((first[:, None] + sums) / np.arange(2, T + 1)).max(1))
    excess = np.maximum(ordered - level[:, None], 0)
    return float(((level - first) ** 2 + (excess**2).sum(1)).mean())


@lru_cache(maxsize=2)
def _points(T: int) -> tuple[Float, Float, Float]:
    """Gaussian points: first entries, the other entries in descending order, and the sums of the latter."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    g = ndtri(qmc.Sobol(T, scramble=False).random(SAMPLES) + 0.5 / SAMPLES)
    ordered = -np.sort(-g[:, 1:], axis=1)
    return g[:, 0], ordered, np.cumsum(ordered, axis=1)


# ---------------------------------------------------------------------- Cover's count


def separable_share(n: int, T: int, d: int) -> float:
    """The probability that a prompt of width d separates one token from T − 1 others in each of n inputs.

        P = 1 − 2 (V_{d+1} + V_{d+3} + …) = 2 (V_{d−1} + V_{d−3} + …)

    V is the n-fold convolution of `face_shares(T)`. Exact for Gaussian keys and a selection that does not
    depend on them; for T = 2 it is Cover's count.
    No prompt exists if the null space of the keys, a random space of codimension d, meets the product of n
    cones spanned by e_t − e_s. The intrinsic volumes V of a cone give the probability of that.
    Reference: Amelunxen, Lotz, McCoy, Tropp 2014, "Living on the edge", conic kinematic formula [derived].
    """
    n, T, d = check_sizes(n=(n, 1), T=(T, 2), d=(d, 1))
    volumes = np.ones(1)
    for _ in range(n):
        volumes = np.convolve(volumes, face_shares(T))
    above, below = 2 * volumes[d + 1 :: 2].sum(), 2 * volumes[(d - 1) % 2 : d : 2].sum()
    return float(below if below < above else 1 - above)  # no cancellation near 0


@lru_cache(maxsize=64)
def face_shares(T: int) -> Float:
    """Intrinsic volumes of the cone spanned by e_t − e_s, t ≠ s, in R^T: (T,), of dimension 0 … T − 1.

        V_k = C(T − 1, k) · P(of k + 1 Gaussians only the first is below their mean)
                          · E Φ(g / √(k + 1))^(T − 1 − k)

    V_k is the probability that the projection of a Gaussian vector on the cone has k positive coefficients.
    Computed in logarithms, because C(T − 1, k) overflows where the probabilities underflow.
    """
    from scipy.special import gammaln, log_ndtr, logsumexp

    g, weight = np.polynomial.hermite_e.hermegauss(200)
    k = np.arange(T)
    powers = (T - 1 - k)[:, None] * log_ndtr(g / np.sqrt(k + 1)[:, None])
    outside = logsumexp(np.log(weight) + powers, axis=1) - np.log(2 * pi) / 2
    log_binomial = gammaln(T) - gammaln(k + 1) - gammaln(T - k)
    return np.exp(log_binomial + np.array([_log_inside(int(j)) for j in k]) + outside)


@cache
def _log_inside(k: int) -> float:
    """log P(of k + 1 Gaussians only the first is below their mean), by an integral along a complex line.

    The k deviations from the mean have correlation −1/k, that of variables with an imaginary common term. The
    line passes through the saddle point, so that the integrand does not oscillate.
    """
    if k == 0:
        return 0.0
    from scipy.optimize import brentq
    from scipy.special import erfcx, wofz

    def slope(x: float) -> float:
        return (k + 1) * x + k * sqrt(2 / pi) / float(erfcx(-x / sqrt(2)))

    y = np.linspace(-12, 12, 2001)
    x = brentq(slope, -sqrt(k) - 1, 0.0) + 1j * y
    logs = x * x / 2 + k * np.log(wofz(-1j * x / sqrt(2)) / 2)
    top = logs.real.max()
    return float(top + np.log(sqrt((k + 1) / (2 * pi)) * np.exp(logs - top).real.sum() * (y[1] - y[0])))
