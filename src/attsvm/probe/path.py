"""The ridges chosen by the data: a path from strong to weak, all folds and candidates in shared passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from attsvm.probe.arithmetic import Device, Host
from attsvm.probe.descent import Memory, minimise
from attsvm.probe.objective import Objective, Probes
from attsvm.tokens import Bool, Float

AUTO = "auto"

HEAD = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
RATIO = (10.0, 1.0)
"""The candidates: head ridges from strong to weak, and how many times as large the prompt's ridge is."""

PROMPT = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
"""Prompt ridges where the head's is given."""

PATIENCE, WORSE = 2, 1.05
"""A lane ends after so many stages without a lower held-out loss, or with one so many times its lowest."""

LOOSE, ENOUGH, MOST = 1e-3, 2e-3, 10
"""Where a candidate ends: largest partial derivative, share by which a step lowers its objective, steps."""

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
    lanes = _lanes(given)
    if not folds or (lanes.shape[1] == 1 and not judge):
        head, prompt = (fixed or usual for fixed, usual in zip(given, UNCHOSEN, strict=True))
        return [Choice(head, prompt)] * concepts
    search = _Lanes(where, objective, lanes, start, steps)
    for stage in range(lanes.shape[1]):
        search.stage(stage)
    return [search.choice(concept) for concept in range(concepts)]


class _Lanes:
    """Lane and concept of the candidates (c,), still alive; their points (c, folds, D)."""

    def __init__(self, where: Any, objective: Objective, lanes: Float, start: Float, steps: int) -> None:
        self.where, self.objective, self.lanes, self.steps = where, objective, lanes, steps
        self.folds = len(objective.training) - 1
        count, concepts = len(lanes), len(objective.targets)
        self.lane, self.concept = (each.ravel() for each in np.indices((count, concepts)))
        self.points = where.put(np.tile(start, (len(self.lane) * self.folds, 1)))
        self.memory = Memory()
        self.best = np.full((concepts, count), np.inf)
        self.since = np.zeros((concepts, count), int)
        self.lowest = np.full(concepts, np.inf)
        self.starts: dict[int, Any] = {}
        self.rows: list[tuple[Any, ...]] = []

    def stage(self, stage: int) -> None:
        if not len(self.lane):
            return
        probes = self._probes(stage)
        found = minimise(
            self.where,
            lambda points, which: self.objective(self.where, points, probes.take(which)),
            self.points,
            steps=min(self.steps, MOST),
            tolerance=LOOSE,
            enough=ENOUGH,
            memory=self.memory,
        )
        losses = found.held_out.reshape(-1, self.folds)
        mean = losses @ self.objective.share[1:]
        self.points, self.memory = found.points, found.memory
        for place, (lane, concept) in enumerate(zip(self.lane.tolist(), self.concept.tolist(), strict=True)):
            self._record(place, lane, concept, stage, losses[place], mean[place])
        self._go_on(stage)

    def _record(self, place: int, lane: int, concept: int, stage: int, losses: Float, mean: float) -> None:
        self.rows.append((concept, *self.lanes[lane, stage], mean, losses))
        better = mean < self.best[concept, lane]
        hopeless = mean > WORSE * self.best[concept, lane]
        self.since[concept, lane] = 0 if better else self.since[concept, lane] + (PATIENCE if hopeless else 1)
        self.best[concept, lane] = min(mean, self.best[concept, lane])
        if mean < self.lowest[concept]:
            self.lowest[concept] = mean
            own = self.points[place * self.folds : (place + 1) * self.folds]
            self.starts[concept] = (self.lanes[lane, stage], self.where.numpy(own))

    def _go_on(self, stage: int) -> None:
        """Leave lanes that got worse; what a weaker ridge changes in the remembered curvature is known."""
        if stage + 1 == self.lanes.shape[1]:
            return
        alive = self.since[self.concept, self.lane] < PATIENCE
        which = np.flatnonzero(np.repeat(alive, self.folds))
        step = self._ridges(self.lanes[:, stage + 1] - self.lanes[:, stage])[which]
        place = self.where.put(which)
        self.points, self.memory = self.points[place], self.memory.take(place)
        change = self.where.put(step)
        self.memory.changes = [
            y + change * s for s, y in zip(self.memory.steps, self.memory.changes, strict=True)
        ]
        self.lane, self.concept = self.lane[alive], self.concept[alive]

    def _ridges(self, of_lanes: Float) -> Float:
        """Head and prompt ridge of every lane (lanes, 2), for every number of every probe (c·folds, D)."""
        o = self.objective
        counts = [o.store.width * o.h, o.store.width * o.h * o.k, o.k]
        each = np.column_stack([of_lanes[:, 1], of_lanes[:, 0], np.zeros(len(of_lanes))])
        return np.repeat(np.repeat(each, counts, axis=1)[self.lane], self.folds, axis=0)

    def _probes(self, stage: int) -> Probes:
        head, prompt = np.repeat(self.lanes[self.lane, stage], self.folds, axis=0).T
        fold = np.tile(np.arange(1, self.folds + 1), len(self.lane))
        return Probes(np.repeat(self.concept, self.folds), fold, prompt, head)

    def choice(self, concept: int) -> Choice:
        (head, prompt), points = self.starts[concept]
        rows = [row for row in self.rows if row[0] == concept]
        path = {
            "head_ridge": np.array([row[1] for row in rows]),
            "prompt_ridge": np.array([row[2] for row in rows]),
            "held_out": np.array([row[3] for row in rows]),
            "folds": np.array([row[4] for row in rows]),
        }
        return Choice(float(head), float(prompt), path, points.mean(0), points)


def _lanes(given: Sequence[float | None]) -> Float:
    """Candidates (lanes, stages, 2): head and prompt ridge."""
    head, prompt = given
    if head is None and prompt is None:
        return np.array([[(h, ratio * h) for h in HEAD] for ratio in RATIO])
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
