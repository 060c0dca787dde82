"""The weight of every training sequence, and the folds in which it is held out."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import check_array

from attsvm.numbers import Bool, Float, Index, Values

ClassWeight: TypeAlias = Mapping[Hashable, float] | str | None


def importance_of(sample_weight: ArrayLike | None, class_weight: ClassWeight, labels: Values) -> Float:
    """One weight per sequence (n,), the largest between 1/2 and 1; by default all are equal.

    Only ratios of weights matter. Dividing by a power of two keeps them exact, and sums do not overflow.
    """
    weight, n = np.ones(len(labels)), len(labels)
    if isinstance(sample_weight, str):
        raise ValueError(f"sample_weight is {sample_weight!r}. Pass numbers (n,); class_weight takes a name.")
    if sample_weight is not None:
        weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weight.shape != (n,):
            raise ValueError(f"sample_weight has shape {weight.shape}. Pass one number per sequence: ({n},).")
        if (weight < 0).any():
            i = int(np.argmax(weight < 0))
            raise ValueError(f"sample_weight[{i}] is {weight[i]:g}. Pass numbers ≥ 0.")
    if class_weight is not None:
        of_class = _of_classes(class_weight, weight, labels)
        wrong = ~((of_class >= 0) & (of_class < np.inf))
        if wrong.any():
            name, value = labels[wrong].tolist()[0], of_class[wrong][0]
            raise ValueError(f"class_weight is {value:g} for class {name!r}. Pass finite numbers ≥ 0.")
        weight = _halved(weight) * _halved(of_class)
    if not weight.any():
        raise ValueError("Sample weights must contain at least one non-zero number: all are zero.")
    return _halved(weight)


def _of_classes(class_weight: ClassWeight, weight: Float, labels: Values) -> Float:
    """The class weight of each sequence (n,); balanced: the weights of every class have the same sum.

    scikit-learn's "balanced" counts sequences, also those of weight 0; here a weight of two is two copies.
    """
    if not (isinstance(class_weight, str) and class_weight == "balanced"):
        return np.asarray(compute_sample_weight(class_weight, labels))
    _, member = np.unique(labels, return_inverse=True)
    total = np.bincount(member, _halved(weight))[member]
    return np.divide(1.0, total, out=np.zeros(len(labels)), where=total > 0)


def _halved(weight: Float) -> Float:
    """Weights (n,) divided by the power of two that brings the largest below 1; none underflows to zero."""
    scaled = np.ldexp(weight, -np.frexp(weight.max())[1])
    return np.where(weight > 0, np.maximum(scaled, np.finfo(float).tiny), 0.0)


class Splitter(Protocol):
    """A splitter of scikit-learn."""

    def split(self, X: Float, y: Values, groups: ArrayLike | None) -> Iterable[tuple[Index, Index]]: ...


Folding: TypeAlias = int | Splitter | Iterable[tuple[Index, Index]]
"""A number of folds, a splitter, or pairs (train, test)."""


def folds(cv: Folding, labels: Values, groups: ArrayLike | None, importance: Float) -> NDArray[np.int8]:
    """Splits (folds, n): 1 for training, −1 for testing, 0 for neither; no fold if sequences are too few.

    cv: a number (stratified by class and, if given, by group), a splitter, or pairs (train, test).
    """
    n = len(labels)
    groups = None if groups is None else as_groups(groups, n)
    expected = "Pass a number of folds ≥ 2, a splitter, or pairs (train, test) of places."
    if isinstance(cv, int | np.integer):
        if cv < 2:
            raise ValueError(f"cv is {cv}. {expected}")
        pairs = _stratified(int(cv), labels, groups, importance > 0)
    elif hasattr(cv, "split") and not isinstance(cv, str):
        pairs = list(cv.split(np.zeros(n), labels, groups))
    elif isinstance(cv, Iterable):
        pairs = list(cv)
    else:
        raise ValueError(f"cv is {cv!r}. {expected}")
    splits = np.zeros((len(pairs), n), np.int8)
    try:
        for split, (train, test) in zip(splits, pairs, strict=True):
            split[train] = 1
            split[test] = -1
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"cv holds no places of {n} sequences ({error}). {expected}") from None
    usable = [_is_usable(split, labels, importance) for split in splits]
    return splits[np.array(usable, bool)] if len(splits) else splits


def warn_without_folds(n: int, groups: ArrayLike | None, head_ridge: float, prompt_ridge: float) -> None:
    """Say that nothing was searched, because no fold can be held out, and which ridges were taken."""
    taken = f"head_ridge={head_ridge:g} and prompt_ridge={prompt_ridge:g} were taken unsearched"
    what = "sequences" if groups is None else f"sequences in {len(np.unique(np.asarray(groups)))} groups"
    why = f"{n} {what} leave no fold that trains on every class and tests another sequence"
    warnings.warn(f"{taken}: {why}. Pass more {what.split()[-1]}, or both ridges.", UserWarning, stacklevel=3)


def as_groups(groups: ArrayLike, n: int) -> Values:
    """One group per sequence (n,)."""
    array = np.asarray(groups)
    if array.shape != (n,):
        raise ValueError(f"groups has shape {array.shape}. Pass one per sequence: ({n},).")
    try:
        np.unique(array)
    except TypeError:  # None beside names
        raise ValueError("groups cannot be ordered. Pass numbers, or names, for all sequences.") from None
    return array


def _stratified(
    count: int, labels: Values, groups: Values | None, weighted: Bool
) -> list[tuple[Index, Index]]:
    """Folds with the same share of every class; their shuffle has a fixed seed."""
    places = np.flatnonzero(weighted)
    _, sizes = np.unique(labels[places], return_counts=True)
    most = min(count, int(sizes.min()) if len(sizes) else 0)
    if groups is not None:
        groups = groups[places]
        most = min(most, len(np.unique(groups)))
    if most < 2:
        return []
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(most, shuffle=True, random_state=0)
    pairs = splitter.split(np.zeros(len(places)), labels[places], groups)
    return [(places[train], places[test]) for train, test in pairs]


def _is_usable(split: NDArray[np.int8], labels: Values, importance: Float) -> bool:
    """Whether a fold trains on every class, and tests something."""
    weighted = importance > 0
    classes = np.unique(labels[(split == 1) & weighted])
    return len(classes) == len(np.unique(labels[weighted])) and bool(((split == -1) & weighted).any())
