"""What is measured of trained runs, by name; or a user's function of a Path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.max_norm import MaxNorm
from attsvm.norms import Norm, Schatten, frobenius
from attsvm.numbers import Float
from attsvm.path import Path
from attsvm.program.max_margin import max_margin, separable
from attsvm.program.solution import Solution
from attsvm.rates import fit_rate
from attsvm.selection import best_tokens
from attsvm.sweeps.plugins import is_plugin, plugin
from attsvm.tokens import Tokens
from attsvm.verdict import classify, cosine, margin_ratio, unique
from attsvm.words import WrongWord, norm_of

NOISE = 1e-12
"""What a rate is not fitted to: an error of this size is rounding."""

ARRIVED = 0.99

RECORDS = 40
"""Log-spaced records of a run whose growth or rate is fitted."""


@dataclass(eq=False)
class Ended:
    """Trained runs with the head v, None where it is not linear, and the norm of the predicted program.

    few: programs in norms other than Frobenius, which take longer, are solved of the first so many runs.
    asked: all that is measured of them, by name; of nothing, anything may be.
    """

    path: Path
    v: Float | None
    predicted: Norm | None
    few: int
    asked: tuple[str, ...] = ()
    _solved: dict[Norm, Solution] = field(default_factory=dict)
    _ratios: dict[Norm, Float] = field(default_factory=dict)

    @cached_property
    def first(self) -> Ended:
        """The first few of them."""
        given, told, few = self.path, self.path.tokens, slice(self.few)
        own: list[Any] = [np.asarray(x)[few] for x in (told.keys, told.queries, told.labels, told.mask)]
        tokens = Tokens(*own)
        path = replace(
            given, tokens=tokens, W=given.W[few], stopped=np.asarray(given.stopped)[few], state=None
        )
        return Ended(path, None, self.predicted, self.few, self.asked)

    def head(self) -> Float:
        if self.v is None:
            raise WrongWord("kind and separable need a linear head: return Tokens and an array v.")
        return self.v

    def solution(self, norm: Norm) -> Solution:
        """The program of the tokens that each run attends to."""
        if norm not in self._solved:
            self._solved[norm] = max_margin(self.path.tokens, self.path.selected, norm)
        return self._solved[norm]


def _kind(ended: Ended, norm: Norm) -> NDArray[Any]:
    """Where the run ended: global, local, neither or unmoved."""
    return np.asarray(classify(ended.path, ended.head(), ended.solution(frobenius)))


def _separable(ended: Ended, norm: Norm) -> NDArray[Any]:
    """Whether some W puts the best tokens above all others."""
    best, attended = best_tokens(ended.path.tokens, ended.head()), ended.solution(frobenius)
    out = np.array(attended.separable)
    other = np.flatnonzero((best != attended.selected).any((-2, -1)))
    if len(other):
        all_ = ended.path.tokens
        some = Tokens(all_.keys[other], all_.queries[other], mask=all_.mask[other])
        out[other] = separable(some, best[other])
    return out


def _ratios(ended: Ended, norm: Norm) -> Float:
    """At every record (runs, k) that is looked at; NaN at the others."""
    if norm not in ended._ratios:
        solution, places = ended.solution(norm), _places(ended, norm)
        some = replace(ended.path, index=ended.path.index[places], W=ended.path.W[:, places], state=None)
        found = ended._ratios[norm] = np.full(ended.path.W.shape[:2], np.nan)
        found[:, places] = np.where(_known(solution), margin_ratio(some, solution), np.nan)
    return ended._ratios[norm]


def _places(ended: Ended, norm: Norm) -> list[int]:
    """The records at which the margin in this norm is asked for: a max-norm takes milliseconds."""
    every = list(range(len(ended.path.index)))
    told = [parts(name) for name in ended.asked if not is_own(name) and not name.startswith(WITHOUT_NORM)]
    own = [(measure, share) for measure, word, share in told if word and norm_of(word) == norm]
    if any(not word for _, word, _ in told) or not own or any(measure in OF_THE_WAY for measure, _ in own):
        return every
    return sorted({_at(ended.path, share) for _, share in own})


def _at(path: Path, share: float) -> int:
    """The record nearest to a share of the steps."""
    return int(np.abs(path.index - share * path.index[-1]).argmin())


def _gaps(ended: Ended, norm: Norm) -> Float:
    solution = ended.solution(norm)
    return np.where(_known(solution), 1 - cosine(ended.path.W, solution.W), np.nan)


def _known(solution: Solution) -> NDArray[Any]:
    """The runs with a certified solution (runs, 1)."""
    return np.asarray(solution.separable & solution.certified)[:, None]


def _margin_ratio(ended: Ended, norm: Norm) -> NDArray[Any]:
    """Least margin of the last W/N(W) over the best possible for the tokens it attends to."""
    return _ratios(ended, norm)[:, -1]


def _arrival(ended: Ended, norm: Norm, level: float = ARRIVED) -> NDArray[Any]:
    """The first recorded step from which on the margin ratio is so high; NaN where there is none."""
    ratios = _ratios(ended, norm)
    there = np.logical_and.accumulate((ratios >= level)[:, ::-1], axis=1)[:, ::-1]
    return np.where(there[:, -1], ended.path.index[there.argmax(1)].astype(float), np.nan)


def _one_minus_cosine(ended: Ended, norm: Norm) -> NDArray[Any]:
    """1 − cosine between the last W and the program's."""
    return _gaps(ended, norm)[:, -1]


def _norm_growth(ended: Ended, norm: Norm) -> NDArray[Any]:
    """Exponent a of N(W) ≈ c · stepsᵃ over the last decade of steps: 1 where every step counts."""
    return _exponents(ended.path.index, ended.path.norm(norm))


def _rate(ended: Ended, norm: Norm) -> NDArray[Any]:
    """Exponent of 1 − cosine over the last decade, of 1 − margin ratio where the program is not unique."""
    return _exponents(ended.path.index, _gaps(ended, norm) if unique(norm) else 1 - _ratios(ended, norm))


MEASURES: dict[str, Callable[[Ended, Norm], NDArray[Any]]] = {
    "kind": _kind,
    "separable": _separable,
    "margin_ratio": _margin_ratio,
    "arrival": _arrival,
    "one_minus_cosine": _one_minus_cosine,
    "norm_growth": _norm_growth,
    "rate": _rate,
}
WITHOUT_NORM = ("kind", "separable")
KINDS = ("global", "local", "neither", "unmoved")
MORE_IS_BETTER = ("separable", "margin_ratio", "norm_growth")
OF_THE_WAY = ("norm_growth", "rate", "arrival")
AT_A_STEP: dict[str, Callable[[Ended, Norm], Float]] = {"margin_ratio": _ratios, "one_minus_cosine": _gaps}
"""Measures (runs, k) that may be asked for at a share of the steps."""


def parts(name: str) -> tuple[str, str, float]:
    """The measure, its norm, "" for none, and its share of the steps, of "margin_ratio:l1@0.1".

    Of "arrival:l1@0.95" the margin ratio to arrive at. 1 where nothing is said.
    """
    told, sign, share = name.partition("@")
    measure, _, norm = told.partition(":")
    number = share.replace(".", "", 1).isdecimal() and 0 < float(share) <= 1
    ratio = measure == "arrival" and number and float(share) < 1
    if sign and not (number and (measure in AT_A_STEP or ratio)):
        at = f"{', '.join(AT_A_STEP)} may be taken at a share of the steps: margin_ratio:l1@0.1"
        raise WrongWord(f"no measure {name!r}. {at[0].upper()}{at[1:]}; arrival at a ratio below 1: @0.95.")
    return measure, norm, float(share) if sign else 1.0


def check(name: Any) -> None:
    """Refuse a measure that does not exist."""
    if not isinstance(name, str):
        raise WrongWord(f"measure holds {name!r}. Pass names in quotes.")
    measure, norm, _ = parts(name)
    if measure in MEASURES:
        if norm and measure in WITHOUT_NORM:
            raise WrongWord(f"{measure} has no norm. Pass {measure!r}.")
        if norm:
            norm_of(norm)
    elif not is_plugin(name):
        raise WrongWord(
            f"no measure {name!r}. Pass {', '.join(MEASURES)}; those after separable may name a norm "
            "(margin_ratio:l1); or a function of a Path as module:function."
        )


def needs_prediction(name: str) -> bool:
    """Whether a measure is taken in the norm that theory predicts."""
    measure, norm, _ = parts(name)
    return measure in MEASURES and measure not in WITHOUT_NORM and not norm


def is_own(name: str) -> bool:
    """Whether a measure is a function of the user's own."""
    return name.partition(":")[0] not in MEASURES


def needs_the_way(name: str) -> bool:
    """Whether a measure looks at the way, not only at its end."""
    return is_own(name) or "@" in name or name.partition(":")[0] in OF_THE_WAY


def measured(name: str, ended: Ended, folder: str) -> NDArray[Any]:
    """One value per run (runs,): a number, a truth value or a word."""
    measure, norm, share = parts(name)
    if measure in WITHOUT_NORM:
        return MEASURES[measure](ended, frobenius)
    if measure in MEASURES:
        chosen: Any = norm_of(norm) if norm else ended.predicted
        if share == 1:
            return _of_the_first(ended, chosen, MEASURES[measure])
        if measure == "arrival":
            return _of_the_first(ended, chosen, lambda one, norm: _arrival(one, norm, share))
        at = _at(ended.path, share)
        return _of_the_first(ended, chosen, lambda *own: AT_A_STEP[measure](*own)[:, at])
    function = plugin(name, folder)
    with_head = len(signature(function).parameters) > 1
    values = []
    for k in range(ended.path.runs or 0):
        one = ended.path.run(k)
        values.append(function(one, None if ended.v is None else ended.v[k]) if with_head else function(one))
    array = np.asarray(values)
    if array.shape != (len(values),) or array.dtype.kind not in "biufU":
        raise WrongWord(f"{name} returned {values[0]!r}. Return one number, truth value or word per path.")
    return array.astype(float) if array.dtype.kind in "iuf" else array


def of_the_worst(name: str, heads: Sequence[Ended]) -> NDArray[Any]:
    """The same of several heads, each judged by its own program: that of the worst of them."""
    each = np.stack([measured(name, head, "") for head in heads])
    measure = parts(name)[0]
    if measure == "kind":
        return np.asarray(KINDS)[np.stack([each == kind for kind in KINDS]).argmax(0).max(0)]
    return np.asarray(each.min(0) if measure in MORE_IS_BETTER else each.max(0))


def _of_the_first(ended: Ended, norm: Norm, measure: Callable[[Ended, Norm], NDArray[Any]]) -> NDArray[Any]:
    """A measure of the runs whose programs are solved in this norm, NaN for the others."""
    runs = ended.path.runs or 0
    of_matrices = isinstance(norm, MaxNorm) or (isinstance(norm, Schatten) and norm.p != 2)
    if of_matrices and ended.path.W.shape[-1] == 1:
        return np.full(runs, np.nan)  # of a prompt Schatten norms are the length, the max-norm is l∞
    if norm == frobenius or ended.few >= runs:
        return measure(ended, norm)
    found = measure(ended.first, norm) if ended.few else np.zeros(0)
    return np.concatenate([found, np.full(runs - ended.few, np.nan)])


def _exponents(steps: NDArray[Any], numbers: Float) -> Float:
    """The exponent of each run; NaN where too few numbers are more than rounding."""
    out = np.full(len(numbers), np.nan)
    for k, row in enumerate(numbers):
        good = np.isfinite(row) & (row > NOISE) & (steps >= steps[-1] / 10)
        if good.sum() >= 3:
            out[k] = fit_rate(steps[good], row[good]).exponent
    return out
