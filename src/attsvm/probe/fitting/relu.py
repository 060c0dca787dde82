"""A small trained map of the tokens: prompts on ReLU features, heads on the tokens themselves, averaged.

Which token matters is what a line does not tell; what the token says, it does. Every member sets one fold
aside and learns from the others by AdamW; all of them learn side by side, until the sequences, each judged by
the member that has not seen it, say that it is enough. Nothing is fitted again: together they have learned
from every sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.numbers import Array, Float, Index
from attsvm.probe.data.arithmetic import Arithmetic, arithmetic
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights, log_loss, on_tokens, read_products
from attsvm.probe.fitting.features import FeatureMap
from attsvm.probe.fitting.objective import Objective

MEMBERS = 10
"""Folds, and so members, where the caller asks for fewer."""

UNITS, BATCH, DROPPED, SIZE = 64, 32, 0.2, 0.5
"""ReLU features of a member; sequences of a mini-batch; the share of features that it leaves out; the size of
random weights."""

RATE, WARM, DECAY, FADED = 5e-3, 25, 1e-3, 0.98
"""AdamW's rate, reached after so many steps, and its decay; how much of the mean of all weights on the way
remains after a step: that mean is the member."""

CHECK, PATIENCE, BETTER, MOST = 50, 3, 0.995, 1000
"""Steps between two looks at the folds that were set aside, or half an epoch; looks without a loss this many
times the lowest that end a round; the most steps, or ten epochs."""

MEAN, SQUARE, TINY = 0.9, 0.999, 1e-8
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

    def on(self, where: Arithmetic, raw: Array) -> Array:
        mean, into, bias = map(where.factor, (self.mean, self.into, self.bias))
        x, products = where.through(raw, mean, into)
        return where.xp.concatenate([x, where.xp.clip(products + bias, 0, None)], 1)


class Trained(NamedTuple):
    """The map, the weights on its features; for every fold the log loss expected of the mean; steps.

    aside (folds, k, n): scores of the sequences by the members that set them aside, 0 elsewhere.
    """

    features: Relu
    weights: Weights
    held_out: Float
    steps: int
    aside: Float


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
    where = arithmetic(objective.store.rows)
    with where.scope():
        runs = [_Run(where, objective, number, seed) for number in range(members)]
        points, scores, steps = _together(objective, runs)
        networks = [runs[0].network(np.asarray(where.numpy(point), float)) for point in points]
    h, k, m, d = objective.h, objective.k, UNITS, objective.store.width
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
    folds = {run.fold: [s for r, s in zip(runs, scores, strict=True) if r.fold == run.fold] for run in runs}
    losses = [expected(objective, fold, own, members) for fold, own in folds.items()]
    aside = np.zeros((len(folds), k, len(objective.store)))
    for into_, (fold, own) in zip(aside, folds.items(), strict=True):
        into_[:, tested(objective, fold) > 0] = np.mean(own, axis=0)
    return Trained(features, weights, np.array(losses), steps, aside)


def _together(objective: Objective, runs: Sequence[_Run]) -> tuple[list[Array], list[Float], int]:
    """The members where the sequences that they set aside were told best, their scores of these; steps."""
    batches = max(run.batches for run in runs)
    lowest, since, steps, check = np.inf, 0, 0, max(CHECK, batches // 2)
    most = max(MOST, 10 * batches)
    with ProgressLine(total=most) as line:
        while since < PATIENCE and steps < most:
            for number, run in enumerate(runs):
                line.show(f"{len(runs)} networks, at most {most:,} steps", steps + check * number / len(runs))
                run.advance(check)
            scores, steps = [run.scores(run.mean) for run in runs], steps + check
            pairs = zip(runs, scores, strict=True)
            loss = float(np.mean([held_out(objective, run.fold, own) for run, own in pairs]))
            since = 0 if loss < BETTER * lowest else since + 1
            if loss < lowest or steps == check:
                lowest, kept = loss, ([run.mean for run in runs], scores)
    return *kept, steps


class _Run:
    """The training of one member: its numbers in one vector, and their mean on the way."""

    def __init__(self, where: Arithmetic, objective: Objective, number: int, seed: int) -> None:
        self.where, self.objective = where, objective
        self.rng = np.random.default_rng([seed, number])
        folds = len(objective.training) - 1
        self.fold = 1 + number % folds if folds else 0
        self.learned = np.flatnonzero(objective.training[self.fold])
        self.batches = -(-len(self.learned) // BATCH)
        self.aside: TokenStore = objective.store[np.flatnonzero(tested(objective, self.fold))]
        mean, scale = objective.standard
        self.centre, self.scale = where.factor(mean), where.factor(scale)[:, None]
        d, h, k, m = objective.store.width, objective.h, objective.k, UNITS
        self.shapes = (d, m), (m,), (m, h), (d, h * k), (k,)
        self.ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)]).tolist()
        sizes = [SIZE * np.sqrt(2 / ends) if ends else 0.0 for ends in (d + m, 0, m + 1, d + 1, 0)]
        spread = np.repeat(sizes, np.diff(self.ends))
        self.now = self.mean = where.factor(spread * self.rng.standard_normal(len(spread)))
        self.shrinks = where.factor(spread > 0)
        self.first = self.second = 0 * self.now
        self.steps, self.order = 0, self.learned

    def network(self, point: Array) -> Network:
        """A vector as a network."""
        spans = zip(self.ends, self.ends[1:], self.shapes, strict=False)
        return Network(*(point[a:b].reshape(shape) for a, b, shape in spans))

    def advance(self, count: int) -> None:
        """Steps of AdamW (Loshchilov & Hutter 2019)."""
        for _ in range(count):
            at = self.steps % self.batches * BATCH
            if at == 0:
                self.order = self.learned[self.rng.permutation(len(self.learned))]
            g = self._gradient(np.sort(self.order[at : at + BATCH]))
            self.steps += 1
            self.first = MEAN * self.first + (1 - MEAN) * g
            self.second = SQUARE * self.second + (1 - SQUARE) * (g * g)
            rate, root = RATE * min(1.0, self.steps / WARM), (1 - SQUARE**self.steps) ** 0.5
            step = self.first / (self.where.xp.sqrt(self.second) + TINY * root)
            shrunk = self.now - (rate * DECAY) * (self.shrinks * self.now)
            self.now = shrunk - (rate * root / (1 - MEAN**self.steps)) * step
            self.mean = FADED * self.mean + (1 - FADED) * self.now

    def _hidden(self, net: Network, raw: Array) -> tuple[Array, Array, Array]:
        """Centred tokens, their features, and their scores."""
        across = self.where.xp.concatenate([net.into, net.head], 1) / self.scale
        x, products = self.where.through(raw, self.centre, across)
        hidden = products[:, :UNITS]
        hidden += net.bias
        hidden *= hidden > 0
        return x, hidden, products[:, UNITS:]

    def _products(self, net: Network, hidden: Array, scores: Array) -> Array:
        """Logits and scores of tokens (m, c)."""
        return self.where.xp.concatenate([hidden @ net.prompts, scores], 1)

    def _gradient(self, which: Index) -> Array:
        """Of the log loss of some sequences, a part of the features left out."""
        o, where, full = self.objective, self.where, 1 / (1 - DROPPED)
        net = self.network(self.now)
        net = net._replace(prompts=full * net.prompts)  # makes up for the features left out
        part = o.store[which]
        x, hidden, scores = self._hidden(net, part.read(slice(0, len(part))))
        left_in = self.rng.integers(256, size=tuple(hidden.shape), dtype=np.uint8) >= round(256 * DROPPED)
        hidden *= where.put(left_in)
        segments, base = where.segments(part.lengths, again=False), where.widened(net.intercept[None])
        seen = read_products(where, segments, self._products(net, hidden, scores), base, o.h)
        _, pull = log_loss(where.xp, seen.scores, where.put(o.targets[:, :, which]))
        pull = pull * where.put(o.training[self.fold, which] * (len(self.learned) / len(which)))
        back = where.narrowed(on_tokens(where.xp, segments, seen, pull)[0])
        on_logits, on_scores = back[: o.h].T, back[o.h :].T
        on_hidden = on_logits @ net.prompts.T
        on_hidden *= hidden > 0
        through = where.back(where.xp.concatenate([on_hidden, on_scores], 1).T, x)
        on_x = where.narrowed(through.T) / self.scale
        on_prompts, on_intercept = full * (hidden.T @ on_logits), where.narrowed(pull.sum(-1)[0])
        parts = on_x[:, :UNITS], on_hidden.sum(0), on_prompts, on_x[:, UNITS:], on_intercept
        return where.xp.concatenate([part.reshape(-1) for part in parts])

    def scores(self, point: Array) -> Float:
        """Scores (k, …) of the sequences of the fold that was set aside."""
        where, net, found = self.where, self.network(point), []
        for span in self.aside.spans(where.part):
            products = self._products(net, *self._hidden(net, self.aside.read(span))[1:])
            segments, base = where.segments(self.aside.lengths[span]), where.widened(net.intercept[None])
            seen = read_products(where, segments, products, base, self.objective.h)
            found.append(where.numpy(seen.scores[0]))
        return np.concatenate(found, 1)


def tested(objective: Objective, fold: int) -> Float:
    """How much every sequence counts in the held-out loss of a fold (n,); 0 is no fold: all of them."""
    return objective.held_out[fold] if fold else objective.training[0]


def held_out(objective: Objective, fold: int, scores: Float) -> float:
    """Log loss of scores (k, …) of the sequences that a fold set aside."""
    weights = tested(objective, fold)
    places = np.flatnonzero(weights)
    losses, _ = log_loss(np, scores[None], objective.targets[:, :, places])
    return float(losses[0] @ weights[places])


def expected(objective: Objective, fold: int, own: Sequence[Float], members: int) -> float:
    """The log loss to expect of the mean of all members, from the scores of the few that set a fold aside.

    The mean of q members loses by c/q more than that of ever so many; one of them and all q tell c.
    """
    together = held_out(objective, fold, np.mean(own, axis=0))
    if len(own) == 1:
        return together
    alone = float(np.mean([held_out(objective, fold, scores) for scores in own]))
    return alone - (alone - together) * (1 - 1 / members) / (1 - 1 / len(own))
