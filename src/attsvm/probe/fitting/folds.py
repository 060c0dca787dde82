"""Which sequences are held out together, to choose by what was learned from the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from attsvm.numbers import Bool, Float, Index, Values


class Splitter(Protocol):
    """One of scikit-learn's."""

    def split(self, X: Float, y: Values, groups: ArrayLike | None) -> Iterable[tuple[Index, Index]]: ...


Folding: TypeAlias = int | Splitter | Iterable[tuple[Index, Index]]
"""A number of folds, a splitter, or pairs (train, test)."""


def folds(cv: Folding, labels: Values, groups: ArrayLike | None, importance: Float) -> NDArray[np.int8]:
    """Parts (folds, n): 1 for training, −1 for testing, 0 for neither; no fold where there are too few.

    cv: a number (stratified by class and, where given, by group), a splitter, or pairs (train, test).
    """
    n = len(labels)
    groups = None if groups is None else as_groups(groups, n)
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


def as_groups(groups: ArrayLike, n: int) -> Values:
    """One group per sequence (n,)."""
    found = np.asarray(groups)
    if found.shape != (n,):
        raise ValueError(f"groups has shape {found.shape}. Pass one per sequence: ({n},).")
    return found


def _stratified(count: int, labels: Values, groups: Values | None, kept: Bool) -> list[tuple[Index, Index]]:
    """Folds with the same share of every class; their shuffle has a fixed seed."""
    places = np.flatnonzero(kept)
    _, sizes = np.unique(labels[places], return_counts=True)
    most = min(count, int(sizes.min()) if len(sizes) else 0)
    if groups is not None:
        groups = groups[places]
        most = min(most, len(np.unique(groups)))
    if most < 2:
        return []
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(most, shuffle=True, random_state=0)
    splits = splitter.split(np.zeros(len(places)), labels[places], groups)
    return [(places[train], places[test]) for train, test in splits]


def _learnable(part: NDArray[np.int8], labels: Values, importance: Float) -> bool:
    """Whether a fold has every class to learn from, and something to be tested on."""
    kept = importance > 0
    learned = np.unique(labels[(part == 1) & kept])
    return len(learned) == len(np.unique(labels[kept])) and bool(((part == -1) & kept).any())
