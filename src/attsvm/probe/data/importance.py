"""How much every sequence counts: what the caller says of each, and of its class."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import check_array

from attsvm.numbers import Float, Values

ClassWeight: TypeAlias = Mapping[Hashable, float] | str | None


def importance_of(sample_weight: ArrayLike | None, class_weight: ClassWeight, labels: Values) -> Float:
    """One weight per sequence (n,), the largest between 1/2 and 1: by default all are alike.

    Only their ratios matter, and powers of two change no bit of them; sums of huge weights would overflow.
    """
    weight, n = np.ones(len(labels)), len(labels)
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
            name, value = (each[wrong].tolist()[0] for each in (labels, of_class))
            raise ValueError(f"class_weight is {value:g} for class {name!r}. Pass finite numbers ≥ 0.")
        weight = _halved(weight) * _halved(of_class)
    if not weight.any():
        raise ValueError("Sample weights must contain at least one non-zero number: all are zero.")
    return _halved(weight)


def _of_classes(class_weight: ClassWeight, weight: Float, labels: Values) -> Float:
    """What each sequence's class counts (n,); balanced: in all, every class counts the same.

    scikit-learn's own would count sequences, those without weight among them; a weight of two is two copies.
    """
    if not (isinstance(class_weight, str) and class_weight == "balanced"):
        return np.asarray(compute_sample_weight(class_weight, labels))
    _, member = np.unique(labels, return_inverse=True)
    total = np.bincount(member, _halved(weight))[member]
    return np.divide(1.0, total, out=np.zeros(len(labels)), where=total > 0)


def _halved(weight: Float) -> Float:
    """Weights (n,) divided by the power of two that brings the largest below 1; none becomes zero."""
    scaled = np.ldexp(weight, -np.frexp(weight.max())[1])
    return np.where(weight > 0, np.maximum(scaled, np.finfo(float).tiny), 0.0)
