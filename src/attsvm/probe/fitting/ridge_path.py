"""The ridges chosen by the data: a path from strong to weak, all folds and candidates in shared passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from attsvm.numbers import Bool, Float
from attsvm.probe.data.arithmetic import Device, Host
from attsvm.probe.fitting.descent import Memory, Search, Stop
from attsvm.probe.fitting.objective import Evaluation, Objective, Probes
from attsvm.progress import Line

AUTO = "auto"

HEAD = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
RATIO = (1000.0, 10.0, 1.0)
"""The candidates: head ridges from strong to weak, and how many times as large the prompt's ridge is.

The first lane is mean pooling at every head ridge. Without it a head that needs weak ridges, because every
token tells a little, would have to take an attention that learns noise. Sequences of one token, which have no
attention to be made even, do without it.
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
    where: Host | Device,
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
    lanes = _lanes(given, RATIO if objective.store.lengths.max() > 1 else RATIO[1:])
    if not folds or (lanes.shape[1] == 1 and not judge):
        head, prompt = (fixed or usual for fixed, usual in zip(given, UNCHOSEN, strict=True))
        return [Choice(head, prompt)] * concepts
    return _search(where, objective, lanes, start, steps)


def _search(where: Any, objective: Objective, lanes: Float, start: Float, steps: int) -> list[Choice]:
    """All lanes at once: a pass over the tokens serves each of them, whatever its stage."""
    concepts, folds = len(objective.targets), len(objective.training) - 1
    points = where.put(np.tile(start, (concepts * folds, 1)))
    which = _probes(np.arange(concepts), folds, np.zeros(2))
    now, done = objective(where, points, which), [_Lane(where, objective, ridges, steps) for ridges in lanes]
    for lane in done:
        lane.begin(points, now, Memory(), np.zeros(2))
    with Line(total=lanes.shape[0] * lanes.shape[1]) as line:
        while busy := [lane for lane in done if lane.search is not None]:
            trials = [lane.search.trial() for lane in busy]
            now = objective(where, where.xp.concatenate(trials), Probes.of([lane.probes() for lane in busy]))
            ends = np.cumsum([0, *map(len, trials)])
            for lane, a, b in zip(busy, ends[:-1], ends[1:], strict=True):
                lane.take(Evaluation(now.value[a:b], now.gradient[a:b], now.held_out[a:b]))
            line.show("choosing ridges", sum(lane.number for lane in done))
    return [_best(done, concept) for concept in range(concepts)]


class _Lane:
    """Candidates from strong ridges to weak ones, ridges (stages, 2), for the concepts (c,) still alive."""

    def __init__(self, where: Any, objective: Objective, ridges: Float, steps: int) -> None:
        self.where, self.objective, self.ridges = where, objective, ridges
        self.stop = Stop(min(steps, MOST), LOOSE, ENOUGH)
        self.folds, concepts = len(objective.training) - 1, len(objective.targets)
        self.concept, self.number, self.mean = np.arange(concepts), 0, np.full(concepts, np.inf)
        self.best, self.since = np.full(concepts, np.inf), np.zeros(concepts, int)
        self.search: Any = None
        self.ends: dict[int, tuple[Float, Float]] = {}
        self.rows: list[tuple[Any, ...]] = []

    def begin(self, points: Any, now: Evaluation, memory: Memory, before: Float) -> None:
        """A stage: what other ridges change in value, gradient and remembered curvature is known."""
        change = self.where.put(self._of_numbers(self.ridges[self.number] - before))
        shift = change * points
        value = now.value + self.where.numpy((shift * points).sum(1)) / 2
        memory.add(self.where, change)
        now = Evaluation(value, now.gradient + shift, now.held_out)
        self.search = Search(self.where, points, now, self.stop, memory)
        self.mean = self._held_out()
        self._end_stages()

    def probes(self) -> Probes:
        """Of the active functions."""
        return _probes(self.concept, self.folds, self.ridges[self.number]).take(self.search.active)

    def take(self, now: Evaluation) -> None:
        self.search.take(now)
        before, self.mean = self.mean, self._held_out()
        if self.search.passes > HOPE:
            lost = (self.mean > WORSE * self.best[self.concept]) & (self.mean >= before)
            self.search.drop(np.repeat(lost, self.folds)[self.search.active])
        self._end_stages()

    def _held_out(self) -> Float:
        return np.asarray(self.search.latest.reshape(-1, self.folds) @ self.objective.share[1:])

    def _end_stages(self) -> None:
        """Where a stage is over, record it and begin the next, without concepts that got worse."""
        if not self.search.over:
            return
        found, self.search = self.search.found(), None
        losses = found.held_out.reshape(-1, self.folds)
        mean = losses @ self.objective.share[1:]
        for place, concept in enumerate(self.concept.tolist()):
            own = found.points[place * self.folds : (place + 1) * self.folds]
            self._record(concept, mean[place], losses[place], own)
        alive = self.since[self.concept] < PATIENCE
        self.number, self.concept = self.number + 1, self.concept[alive]
        if self.number == len(self.ridges) or not alive.any():
            return
        which = np.flatnonzero(np.repeat(alive, self.folds))
        place = self.where.put(which)
        now = Evaluation(found.value[which], found.gradient[place], found.held_out[which])
        self.begin(found.points[place], now, found.memory.take(place, which), self.ridges[self.number - 1])

    def _record(self, concept: int, mean: float, losses: Float, points: Any) -> None:
        ridges, best = self.ridges[self.number], self.best[concept]
        self.rows.append((concept, self.number, *ridges, mean, losses))
        if mean < best:
            self.best[concept], self.since[concept] = mean, 0
            self.ends[concept] = ridges, self.where.numpy(points)
        else:
            self.since[concept] += PATIENCE if mean > WORSE * best else 1

    def _of_numbers(self, ridges: Float) -> Float:
        """Head and prompt ridge, for every number of every probe (c·folds, D)."""
        o = self.objective
        counts = [o.store.width * o.h, o.store.width * o.h * o.k, o.k]
        return np.tile(np.repeat([ridges[1], ridges[0], 0.0], counts), (len(self.concept) * self.folds, 1))


def _probes(concept: NDArray[np.intp], folds: int, ridges: Float) -> Probes:
    """Every concept in every fold, with these ridges of head and prompt."""
    K = len(concept) * folds
    fold = np.tile(np.arange(1, folds + 1), len(concept))
    return Probes(np.repeat(concept, folds), fold, np.full(K, ridges[1]), np.full(K, ridges[0]))


def _best(lanes: Sequence[_Lane], concept: int) -> Choice:
    """Of all lanes; candidates in the order of their stages."""
    best = min(lanes, key=lambda lane: lane.best[concept])
    (head, prompt), points = best.ends[concept]
    rows = [row[1:] for lane in lanes for row in lane.rows if row[0] == concept]
    columns = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    names = "head_ridge", "prompt_ridge", "held_out", "folds"
    path = {name: np.array(each) for name, each in zip(names, list(columns)[1:], strict=True)}
    return Choice(float(head), float(prompt), path, points.mean(0), points)


def _lanes(given: Sequence[float | None], ratios: Sequence[float]) -> Float:
    """Candidates (lanes, stages, 2): head and prompt ridge."""
    head, prompt = given
    if head is None and prompt is None:
        return np.array([[(h, ratio * h) for h in HEAD] for ratio in ratios])
    heads, prompts = HEAD if head is None else [head], PROMPT if prompt is None else [prompt]
    return np.array([[(h, p) for h in heads for p in prompts]])


# ---------------------------------------------------------------------- folds


def folds(cv: Any, labels: NDArray[Any], groups: Any, importance: Float) -> NDArray[np.int8]:
    """Parts (folds, n): 1 for training, −1 for testing, 0 for neither; no fold where there are too few.

    cv: a number (stratified by class and, where given, by group), a splitter, or pairs (train, test).
    """
    n = len(labels)
    if isinstance(cv, int | np.integer):
        splits = _stratified(int(cv), labels, groups, importance > 0)
    elif hasattr(cv, "split"):
        splits = list(cv.split(np.zeros(n), labels, groups))
    else:
        splits = list(cv)
    parts = np.zeros((len(splits), n), np.int8)
    for part, (train, test) in zip(parts, splits, strict=True):
        part[train] = 1
        part[test] = -1
    usable = [_learnable(part, labels, importance) for part in parts]
    return parts[np.array(usable, bool)] if len(parts) else parts


def _stratified(count: int, labels: NDArray[Any], groups: Any, kept: Bool) -> list[tuple[Any, Any]]:
    """Folds with the same share of every class; their shuffle has a fixed seed."""
    places = np.flatnonzero(kept)
    _, sizes = np.unique(labels[places], return_counts=True)
    most = min(count, int(sizes.min()) if len(sizes) else 0)
    if groups is not None:
        groups = np.asarray(groups)[places]
        most = min(most, len(np.unique(groups)))
    if most < 2:
        return []
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(most, shuffle=True, random_state=0)
    splits = splitter.split(np.zeros(len(places)), labels[places], groups)
    return [(places[train], places[test]) for train, test in splits]


def _learnable(part: NDArray[np.int8], labels: NDArray[Any], importance: Float) -> bool:
    """Whether a fold has every class to learn from, and something to be tested on."""
    kept = importance > 0
    learned = np.unique(labels[(part == 1) & kept])
    return len(learned) == len(np.unique(labels[kept])) and bool(((part == -1) & kept).any())
