"""A small trained map of the tokens: prompts on ReLU features, heads on the tokens themselves, averaged.

Which token matters is not linear in the tokens; what the token says is. Every member sets one fold aside and
learns from the others by AdamW. All members train side by side until the held-out loss stops falling, where
each sequence is scored by the members that have not seen it. There is no final fit: together the members have
learned from every sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Float, Index
from attsvm.probe.data.backends import Backend, SegmentSums, backend_of
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import BlockOutput, Weights, attend, log_loss, token_coefficients
from attsvm.probe.fitting.features import FeatureMap
from attsvm.probe.fitting.objective import Objective

MEMBERS = 10
"""Least number of folds, and so of members."""

FEATURES, BATCH, DROPOUT, INITIAL_SIZE = 64, 32, 0.2, 0.5
"""ReLU features of a member; sequences of a mini-batch; share of features that a step leaves out; size of
random initial weights."""

RATE, WARM_UP, DECAY, AVERAGING = 5e-3, 25, 1e-3, 0.98
"""AdamW's rate, reached after WARM_UP steps, and its decay; factor of the exponential mean of the weights,
which is the member."""

CHECK_STEPS, PATIENCE, LEAST_GAIN, MAX_STEPS = 50, 3, 0.995, 1000
"""Steps (or half an epoch, if that is more) between two checks of the held-out loss; training ends after so
many checks without a loss below LEAST_GAIN times the lowest, or after MAX_STEPS (or ten epochs)."""

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants."""


@dataclass(frozen=True, eq=False)
class Relu(FeatureMap):
    """φ(x) = [x − mean, max(0, (x − mean) A + b)]; into is A (d, m), bias is b (m,): both are learned."""

    mean: Float
    into: Float
    bias: Float

    @property
    def width(self) -> int:
        return len(self.mean) + len(self.bias)

    def on(self, backend: Backend, raw: Array) -> Array:
        mean, into, bias = map(backend.operand, (self.mean, self.into, self.bias))
        x, products = backend.products(raw, mean, into)
        return backend.xp.concatenate([x, backend.xp.clip(products + bias, 0, None)], 1)


class Trained(NamedTuple):
    """The map, the weights on its features; held_out (folds,): expected log loss of the mean; steps.

    scores (folds, k, n): of held-out sequences by the members that have not seen them, 0 elsewhere.
    """

    features: Relu
    weights: Weights
    held_out: Float
    steps: int
    scores: Float


class Network(NamedTuple):
    """One member on standardised tokens, with m features.

        logits = max(0, x A + b) P,   token scores = x V

    into is A (d, m), bias b (m,), prompts P (m, h), head V (d, h·k); intercept (k,).
    """

    into: Array
    bias: Array
    prompts: Array
    head: Array
    intercept: Array


def train(objective: Objective, members: int, seed: int) -> Trained:
    """Members that set the folds of an objective aside in turns; the scores of the result are their mean."""
    backend = backend_of(objective.store.rows)
    with backend.scope():
        runs = [MemberTraining(backend, objective, number, seed) for number in range(members)]
        points, scores, steps = train_together(objective, runs)
        networks = [runs[0].network(np.asarray(backend.numpy(point), float)) for point in points]
    h, k, m, d = objective.h, objective.k, FEATURES, objective.store.width
    mean, scale = objective.standard
    prompts = np.zeros((d + members * m, members * h))
    head = np.zeros((d + members * m, members * h, k))
    for i, net in enumerate(networks):
        rows, columns = slice(d + i * m, d + (i + 1) * m), slice(i * h, (i + 1) * h)
        prompts[rows, columns] = net.prompts
        head[:d, columns] = (net.head / scale[:, None]).reshape(d, h, k) / members
    into = np.hstack([net.into for net in networks]) / scale[:, None]
    features = Relu(mean, into, np.concatenate([net.bias for net in networks]))
    weights = Weights(prompts, head, np.mean([net.intercept for net in networks], axis=0))
    of_folds: dict[int, list[Float]] = {}
    for run, run_scores in zip(runs, scores, strict=True):
        of_folds.setdefault(run.fold, []).append(run_scores)
    losses, held_out = [], np.zeros((len(of_folds), k, len(objective.store)))
    for fold_scores, (fold, of_members) in zip(held_out, of_folds.items(), strict=True):
        losses.append(expected_loss(objective, fold, of_members, members))
        fold_scores[:, held_out_weights(objective, fold) > 0] = np.mean(of_members, axis=0)
    return Trained(features, weights, np.array(losses), steps, held_out)


def train_together(
    objective: Objective, runs: Sequence[MemberTraining]
) -> tuple[list[Array], list[Float], int]:
    """The members at their lowest held-out loss, their held-out scores, and the number of steps."""
    batches = max(run.batches for run in runs)
    lowest, checks_since, steps, check = np.inf, 0, 0, max(CHECK_STEPS, batches // 2)
    most = max(MAX_STEPS, 10 * batches)
    with ProgressLine(total=most) as line:
        while checks_since < PATIENCE and steps < most:
            for number, run in enumerate(runs):
                line.show(f"{len(runs)} networks, at most {most:,} steps", steps + check * number / len(runs))
                run.advance(check)
            scores, steps = [run.scores(run.mean) for run in runs], steps + check
            losses = [held_out_loss(objective, run.fold, s) for run, s in zip(runs, scores, strict=True)]
            loss = float(np.mean(losses))
            checks_since = 0 if loss < LEAST_GAIN * lowest else checks_since + 1
            if loss < lowest or steps == check:
                lowest, best = loss, ([run.mean for run in runs], scores)
    return *best, steps


class MemberTraining:
    """The training of one member: its weights in one vector (point), and their exponential mean."""

    def __init__(self, backend: Backend, objective: Objective, number: int, seed: int) -> None:
        self.backend, self.objective = backend, objective
        self.rng = np.random.default_rng([seed, number])
        folds = len(objective.training) - 1
        self.fold = 1 + number % folds if folds else 0
        self.training = np.flatnonzero(objective.training[self.fold])
        self.batches = -(-len(self.training) // BATCH)
        held_out = np.flatnonzero(held_out_weights(objective, self.fold))
        self.held_out_store: TokenStore = objective.store[held_out]
        mean, scale = objective.standard
        self.centre, self.scale = backend.operand(mean), backend.operand(scale)[:, None]
        d, h, k, m = objective.store.width, objective.h, objective.k, FEATURES
        self.shapes = (d, m), (m,), (m, h), (d, h * k), (k,)
        self.ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)]).tolist()
        sizes = [INITIAL_SIZE * np.sqrt(2 / ends) if ends else 0.0 for ends in (d + m, 0, m + 1, d + 1, 0)]
        spread = np.repeat(sizes, np.diff(self.ends))
        self.point = self.mean = backend.operand(spread * self.rng.standard_normal(len(spread)))
        self.shrinks = backend.operand(spread > 0)
        self.first = self.second = 0 * self.point
        self.steps, self.order = 0, self.training

    def network(self, point: Array) -> Network:
        """A vector of weights as a network."""
        spans = zip(self.ends, self.ends[1:], self.shapes, strict=False)
        return Network(*(point[a:b].reshape(shape) for a, b, shape in spans))

    def advance(self, count: int) -> None:
        """Steps of AdamW (Loshchilov & Hutter 2019)."""
        for _ in range(count):
            at = self.steps % self.batches * BATCH
            if at == 0:
                self.order = self.training[self.rng.permutation(len(self.training))]
            g = self._gradient(np.sort(self.order[at : at + BATCH]))
            self.steps += 1
            self.first = BETA_1 * self.first + (1 - BETA_1) * g
            self.second = BETA_2 * self.second + (1 - BETA_2) * (g * g)
            rate, root = RATE * min(1.0, self.steps / WARM_UP), (1 - BETA_2**self.steps) ** 0.5
            step = self.first / (self.backend.xp.sqrt(self.second) + EPSILON * root)
            shrunk = self.point - (rate * DECAY) * (self.shrinks * self.point)
            self.point = shrunk - (rate * root / (1 - BETA_1**self.steps)) * step
            self.mean = AVERAGING * self.mean + (1 - AVERAGING) * self.point

    def _hidden(self, net: Network, raw: Array) -> tuple[Array, Array, Array]:
        """Centred tokens, their features, and their scores."""
        matrix = self.backend.xp.concatenate([net.into, net.head], 1) / self.scale
        x, products = self.backend.products(raw, self.centre, matrix)
        hidden = products[:, :FEATURES]
        hidden += net.bias
        hidden *= hidden > 0
        return x, hidden, products[:, FEATURES:]

    def _outputs(self, net: Network, hidden: Array, scores: Array, segments: SegmentSums) -> BlockOutput:
        """Attention and scores of a block from its features and token scores."""
        products = self.backend.xp.concatenate([hidden @ net.prompts, scores], 1)
        intercept = self.backend.widened(net.intercept[None])
        return attend(self.backend, segments, products, intercept, self.objective.h)

    def _gradient(self, index: Index) -> Array:
        """Gradient of the log loss of some sequences, with some features left out."""
        objective, backend, upscale = self.objective, self.backend, 1 / (1 - DROPOUT)
        net = self.network(self.point)
        net = net._replace(prompts=upscale * net.prompts)  # makes up for the features left out
        batch = objective.store[index]
        x, hidden, scores = self._hidden(net, batch.read(slice(0, len(batch))))
        retained = self.rng.integers(256, size=tuple(hidden.shape), dtype=np.uint8) >= round(256 * DROPOUT)
        hidden *= backend.put(retained)
        segments = backend.segments(batch.lengths, reused=False)
        output = self._outputs(net, hidden, scores, segments)
        _, by_score = log_loss(backend.xp, output.scores, backend.put(objective.targets[:, :, index]))
        by_score = by_score * backend.put(
            objective.training[self.fold, index] * (len(self.training) / len(index))
        )
        coefficients = backend.narrowed(token_coefficients(backend.xp, segments, output, by_score)[0])
        by_logit, by_token_score = coefficients[: objective.h].T, coefficients[objective.h :].T
        by_hidden = by_logit @ net.prompts.T
        by_hidden *= hidden > 0
        sums = backend.weighted_sums(backend.xp.concatenate([by_hidden, by_token_score], 1).T, x)
        by_matrix = backend.narrowed(sums.T) / self.scale
        by_prompts, by_intercept = upscale * (hidden.T @ by_logit), backend.narrowed(by_score.sum(-1)[0])
        gradient = Network(
            by_matrix[:, :FEATURES], by_hidden.sum(0), by_prompts, by_matrix[:, FEATURES:], by_intercept
        )
        return backend.xp.concatenate([array.reshape(-1) for array in gradient])

    def scores(self, point: Array) -> Float:
        """Scores (k, …) of the sequences of the fold that was set aside."""
        net, scores, store = self.network(point), [], self.held_out_store
        for span in store.spans(self.backend.block):
            _, hidden, token_scores = self._hidden(net, store.read(span))
            segments = self.backend.segments(store.lengths[span])
            output = self._outputs(net, hidden, token_scores, segments)
            scores.append(self.backend.numpy(output.scores[0]))
        return np.concatenate(scores, 1)


def held_out_weights(objective: Objective, fold: int) -> Float:
    """Weight of every sequence in the held-out loss of a fold (n,); fold 0 stands for all sequences."""
    return objective.held_out[fold] if fold else objective.training[0]


def held_out_loss(objective: Objective, fold: int, scores: Float) -> float:
    """Log loss of scores (k, …) of the sequences that a fold set aside."""
    weights = held_out_weights(objective, fold)
    places = np.flatnonzero(weights)
    losses, _ = log_loss(np, scores[None], objective.targets[:, :, places])
    return float(losses[0] @ weights[places])


def expected_loss(objective: Objective, fold: int, scores: Sequence[Float], members: int) -> float:
    """The expected log loss of the mean of all members, from the scores of the few that set a fold aside.

    The mean of q members loses c/q more than the mean of infinitely many; the losses of one member and of all
    q determine c.
    """
    of_mean = held_out_loss(objective, fold, np.mean(scores, axis=0))
    if len(scores) == 1:
        return of_mean
    of_one = float(np.mean([held_out_loss(objective, fold, member) for member in scores]))
    return of_one - (of_one - of_mean) * (1 - 1 / members) / (1 - 1 / len(scores))
