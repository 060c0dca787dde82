"""Scaling collapse: in which one variable of n, T and d do curves of shares fall together?

A variable is log d − log f(n, T; θ). Shares of all cells are fitted by one curve of it, a logistic function
of a cubic, least squares in the share; θ, where the variable has one, is fitted with it. What is judged is
the root of the mean square of what is left, in shares, on the cells of the fit and on larger ones held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from resampling import bootstrap
from scipy.optimize import least_squares
from scipy.special import expit

from attsvm.claims.counting import separable_share, threshold

HELD_OUT = 16
"""Cells with so many inputs or tokens are predicted, not fitted."""
RESAMPLES = 100
MODELS = {"prompt_sphere": "prompt", "sphere": "W"}


@dataclass(frozen=True)
class Variable:
    """x = log d − log f(n, T; θ); start: of θ, one number each."""

    name: str
    size: Any
    start: tuple[float, ...] = ()

    def __call__(self, n: Any, T: Any, d: Any, θ: Any) -> Any:
        return np.log(d) - self.size(n, T, *θ)


def _log_threshold(n: Any, T: Any) -> Any:
    return np.log(n * np.array([threshold(int(t)) for t in np.atleast_1d(T)]))


VARIABLES = (
    Variable("d / (n^a T^b)", lambda n, T, a, b: a * np.log(n) + b * np.log(T), (1.0, 1.0)),
    Variable("d / (n T)^a", lambda n, T, a: a * np.log(n * T), (1.0,)),
    Variable("d / (n T)", lambda n, T: np.log(n * T)),
    Variable("d / (n + T)", lambda n, T: np.log(n + T)),
    Variable("d / (n log T)", lambda n, T: np.log(n * np.log(T))),
    Variable("d / (n δ_T)", _log_threshold),
    Variable("d / n", lambda n, T: np.log(n)),
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
        x = np.clip(self.variable(n, T, d, self.θ), *self.ends)
        return expit(np.polyval(self.cubic, (x - self.middle) / self.spread))

    def error(self, n: Any, T: Any, d: Any, share: Any) -> float:
        """Root of the mean square of what is left, in shares."""
        return float(np.sqrt(np.mean((self(n, T, d) - share) ** 2)))


def fit(variable: Variable, n: Any, T: Any, d: Any, share: Any) -> Fit:
    """Least squares of the curve and of θ; arrays (cells,)."""
    count, x = len(variable.start), variable(n, T, d, variable.start)
    middle, spread = float(x.mean()), float(x.std()) or 1.0

    def left(parameters: Any) -> Any:
        z = (variable(n, T, d, parameters[4:]) - middle) / spread
        return expit(np.polyval(parameters[:4], z)) - share

    found = least_squares(left, [0.0, 0.0, 1.0, 0.0, *variable.start]).x
    θ = found[4 : 4 + count]
    x = variable(n, T, d, θ)
    return Fit(variable, θ, found[:4], middle, spread, (float(x.min()), float(x.max())))


def compared(n: Any, T: Any, d: Any, share: Any) -> list[dict[str, Any]]:
    """Every variable: θ and its bootstrap interval over cells, its error, and that on the cells held out."""
    cells = np.array([n, T, d, share])
    known = (n < HELD_OUT) & (T < HELD_OUT)
    fits = {one.name: fit(one, *cells[:, known]) for one in VARIABLES}
    best = min(fits.values(), key=lambda one: one.error(*cells[:, known]))
    told = []
    for variable in VARIABLES:
        ours = fits[variable.name]

        def again(at: Any, variable: Variable = variable) -> Any:
            some = cells[:, known][:, at]
            one = fit(variable, *some)
            return [*one.θ, one.error(*some), one.error(*some) - fit(best.variable, *some).error(*some)]

        low, high = bootstrap(again, int(known.sum()), resamples=RESAMPLES)
        told.append(
            {
                "variable": variable.name,
                "exponents": [_rounded(x) for x in zip(ours.θ, low, high, strict=False)],
                "error": _rounded([ours.error(*cells[:, known]), low[-2], high[-2]]),
                "behind": _rounded([low[-1], high[-1]]),
                "held out": _rounded([ours.error(*cells[:, ~known])])[0] if not known.all() else None,
                "curve": {
                    "cubic": _rounded(ours.cubic),
                    "at": _rounded([ours.middle, ours.spread, *ours.ends]),
                },
            }
        )
    return told


def summary(done: Any) -> dict[str, Any]:
    """The record: all cells, every variable for both shares and both models, the exact count beside."""
    cells: dict[str, Any] = {}
    fits: dict[str, Any] = {}
    for model, name in MODELS.items():
        own = [cell for cell in done.cells if cell.words["model"] == model]
        n, T, d = (np.array([int(cell.words[key]) for cell in own]) for key in "nTd")
        shares = {key: np.array([c.quantities[key].value for c in own]) for key in ("global", "separable")}
        width = d if name == "prompt" else d * d
        exact = np.array([separable_share(*map(int, sizes)) for sizes in zip(n, T, width, strict=True)])
        columns = {"n": n, "T": T, "d": d, "runs": np.array([cell.runs for cell in own])}
        cells[name] = {key: [int(x) for x in column] for key, column in columns.items()}
        cells[name] |= {key: _rounded(column) for key, column in (shares | {"counted": exact}).items()}
        fits[name] = {key: compared(n, T, d, share) for key, share in shares.items()}
        error = float(np.sqrt(np.mean((exact - shares["separable"]) ** 2)))
        fits[name]["counted"] = _rounded([error, np.abs(exact - shares["separable"]).max()])
    return {"held out": HELD_OUT, "cells": cells, "fits": fits}


def _rounded(values: Any) -> list[float]:
    return [round(float(x), 4) for x in values]
