"""Rates: a power law fitted to the end of a curve, with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Rate:
    """A fitted power law  error ≈ c · x^exponent  with its 95 % interval and R²."""

    exponent: float
    low: float
    high: float
    r2: float

    def __str__(self) -> str:
        return f"exponent {self.exponent:.3f} [{self.low:.3f}, {self.high:.3f}], R² {self.r2:.4f}"


def fit_rate(x: ArrayLike, error: ArrayLike, *, last: float = 10.0) -> Rate:
    """Fit log error against log x over the last factor `last` of x (a decade by default).

    For a rate in log steps pass x = log(steps). The interval assumes independent residuals. Those of
    neighbouring records are dependent, so the interval is a lower bound of the uncertainty.
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to load

    x, error = np.asarray(x, float), np.asarray(error, float)
    if x.ndim != 1 or x.shape != error.shape or not x.size or not last > 1:
        raise ValueError(
            f"x has shape {x.shape}, error {error.shape}, and last is {last:g}. Pass one error per x, both "
            "(k,), and a factor above 1; of several runs each by itself."
        )
    fitted = (x > 0) & (x >= x.max() / last) & (error > 0)
    if not np.isfinite(x.max()) or np.isinf(error[fitted]).any():
        raise ValueError("x or an error is not finite. Leave such points out.")
    degrees = int(fitted.sum()) - 2
    if degrees < 1:
        raise ValueError(f"{fitted.sum()} points with positive error in the last factor {last:g}; pass ≥ 3.")
    u, v = np.log(x[fitted]), np.log(error[fitted])
    u, v = u - u.mean(), v - v.mean()
    if not u.any():
        raise ValueError("x is the same at every point of the last factor: no rate can be fitted.")
    slope = float(u @ v / (u @ u))
    residual = float(((v - slope * u) ** 2).sum())
    width = float(stdtrit(degrees, 0.975) * np.sqrt(residual / degrees / (u @ u)))
    r2 = 1 - residual / float(v @ v) if v.any() else 0.0
    return Rate(slope, slope - width, slope + width, r2)
