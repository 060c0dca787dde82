"""Scaling collapse: in which one variable of n, T and d do curves of shares fall together?

Shares of all cells are fitted by one curve of a variable x, a logistic function of a cubic, least squares in
the share; exponents of x are fitted with it. Some variables are of each input: the share of runs that are
right on all n of them is then the n-th power of the curve. What is judged is the root of the mean square of
what is left, in shares, on the cells of the fit and on larger ones held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from resampling import bootstrap, rounded
from scipy.optimize import least_squares
from scipy.special import expit

from attsvm_lab import datasets

HELD_OUT = 16
"""Cells with so many inputs or tokens are predicted, not fitted."""
RESAMPLES = 100
MODELS = {"prompt_sphere": "prompt", "sphere": "W"}


@dataclass(frozen=True)
class Variable:
    """x(n, T, d; θ), a logarithm; start: of θ. each: the curve is that of one input."""

    name: str
    x: Any
    start: tuple[float, ...] = ()
    each: bool = False


def _log_threshold(n: Any, T: Any) -> Any:
    return np.log(n * np.array([1 / datasets.capacity(int(t)) for t in np.atleast_1d(T)]))


VARIABLES = (
    Variable(
        "each: d / (n−1)^a (T−1)^b",
        lambda n, T, d, a, b: np.log(d) - a * np.log(n - 1) - b * np.log(T - 1),
        (1.0, 1.0),
        each=True,
    ),
    Variable("each: d / n T", lambda n, T, d: np.log(d / n / T), each=True),
    Variable("d / n^a T^b", lambda n, T, d, a, b: np.log(d) - a * np.log(n) - b * np.log(T), (1.0, 1.0)),
    Variable("d / (n T)^a", lambda n, T, d, a: np.log(d) - a * np.log(n * T), (1.0,)),
    Variable("d / n T", lambda n, T, d: np.log(d / n / T)),
    Variable("d / (n + T)", lambda n, T, d: np.log(d / (n + T))),
    Variable("d / n log T", lambda n, T, d: np.log(d / n / np.log(T))),
    Variable("d / n δ_T", lambda n, T, d: np.log(d) - _log_threshold(n, T)),
    Variable("d / n", lambda n, T, d: np.log(d / n)),
)
"""What may be the one that counts; δ_T is the exact threshold of a prompt that separates."""


@dataclass(frozen=True)
class Fit:
    """A curve of one variable: θ, the cubic's coefficients, and where and how widely x was seen."""

    variable: Variable
    θ: Any
    cubic: Any
    middle: float
    spread: float
    ends: tuple[float, float]

    def __call__(self, n: Any, T: Any, d: Any) -> Any:
        """The shares of cells; beyond what was seen, that of the nearest x."""
        x = np.clip(self.variable.x(n, T, d, *self.θ), *self.ends)
        return expit(np.polyval(self.cubic, (x - self.middle) / self.spread)) ** (
            n if self.variable.each else 1
        )

    def error(self, n: Any, T: Any, d: Any, share: Any) -> float:
        """Root of the mean square of what is left, in shares."""
        return float(np.sqrt(np.mean((self(n, T, d) - share) ** 2)))


def fit(variable: Variable, n: Any, T: Any, d: Any, share: Any, near: Fit | None = None) -> Fit:
    """Least squares of the curve and of θ; arrays (cells,). near: a fit of similar cells to begin with."""
    x = variable.x(n, T, d, *variable.start)
    middle, spread = (near.middle, near.spread) if near else (float(x.mean()), float(x.std()) or 1.0)
    start = [*near.cubic, *near.θ] if near else [0.0, 0.0, 1.0, 0.0, *variable.start]
    power = n if variable.each else 1

    def residuals(parameters: Any) -> Any:
        z = (variable.x(n, T, d, *parameters[4:]) - middle) / spread
        return expit(np.polyval(parameters[:4], z)) ** power - share

    solution = least_squares(residuals, start).x
    x = variable.x(n, T, d, *solution[4:])
    return Fit(variable, solution[4:], solution[:4], middle, spread, (float(x.min()), float(x.max())))


def compared(n: Any, T: Any, d: Any, share: Any) -> list[dict[str, Any]]:
    """Every variable: θ and its bootstrap interval over cells, its error, and that on the cells held out."""
    cells, fitted_cells = np.array([n, T, d, share]), (n < HELD_OUT) & (T < HELD_OUT)
    inside, ahead = cells[:, fitted_cells], cells[:, ~fitted_cells]
    fits = [fit(variable, *inside) for variable in VARIABLES]
    best = int(np.argmin([fitted.error(*inside) for fitted in fits]))

    def refitted(at: Any) -> Any:
        resampled = inside[:, at]
        each = [fit(fitted.variable, *resampled, near=fitted) for fitted in fits]
        errors = [fitted.error(*resampled) for fitted in each]
        θ = [[*fitted.θ, np.nan, np.nan][:2] for fitted in each]
        return np.column_stack([θ, errors, np.array(errors) - errors[best]])

    low, high = bootstrap(refitted, inside.shape[1], resamples=RESAMPLES)
    records = []
    for k, fitted in enumerate(fits):
        curve = {
            "cubic": rounded(fitted.cubic),
            "at": rounded([fitted.middle, fitted.spread, *fitted.ends]),
        }
        records.append(
            {
                "variable": fitted.variable.name,
                "exponents": [rounded([θ, low[k, j], high[k, j]]) for j, θ in enumerate(fitted.θ)],
                "error": rounded([fitted.error(*inside), low[k, 2], high[k, 2]]),
                "behind": rounded([low[k, 3], high[k, 3]]),
                "held out": rounded([fitted.error(*ahead)])[0],
            }
            | curve
        )
    return records


def counted(n: int, T: int, d: int, prompt: bool) -> float:
    """The share of draws whose best tokens can be separated, without a constant that is fitted.

    By counting, with d weights of a prompt or d² of W; or by the labels alone, which a prompt does where all
    agree and W where the queries separate them, Cover's count both. The likelier of the two.
    """
    weights, labels = (d, 1) if prompt else (d * d, d)
    share = datasets.separable_share
    return max(share(n, T, weights), share(n, 2, labels))


def summary(study: Any) -> dict[str, Any]:
    """The record: all cells, every variable for both shares and both models, the exact count beside."""
    cells: dict[str, Any] = {}
    fits: dict[str, Any] = {}
    for model, name in MODELS.items():
        model_cells = [cell for cell in study.cells if cell.words["model"] == model]
        n, T, d = (np.array([int(cell.words[key]) for cell in model_cells]) for key in "nTd")
        shares = {
            key: np.array([c.quantities[key].value for c in model_cells]) for key in ("global", "separable")
        }
        exact = np.array([counted(*map(int, size), name == "prompt") for size in zip(n, T, d, strict=True)])
        columns = {"n": n, "T": T, "d": d, "runs": np.array([cell.runs for cell in model_cells])}
        cells[name] = {key: [int(x) for x in column] for key, column in columns.items()}
        cells[name] |= {key: rounded(column) for key, column in (shares | {"counted": exact}).items()}
        fits[name] = {key: compared(n, T, d, share) for key, share in shares.items()}
        error = float(np.sqrt(np.mean((exact - shares["separable"]) ** 2)))
        fits[name]["counted"] = rounded([error, np.abs(exact - shares["separable"]).max()])
    return {"held out": HELD_OUT, "cells": cells, "fits": fits}
