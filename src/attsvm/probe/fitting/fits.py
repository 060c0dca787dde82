"""Fits of every concept: the ridges are chosen on paths, then all sequences are fitted with these ridges.

A path goes from strong ridges to weak ones; all folds and candidates share each pass over the tokens. The
first paths start from mean pooling, the last one from attention to the tokens of largest norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Float, Index
from attsvm.probe.data.backends import Backend, backend_of
from attsvm.probe.fitting.attention import Weights
from attsvm.probe.fitting.descent import LineSearches, Pairs, SearchState, Stop, add_curvature, minimise
from attsvm.probe.fitting.objective import Evaluation, Objective, Probes, evaluate
from attsvm.probe.fitting.tolerances import TOLERANCES

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class RidgeChoice:
    """The ridges; path: all candidates and their held-out losses, or None; start (D,) or None.

    points (folds, D): the fit of each fold with these ridges; None if nothing was held out.
    """

    head_ridge: float
    prompt_ridge: float
    path: dict[str, Float] | None = None
    start: Float | None = None
    points: Float | None = None

    @property
    def held_out(self) -> float:
        """The lowest held-out loss; infinite if nothing was held out."""
        return np.inf if self.path is None else float(self.path["held_out"].min())


class ProbeFit(NamedTuple):
    """weights for tokens as they come; the chosen ridges; objective, steps, largest partial derivative."""

    weights: Weights
    choice: RidgeChoice
    value: float
    steps: int
    slope: float


@dataclass(frozen=True)
class FitOptions:
    """ridges: of head and prompt, None where the data choose; steps, tolerance: of L-BFGS.

    compare_kinds: hold out even if both ridges are fixed.
    """

    ridges: Sequence[float | None]
    steps: int
    tolerance: float
    compare_kinds: bool = False


def choose_ridges(objective: Objective, options: FitOptions) -> list[RidgeChoice]:
    """The ridges of every concept with the lowest held-out log loss.

    Every lane goes from strong ridges, where attention is even, to weak ones, each stage from the weights of
    the stage before it.
    """
    backend, start = backend_of(objective.store.rows), np.zeros(objective.size)
    concepts, folds = len(objective.targets), len(objective.training) - 1
    attends = objective.store.lengths.max() > 1
    lanes = _ridge_lanes(options.ridges, attends and not objective.tied)  # a tied prompt cannot stay even
    if not folds or (len(lanes[0]) == 1 and not options.compare_kinds):
        defaults = zip(options.ridges, TOLERANCES.unsearched, strict=True)
        head, prompt = (ridge or default for ridge, default in defaults)
        return [RidgeChoice(head, prompt)] * concepts
    weak = lanes[-1][(lanes[-1] <= TOLERANCES.weak_ridge).all(1) & attends]
    with backend.scope(), ProgressLine(total=sum(map(len, [*lanes, weak]))) as line:
        search = partial(_search, backend, objective, options.steps, line)
        from_pooling, from_norm = search(lanes, start, np.full(concepts, np.inf)), list[_Lane]()
        if len(weak):
            best, stages = np.min([lane.best for lane in from_pooling], axis=0), sum(map(len, lanes))
            from_norm = search([weak], largest_norm_start(backend, objective), best, stages)
    return [_best(from_pooling, from_norm, concept) for concept in range(concepts)]


def fit_concepts(objective: Objective, options: FitOptions, choices: Sequence[RidgeChoice]) -> list[ProbeFit]:
    """Every concept's fit, all in shared passes, from the path's end, or without a path from mean pooling.

    Without a path, and with weak ridges, attention to the largest tokens is a rival of that start.
    """
    backend, concepts = backend_of(objective.store.rows), np.arange(len(objective.targets))
    attends = objective.store.lengths.max() > 1
    first = [np.zeros(objective.size) if choice.start is None else choice.start for choice in choices]
    ridges = np.array([(choice.prompt_ridge, choice.head_ridge) for choice in choices])
    without_path = np.array([choice.start is None for choice in choices])
    contested = concepts[without_path & (ridges <= TOLERANCES.weak_ridge).all(1) & attends]
    with backend.scope():
        start = [largest_norm_start(backend, objective)] if len(contested) else []
        points = np.stack([*first, *start * len(contested)])
        concept = np.concatenate([concepts, contested])
        probes = Probes(concept, np.zeros_like(concept), *ridges[concept].T)
        search = minimise(
            backend,
            lambda at, index: evaluate(objective, backend, at, probes.take(index)),
            objective.tie(backend, backend.put(points)),
            steps=options.steps,
            tolerance=options.tolerance,
            rivals=[(int(q), len(concepts) + number) for number, q in enumerate(contested)],
            metric=_metric(backend, objective, probes.head_ridge, probes.prompt_ridge),
        )
        searches = [np.flatnonzero(concept == q) for q in concepts]
        best = np.array([index[search.scalars.value[index].argmin()] for index in searches])
        minima = search.take(backend, best)
        points = backend.numpy(minima.vectors.points)
    weights = map(objective.weights_for_tokens, points)
    numbers = (array.tolist() for array in (minima.scalars.value, minima.scalars.steps, minima.scalars.slope))
    return list(map(ProbeFit, weights, choices, *numbers))


# ---------------------------------------------------------------------- ridges


def _search(
    backend: Backend,
    objective: Objective,
    steps: int,
    line: ProgressLine,
    ridges: Sequence[Float],
    start: Float,
    best: Float,
    finished_stages: int = 0,
) -> list[_Lane]:
    """All lanes at once: a pass over the tokens serves each of them, whatever its stage.

    best (concepts,): the lowest held-out loss so far.
    """
    concepts, folds = len(objective.targets), len(objective.training) - 1
    points = objective.tie(backend, backend.put(np.tile(start, (concepts * folds, 1))))
    evaluation = evaluate(objective, backend, points, _probes(np.arange(concepts), folds, np.zeros(2)))
    lanes = [_Lane(backend, objective, stages, steps, points, evaluation, best) for stages in ridges]
    while unfinished := [lane for lane in lanes if not lane.finished]:
        trials = [lane.search.trial() for lane in unfinished]
        probes = Probes.joined([lane.probes() for lane in unfinished])
        evaluation = evaluate(objective, backend, backend.xp.concatenate(trials), probes)
        value, gradient, held_out = evaluation.value, evaluation.gradient, evaluation.held_out
        ends = np.cumsum([0, *map(len, trials)])
        for lane, a, b in zip(unfinished, ends[:-1], ends[1:], strict=True):
            lane.advance(Evaluation(value[a:b], gradient[a:b], held_out[a:b]))
        line.show("choosing ridges", finished_stages + sum(lane.stage for lane in lanes))
    return lanes


class RidgeCandidate(NamedTuple):
    """The ridges of a stage, and the held-out losses of a concept: of each fold (folds,), and their mean."""

    concept: int
    stage: int
    head_ridge: float
    prompt_ridge: float
    held_out: float
    folds: Float


class _Lane:
    """Candidates from strong ridges to weak ones, ridges (stages, 2), for the concepts (c,) still searched.

    points (c·folds, D): where all of them begin; evaluation: at the points, without ridges.
    """

    def __init__(
        self,
        backend: Backend,
        objective: Objective,
        ridges: Float,
        steps: int,
        points: Array,
        evaluation: Evaluation,
        best: Float,
    ) -> None:
        self.backend, self.objective, self.ridges = backend, objective, ridges
        steps = min(steps, TOLERANCES.candidate_steps)
        self.stop = Stop(steps, TOLERANCES.candidate_slope, TOLERANCES.candidate_decrease)
        self.finished = False
        self.folds, concepts = len(objective.training) - 1, len(objective.targets)
        self.concept, self.stage = np.arange(concepts), 0
        self.best, self.stages_since_best = best.copy(), np.zeros(concepts, int)
        self.candidates = list[RidgeCandidate]()
        self.ends = dict[int, tuple[RidgeCandidate, Float]]()  # of every concept the best, and its points
        self._begin_stage(points, evaluation, (), np.zeros(2))

    def _begin_stage(self, points: Array, evaluation: Evaluation, pairs: Pairs, ridges: Float) -> None:
        """Begin with an evaluation at other ridges (2,): value, gradient and pairs are corrected exactly."""
        head, prompt = self.ridges[self.stage] - ridges
        of_numbers = np.repeat([prompt, head, 0.0], self.objective.counts)
        change = self.backend.put(np.tile(of_numbers, (len(points), 1)))
        shift = change * points
        value = evaluation.value + self.backend.numpy((shift * points).sum(1)) / 2
        evaluation = Evaluation(value, evaluation.gradient + shift, evaluation.held_out)
        pairs = add_curvature(self.backend, pairs, change)
        of_stage = np.broadcast_to(self.ridges[self.stage], (len(points), 2)).T
        metric = _metric(self.backend, self.objective, *of_stage)
        self.search = LineSearches(self.backend, points, evaluation, self.stop, pairs, metric)
        self.mean = self._mean_of_folds(self.search.held_out)
        self._end_stages()

    def probes(self) -> Probes:
        """Of the active functions."""
        return _probes(self.concept, self.folds, self.ridges[self.stage]).take(self.search.active)

    def advance(self, evaluation: Evaluation) -> None:
        """One pass: the active functions were evaluated at their trial points."""
        self.search.advance(evaluation)
        previous, self.mean = self.mean, self._mean_of_folds(self.search.held_out)
        if self.search.passes > TOLERANCES.passes_before_giving_up:
            worse = (self.mean > TOLERANCES.worse * self.best[self.concept]) & (self.mean >= previous)
            self.search.retire(np.repeat(worse, self.folds)[self.search.active])
        self._end_stages()

    def _mean_of_folds(self, losses: Float) -> Float:
        """The mean over the folds (c,) of losses (c·folds,)."""
        return np.asarray(losses.reshape(-1, self.folds) @ self.objective.fold_share[1:])

    def _end_stages(self) -> None:
        """If the stage is over, record it and begin the next, without concepts that got worse."""
        if not self.search.finished:
            return
        state = self.search.result()
        self._record(state)
        searched = self.stages_since_best[self.concept] < TOLERANCES.stages_without_gain
        self.stage, self.concept = self.stage + 1, self.concept[searched]
        self.finished = self.stage == len(self.ridges) or not searched.any()
        if not self.finished:
            state = state.take(self.backend, np.flatnonzero(np.repeat(searched, self.folds)))
            evaluation = Evaluation(state.scalars.value, state.vectors.gradient, state.scalars.held_out)
            self._begin_stage(state.vectors.points, evaluation, state.pairs, self.ridges[self.stage - 1])

    def _record(self, state: SearchState) -> None:
        head, prompt = self.ridges[self.stage]
        losses, means = state.scalars.held_out, self._mean_of_folds(state.scalars.held_out)
        for place, (concept, mean) in enumerate(zip(self.concept.tolist(), means, strict=True)):
            folds, best = slice(place * self.folds, (place + 1) * self.folds), self.best[concept]
            candidate = RidgeCandidate(concept, self.stage, head, prompt, mean, losses[folds])
            self.candidates.append(candidate)
            if mean < best:
                self.best[concept], self.stages_since_best[concept] = mean, 0
                self.ends[concept] = candidate, self.backend.numpy(state.vectors.points[folds])
            else:
                hopeless = mean > TOLERANCES.worse * best
                self.stages_since_best[concept] += TOLERANCES.stages_without_gain if hopeless else 1


def _probes(concept: Index, folds: int, ridges: Float) -> Probes:
    """Every concept in every fold, with these ridges of head and prompt."""
    K = len(concept) * folds
    fold = np.tile(np.arange(1, folds + 1), len(concept))
    return Probes(np.repeat(concept, folds), fold, np.full(K, ridges[1]), np.full(K, ridges[0]))


def _best(from_pooling: Sequence[_Lane], from_norm: Sequence[_Lane], concept: int) -> RidgeChoice:
    """The best candidate from mean pooling, or one from the tokens of largest norm if it is better by more
    than the standard error; all candidates in the order of their stages."""
    lanes = list(from_pooling)
    best, points = min(lanes, key=lambda lane: lane.best[concept]).ends[concept]
    for lane in from_norm:
        end = lane.ends.get(concept)
        if end is not None and above_standard_error(best.folds - end[0].folds):
            (best, points), lanes = end, [*lanes, lane]
    tried = [candidate for lane in lanes for candidate in lane.candidates if candidate.concept == concept]
    tried.sort(key=lambda candidate: candidate.stage)
    path = {
        "head_ridge": np.array([candidate.head_ridge for candidate in tried]),
        "prompt_ridge": np.array([candidate.prompt_ridge for candidate in tried]),
        "held_out": np.array([candidate.held_out for candidate in tried]),
        "folds": np.array([candidate.folds for candidate in tried]),
    }
    return RidgeChoice(float(best.head_ridge), float(best.prompt_ridge), path, points.mean(0), points)


def above_standard_error(gains: Float) -> bool:
    """Whether the mean gain over the folds is above its standard error: few sequences differ by chance."""
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > error)


def _ridge_lanes(fixed: Sequence[float | None], pooled: bool) -> list[Float]:
    """Candidates (stages, 2) of each lane: head and prompt ridge; pooled: mean pooling is a candidate."""
    head, prompt = fixed
    if head is None and prompt is None:
        stronger = TOLERANCES.head_ridges[: TOLERANCES.attending_ridges]
        attending = [np.array([(h, ratio * h) for h in stronger]) for ratio in TOLERANCES.ridge_ratios]
        pooling = np.array([*zip(TOLERANCES.head_ridges, TOLERANCES.pooling_ridges, strict=True)])
        return [pooling, *attending] if pooled else attending[1:]
    heads = TOLERANCES.head_ridges if head is None else [head]
    prompts = TOLERANCES.prompt_ridges if prompt is None else [prompt]
    return [np.array([(h, p) for h in heads for p in prompts])]


def _metric(backend: Backend, objective: Objective, head: Float, prompt: Float) -> Array | None:
    """The inverse of the curvature that strong ridges (K,) give to heads and prompts (K, D).

    The loss has a curvature of about 1 on standardised tokens: without this, L-BFGS first takes steps for the
    ridge, and the other weights hardly move. None for ridges up to strong_ridge, among them all of a search.
    """
    if max(head.max(), prompt.max()) <= TOLERANCES.strong_ridge:
        return None
    by_kind = np.stack([prompt, head, np.zeros(len(head))], 1)
    return backend.put(np.repeat(1 / np.maximum(1, by_kind), objective.counts, axis=1))


# ---------------------------------------------------------------------- starts


def largest_norm_start(backend: Backend, objective: Objective) -> Float:
    """The start (D,) whose prompt is `largest_norm_prompt`, and whose head is 0."""
    start, prompt = np.zeros(objective.size), largest_norm_prompt(backend, objective)
    start[: len(prompt)] = 2 * prompt if objective.tied else prompt  # `tie` halves it: its head is 0
    return start


def largest_norm_prompt(backend: Backend, objective: Objective) -> Float:
    """A prompt (d,) for standardised tokens that attends to the token of largest norm of each sequence.

        p = L m / max(‖m‖², L),   L = log T + 2,   m the mean over sequences of their token of largest norm

    T is the mean length: a token at m has e² times the weight of T tokens at 0 together. In mean pooling an
    informative token has weight 1/T, and descent may miss it; from here it does not, if its norm is large.
    """
    store, standard = objective.store, objective.standard
    middle, inverse = backend.operand(standard.mean), backend.operand(1 / standard.scale)

    def weighted_sum(span: slice) -> Float:
        x = backend.centred(store.read(span), middle) * inverse
        segments = backend.segments(store.lengths[span])
        norms = backend.widened((x * x).sum(1))
        largest = backend.widened(norms == segments.spread(segments.top(norms)))
        share = backend.put(objective.training[0, span]) / segments.total(largest)
        return backend.weighted_sums((largest * segments.spread(share))[None], x)[0]

    mean = backend.numpy(sum(map(weighted_sum, store.spans(backend.block // 8))))
    gap = np.log(store.lengths @ objective.training[0]) + 2
    return np.asarray(gap * mean / max(float(mean @ mean), gap))
