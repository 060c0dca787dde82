"""Tokens of one key: no weight tells them apart, so that they count by the mean of their values."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers.stored import Stored
from attsvm.tokens import Tokens


def merged(tokens: Tokens) -> Tokens:
    """The tokens; where several of an example have one key and different values, each with their mean.

    No weight tells them apart, so that attention averages them anyhow. But beside the winner one of another
    score would pull as strongly for ever, though nowhere, and hide the others past e^(−745).
    """
    if tokens.values is tokens.keys:
        return tokens
    keys, values, mask = tokens.keys, tokens.values, tokens.mask
    stored = [x for x in (keys, values) if isinstance(x, Stored)]
    parts = stored[0].parts() if stored else [slice(None)]
    told = np.concatenate([_told_apart(keys[part], values[part], mask[part]) for part in parts])
    if not told.any():
        return tokens
    if stored:
        means: Any = Stored(Averaged(tokens, told), "values")
    else:
        means = np.array(values)
        for row in map(tuple, np.argwhere(told)):
            _average(keys[row], mask[row], means[row])
    other = copy(tokens)
    object.__setattr__(other, "values", means)
    return other


class Averaged:
    """Values that stay in a file, read by examples; told (n,): where those of equal keys are averaged."""

    def __init__(self, tokens: Tokens, told: NDArray[Any]) -> None:
        self.tokens, self.told = tokens, told
        self.shape, self.dtype = tokens.values.shape, np.dtype(np.float64)

    def __getitem__(self, examples: slice) -> NDArray[Any]:
        part = np.array(self.tokens.values[examples])
        for i in np.arange(len(self.told))[examples][self.told[examples]].tolist():
            place = i - (examples.start or 0)
            _average(self.tokens.keys[i : i + 1][0], self.tokens.mask[i], part[place])
        return part


def _told_apart(keys: NDArray[Any], values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """Examples (…, n) in which tokens of one key may have different values."""
    mix = np.random.default_rng(0).random(keys.shape[-1])
    sums = np.where(mask, np.einsum("...d,d->...", keys, mix), np.nan)  # of equal keys equal
    order = np.argsort(sums, axis=-1)
    near = np.diff(np.take_along_axis(sums, order, -1), axis=-1) == 0
    told, rows = near.any(-1), np.nonzero(near.any(-1))
    ordered = np.take_along_axis(values[rows], order[rows][..., None], 1)
    told[rows] = (near[rows] & (np.diff(ordered, axis=1) != 0).any(-1)).any(-1)
    return np.asarray(told)


def _average(keys: NDArray[Any], mask: NDArray[Any], values: NDArray[Any]) -> None:
    """Give tokens of one key (T, d) the mean of their values (T, c)."""
    own = np.flatnonzero(mask)
    _, group = np.unique(keys[own] + 0.0, axis=0, return_inverse=True)  # −0 is 0
    for alike in (own[group == one] for one in range(group.max() + 1)):
        if (values[alike] != values[alike[0]]).any():
            values[alike] = values[alike].mean(0)
