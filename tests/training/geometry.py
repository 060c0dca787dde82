"""Rows, their max-margin weight and angles, by means that share no code with the package."""

from itertools import product

import numpy as np
from scipy.optimize import nnls


def rows(tokens, selected):
    """(x_s − x_t) zᵀ of every losing token t, (m, d, e); and the position (example, token) of each."""
    pairs = [(i, t) for i, t in product(range(tokens.n), range(tokens.T)) if t != selected[i]]
    x, z = tokens.keys, tokens.queries
    return np.stack([np.outer(x[i, selected[i]] - x[i, t], z[i]) for i, t in pairs]), pairs


def max_margin(A):
    """Frobenius: least distance by nonnegative least squares."""
    flat = A.reshape(len(A), -1)
    E = np.vstack([flat.T, np.ones(len(flat))])
    target = np.append(np.zeros(flat.shape[1]), 1)
    rest = E @ nnls(E, target)[0] - target
    return (-rest[:-1] / rest[-1]).reshape(A.shape[1:])


def angle(A, B):
    a, b = A / np.linalg.norm(A), B / np.linalg.norm(B)
    return 2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b))
