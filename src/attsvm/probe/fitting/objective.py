"""The ridge objective of prompts and head together, for many probes: what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm.numbers import Array, Float, Index, Values
from attsvm.probe.data.arithmetic import Arithmetic
from attsvm.probe.data.standard import Standard, standardise
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights


@dataclass(frozen=True, eq=False)
class Probes:
    """Which probes are fitted together: one row each of these arrays (K,).

    concept: its targets; fold: its training weights; prompt_ridge, head_ridge.
    """

    concept: Index
    fold: Index
    prompt_ridge: Float
    head_ridge: Float

    def __len__(self) -> int:
        return len(self.concept)

    def take(self, which: Index | slice) -> Probes:
        return Probes(*(each[which] for each in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence[Probes]) -> Probes:
        """One after the other."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


class Columns(NamedTuple):
    """What K probes multiply the tokens by: their centre (d,) first, across (d, K·c); intercept (K, k)."""

    centre: Array
    across: Array
    intercept: Array


class Sums(NamedTuple):
    """Over a block: gradients by the columns (K·c, d), losses (K,), gradients by intercepts (K, k)."""

    through: Array
    loss: Array
    held_out: Array
    on_intercept: Array


class Evaluation(NamedTuple):
    """value (K,), gradient (K, D) where the arithmetic is, held_out (K,): log loss on held-out sequences.

    curvature: factors of the Gauss–Newton matrices at the same points, of some; known: of how many at most.
    """

    value: Float
    gradient: Array
    held_out: Float
    curvature: Callable[[Index], list[Array]] | None = None
    known: int = 0


@dataclass(frozen=True, eq=False)
class Objective:
    """Weighted log loss plus two ridges, of K probes at once.

        Σ_i ω_i ℓ(y_i, score_i) + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2   on standardised tokens

    targets (concepts, k, n): one-hot classes, or numbers in [0, 1] where k = 1.
    training, held_out (folds, n): weights ω that sum to one, each row, or to zero.
    share (folds,): of the importance of all held-out sequences, how much each fold tests.
    h: number of prompts; tied: each is its own head (k = 1). The tokens are read once an evaluation, in
    blocks of whole sequences.
    """

    store: TokenStore
    standard: Standard
    targets: Float
    training: Float
    held_out: Float
    share: Float
    h: int
    tied: bool = False

    @classmethod
    def of(
        cls,
        store: TokenStore,
        targets: Float,
        importance: Float,
        parts: Values,
        h: int,
        tied: bool = False,
    ) -> Objective:
        """Fold 0 trains on everything, fold f where parts[f − 1] is 1; it is tested where that is −1.

        parts (folds, n). The tokens are standardised here, over all sequences.
        """
        everywhere = np.vstack([np.ones((1, len(store)), parts.dtype), parts])
        training, held_out = ((everywhere == part) * importance for part in (1, -1))
        share = held_out.sum(1)
        training /= training.sum(1, keepdims=True)
        held_out /= np.where(share > 0, share, 1.0)[:, None]
        standard, targets = standardise(store, importance), np.ascontiguousarray(targets, np.float64)
        share /= max(share.sum(), 1e-300)
        return cls(store, standard, targets, training, held_out, share, h, tied)

    def like(self, point: Float) -> Weights:
        """A point (D,) as weights on standardised tokens."""
        d, h, k = self.store.width, self.h, self.k
        columns = point[: d * h * (1 + k)].reshape(h * (1 + k), d).T
        return Weights(columns[:, :h], columns[:, h:].reshape(d, h, k), point[d * h * (1 + k) :])

    def within(self, where: Arithmetic, points: Array) -> Array:
        """The nearest points (…, D) that are allowed; of gradients there, the part that stays among them."""
        if not self.tied:
            return points
        m = self.counts[0]
        both = (points[..., :m] + points[..., m : 2 * m]) / 2
        return where.xp.concatenate([both, both, points[..., 2 * m :]], -1)

    @property
    def k(self) -> int:
        return int(self.targets.shape[1])

    @property
    def counts(self) -> list[int]:
        """How many numbers of a probe are its prompts', its heads' and its intercepts'."""
        d, h, k = self.store.width, self.h, self.k
        return [d * h, d * h * k, k]

    @property
    def size(self) -> int:
        """D, the numbers of one probe."""
        return sum(self.counts)
