"""A small trained map of the tokens: prompts on ReLU features, heads on the tokens themselves, averaged.

Which token matters is what a line does not tell; what the token says, it does. Every member sets one fold
aside, and learns from the others by AdamW until that fold says that it is enough. Nothing is fitted again:
together they have learned from every sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.probe.arithmetic import Device, Host, arithmetic
from attsvm.probe.features import FeatureMap
from attsvm.probe.objective import Objective, Weights, log_loss, on_tokens, read_products
from attsvm.probe.store import TokenStore
from attsvm.tokens import Float

MEMBERS = 5
"""Folds, and so members, where the caller asks for fewer."""

UNITS, BATCH, DROPPED, SIZE = 32, 32, 0.2, 0.5
"""ReLU features of a member; sequences of a mini-batch; the share of features that it leaves out; the size of
random weights."""

RATE, WARM, DECAY, FADED = 5e-3, 25, 1e-3, 0.98
"""AdamW's rate, reached after so many steps, and its decay; how much of the mean of all weights on the way
remains after a step: that mean is the member."""

CHECK, PATIENCE, BETTER, MOST = 50, 3, 0.995, 1000
"""Steps between two looks at the fold that was set aside, or half an epoch; looks without a loss this many
times the lowest that end a run; the most steps, or ten epochs."""

MEAN, SQUARE, TINY = 0.9, 0.999, 1e-8
"""Adam's constants."""


class Relu(FeatureMap):
    """φ(x) = [x − mean, max(0, (x − mean) A + b)]; into is A (d, m), bias is b (m,): both are learned."""

    def __init__(self, mean: Float, into: Float, bias: Float) -> None:
        self.mean, self.into, self.bias = mean, into, bias

    @property
    def width(self) -> int:
        return len(self.mean) + len(self.bias)

    def on(self, where: Any, raw: Any) -> Any:
        mean, into, bias = map(where.factor, (self.mean, self.into, self.bias))
        x, products = where.forward(raw, mean, into)
        return where.xp.concatenate([x, where.xp.clip(products + bias, 0, None)], 1)


class Trained(NamedTuple):
    """The map, the weights on its features; for every fold the log loss expected of the mean; steps (M,)."""

    features: Relu
    weights: Weights
    held_out: Float
    steps: NDArray[np.intp]


class Network(NamedTuple):
    """One member on standardised tokens, with m features.

        logits = max(0, x A + b) P,   token scores = x V

    into is A (d, m), bias b (m,), prompts P (m, h), head V (d, h·k); intercept (k,).
    """

    into: Any
    bias: Any
    prompts: Any
    head: Any
    intercept: Any


def train(objective: Objective, members: int, seed: int) -> Trained:
    """Members that set the folds of an objective aside in turns; the scores of the result are their mean."""
    where = arithmetic(objective.store.rows)
    with where.scope():
        runs = [_Run(where, objective, number, seed) for number in range(members)]
        nets, scores, steps = zip(*(run.trained() for run in runs), strict=True)
        networks = [Network(*(np.asarray(where.numpy(part), float) for part in net)) for net in nets]
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
    return Trained(features, weights, np.array(losses), np.array(steps))


class _Run:
    """The training of one member."""

    def __init__(self, where: Host | Device, objective: Objective, number: int, seed: int) -> None:
        self.where, self.objective = where, objective
        self.rng = np.random.default_rng([seed, number])
        folds = len(objective.training) - 1
        self.fold = 1 + number % folds if folds else 0
        self.learned = np.flatnonzero(objective.training[self.fold])
        self.tested = np.flatnonzero(tested(objective, self.fold))
        mean, scale = objective.standard
        self.centre, self.scale = where.factor(mean), where.factor(scale)[:, None]
        d, h, k, m = objective.store.width, objective.h, objective.k, UNITS
        into, prompts, head = self._drawn(d, m, d + m), self._drawn(m, h, m + 1), self._drawn(d, h * k, d + 1)
        self.now = Network(*map(where.factor, (into, np.zeros(m), prompts, head, np.zeros(k))))

    def _drawn(self, rows: int, columns: int, ends: int) -> Float:
        """Random weights between so many ends."""
        return np.asarray(SIZE * np.sqrt(2 / ends) * self.rng.standard_normal((rows, columns)))

    def trained(self) -> tuple[Network, Float, int]:
        """The mean of the weights on the way at its best look, its scores of the fold set aside; steps."""
        n, batches = len(self.learned), -(-len(self.learned) // BATCH)
        first = second = Network(*(0 * part for part in self.now))
        mean, lowest, since = self.now, np.inf, 0
        kept: tuple[Network, Float] = (mean, np.zeros((self.objective.k, len(self.tested))))
        check = max(CHECK, batches // 2)
        for step in range(max(MOST, 10 * batches)):
            if step % batches == 0:
                order = self.learned[self.rng.permutation(n)]
            at = step % batches * BATCH
            gradient = self._gradient(np.sort(order[at : at + BATCH]))
            first = _mixed(MEAN, first, gradient)
            second = _mixed(SQUARE, second, Network(*(g * g for g in gradient)))
            self._move(first, second, RATE * min(1.0, (step + 1) / WARM), step + 1)
            mean = _mixed(FADED, mean, self.now)
            if (step + 1) % check:
                continue
            scores = self.scores(mean)
            loss = held_out(self.objective, self.fold, scores)
            since = 0 if loss < BETTER * lowest else since + 1
            kept, lowest = ((mean, scores), loss) if loss < lowest else (kept, lowest)
            if since >= PATIENCE:
                break
        return *kept, step + 1

    def _move(self, first: Network, second: Network, rate: float, steps: int) -> None:
        """A step of AdamW (Loshchilov & Hutter 2019)."""
        root, keep = (1 - SQUARE**steps) ** 0.5, 1 - rate * DECAY
        rate = rate / (1 - MEAN**steps)
        parts = zip((keep, 1.0, keep, keep, 1.0), self.now, first, second, strict=True)
        self.now = Network(
            *(s * w - rate * a / (self.where.xp.sqrt(b) / root + TINY) for s, w, a, b in parts)
        )

    def _hidden(self, net: Network, raw: Any) -> tuple[Any, Any, Any]:
        """Centred tokens, their features, and their scores."""
        across = self.where.xp.concatenate([net.into, net.head], 1) / self.scale
        x, products = self.where.forward(raw, self.centre, across)
        return x, self.where.xp.clip(products[:, :UNITS] + net.bias, 0, None), products[:, UNITS:]

    def _products(self, net: Network, hidden: Any, scores: Any) -> Any:
        """Logits and scores of tokens (m, c)."""
        return self.where.xp.concatenate([hidden @ net.prompts, scores], 1)

    def _gradient(self, which: NDArray[np.intp]) -> Network:
        """Of the log loss of some sequences, a part of the features left out."""
        o, where, net = self.objective, self.where, self.now
        part: TokenStore = o.store[which]
        x, hidden, scores = self._hidden(net, part.read(slice(0, len(part))))
        left_in = self.rng.random(tuple(hidden.shape), dtype=np.float32) >= DROPPED
        kept = where.factor(left_in * np.float32(1 / (1 - DROPPED)))
        hidden = hidden * kept
        segments, base = where.segments(part.lengths, again=False), where.widened(net.intercept[None])
        seen = read_products(where, segments, self._products(net, hidden, scores), base, o.h)
        _, pull = log_loss(where.xp, seen.scores, where.put(o.targets[:, :, which]))
        pull = pull * where.put(o.training[self.fold, which] * (len(self.learned) / len(which)))
        back = where.narrowed(on_tokens(where.xp, segments, seen, pull)[0])
        on_logits, on_scores = back[: o.h].T, back[o.h :].T
        on_hidden = (on_logits @ net.prompts.T) * kept * (hidden > 0)
        through = where.backward(where.xp.concatenate([on_hidden, on_scores], 1).T, x)
        on_x = where.narrowed(through.T) / self.scale
        on_prompts, on_intercept = hidden.T @ on_logits, where.narrowed(pull.sum(-1)[0])
        return Network(on_x[:, :UNITS], on_hidden.sum(0), on_prompts, on_x[:, UNITS:], on_intercept)

    def scores(self, net: Network) -> Float:
        """Scores (k, …) of the sequences of the fold that was set aside."""
        o, where = self.objective, self.where
        part: TokenStore = o.store[self.tested]
        found = []
        for span in part.spans(where.part):
            products = self._products(net, *self._hidden(net, part.read(span))[1:])
            segments, base = where.segments(part.lengths[span]), where.widened(net.intercept[None])
            found.append(where.numpy(read_products(where, segments, products, base, o.h).scores[0]))
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


def _mixed(share: float, old: Network, new: Network) -> Network:
    return Network(*(share * a + (1 - share) * b for a, b in zip(old, new, strict=True)))
