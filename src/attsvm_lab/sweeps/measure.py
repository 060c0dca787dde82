"""The measures of trained runs, by name; a measure may also be a user's function of a Path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attsvm_lab.programs.max_norm  # noqa: F401  (registers "max-norm" for the words of studies)
from attsvm import (
    Norm,
    Path,
    Solution,
    Tokens,
    best_tokens,
    capabilities_of,
    classify,
    cosine,
    frobenius,
    margin_ratio,
    max_margin,
    separable,
)
from attsvm._support.options import BadOption
from attsvm._support.validation import is_finite
from attsvm.norms.names import norm_of
from attsvm.numbers import Float
from attsvm_lab.experiment import arrivals
from attsvm_lab.programs import fit_rate
from attsvm_lab.sweeps.intervals import KINDS
from attsvm_lab.sweeps.plugins import is_plugin, plugin

NOISE = 1e-12
"""Errors of this size are rounding; no rate is fitted to them."""

ARRIVED = 0.99

RECORDS = 40
"""Log-spaced records of a run whose growth or rate is fitted."""


@dataclass(eq=False)
class TrainedRuns:
    """Trained runs with the head v, None where it is not linear, and the norm of the predicted program.

    solved: number of runs, the first ones, whose programs are solved in norms other than Frobenius, which
    take longer. measures: the names of all measures of these runs; without any, every record may be needed.
    words: the settings of the cell, by column.
    """

    path: Path
    v: Float | None
    predicted: Norm | None
    solved: int
    measures: tuple[str, ...] = ()
    words: Mapping[str, Any] = field(default_factory=dict)
    _solutions: dict[Norm, Solution] = field(default_factory=dict)
    _ratios: dict[Norm, Float] = field(default_factory=dict)

    @cached_property
    def subset(self) -> TrainedRuns:
        """The runs whose programs are solved in every norm."""
        path, tokens, rows = self.path, self.path.tokens, slice(self.solved)
        arrays: list[Any] = [
            np.asarray(array)[rows] for array in (tokens.keys, tokens.queries, tokens.labels, tokens.mask)
        ]
        stopped = np.asarray(path.stopped)[rows]
        path = replace(path, tokens=Tokens(*arrays), W=path.W[rows], stopped=stopped, state=None)
        return TrainedRuns(path, None, self.predicted, self.solved, self.measures)

    def head(self) -> Float:
        if self.v is None:
            raise BadOption("kind and separable need a linear head: return Tokens and an array v.")
        return self.v

    def solution(self, norm: Norm) -> Solution:
        """The program of the tokens that each run attends to."""
        if norm not in self._solutions:
            self._solutions[norm] = max_margin(self.path.tokens, self.path.selected, norm)
        return self._solutions[norm]


def _kind(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """Where the run ended: global, local, neither or unmoved, by the program in the norm of its limit."""
    return np.asarray(classify(runs.path, runs.head()))


def _separable(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """Whether some W puts the best tokens above all others."""
    best, attended = best_tokens(runs.path.tokens, runs.head()), runs.solution(frobenius)
    separates = np.array(attended.separable)
    unsolved = np.flatnonzero((best != attended.selected).any((-2, -1)))
    if len(unsolved):
        tokens = runs.path.tokens
        tokens = Tokens(tokens.keys[unsolved], tokens.queries[unsolved], mask=tokens.mask[unsolved])
        separates[unsolved] = separable(tokens, best[unsolved])
    return separates


def _ratios(runs: TrainedRuns, norm: Norm) -> Float:
    """Margin ratios (runs, k): at the records that a measure needs, NaN at the others."""
    if norm not in runs._ratios:
        solution, records = runs.solution(norm), _needed_records(runs, norm)
        path = replace(runs.path, index=runs.path.index[records], W=runs.path.W[:, records], state=None)
        ratios = runs._ratios[norm] = np.full(runs.path.W.shape[:2], np.nan)
        ratios[:, records] = np.where(_certified(solution), margin_ratio(path, solution), np.nan)
    return runs._ratios[norm]


def _needed_records(runs: TrainedRuns, norm: Norm) -> list[int]:
    """The records at which a measure needs the margin in this norm: a max-norm takes milliseconds each."""
    in_norms = [
        parse_measure(name)
        for name in runs.measures
        if not is_user_function(name) and not name.startswith(WITHOUT_NORM)
    ]
    in_this_norm = [(measure, share) for measure, name, share in in_norms if name and norm_of(name) == norm]
    in_predicted_norm = any(not name for _, name, _ in in_norms)
    of_all_records = any(measure in OF_ALL_RECORDS for measure, _ in in_this_norm)
    if in_predicted_norm or not in_this_norm or of_all_records:
        return list(range(len(runs.path.index)))
    return sorted({_nearest_record(runs.path, share) for _, share in in_this_norm})


def _nearest_record(path: Path, share: float) -> int:
    """The record nearest to a share of the steps."""
    return int(np.abs(path.index - share * path.index[-1]).argmin())


def _gaps(runs: TrainedRuns, norm: Norm) -> Float:
    solution = runs.solution(norm)
    return np.where(_certified(solution), 1 - cosine(runs.path.W, solution.W), np.nan)


def _certified(solution: Solution) -> NDArray[Any]:
    """The runs with a certified solution (runs, 1)."""
    return np.asarray(solution.separable & solution.certified)[:, None]


def _margin_ratio(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """Least margin of the last W/N(W) over the best possible for the tokens it attends to."""
    return _ratios(runs, norm)[:, -1]


def _arrival(runs: TrainedRuns, norm: Norm, level: float = ARRIVED) -> NDArray[Any]:
    """The first recorded step from which on the margin ratio is at least `level`; NaN where there is none."""
    steps = arrivals(runs.path.index, _ratios(runs, norm) >= level)
    return np.where(np.isfinite(steps), steps, np.nan)


def _one_minus_cosine(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """1 − cosine between the last W and the program's."""
    return _gaps(runs, norm)[:, -1]


def _norm_growth(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """Exponent a of N(W) ≈ c · stepsᵃ over the last decade of steps: 1 if every step adds its full length."""
    return _exponents(runs.path.index, runs.path.norm(norm))


def _rate(runs: TrainedRuns, norm: Norm) -> NDArray[Any]:
    """Exponent of 1 − cosine over the last decade, of 1 − margin ratio where the program is not unique."""
    unique = 1 < norm.p < np.inf  # the solution of a strictly convex norm
    return _exponents(runs.path.index, _gaps(runs, norm) if unique else 1 - _ratios(runs, norm))


MEASURES: dict[str, Callable[[TrainedRuns, Norm], NDArray[Any]]] = {
    "kind": _kind,
    "separable": _separable,
    "margin_ratio": _margin_ratio,
    "arrival": _arrival,
    "one_minus_cosine": _one_minus_cosine,
    "norm_growth": _norm_growth,
    "rate": _rate,
}
WITHOUT_NORM = ("kind", "separable")
LARGER_IS_BETTER = ("separable", "margin_ratio", "norm_growth")
OF_ALL_RECORDS = ("norm_growth", "rate", "arrival")
AT_A_STEP: dict[str, Callable[[TrainedRuns, Norm], Float]] = {
    "margin_ratio": _ratios,
    "one_minus_cosine": _gaps,
}
"""Measures (runs, k) that a study may request at a share of the steps."""


def parse_measure(name: str) -> tuple[str, str, float]:
    """Split "margin_ratio:l1@0.1" into the measure, its norm ("" without one) and its share of the steps.

    The number after @ is the margin ratio to reach in "arrival:l1@0.95". It is 1 without an @.
    """
    qualified, sign, share = name.partition("@")
    measure, _, norm = qualified.partition(":")
    number = share.replace(".", "", 1).isdecimal() and 0 < float(share) <= 1
    ratio = measure == "arrival" and number and float(share) < 1
    if sign and not (number and (measure in AT_A_STEP or ratio)):
        allowed = ", ".join(AT_A_STEP).capitalize()
        raise BadOption(
            f"no measure {name!r}. {allowed} may be taken at a share of the steps: margin_ratio:l1@0.1; "
            "arrival at a ratio below 1: @0.95."
        )
    return measure, norm, float(share) if sign else 1.0


def check(name: Any) -> None:
    """Refuse a measure that does not exist."""
    if not isinstance(name, str):
        raise BadOption(f"measure holds {name!r}. Pass names in quotes.")
    measure, norm, _ = parse_measure(name)
    if measure in MEASURES:
        if norm and measure in WITHOUT_NORM:
            raise BadOption(f"{measure} has no norm. Pass {measure!r}.")
        if norm:
            norm_of(norm)
    elif not is_plugin(name):
        raise BadOption(
            f"no measure {name!r}. Pass {', '.join(MEASURES)}; those after separable may name a norm "
            "(margin_ratio:l1); or a function of a Path as module:function."
        )


def needs_prediction(name: str) -> bool:
    """Whether a measure is taken in the norm that theory predicts."""
    measure, norm, _ = parse_measure(name)
    return measure in MEASURES and measure not in WITHOUT_NORM and not norm


def is_user_function(name: str) -> bool:
    """Whether a measure is a user's function."""
    return name.partition(":")[0] not in MEASURES


def own_bounds(names: Sequence[str], folder: str) -> dict[str, tuple[float, float]]:
    """The least and the largest value of users' functions that state them by `function.bounds = (0, 1)`."""
    functions = {name: plugin(name, folder) for name in names if is_user_function(name)}
    stated = {name: getattr(function, "bounds", None) for name, function in functions.items()}
    return {name: _two_numbers(name, value) for name, value in stated.items() if value is not None}


def _two_numbers(name: str, value: Any) -> tuple[float, float]:
    pair = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(pair) != 2 or not all(map(is_finite, pair)) or not pair[0] < pair[1]:
        raise BadOption(f"{name}.bounds is {value!r}. Pass the least and the largest value, such as (0, 1).")
    return float(pair[0]), float(pair[1])


def needs_records(name: str) -> bool:
    """Whether a measure needs records of the path before its end."""
    return is_user_function(name) or "@" in name or name.partition(":")[0] in OF_ALL_RECORDS


def measured(name: str, runs: TrainedRuns, folder: str) -> NDArray[Any]:
    """One value per run (runs,): a number, a truth value or a word."""
    measure, norm_name, share = parse_measure(name)
    if measure in WITHOUT_NORM:
        return MEASURES[measure](runs, frobenius)
    if measure in MEASURES:
        norm: Any = norm_of(norm_name) if norm_name else runs.predicted
        if share == 1:
            return _of_solved_runs(runs, norm, MEASURES[measure])
        if measure == "arrival":
            return _of_solved_runs(runs, norm, lambda runs, norm: _arrival(runs, norm, share))
        record = _nearest_record(runs.path, share)
        return _of_solved_runs(runs, norm, lambda runs, norm: AT_A_STEP[measure](runs, norm)[:, record])
    function = plugin(name, folder)
    parameters, values = list(signature(function).parameters.values()), []
    # A third parameter with a default is the function's own affair.
    count = 3 if len(parameters) > 2 and parameters[2].default is Parameter.empty else min(2, len(parameters))
    for k in range(runs.path.runs or 0):
        arguments = runs.path.run(k), None if runs.v is None else runs.v[k], runs.words
        values.append(function(*arguments[:count]))
    array = np.asarray(values)
    if array.shape != (len(values),) or array.dtype.kind not in "biufU":
        raise BadOption(f"{name} returned {values[0]!r}. Return one number, truth value or word per path.")
    return array.astype(float) if array.dtype.kind in "iuf" else array


def worst_head(name: str, heads: Sequence[TrainedRuns]) -> NDArray[Any]:
    """A measure of several heads: each head is measured by its own program, and the worst value counts."""
    values = np.stack([measured(name, head, "") for head in heads])
    measure = parse_measure(name)[0]
    if measure == "kind":
        return np.asarray(KINDS)[np.stack([values == kind for kind in KINDS]).argmax(0).max(0)]
    return np.asarray(values.min(0) if measure in LARGER_IS_BETTER else values.max(0))


def _of_solved_runs(
    runs: TrainedRuns, norm: Norm, measure: Callable[[TrainedRuns, Norm], NDArray[Any]]
) -> NDArray[Any]:
    """A measure of the runs whose programs are solved in this norm, NaN for the others."""
    count = runs.path.runs or 0
    traits = capabilities_of(norm)
    of_matrices = traits.on_column is not None and not traits.euclidean
    if of_matrices and runs.path.W.shape[-1] == 1:
        return np.full(count, np.nan)  # for a prompt, Schatten norms are the length and the max-norm is l∞
    if norm == frobenius or runs.solved >= count:
        return measure(runs, norm)
    values = measure(runs.subset, norm) if runs.solved else np.zeros(0)
    return np.concatenate([values, np.full(count - runs.solved, np.nan)])


def _exponents(steps: NDArray[Any], numbers: Float) -> Float:
    """The exponent of each run; NaN where fewer than three numbers exceed rounding."""
    exponents = np.full(len(numbers), np.nan)
    for k, row in enumerate(numbers):
        usable = np.isfinite(row) & (row > NOISE) & (steps >= steps[-1] / 10)
        if usable.sum() >= 3:
            exponents[k] = fit_rate(steps[usable], row[usable]).exponent
    return exponents
