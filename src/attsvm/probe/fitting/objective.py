"""The ridge objective of prompts and head together, for many probes in one read of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from attsvm.numbers import Float
from attsvm.probe.data.arithmetic import Device, Host, arithmetic, total
from attsvm.probe.data.standard import Standard, name_the_bad, quiet, standardise
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.compiled_pass import gradients
from attsvm.probe.fitting.curvature import affordable, gauss_newton


class Weights(NamedTuple):
    """prompts (d, h), head (d, h, k) and intercept (k,): h attention heads, k scores.

        score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k,   a_h = softmax(X p_h)

    k = 1 for two classes (the score of the second), else one score per class.
    """

    prompts: Float
    head: Float
    intercept: Float


@dataclass(frozen=True, eq=False)
class Probes:
    """Which probes are fitted together: one row each of these arrays (K,).

    concept: its targets; fold: its training weights; prompt_ridge, head_ridge.
    """

    concept: NDArray[np.intp]
    fold: NDArray[np.intp]
    prompt_ridge: Float
    head_ridge: Float

    def __len__(self) -> int:
        return len(self.concept)

    @classmethod
    def of(cls, parts: Sequence[Probes]) -> Probes:
        """One after the other."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))

    def take(self, which: Any) -> Probes:
        return Probes(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


class Reading(NamedTuple):
    """Of K probes on a block: attention (K, h, m), token_scores (K, h, k, m), scores (K, k, b)."""

    attention: Any
    token_scores: Any
    scores: Any


class Evaluation(NamedTuple):
    """value (K,), gradient (K, D) where the arithmetic is, held_out (K,): log loss on held-out sequences.

    curvature: factors of the Gauss–Newton matrices at the same points, of some; known: of how many at most.
    """

    value: Float
    gradient: Any
    held_out: Float
    curvature: Callable[[NDArray[np.intp]], list[Any]] | None = None
    known: int = 0


@dataclass(frozen=True, eq=False)
class Objective:
    """Weighted log loss plus two ridges, of K probes at once.

        Σ_i ω_i ℓ(y_i, score_i) + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2   on standardised tokens

    targets (concepts, k, n): one-hot classes, or numbers in [0, 1] where k = 1.
    training, held_out (folds, n): weights ω that sum to one, each row, or to zero.
    share (folds,): of the importance of all held-out sequences, how much each fold tests.
    h: number of prompts. The tokens are read once an evaluation, in blocks of whole sequences.
    """

    store: TokenStore
    standard: Standard
    targets: Float
    training: Float
    held_out: Float
    share: Float
    h: int

    @classmethod
    def of(
        cls, store: TokenStore, targets: Float, importance: Float, parts: NDArray[Any], h: int
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
        return cls(store, standard, targets, training, held_out, share / max(share.sum(), 1e-300), h)

    def like(self, point: Float) -> Weights:
        """A point (D,) as weights on standardised tokens."""
        d, h, k = self.store.width, self.h, self.k
        columns = point[: d * h * (1 + k)].reshape(h * (1 + k), d).T
        return Weights(columns[:, :h], columns[:, h:].reshape(d, h, k), point[d * h * (1 + k) :])

    @property
    def k(self) -> int:
        return int(self.targets.shape[1])

    @property
    def size(self) -> int:
        """D, the numbers of one probe."""
        return self.store.width * self.h * (1 + self.k) + self.k

    def __call__(self, where: Host | Device, points: Any, probes: Probes) -> Evaluation:
        """points (K, D) where the arithmetic is; value and gradient of each."""
        K, d, h, k = len(probes), self.store.width, self.h, self.k
        c, xp = h * (1 + k), where.xp
        scale = where.put(self.standard.scale)
        columns, intercept = points[:, : c * d].reshape(K, c, d), points[:, c * d :]
        centre, across = where.factor(self.standard.mean), where.narrowed(columns / scale)
        across = across.reshape(K * c, d).T

        compiled = isinstance(where, Host) and self.store.numbers > where.part
        one = partial(gradients if compiled else any_block, self, where, probes)
        work = partial(one, weights=(centre, across, intercept))
        through, loss, held, on_intercept = total(where.each(work, self.store.spans(where.part)))
        ridges = np.stack([probes.prompt_ridge, probes.head_ridge], 1)[:, np.repeat([0, 1], [h, h * k])]
        shrink = where.put(ridges)[:, :, None] * columns
        value = loss + (shrink * columns).sum((1, 2)) / 2
        gradient = (through.reshape(K, c, d) / scale + shrink).reshape(K, c * d)
        gradient = xp.concatenate([gradient, on_intercept], 1)
        known = affordable(self) if compiled else 0

        def curvature(which: NDArray[np.intp]) -> list[Any]:
            return gauss_newton(self, where, points[which], probes.take(which))

        return Evaluation(where.numpy(value), gradient, where.numpy(held), curvature, known)


# ---------------------------------------------------------------------- a block


def any_block(
    o: Objective, where: Host | Device, probes: Probes, span: slice, weights: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gradients by the columns across (K·c, d), loss, held-out loss (K,), gradients by intercepts (K, k).

    weights: centre (d,), across (d, K·c), intercept (K, k).
    """
    centre, across, intercept = weights
    x, products = where.forward(o.store.read(span), centre, across)
    segments = where.segments(o.store.lengths[span])
    seen = read_products(where, segments, products, intercept, o.h)
    losses, pull = log_loss(where.xp, seen.scores, where.put(o.targets[:, :, span][probes.concept]))
    training, held = (where.put(w[:, span][probes.fold]) for w in (o.training, o.held_out))
    pull = pull * training[:, None]
    coefficients = on_tokens(where.xp, segments, seen, pull)
    through = where.backward(coefficients.reshape(across.shape[1], -1), x)
    return through, (losses * training).sum(-1), (losses * held).sum(-1), pull.sum(-1)


def read_products(where: Host | Device, segments: Any, products: Any, intercept: Any, h: int) -> Reading:
    """Attention and scores from the products (m, K·c) of a block. Pooled vectors are never formed.

    v · Σ a_t x_t = Σ a_t (v · x_t)
    """
    xp, (K, k) = where.xp, intercept.shape
    products = where.widened(products.T).reshape(K, h * (1 + k), -1)
    logits, token_scores = products[:, :h], products[:, h:].reshape(K, h, k, -1)
    relative = xp.exp(logits - segments.spread(segments.top(logits)))
    attention = relative / segments.spread(segments.total(relative))
    scores = segments.total((attention[:, :, None] * token_scores).sum(1)) + intercept[:, :, None]
    return Reading(attention, token_scores, scores)


def on_tokens(xp: Any, segments: Any, seen: Reading, pull: Any) -> Any:
    """Coefficients of every token in the gradients of prompts (K, h, m) and heads (K, h·k, m), joined."""
    K, _, m = seen.attention.shape
    pull = segments.spread(pull)
    worth = (seen.token_scores * pull[:, None]).sum(2)
    on_prompts = _through_softmax(xp, segments, seen.attention, worth)
    on_heads = (seen.attention[:, :, None] * pull[:, None]).reshape(K, -1, m)
    return xp.concatenate([on_prompts, on_heads], 1)


def _through_softmax(xp: Any, segments: Any, attention: Any, worth: Any) -> Any:
    """Coefficient of every token in the prompts' gradient: a_t (g_t − Σ a g), (K, h, m)."""
    coefficient = attention * (worth - segments.spread(segments.total(attention * worth)))
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    winner = attention == segments.spread(segments.top(attention))
    losing = coefficient * ~winner
    alone = segments.spread(segments.total(winner * 1.0)) == 1
    return xp.where(winner & alone, -segments.spread(segments.total(losing)), coefficient)


def log_loss(xp: Any, scores: Any, targets: Any) -> tuple[Any, Any]:
    """Log losses (K, b) and their derivatives by the scores (K, k, b)."""
    if scores.shape[1] == 1:  # both tails exactly: no difference of nearly equal numbers
        small = xp.exp(-abs(scores))
        up, one = scores > 0, xp.ones_like(small)
        yes, no = xp.where(up, one, small) / (1 + small), xp.where(up, small, one) / (1 + small)
        rise, tail = xp.where(up, scores, 0 * one), xp.log1p(small)
        losses = (1 - targets) * (rise + tail) + targets * (rise - scores + tail)
        return losses[:, 0], (1 - targets) * yes - targets * no
    relative = scores - xp.amax(scores, 1)[:, None]
    total = xp.exp(relative).sum(1)[:, None]
    losses = (targets * (xp.log(total) - relative)).sum(1)
    return losses, xp.exp(relative) / total - targets


# ---------------------------------------------------------------------- reading with fitted weights


def read_out(store: TokenStore, weights: Sequence[Weights], centre: Float) -> tuple[Float, Float]:
    """Attention of all tokens (K, h, N) and scores (K, k, n) of K fitted probes, in one read.

    weights are for the tokens as given; centre (d,): subtracted before products, to keep their digits.
    """
    where = arithmetic(store.rows)
    d, h, k = weights[0].head.shape
    columns = np.concatenate([np.hstack([w.prompts, w.head.reshape(d, h * k)]) for w in weights], 1)
    intercepts = np.stack([w.intercept + np.einsum("d,dhk->k", centre, w.head) for w in weights])
    attention, scores = [], []
    with where.scope(), quiet():
        across, middle = map(where.factor, (columns, centre))
        intercept = where.put(intercepts)
        for span in store.spans(where.part):
            _, products = where.forward(store.read(span), middle, across)
            seen = read_products(where, where.segments(store.lengths[span]), products, intercept, h)
            attention.append(where.numpy(seen.attention))
            scores.append(where.numpy(seen.scores))
            if not np.isfinite(scores[-1]).all():
                name_the_bad(store, span)
    return np.concatenate(attention, -1), np.concatenate(scores, -1)


def probabilities(scores: Float) -> Float:
    """Class probabilities (n, classes) from scores (n, k)."""
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    return np.asarray(softmax(scores, axis=1))
