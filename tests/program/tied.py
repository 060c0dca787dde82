"""Several selected tokens in each example, and an attention on them: what a finite part is of."""

import numpy as np

from attsvm import datasets


def softmax(logits):
    s = np.exp(logits - logits.max(-1, keepdims=True))
    return s / s.sum(-1, keepdims=True)


def tied_problem():
    """Tokens, the selection (n, T), and attention on it alone."""
    tokens, _ = datasets.sphere(3, 5, 8, seed=0)
    selected = np.zeros((3, 5), bool)
    selected[:, [1, 3, 4]] = True
    W = np.random.default_rng(1).standard_normal((8, 8))
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    return tokens, selected, softmax(np.where(selected, logits, -np.inf))
