"""The ridges chosen by the data: a path from strong to weak, all folds and candidates in shared passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Float, Index
from attsvm.probe.data.arithmetic import Arithmetic
from attsvm.probe.fitting.descent import Search, Stop
from attsvm.probe.fitting.evaluation import evaluate
from attsvm.probe.fitting.functions import Functions, Memory
from attsvm.probe.fitting.loudest import WEAK, loud_start
from attsvm.probe.fitting.objective import Evaluation, Objective, Probes

AUTO = "auto"

HEAD = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4)
"""Head ridges, from strong to weak."""

RATIO, STRONGER = (10.0, 1.0), 6
"""How many times as large the prompt's ridge is; only with so many of the head's: weaker ones learn noise."""

POOLED = tuple((h, 1000 * h if h >= 0.003 else 30.0) for h in HEAD)
"""Mean pooling is always a candidate: the prompt's ridge lets it learn nothing, at every ridge of the head.

The mean of T tokens varies √T times less than one of them, so that its head needs weaker ridges. (Sequences
of one token have no attention.)
"""

PROMPT = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
"""Prompt ridges where the head's is given."""

PATIENCE, WORSE = 2, 1.05
"""A lane ends after so many stages without a lower held-out loss, or with one so many times its lowest."""

LOOSE, ENOUGH, MOST = 1e-3, 2e-3, 10
"""Where a candidate ends: largest partial derivative, share by which a step lowers its objective, steps."""

HOPE = 4
"""Passes after which a candidate so many times worse than its lane's best, and getting worse, is given up."""

UNCHOSEN = (0.1, 1.0)
"""Head and prompt ridge where there are too few sequences to choose."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The ridges; path: all candidates and their held-out losses, or None; start (D,) or None.

    points (folds, D): what was fitted to each fold with these ridges; None where nothing was held out.
    """

    head_ridge: float
    prompt_ridge: float
    path: dict[str, Float] | None = None
    start: Float | None = None
    points: Float | None = None

    @property
    def held_out(self) -> float:
        """The lowest held-out loss; infinite where nothing was held out."""
        return np.inf if self.path is None else float(self.path["held_out"].min())


def choose(
    where: Arithmetic,
    objective: Objective,
    given: Sequence[float | None],
    start: Float,
    steps: int,
    judge: bool = False,
) -> list[Choice]:
    """The ridges of every concept with the lowest held-out log loss.

    given: head and prompt ridge, None where it is to be chosen. Every lane goes from strong ridges, where
    attention is even, to weak ones, each stage from the weights of the one before. start (D,).
    judge: hold out even where both ridges are given, to compare features.
    """
    concepts, folds = len(objective.targets), len(objective.training) - 1
    several = objective.store.lengths.max() > 1
    lanes = _lanes(given, several and not objective.tied)  # a tied prompt cannot stay even
    if not folds or (len(lanes[0]) == 1 and not judge):
        head, prompt = (fixed or usual for fixed, usual in zip(given, UNCHOSEN, strict=True))
        return [Choice(head, prompt)] * concepts
    weak = lanes[-1][(lanes[-1] <= WEAK).all(1) & several]
    with ProgressLine(total=sum(map(len, [*lanes, weak]))) as line:
        search = partial(_search, where, objective, steps, line)
        done, rare = search(lanes, start, np.full(concepts, np.inf)), list[_Lane]()
        if len(weak):
            known = np.min([lane.best for lane in done], axis=0)
            rare = search([weak], loud_start(where, objective, start), known, sum(map(len, lanes)))
    return [_best(done, rare, concept) for concept in range(concepts)]


def _search(
    where: Arithmetic,
    objective: Objective,
    steps: int,
    line: ProgressLine,
    lanes: Sequence[Float],
    start: Float,
    best: Float,
    before: int = 0,
) -> list[_Lane]:
    """All lanes at once: a pass over the tokens serves each of them, whatever its stage.

    best (concepts,): a held-out loss that is known; before: stages that are over.
    """
    concepts, folds = len(objective.targets), len(objective.training) - 1
    points = objective.within(where, where.put(np.tile(start, (concepts * folds, 1))))
    now = evaluate(objective, where, points, _probes(np.arange(concepts), folds, np.zeros(2)))
    done = [_Lane(where, objective, ridges, steps, points, now, best) for ridges in lanes]
    while busy := [lane for lane in done if not lane.finished]:
        trials = [lane.search.trial() for lane in busy]
        probes = Probes.joined([lane.probes() for lane in busy])
        now = evaluate(objective, where, where.xp.concatenate(trials), probes)
        ends = np.cumsum([0, *map(len, trials)])
        for lane, a, b in zip(busy, ends[:-1], ends[1:], strict=True):
            lane.advance(Evaluation(now.value[a:b], now.gradient[a:b], now.held_out[a:b]))
        line.show("choosing ridges", before + sum(lane.number for lane in done))
    return done


class Candidate(NamedTuple):
    """The ridges of a stage, and what a concept lost with them: on each fold (folds,), and their mean."""

    concept: int
    stage: int
    head_ridge: float
    prompt_ridge: float
    held_out: float
    folds: Float


class _Lane:
    """Candidates from strong ridges to weak ones, ridges (stages, 2), for the concepts (c,) still alive.

    points (c·folds, D): where all of them begin; now: their evaluation there, without ridges.
    """

    def __init__(
        self,
        where: Arithmetic,
        objective: Objective,
        ridges: Float,
        steps: int,
        points: Array,
        now: Evaluation,
        best: Float,
    ) -> None:
        self.where, self.objective, self.ridges = where, objective, ridges
        self.stop, self.finished = Stop(min(steps, MOST), LOOSE, ENOUGH), False
        self.folds, concepts = len(objective.training) - 1, len(objective.targets)
        self.concept, self.number = np.arange(concepts), 0
        self.best, self.since = best.copy(), np.zeros(concepts, int)
        self.candidates = list[Candidate]()
        self.ends = dict[int, tuple[Candidate, Float]]()  # of every concept the best, and its points
        self._begin(points, now, Memory(), np.zeros(2))

    def _begin(self, points: Array, now: Evaluation, memory: Memory, before: Float) -> None:
        """A stage: what other ridges change in value, gradient and remembered curvature is known."""
        head, prompt = self.ridges[self.number] - before
        of_numbers = np.repeat([prompt, head, 0.0], self.objective.counts)
        change = self.where.put(np.tile(of_numbers, (len(points), 1)))
        shift = change * points
        value = now.value + self.where.numpy((shift * points).sum(1)) / 2
        now = Evaluation(value, now.gradient + shift, now.held_out)
        self.search = Search(self.where, points, now, self.stop, memory.bent(self.where, change))
        self.mean = self._held_out(self.search.latest)
        self._end_stages()

    def probes(self) -> Probes:
        """Of the active functions."""
        return _probes(self.concept, self.folds, self.ridges[self.number]).take(self.search.active)

    def advance(self, now: Evaluation) -> None:
        """One pass: the active functions were evaluated at their trial points."""
        self.search.advance(now)
        before, self.mean = self.mean, self._held_out(self.search.latest)
        if self.search.passes > HOPE:
            lost = (self.mean > WORSE * self.best[self.concept]) & (self.mean >= before)
            self.search.drop(np.repeat(lost, self.folds)[self.search.active])
        self._end_stages()

    def _held_out(self, losses: Float) -> Float:
        """The mean over the folds (c,) of losses (c·folds,)."""
        return np.asarray(losses.reshape(-1, self.folds) @ self.objective.share[1:])

    def _end_stages(self) -> None:
        """Where a stage is over, record it and begin the next, without concepts that got worse."""
        if not self.search.over:
            return
        found = self.search.found()
        self._record(found)
        alive = self.since[self.concept] < PATIENCE
        self.number, self.concept = self.number + 1, self.concept[alive]
        self.finished = self.number == len(self.ridges) or not alive.any()
        if not self.finished:
            numbers, vectors, memory = found.take(self.where, np.flatnonzero(np.repeat(alive, self.folds)))
            now = Evaluation(numbers.value, vectors.gradient, numbers.held_out)
            self._begin(vectors.points, now, memory, self.ridges[self.number - 1])

    def _record(self, found: Functions) -> None:
        head, prompt = self.ridges[self.number]
        losses, means = found.numbers.held_out, self._held_out(found.numbers.held_out)
        for place, (concept, mean) in enumerate(zip(self.concept.tolist(), means, strict=True)):
            own, best = slice(place * self.folds, (place + 1) * self.folds), self.best[concept]
            candidate = Candidate(concept, self.number, head, prompt, mean, losses[own])
            self.candidates.append(candidate)
            if mean < best:
                self.best[concept], self.since[concept] = mean, 0
                self.ends[concept] = candidate, self.where.numpy(found.vectors.points[own])
            else:
                self.since[concept] += PATIENCE if mean > WORSE * best else 1


def _probes(concept: Index, folds: int, ridges: Float) -> Probes:
    """Every concept in every fold, with these ridges of head and prompt."""
    K = len(concept) * folds
    fold = np.tile(np.arange(1, folds + 1), len(concept))
    return Probes(np.repeat(concept, folds), fold, np.full(K, ridges[1]), np.full(K, ridges[0]))


def _best(lanes: Sequence[_Lane], rare: Sequence[_Lane], concept: int) -> Choice:
    """Of all lanes, the rare ones where they are clearly better; candidates in the order of their stages."""
    best, points = min(lanes, key=lambda lane: lane.best[concept]).ends[concept]
    for lane in rare:
        other = lane.ends.get(concept)
        if other is not None and _clearly(best.folds - other[0].folds):
            (best, points), lanes = other, [*lanes, lane]
    tried = [each for lane in lanes for each in lane.candidates if each.concept == concept]
    tried.sort(key=lambda each: each.stage)
    path = {
        "head_ridge": np.array([each.head_ridge for each in tried]),
        "prompt_ridge": np.array([each.prompt_ridge for each in tried]),
        "held_out": np.array([each.held_out for each in tried]),
        "folds": np.array([each.folds for each in tried]),
    }
    return Choice(float(best.head_ridge), float(best.prompt_ridge), path, points.mean(0), points)


def _clearly(gains: Float) -> bool:
    """Whether the mean gain over the folds is above its standard error: few sequences are told by chance."""
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > error)


def _lanes(given: Sequence[float | None], several: bool) -> list[Float]:
    """Candidates (stages, 2) of each lane: head and prompt ridge; several: some sequence has two tokens."""
    head, prompt = given
    if head is None and prompt is None:
        attending = [np.array([(h, ratio * h) for h in HEAD[:STRONGER]]) for ratio in RATIO]
        return [np.array(POOLED), *attending] if several else attending[1:]
    heads, prompts = HEAD if head is None else [head], PROMPT if prompt is None else [prompt]
    return [np.array([(h, p) for h in heads for p in prompts])]
