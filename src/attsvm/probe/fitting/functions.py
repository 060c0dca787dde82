"""What a search knows of the functions that it minimises side by side, and takes along of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attsvm.numbers import Array, Bool, Float, Index
from attsvm.probe.data.arithmetic import Arithmetic

MEMORY = 12
"""Pairs (step, change of the gradient) that are remembered."""


class Numbers(NamedTuple):
    """What a search knows of each of its functions, (K,) each.

    which: its place among all functions; value, held_out; steps taken; slope: largest partial derivative.
    least: the lowest slope so far; stale: steps since that or the value fell; learned: the pass in which the
    curvature was computed. along: the slope in the direction of search; step: the next one to try; low, high:
    one that was too short, and one that was too long; trials: steps tried.
    """

    which: Index
    value: Float
    held_out: Float
    steps: Index
    slope: Float
    least: Float
    stale: Index
    learned: Index
    along: Float
    step: Float
    low: Float
    high: Float
    trials: Index

    def take(self, which: Index) -> Numbers:
        return Numbers._make(each[which] for each in self)


class Vectors(NamedTuple):
    """(K, D) each, where the arithmetic is."""

    points: Array
    gradient: Array
    direction: Array

    def take(self, place: Array) -> Vectors:
        return Vectors._make(each[place] for each in self)


class Pair(NamedTuple):
    """A step s and the change y of the gradient, (K, D) each; inner: s·y (K,), 0 where they tell nothing.

    inverse: 1 / s·y (K,), or 0.
    """

    step: Array
    change: Array
    inner: Float
    inverse: Float

    @classmethod
    def of(cls, step: Array, change: Array, inner: Float) -> Pair:
        return cls(step, change, inner, np.divide(1.0, inner, out=np.zeros_like(inner), where=inner > 0))


class Memory(NamedTuple):
    """The pairs of the last steps, the latest one last."""

    pairs: Sequence[Pair] = ()

    def take(self, place: Array, which: Index) -> Memory:
        """Of some functions; place: which, where the arithmetic is."""
        return Memory([Pair(s[place], y[place], i[which], j[which]) for s, y, i, j in self.pairs])

    def push(self, pair: Pair) -> Memory:
        return Memory([*self.pairs, pair][-MEMORY:])

    def forget(self, which: Bool) -> Memory:
        """No pair tells anything of these functions (K,)."""
        return Memory([Pair.of(s, y, np.where(which, 0.0, inner)) for s, y, inner, _ in self.pairs])

    def bent(self, where: Arithmetic, curvature: Array) -> Memory:
        """Every function got a diagonal (K, D) more of curvature."""
        pairs = []
        for s, y, inner, _ in self.pairs:
            more = curvature * s
            known = where.numpy((s * more).sum(1))
            pairs.append(Pair.of(s, y + more, np.where(inner > 0, inner + known, 0.0)))
        return Memory(pairs)


class Functions(NamedTuple):
    """Some of the functions of a search, or what was found of all of them."""

    numbers: Numbers
    vectors: Vectors
    memory: Memory

    def take(self, where: Arithmetic, which: Index) -> Functions:
        place = where.put(which)
        return Functions(self.numbers.take(which), self.vectors.take(place), self.memory.take(place, which))

    @classmethod
    def joined(cls, where: Arithmetic, parts: Sequence[Functions]) -> Functions:
        """In their order; of the pairs the last ones, as many as each part has."""
        together, depth = where.xp.concatenate, min(len(part.memory.pairs) for part in parts)
        last = (part.memory.pairs[len(part.memory.pairs) - depth :] for part in parts)
        pairs = [
            Pair.of(together(steps), together(changes), np.concatenate(inner))
            for steps, changes, inner, _ in (zip(*own, strict=True) for own in zip(*last, strict=True))
        ]
        numbers = Numbers._make(map(np.concatenate, zip(*(part.numbers for part in parts), strict=True)))
        vectors = Vectors._make(map(together, zip(*(part.vectors for part in parts), strict=True)))
        return cls(numbers, vectors, Memory(pairs)).take(where, np.argsort(numbers.which))
