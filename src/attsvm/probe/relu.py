"""A small trained map of the tokens: several networks of ReLU features, a prompt and a head, averaged.

Every member sets one fold aside, and learns from the others by AdamW until that fold says that it is enough.
Nothing is fitted again: together they have learned from every sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.probe.arithmetic import Device, Host, arithmetic
from attsvm.probe.objective import Objective, Weights, log_loss, on_tokens, read_products
from attsvm.probe.sources import as_rows
from attsvm.probe.store import TokenStore
from attsvm.tokens import Float

MEMBERS = 5
"""Folds, and so members, where the caller asks for fewer."""

UNITS, BATCH, DROPPED, SIZE = 32, 32, 0.2, 0.5
"""ReLU features of a member; sequences of a mini-batch; the share of features that it leaves out; the size of
random weights."""

RATE, WARM, DECAY, FADED = 2e-3, 25, 1e-3, 0.98
"""AdamW's rate, reached after so many steps, and its decay; how much of the mean of all weights on the way
remains after a step: that mean is the member."""

CHECK, PATIENCE, BETTER, MOST = 50, 3, 0.995, 1000
"""Steps between two looks at the fold that was set aside, or half an epoch; looks without a loss this many
times the lowest that end a run; the most steps, or ten epochs."""

MEAN, SQUARE, TINY = 0.9, 0.999, 1e-8
"""Adam's constants."""


class Relu:
    """φ(x) = max(0, (x − mean) A + b): into is A (d, m), bias is b (m,), learned with the probe."""

    def __init__(self, mean: Float, into: Float, bias: Float) -> None:
        self.mean, self.into, self.bias = mean, into, bias

    @property
    def width(self) -> int:
        return len(self.bias)

    def on(self, where: Any, raw: Any) -> Any:
        """Features (m, width) of a block as it is stored, where the arithmetic is."""
        mean, into, bias = (where.narrowed(where.put(part)) for part in (self.mean, self.into, self.bias))
        return where.xp.clip(where.forward(raw, mean, into)[1] + bias, 0, None)

    def transform(self, tokens: Any) -> Float:
        """Features (N, width) of tokens (N, d)."""
        rows = as_rows(np.asarray(tokens))
        return np.asarray(self.on(arithmetic(rows), rows.read(slice(0, len(tokens)))))


class Trained(NamedTuple):
    """The map, the weights on its features, and of every member the held-out log loss and the steps (M,)."""

    features: Relu
    weights: Weights
    held_out: Float
    steps: NDArray[np.intp]


class Network(NamedTuple):
    """One member on standardised tokens: into (d, m), bias (m,), heads (m, c), intercept (k,).

    heads has a column for every logit, then for every score.
    """

    into: Any
    bias: Any
    heads: Any
    intercept: Any


def train(objective: Objective, members: int, seed: int) -> Trained:
    """Members that set the folds of an objective aside in turns; the scores of the result are their mean."""
    where = arithmetic(objective.store.rows)
    with where.scope():
        runs = [_Run(where, objective, number, seed) for number in range(members)]
        nets, losses, steps = zip(*(run.trained() for run in runs), strict=True)
        networks = [Network(*(np.asarray(where.numpy(part), float) for part in net)) for net in nets]
    h, k, m = objective.h, objective.k, UNITS
    prompts, head = np.zeros((members * m, members * h)), np.zeros((members * m, members * h, k))
    for i, net in enumerate(networks):
        rows, columns = slice(i * m, (i + 1) * m), slice(i * h, (i + 1) * h)
        prompts[rows, columns] = net.heads[:, :h]
        head[rows, columns] = net.heads[:, h:].reshape(m, h, k) / members
    into = np.hstack([net.into for net in networks]) / objective.standard.scale[:, None]
    features = Relu(objective.standard.mean, into, np.concatenate([net.bias for net in networks]))
    weights = Weights(prompts, head, np.mean([net.intercept for net in networks], axis=0))
    return Trained(features, weights, np.array(losses), np.array(steps))


class _Run:
    """The training of one member."""

    def __init__(self, where: Host | Device, objective: Objective, number: int, seed: int) -> None:
        self.where, self.objective = where, objective
        self.rng = np.random.default_rng([seed, number])
        folds = len(objective.training) - 1
        self.fold = 1 + number % folds if folds else 0
        self.learned = np.flatnonzero(objective.training[self.fold])
        mean, scale = objective.standard
        self.centre, self.scale = self._put(mean), self._put(scale)[:, None]
        d, c, m = objective.store.width, objective.h * (1 + objective.k), UNITS
        parts = (
            SIZE * np.sqrt(2 / (d + m)) * self.rng.standard_normal((d, m)), np.zeros(m),
            SIZE * np.sqrt(2 / (m + 1)) * self.rng.standard_normal((m, c)), np.zeros(objective.k),
        )  # fmt: skip
        self.now = Network(*map(self._put, parts))

    def _put(self, array: Any) -> Any:
        return self.where.narrowed(self.where.put(array))

    def trained(self) -> tuple[Network, float, int]:
        """The mean of the weights on the way at its best look, its log loss on the fold set aside; steps."""
        n, batches = len(self.learned), -(-len(self.learned) // BATCH)
        first = second = Network(*(0 * part for part in self.now))
        mean, kept, lowest, since = self.now, self.now, np.inf, 0
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
            loss = self._held_out(mean)
            since = 0 if loss < BETTER * lowest else since + 1
            kept, lowest = (mean, loss) if loss < lowest else (kept, lowest)
            if since >= PATIENCE:
                break
        return kept, lowest, step + 1

    def _move(self, first: Network, second: Network, rate: float, steps: int) -> None:
        """A step of AdamW (Loshchilov & Hutter 2019)."""
        root, keep = (1 - SQUARE**steps) ** 0.5, 1 - rate * DECAY
        rate = rate / (1 - MEAN**steps)
        parts = zip((keep, 1.0, keep, 1.0), self.now, first, second, strict=True)
        self.now = Network(
            *(s * w - rate * a / (self.where.xp.sqrt(b) / root + TINY) for s, w, a, b in parts)
        )

    def _hidden(self, net: Network, raw: Any) -> tuple[Any, Any]:
        """Centred tokens and their features."""
        x, products = self.where.forward(raw, self.centre, net.into / self.scale)
        return x, self.where.xp.clip(products + net.bias, 0, None)

    def _gradient(self, which: NDArray[np.intp]) -> Network:
        """Of the log loss of some sequences, a part of the features left out."""
        o, where, heads = self.objective, self.where, self.now.heads
        part: TokenStore = o.store[which]
        x, hidden = self._hidden(self.now, part.read(slice(0, len(part))))
        left_in = self.rng.random(tuple(hidden.shape), dtype=np.float32) >= DROPPED
        kept = self._put(left_in * np.float32(1 / (1 - DROPPED)))
        hidden = hidden * kept
        segments = where.segments(part.lengths, again=False)
        seen = read_products(where, segments, hidden @ heads, where.widened(self.now.intercept[None]), o.h)
        _, pull = log_loss(where.xp, seen.scores, where.put(o.targets[:, :, which]))
        pull = pull * where.put(o.training[self.fold, which] * (len(self.learned) / len(which)))
        back = where.narrowed(on_tokens(where.xp, segments, seen, pull)[0])
        on_hidden = (heads @ back) * kept.T * (hidden.T > 0)
        on_into = where.narrowed(where.backward(on_hidden, x).T) / self.scale
        return Network(on_into, on_hidden.sum(1), (back @ hidden).T, where.narrowed(pull.sum(-1)[0]))

    def _held_out(self, net: Network) -> float:
        """Log loss on the fold that was set aside, or on everything where there is none."""
        o, where = self.objective, self.where
        weights = o.held_out[self.fold] if self.fold else o.training[0]
        places = np.flatnonzero(weights)
        part: TokenStore = o.store[places]
        loss = 0.0
        for span in part.spans(where.part):
            products = self._hidden(net, part.read(span))[1] @ net.heads
            segments, base = where.segments(part.lengths[span]), where.widened(net.intercept[None])
            seen = read_products(where, segments, products, base, o.h)
            losses, _ = log_loss(where.xp, seen.scores, where.put(o.targets[:, :, places[span]]))
            loss += float(where.numpy(losses)[0] @ weights[places[span]])
        return loss


def _mixed(share: float, old: Network, new: Network) -> Network:
    return Network(*(share * a + (1 - share) * b for a, b in zip(old, new, strict=True)))
