"""How good a fitted probe is: ranking, calibration, a threshold that flags few by mistake, and resamples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit
from scipy.stats import beta, binom, norm, rankdata
from sklearn.base import clone

from attsvm._support.progress import ProgressLine, silence
from attsvm._support.validation import is_integer
from attsvm.numbers import Bool, Float, Index, Values
from attsvm.probe.data.sequences import Sequences
from attsvm.probe.fitting.folds import as_groups

CONFIDENCE = 0.95
Interval = tuple[float, float]

TRIES = 10_000
"""Resamples that are drawn at most until one has every class."""


@dataclass(frozen=True)
class Threshold:
    """A score above which sequences are flagged, set so that at most a share of the negatives is.

    threshold: flags are scores ≥ threshold; low, high: an interval for the one whose false-positive rate is
        exactly `wished`, from the order of the negatives alone (high is ∞ where they are too few).
    fpr, tpr: rates on the sequences, with Clopper–Pearson intervals; confidence 0.95 for all three.
    """

    wished: float
    threshold: float
    low: float
    high: float
    fpr: float
    fpr_interval: Interval
    tpr: float
    tpr_interval: Interval
    negatives: int
    positives: int

    def flags(self, scores: ArrayLike) -> Bool:
        """Which scores are flagged."""
        return np.asarray(scores) >= self.threshold

    def __str__(self) -> str:
        rates = (
            f"{name} {rate:.2%} [{low:.2%}, {high:.2%}] of {count}"
            for name, rate, (low, high), count in (
                ("FPR", self.fpr, self.fpr_interval, self.negatives),
                ("TPR", self.tpr, self.tpr_interval, self.positives),
            )
        )
        place = f"{self.threshold:.4g} [{self.low:.4g}, {self.high:.4g}]"
        return f"threshold {place} for FPR {self.wished:.2%}: {', '.join(rates)}"


@dataclass(frozen=True, eq=False, repr=False)
class Curves:
    """Ranking and calibration of scores against the truth.

    fpr, tpr, thresholds (m,): the ROC curve; auc with its interval (DeLong et al. 1988, on the logit scale).
    predicted, observed, low, high, counts (bins,): probabilities in bins of equal counts, equal scores in one
        bin, and the share of positives in each with its Clopper–Pearson interval.
    calibration_error: mean |observed − predicted|; log_loss, brier: mean squared error of the probabilities.
    """

    fpr: Float
    tpr: Float
    thresholds: Float
    auc: float
    auc_interval: Interval
    predicted: Float
    observed: Float
    low: Float
    high: Float
    counts: NDArray[np.intp]
    log_loss: float
    brier: float

    @property
    def calibration_error(self) -> float:
        return float(np.average(np.abs(self.observed - self.predicted), weights=self.counts))

    def tpr_at(self, fpr: float) -> float:
        """The largest share of positives found at this false-positive rate or less."""
        return float(self.tpr[self.fpr <= fpr].max())

    def plot(self) -> Any:
        """A matplotlib figure: the ROC curve, and observed against predicted probability."""
        from attsvm.plotting.results import draw_curves

        return draw_curves(self)

    def __repr__(self) -> str:
        low, high = self.auc_interval
        ranking = f"AUC {self.auc:.4f} [{low:.4f}, {high:.4f}], TPR {self.tpr_at(0.01):.3f} at 1 % FPR"
        calibration = f"log loss {self.log_loss:.4f}, calibration error {self.calibration_error:.4f}"
        return f"Curves({ranking}, {calibration})"


def threshold_at_fpr(scores: Float, truth: Bool, fpr: float) -> Threshold:
    """The lowest threshold that flags at most a share fpr of the negatives. scores, truth (n,)."""
    if not 0 < fpr < 1:
        raise ValueError(f"fpr is {fpr}. Pass a rate between 0 and 1, such as 0.01.")
    _check_both_classes(truth)
    down = np.sort(scores[~truth])[::-1]
    m = len(down)
    allowed = int(np.floor(fpr * m + 1e-9))
    above = np.append(np.inf, down)  # above[j]: the j-th largest negative
    # Just above the first negative that must not be flagged, so that its ties are not flagged either.
    threshold = float(np.nextafter(down[allowed], np.inf)) if allowed < m else float(down[-1])
    tail = (1 - CONFIDENCE) / 2
    # The number of negatives above the true quantile is binomial(m, fpr).
    most, least = (int(binom.ppf(q, m, fpr)) for q in (1 - tail, tail))
    low = float(down[most]) if most < m else -np.inf
    flagged, positives = scores >= threshold, int(truth.sum())
    false, true = int(flagged[~truth].sum()), int(flagged[truth].sum())
    rates = false / m, interval(false, m), true / positives, interval(true, positives)
    return Threshold(fpr, threshold, low, float(above[least]), *rates, m, positives)


def curves(scores: Float, truth: Bool, bins: int) -> Curves:
    """ROC and calibration of scores (n,), the log odds, against the truth (n,)."""
    _check_both_classes(truth)
    if not (is_integer(bins) and bins >= 1):
        raise ValueError(f"bins is {bins!r}. Pass an integer ≥ 1.")
    probability = expit(scores)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # one point per distinct score
    fpr, tpr = (np.append(0.0, np.cumsum(side[order])[ends] / side.sum()) for side in (~truth, truth))
    places = _bins(scores, bins)
    hits, counts = [int(truth[i].sum()) for i in places], np.array([len(i) for i in places])
    low, high = zip(*(interval(k, m) for k, m in zip(hits, counts.tolist(), strict=True)), strict=True)
    loss = np.logaddexp(0, np.where(truth, -scores, scores)).mean()  # also if 1 − probability rounds to 0
    ranking = fpr, tpr, np.append(np.inf, scores[order][ends]), *area(scores, truth)
    predicted = np.array([probability[i].mean() for i in places])
    calibration = predicted, np.array(hits) / counts, np.array(low), np.array(high), counts
    return Curves(*ranking, *calibration, float(loss), float(((probability - truth) ** 2).mean()))


def area(scores: Float, truth: Bool) -> tuple[float, Interval]:
    """AUC, the share of pairs in the right order (ties count half), and its interval.

    The interval is computed on the logit scale, inside [0, 1]. If all pairs are in one order, or all tie, it
    is that of a rate with as many trials as the smaller class has members.
    Reference: DeLong, DeLong, Clarke-Pearson 1988.
    """
    positive, negative = scores[truth], scores[~truth]
    m, n = len(positive), len(negative)
    ranks = rankdata(np.concatenate([positive, negative]))
    over = (ranks[:m] - rankdata(positive)) / n  # share of negatives below each positive
    under = 1 - (ranks[m:] - rankdata(negative)) / m
    auc = float(over.mean())
    error = np.sqrt(over.var(ddof=1) / m + under.var(ddof=1) / n) if min(m, n) > 1 else 0.0
    if error == 0:
        return auc, interval(round(auc * min(m, n)), min(m, n))
    width = norm.ppf((1 + CONFIDENCE) / 2) * error / (auc * (1 - auc))
    return auc, (float(expit(logit(auc) - width)), float(expit(logit(auc) + width)))


def _bins(scores: Float, bins: int) -> list[NDArray[np.intp]]:
    """Indices of the scores in bins of about equal counts, the lowest first; equal scores share a bin."""
    order = np.argsort(scores, kind="stable")
    up = scores[order]
    cuts = np.cumsum([len(scores) for scores in np.array_split(up, bins)])[:-1]
    cuts = np.unique(np.searchsorted(up, up[cuts[cuts < len(up)]], side="left"))
    return np.split(order, cuts[cuts > 0])


def interval(hits: int, count: int) -> Interval:
    """The Clopper–Pearson interval of a rate."""
    tail = (1 - CONFIDENCE) / 2
    low = beta.ppf(tail, hits, count - hits + 1) if hits else 0.0
    return float(low), float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0


def _check_both_classes(truth: Bool) -> None:
    if truth.all() or not truth.any():
        raise ValueError("y has one class only. Pass sequences of both.")


# ---------------------------------------------------------------------- resamples


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
