"""The loss gap of attention behind a frozen output layer, exact past saturation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from attsvm.data.path import Path
from attsvm.next_token.corpus import Corpus
from attsvm.numbers import Float

LINEAR = 1e-8
"""Below it, (e^x − 1)/x and log(1 + x)/x are 1 + x/2 and 1 − x/2 to the last bit."""

FAR = 40.0
"""Above it, e^x − 1 is e^x to the last bit."""


def log_excess(path: Path, corpus: Corpus) -> Float:
    """log(L − L*) of the second stage at every record (k,), long after L − L* has underflowed.

    L* puts all attention on the winners a of the corpus that was trained on. In one sentence, with
    r* = value_a, the probabilities p = softmax(r*) of the wrong tokens among themselves, their sum P
    among all tokens, and Δ = Σ_t s_t (value_t − r*),

        L − L* = log(1 + P Σ_v p_v (e^{Δ_v} − 1)).

    Δ carries a factor s_t of a losing token in every term; the largest is kept as a logarithm.
    """
    values = path.tokens.values
    if values.shape != (*corpus.ids.shape, corpus.V - 1) or (path.tokens.mask != corpus.mask).any():
        raise ValueError(
            f"the path was trained on {path.tokens} and the corpus has n={corpus.n}, V={corpus.V}. "
            "Pass train_two_stages(corpus, …).attention and the same corpus."
        )
    at = np.argmax(corpus.ids == corpus.winners[:, None], axis=-1)
    best = values[np.arange(len(at)), at]
    gap = np.where(path.tokens.mask[..., None], values - best[:, None], 0.0)
    losing = path.tokens.mask & (corpus.ids != corpus.winners[:, None])
    log_s = np.where(losing, path.log_attention, -np.inf)
    most = log_s.max(-1)
    rival = np.isfinite(most)  # a sentence of one token alone loses nothing, on any scale
    own = np.where(rival, most, 0.0)
    delta = np.einsum("knt,ntv->knv", np.exp(log_s - own[..., None]), gap)
    log_p, log_wrong, log_right = _wrong(best)
    moved = np.exp(own)[..., None] * delta  # Δ
    rise = (np.exp(log_p) * delta * _growth(np.minimum(moved, FAR))).sum(-1)
    scale = np.where(rival, own + log_wrong, -np.inf)
    gaps = rise * _shrinkage(np.exp(scale) * rise)
    # Where e^Δ dwarfs 1, and may overflow, nothing cancels: L − L* = log(1 − P + Σ_v P p_v e^{Δ_v}).
    far = moved.max(-1) > FAR
    plain = np.logaddexp(log_right, log_wrong + logsumexp(log_p + moved, axis=-1))
    return _log_mean(np.where(far, 0.0, scale), np.where(far, plain, gaps))


def _wrong(odds: Float) -> tuple[Float, Float, Float]:
    """log p, the shares of the wrong tokens among themselves (n, V − 1), log P and log(1 − P) (n,)."""
    total = logsumexp(odds, axis=-1)
    return odds - total[:, None], -np.logaddexp(0.0, -total), -np.logaddexp(0.0, total)


def _growth(x: NDArray[np.float64]) -> Float:
    """(e^x − 1)/x."""
    small = np.abs(x) < LINEAR
    return np.where(small, 1 + x / 2, np.expm1(x) / np.where(small, 1.0, x))


def _shrinkage(x: NDArray[np.float64]) -> Float:
    """log(1 + x)/x."""
    small = np.abs(x) < LINEAR
    return np.where(small, 1 - x / 2, np.log1p(x) / np.where(small, 1.0, x))


def _log_mean(scale: Float, mantissa: Float) -> Float:
    """log of the mean over sentences of mantissa · e^scale, (k, n) → (k,)."""
    top = scale.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    mean = (np.exp(scale - top) * mantissa).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(top[:, 0] + np.log(mean))
