"""How many selections a prompt separates: Cover's count for any number of tokens."""

from __future__ import annotations

from functools import lru_cache
from math import comb, pi, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, wofz

from attsvm.numbers import Float


def separable_share(n: int, T: int, d: int) -> float:
    """The probability that a prompt of width d separates one token from T − 1 others in each of n inputs.

        P = 1 − 2 (V_{d+1} + V_{d+3} + …),   V = the n-fold convolution of `face_shares(T)`

    Exact for Gaussian keys and a selection that does not depend on them; for T = 2 it is Cover's count.
    There is a prompt unless the null space of the keys, a random space of codimension d, meets the product
    of n cones spanned by e_t − e_s; a cone's chance of that is told by its intrinsic volumes V.
    Reference: Amelunxen, Lotz, McCoy, Tropp 2014, "Living on the edge", conic kinematic formula [derived].
    """
    volumes = np.ones(1)
    for _ in range(n):
        volumes = np.convolve(volumes, face_shares(T))
    return float(1 - 2 * volumes[d + 1 :: 2].sum())


@lru_cache(maxsize=64)
def face_shares(T: int) -> Float:
    """Intrinsic volumes of the cone spanned by e_t − e_s, t ≠ s, in R^T: (T,), of dimension 0 … T − 1.

        V_k = C(T − 1, k) · P(of k + 1 Gaussians only the first is below their mean)
                          · E Φ(g / √(k + 1))^(T − 1 − k)

    V_k is the chance that the projection of a Gaussian vector on the cone has k positive coefficients.
    """
    g, weight = np.polynomial.hermite_e.hermegauss(200)
    outside = [(weight * ndtr(g / sqrt(k + 1)) ** (T - 1 - k)).sum() / sqrt(2 * pi) for k in range(T)]
    return np.array([comb(T - 1, k) * _inside(k) * outside[k] for k in range(T)])


def threshold(T: int) -> float:
    """Where half of the selections are separable: d / n = Σ k V_k, the statistical dimension of the cone.

    0.5 for T = 2, 1.09 for 4, 1.76 for 8, 2.51 for 16: about 0.85 log T in this range.
    """
    return float(face_shares(T) @ np.arange(T))


@lru_cache(maxsize=64)
def _inside(k: int) -> float:
    """P(of k + 1 Gaussians only the first is below their mean), by an integral along a complex line.

    The k deviations from the mean have the correlation −1/k, which an imaginary common part gives; the line
    goes through the saddle, where nothing cancels.
    """
    if k == 0:
        return 1.0

    def slope(x: float) -> float:
        return (k + 1) * x + k * sqrt(2 / pi) / float(erfcx(-x / sqrt(2)))

    y = np.linspace(-12, 12, 2001)
    x = brentq(slope, -sqrt(k) - 1, 0.0) + 1j * y
    values = np.exp(x * x / 2 + k * np.log(wofz(-1j * x / sqrt(2)) / 2))
    return float(sqrt((k + 1) / (2 * pi)) * values.real.sum() * (y[1] - y[0]))
