"""Would the probe say the same, and look at the same tokens, had it seen other sequences?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from attsvm._support.progress import ProgressLine, silence
from attsvm._support.validation import is_integer
from attsvm.numbers import Float, Index, Values
from attsvm.probe.data.sequences import Sequences
from attsvm.probe.fitting.folds import as_groups

TRIES = 10_000
"""Resamples that are drawn until one has every class."""


class Probe(Protocol):
    """What is asked of a fitted probe."""

    head_ridge_: float
    prompt_ridge_: float
    kinds_: list[str]
    scale_: Float

    def predict(self, X: Sequences) -> Values: ...
    def decision_function(self, X: Sequences) -> Float: ...
    def attention(self, X: Sequences) -> Float: ...


@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """A probe beside those of bootstrap resamples, on n sequences.

    same_token (n,): share of resamples that attend most to the token that the probe attends to most.
    same_label (n,): share that predict the probe's class; spread (n,): standard deviation of the score, of
        several classes that of the predicted one.
    prompts, heads (resamples,): cosine with the probe's own, on standardised tokens; NaN where maps of
        features were trained that do not even have as many.
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
    probe: Probe, X: Sequences, y: ArrayLike, resamples: int, groups: ArrayLike | None, seed: int
) -> Stability:
    """Fit the probe, with the ridges it has, on sequences (or groups of them) drawn with replacement."""
    if not (is_integer(resamples) and resamples >= 2):
        raise ValueError(f"resamples is {resamples!r}. Pass an integer ≥ 2.")
    chosen, label = _tokens(probe, X), probe.predict(X)
    own = probe.decision_function(X)
    column = None if own.ndim == 1 else own.argmax(1)
    ridges = {"head_ridge": probe.head_ridge_, "prompt_ridge": probe.prompt_ridge_}
    kinds = probe.kinds_
    known: dict[str, object] = {"features": kinds, **(ridges if kinds in (["linear"], ["rbf"]) else {})}
    known |= {} if "relu" in kinds else {"n_average": 1}
    groups = None if groups is None else as_groups(groups, len(label))
    rng, found = np.random.default_rng(seed), list[tuple[object, ...]]()
    with ProgressLine(total=resamples) as line:
        for number in range(resamples):
            line.show(f"resample {number + 1} of {resamples}", float(number))
            weight = _drawn(rng, np.asarray(y), groups)
            with silence():
                other = clone(probe).set_params(**known, certify=False).fit(X, y, weight, groups)
            scores = other.decision_function(X)
            scores = scores if column is None else np.take_along_axis(scores, column[:, None], 1)[:, 0]
            same = _tokens(other, X) == chosen, other.predict(X) == label
            found.append((*same, scores, *(_cosine(probe, other, name) for name in ("prompt_", "coef_"))))
    tokens, labels, scores, prompts, heads = map(np.array, zip(*found, strict=True))
    return Stability(tokens.mean(0), labels.mean(0), scores.std(0), prompts, heads)


def _tokens(probe: Probe, X: Sequences) -> Index:
    """The most attended token (n,), by the mean over heads: trained maps have one per fold, in no order."""
    attention = probe.attention(X)
    return (attention if attention.ndim == 2 else attention.mean(0)).argmax(-1)


def _drawn(rng: np.random.Generator, y: Values, groups: Values | None) -> Float:
    """How often each sequence is drawn (n,); until every class is there."""
    member = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count, classes = int(member.max()) + 1, len(np.unique(y))
    for _ in range(TRIES):
        drawn = np.bincount(rng.integers(count, size=count), minlength=count)[member].astype(float)
        if len(np.unique(y[drawn > 0])) == classes:
            return drawn
    few = f"{TRIES:,} resamples in a row lack a class: of {classes} classes some have very few sequences"
    raise ValueError(f"{few} or groups. Leave out the rarest classes.")


def _cosine(one: Probe, other: Probe, name: str) -> float:
    """Cosine of two probes' weights, in the units in which the first's tokens have standard deviation one.

    NaN where they have different features.
    """
    if getattr(one, name).shape != getattr(other, name).shape:
        return float("nan")
    a, b = ((getattr(p, name).T * one.scale_).ravel() for p in (one, other))
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size > 0 else float("nan")
