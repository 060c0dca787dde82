"""An experiment: what is trained and how, its run, and the measures of the run.

    tokens, v = att.datasets.sphere(4, 4, 8, seed=range(4))
    factors = Experiment(tokens, v, att.steepest(att.Schatten(4), 0.01), 10_000, att.KeyQuery())
    print(factors.share(att.frobenius).min())

Equal experiments are trained once, whoever asks: a claim and its twin often judge one run in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Float

REMEMBERED = 24
"""Runs that are kept; the claims of one file meet fewer of them on one seed."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """Tokens, head, rule, steps, weight and start of a training, its path, and measures by the norm.

    v: a linear head, or the head itself. start: `init` of train(). record: the recorded steps, by default
    half of them and all. options: other arguments of train(), such as batch and train_head.
    """

    tokens: att.Tokens
    v: Any
    rule: Any
    steps: int
    weight: Any = field(default_factory=att.FullWeight)
    start: Any = None
    record: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _content(self) -> Any:
        return content_of(tuple(getattr(self, one.name) for one in fields(self)))

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self._content == other._content

    @property
    def path(self) -> att.Path:
        """The run. Diagonals are prompts, k ⊙ q on the keys x ⊙ z."""
        return _path(self)

    def solution(self, norm: att.Norm = att.frobenius, selected: Any = None) -> att.Solution:
        """The certified program of these tokens, by default of those that each run attends to at the end."""
        programs, key = _programs(self), (norm, content_of(selected))
        if key not in programs:
            chosen = self.path.selected if selected is None else selected
            programs[key] = solved(self.path.tokens, chosen, norm)
        return programs[key]

    def ratio(self, norm: att.Norm = att.frobenius, selected: Any = None) -> Float:
        """The margin of each record (runs, k), or (k,), over the best one of those tokens."""
        return np.asarray(att.margin_ratio(self.path, self.solution(norm, selected)))

    def share(self, norm: att.Norm = att.frobenius, selected: Any = None) -> Float:
        """The same at the end, (runs,)."""
        return np.asarray(self.ratio(norm, selected)[..., -1])

    def off(self, norm: att.Norm = att.frobenius, selected: Any = None) -> Float:
        """1 − cosine of each record (runs, k), or (k,), to the program; 1 where W = 0 has no direction."""
        return np.asarray(1 - att.cosine(self.path.W, self.solution(norm, selected).W))

    def arrival(self, level: float, norm: att.Norm = att.frobenius) -> Float:
        """The first recorded step (runs,) from which on the margin ratio is at least this, or ∞."""
        return arrivals(self.path.index, self.ratio(norm) >= level)

    def limit(self, norm: att.Norm = att.frobenius) -> Float:
        """What the ratio r tends to, 2 r(t) − r(t/2) (runs,), from records at t/2 and t.

        The part of the factors that a run learnt before it selected fades like 1/t, so that 1 − r ~ c/t. The
        next term is of order 1/t²: by it runs that selected late end above one.
        """
        ratio = self.ratio(norm)
        return np.asarray(2 * ratio[..., -1] - ratio[..., -2])

    def limits_by_length(self, norm: att.Norm) -> list[float]:
        """The shares that the settled runs tend to, from their last two records."""
        runs = [(run, solved(run.tokens, run.selected, norm)) for run in self.settled_runs()]
        return [limit_by_length(att.margin_ratio(run, best), run.norm(norm)) for run, best in runs]

    def points(self, steps: Any = None) -> list[tuple[att.Path, Any]]:
        """Every run with its KKT point, judged by the norm of its steps, Frobenius by default."""
        options = {} if steps is None else {"steps": steps}
        runs = ((self.path.run(k), v) for k, v in enumerate(self.v))
        return [(run, att.kkt_point(run, v, **options)) for run, v in runs]

    def settled_runs(self) -> list[att.Path]:
        """The runs that select the same tokens at the last two records, in every head."""
        runs = (self.path.run(k) for k in range(self.path.runs or 0))
        chosen = [(run, run.attention[-2:].argmax(-1)) for run in runs]
        return [run for run, (before, last) in chosen if (before == last).all()]


def arrivals(index: Any, reached: Any) -> Float:
    """The first recorded step (runs,) from which on something is reached (runs, k), or ∞."""
    stays = np.logical_and.accumulate(reached[:, ::-1], axis=1)[:, ::-1]
    return np.where(stays[:, -1], np.asarray(index, float)[stays.argmax(1)], np.inf)


def median_limit(what: str, of: str, limits: list[float], least: float, most: float = np.inf) -> Verdict:
    """The verdict on the median of limits of runs, of which three at least must have settled."""
    middle = float(np.median(limits)) if limits else np.nan
    return judge(
        what,
        at_least(f"median {of}", middle, least),
        *([at_most("the same", middle, most)] if most < np.inf else []),
        reported("least", min(limits, default=np.nan)),
        given={"three draws have settled": len(limits) >= 3},
    )


def limit_by_length(shares: Any, lengths: Any) -> float:
    """The share of a margin that a run tends to, from its last two records.

    What is missing is a number of logits: linear in 1/N(W), the length of the weight.
    """
    (before, last), (shorter, longer) = shares[-2:], lengths[-2:]
    return float((longer * last - shorter * before) / (longer - shorter))


def solved(
    tokens: att.Tokens, selected: Any, norm: att.Norm = att.frobenius, *, required: Any = 1.0
) -> att.Solution:
    """The program of `max_margin`, whose certificate holds in every run that it separates.

    Judged by a program that is not optimal, a run would have too large a margin ratio. Raises ValueError
    where the certificate does not hold: the claim is then not applicable.
    """
    solution = att.max_margin(tokens, selected, norm, required=required)
    if not np.all(np.asarray(solution.certified) | ~np.asarray(solution.separable)):
        raise ValueError(f"the {norm} program is not certified: {solution.certificate}")
    return solution


def content_of(value: Any) -> Any:
    """What a value is equal by, and hashable: arrays by their bytes, records by their fields."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(content_of(getattr(value, one.name)) for one in fields(value)))
    if isinstance(value, Mapping):
        return tuple((key, content_of(one)) for key, one in value.items())
    if type(value) in (list, tuple):  # an optimizer is a named tuple, with an equality of its own
        return tuple(map(content_of, value))
    return value


@lru_cache(maxsize=REMEMBERED)
def _path(experiment: Experiment) -> att.Path:
    steps = experiment.steps
    path = att.train(
        experiment.tokens,
        att.Linear(experiment.v) if isinstance(experiment.v, np.ndarray) else experiment.v,
        weight=experiment.weight,
        optimizer=experiment.rule,
        steps=steps,
        init=experiment.start,
        record=[steps // 2, steps] if experiment.record is None else experiment.record,
        **experiment.options,
    )
    if not isinstance(experiment.weight, att.Diagonal):
        return path
    prompts = att.Tokens(path.tokens.keys * path.tokens.queries[..., None, :], labels=path.tokens.labels)
    return path.changed(tokens=prompts, W=np.diagonal(path.W, axis1=-2, axis2=-1)[..., None])


@lru_cache(maxsize=REMEMBERED)
def _programs(experiment: Experiment) -> dict[Any, att.Solution]:
    """The programs of an experiment that have been solved, by their norm and tokens."""
    return {}
