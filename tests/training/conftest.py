"""Oracles that share no code with the package: mpmath for gradients, NNLS and cvxpy for programs."""

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import nnls

from attsvm import l1, linf, nuclear, spectral
from attsvm.datasets import sphere


@pytest.fixture(scope="session")
def problem():
    """The small problem of most files: tokens and a head."""
    return sphere(3, 4, 5, seed=0)


@pytest.fixture(scope="session")
def exact_gradient():
    return _exact_gradient


@pytest.fixture(scope="session")
def rows():
    return _rows


@pytest.fixture(scope="session")
def frobenius_program():
    return _least_distance


@pytest.fixture(scope="session")
def program():
    return _program


@pytest.fixture(scope="session")
def margin_ratio():
    """Margin of W in a norm, as a fraction of the best possible."""

    def ratio(tokens, selected, W, norm):
        constraints = _rows(tokens, selected)
        achieved = np.tensordot(constraints, W, 2).min() / norm.value(W)
        return achieved * norm.value(_program(constraints, norm))

    return ratio


@pytest.fixture(scope="session")
def angle():
    """1 − cosine, through the distance of unit vectors: 1 − dot would lose half the digits."""

    def one_minus_cosine(A, B):
        return ((A / np.linalg.norm(A) - B / np.linalg.norm(B)) ** 2).sum() / 2

    return one_minus_cosine


def _rows(tokens, selected):
    """(x_selected − x_t) zᵀ for every losing token."""
    out = []
    for i in range(tokens.n):
        a = int(np.argmax(selected[i]))
        losing = [t for t in range(tokens.T) if t != a and tokens.mask[i, t]]
        out += [np.outer(tokens.keys[i, a] - tokens.keys[i, t], tokens.queries[i]) for t in losing]
    return np.array(out)


def _least_distance(rows):
    """min ‖W‖_F subject to rows · W ≥ 1, by Lawson and Hanson's reduction to NNLS."""
    A = rows.reshape(len(rows), -1)
    E, f = np.vstack([A.T, np.ones(len(A))]), np.append(np.zeros(A.shape[1]), 1.0)
    residual = E @ nnls(E, f, maxiter=10_000)[0] - f
    return (-residual[:-1] / residual[-1]).reshape(rows.shape[1:])


def _program(rows, norm):
    cp = pytest.importorskip("cvxpy", reason="an independent solver: pip install cvxpy")
    W = cp.Variable(rows.shape[1:])
    entries = cp.vec(W, order="C")
    objectives = {l1: cp.norm1(entries), linf: cp.norm_inf(entries)}
    objectives |= {nuclear: cp.normNuc(W), spectral: cp.sigma_max(W)}
    objective = objectives[norm] if norm in objectives else cp.pnorm(entries, norm.p)
    constraints = [rows.reshape(len(rows), -1) @ entries >= 1]
    cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
    return W.value


def _exact_gradient(tokens, v, W, digits=60):
    """Textbook softmax gradient of the mean logistic loss: unit direction and log of its length.

    The textbook formula cancels, so mpmath works with `digits` more than the smallest weight needs.
    """
    gap = np.ptp(np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries), axis=1).max()
    with mp.workdps(int(digits + gap / np.log(10))):
        G = mp.zeros(tokens.d, tokens.e)
        for i in range(tokens.n):
            X, z = mp.matrix(tokens.keys[i].tolist()), mp.matrix(tokens.queries[i].tolist())
            a = X * (mp.matrix(W.tolist()) * z)
            e = [mp.exp(value - max(a)) for value in a]
            s = [value / mp.fsum(e) for value in e]
            gamma = mp.matrix(tokens.values[i].tolist()) * mp.matrix(v.tolist()) * int(tokens.labels[i])
            f = mp.fdot(s, gamma)
            c = mp.matrix([s[t] * (gamma[t] - f) for t in range(tokens.T)])
            G -= (X.T * c) * z.T / (1 + mp.exp(f)) / tokens.n
        size = mp.norm(G)
        unit = np.array([[float(G[j, k] / size) for k in range(tokens.e)] for j in range(tokens.d)])
        return unit, float(mp.log(size))
