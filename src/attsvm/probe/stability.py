"""Bootstrap: whether probes fitted on resampled sequences predict the same and select the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from attsvm._support.progress import ProgressLine, silence
from attsvm._support.validation import is_integer
from attsvm.numbers import Float, Index, Values
from attsvm.probe.data.sequences import Sequences
from attsvm.probe.fitting.folds import as_groups

TRIES = 10_000
"""Resamples that are drawn at most until one has every class."""


class FittedProbe(Protocol):
    """What is compared of two probes: an `AttentionProbe` that is fitted."""

    kinds_: list[str]
    head_ridge_: float
    prompt_ridge_: float
    scale_: Float

    def predict(self, X: Sequences) -> Values: ...
    def decision_function(self, X: Sequences) -> Float: ...
    def attention(self, X: Sequences) -> Any: ...


@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """A probe beside those of bootstrap resamples, on n sequences.

    same_token (n,): share of resamples that attend most to the token that the probe attends to most.
    same_label (n,): share that predict the probe's class; spread (n,): standard deviation of the score, of
        several classes that of the predicted one.
    prompts, heads (resamples,): cosine with the probe's prompt and head, on standardised tokens; NaN where
        the number of features differs.
    """

    same_token: Float
    same_label: Float
    spread: Float
    prompts: Float
    heads: Float

    def __repr__(self) -> str:
        token, label = self.same_token.mean(), self.same_label.mean()
        cosines = f"cosine of prompts {self.prompts.mean():.2f}, of heads {self.heads.mean():.2f}"
        count = f"{len(self.prompts)} resamples of {len(self.same_token)} sequences"
        return f"Stability({count}: same token {token:.1%}, same label {label:.1%}, {cosines})"


def stability(
    probe: FittedProbe, X: Sequences, y: ArrayLike, resamples: int, groups: ArrayLike | None, seed: int
) -> Stability:
    """Fit the probe, with the ridges it has, on sequences (or groups of them) drawn with replacement."""
    if not (is_integer(resamples) and resamples >= 2):
        raise ValueError(f"resamples is {resamples!r}. Pass an integer ≥ 2.")
    token, label, scores = _tokens(probe, X), probe.predict(X), probe.decision_function(X)
    column = None if scores.ndim == 1 else scores.argmax(1)
    kinds = probe.kinds_
    settings: dict[str, object] = {"features": kinds}
    if kinds in (["linear"], ["rbf"]):
        settings |= {"head_ridge": probe.head_ridge_, "prompt_ridge": probe.prompt_ridge_}
    groups = None if groups is None else as_groups(groups, len(label))
    rng, comparisons = np.random.default_rng(seed), list[tuple[object, ...]]()
    with ProgressLine(total=resamples) as line:
        for number in range(resamples):
            line.show(f"resample {number + 1} of {resamples}", float(number))
            weight = _bootstrap_counts(rng, np.asarray(y), groups)
            with silence():
                refit = clone(probe).set_params(**settings).fit(X, y, weight, groups)
            scores = refit.decision_function(X)
            scores = scores if column is None else np.take_along_axis(scores, column[:, None], 1)[:, 0]
            same = _tokens(refit, X) == token, refit.predict(X) == label
            cosines = (_cosine(probe, refit, name) for name in ("prompt_", "coef_"))
            comparisons.append((*same, scores, *cosines))
    tokens, labels, scores, prompts, heads = map(np.array, zip(*comparisons, strict=True))
    return Stability(tokens.mean(0), labels.mean(0), scores.std(0), prompts, heads)


def _tokens(probe: FittedProbe, X: Sequences) -> Index:
    """The most attended token (n,), by the mean over heads."""
    attention = probe.attention(X)
    return (attention if attention.ndim == 2 else attention.mean(0)).argmax(-1)


def _bootstrap_counts(rng: np.random.Generator, y: Values, groups: Values | None) -> Float:
    """How often each sequence is drawn (n,), in the first resample that has every class."""
    member = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count, classes = int(member.max()) + 1, len(np.unique(y))
    for _ in range(TRIES):
        counts = np.bincount(rng.integers(count, size=count), minlength=count)[member].astype(float)
        if len(np.unique(y[counts > 0])) == classes:
            return counts
    problem = f"{TRIES:,} resamples in a row lack a class: of {classes} classes some have very few sequences"
    raise ValueError(f"{problem} or groups. Leave out the rarest classes.")


def _cosine(probe: FittedProbe, refit: FittedProbe, name: str) -> float:
    """Cosine of the weights of two probes, on tokens standardised as for the first probe.

    NaN if they have different features.
    """
    if getattr(probe, name).shape != getattr(refit, name).shape:
        return float("nan")
    a, b = ((getattr(p, name).T * probe.scale_).ravel() for p in (probe, refit))
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size > 0 else float("nan")
