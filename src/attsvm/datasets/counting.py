"""How many selections a prompt separates: Cover's count for any number of tokens."""

from __future__ import annotations

from functools import cache, lru_cache
from math import pi, sqrt

import numpy as np

from attsvm._support.validation import check_sizes
from attsvm.numbers import Float


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
