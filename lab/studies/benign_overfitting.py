"""Data and measures of benign_overfitting.toml."""

import zlib

import numpy as np

from attsvm_lab import datasets

FRESH = 512
"""Fresh inputs of a run."""

BENIGN = 0.95
"""Share of them that must be right."""


def beside_noise(n, T, d, snr, flipped, seed):
    """`signal_beside_noise` in the span of its tokens, by snr = SNR·√n, the scale of the theory."""
    signal = snr * np.sqrt(d / n)
    return datasets.signal_beside_noise(n, T, d, signal, seed, flipped=flipped, in_span=True)


def outcome(path):
    """benign, harmful or unfitted, after the last step."""
    return _outcome(path, -1)


def early(path):
    """The same after two steps."""
    return _outcome(path, int(np.flatnonzero(path.index == 2)[0]))


def accuracy(path):
    """Share of fresh inputs with the right sign, after the last step."""
    return float((fresh_margins(path, -1) > 0).mean())


def signal(path):
    """Share of the training inputs with a right label whose class token has most of the attention."""
    along = path.tokens.keys[..., :2]
    right = np.where(along[..., 0].any(-1), 1, -1) == path.tokens.labels
    attended = (path.selected & along.any(-1)).any(-1)
    return float(attended[right].mean()) if right.any() else float("nan")


def summary(study):
    """The record: T, snr, lr and runs of every cell, and its quantities with their intervals."""
    cells = []
    for cell in study.cells:
        kinds = {"T": int, "snr": float, "lr": float, "steps": int}
        settings = {name: kind(cell.words[name]) for name, kind in kinds.items()}
        quantities = {
            name.partition(":")[2]: [float(f"{x:.4g}") for x in (e.value, e.low, e.high)]
            for name, e in cell.quantities.items()
        }
        cells.append({**settings, "runs": int(cell.runs), **quantities})
    return {"cells": cells}


def _outcome(path, record):
    p, v = path.W[record, :, 0], path.v[record]
    if (path.tokens.labels * _pooled(path.tokens.keys @ p, path.tokens.keys @ v) <= 0).any():
        return "unfitted"
    return "benign" if (fresh_margins(path, record) > 0).mean() >= BENIGN else "harmful"


def fresh_margins(path, record, count=FRESH):
    """Y f of fresh inputs, by their law: one logit and score of a class token, Gaussian pairs of noise.

    The pairs have the covariance of p and v across the signals. A run draws by a number made from its tokens.
    """
    p, v, T = path.W[record, :, 0], path.v[record], path.tokens.T
    size = path.tokens.keys[..., :2].max()
    rng = np.random.default_rng([zlib.crc32(np.ascontiguousarray(path.tokens.keys[0]).tobytes()), count])
    length = np.linalg.norm(p[2:])
    along = p[2:] / length if length else np.zeros_like(p[2:])
    across = np.linalg.norm(v[2:] - (v[2:] @ along) * along)
    first, second = rng.standard_normal((2, count, T - 1))
    classes = np.arange(count) % 2
    logits = np.column_stack([size * p[classes], length * first])
    scores = np.column_stack([size * v[classes], (v[2:] @ along) * first + across * second])
    return np.where(classes == 0, 1, -1) * _pooled(logits, scores)


def _pooled(logits, scores):
    s = np.exp(logits - logits.max(-1, keepdims=True))
    return (s * scores).sum(-1) / s.sum(-1)
