"""Nesterov–Todd scaling of a pair of positive definite matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dgesdd, dpotrf, dsyevd
from scipy.sparse.linalg import ArpackError, eigsh

from attsvm.numbers import Float

WIDE, NEAR = 400, 1e-2
"""Width from which the least eigenvalue is found by Lanczos steps, and how well."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Coordinates in which P and Q become the same diagonal matrix.

        P = G diag(v) Gᵀ,    Q = G⁻ᵀ diag(v) G⁻¹

    forward (k, k): G; backward (k, k): G⁻ᵀ; values (k,): v.
    A scaled step of P is G⁻¹ dP G⁻ᵀ, one of Q is Gᵀ dQ G.
    Reference: Todd, Toh, Tütüncü 1998, "On the Nesterov–Todd direction in semidefinite programming".
    """

    forward: Float
    backward: Float
    values: Float

    @classmethod
    def of(cls, P: Float, Q: Float) -> Scaling:
        """From Cholesky factors, so that neither G nor its inverse is inverted.

        LAPACK is called directly: at width 16 NumPy's checks cost more than a factorisation.
        """
        R, not_P = dpotrf(P, lower=1)
        L, not_Q = dpotrf(Q, lower=1)
        if not_P or not_Q:
            raise np.linalg.LinAlgError("a matrix is not positive definite")
        U, values, Vt, failed = dgesdd(R.T @ L)
        if failed:
            raise np.linalg.LinAlgError("singular values did not converge")
        root = np.sqrt(values)
        return cls(R @ (U / root), L @ (Vt.T / root), values)

    @cached_property
    def _over_sum(self) -> Float:
        return -1 / (self.values[:, None] + self.values)

    @cached_property
    def _over_root(self) -> Float:
        root = np.sqrt(self.values)
        return 1 / (root[:, None] * root)

    def first(self, target: float) -> Float:
        """The scaled sum X = dP̂ + dQ̂ that moves P̂ Q̂ to target · I:  ½(v X + X v) = target · I − v²."""
        return np.diag(target / self.values - self.values)

    def second(self, P: Float, Q: Float) -> Float:
        """What a scaled step's second order adds to it:  v X + X v = −(P Q + Q P)."""
        product = P @ Q
        return np.asarray((product + product.T) * self._over_sum)

    def reach(self, step: Float) -> float:
        """Largest α with diag(v) + α step ⪰ 0, for a scaled step."""
        least = _least_eigenvalue(step * self._over_root)
        return float(np.inf if least >= 0 else -1 / least)


def _least_eigenvalue(matrix: Float) -> float:
    """The least eigenvalue, or of a wide matrix a number slightly below it."""
    if len(matrix) >= WIDE:
        try:
            value, vector = eigsh(matrix, 1, which="SA", tol=NEAR, v0=np.ones(len(matrix)))
            return float(value[0] - np.linalg.norm(matrix @ vector - value * vector))
        except ArpackError:
            pass
    values, _, failed = dsyevd(matrix, compute_v=0)
    if failed:
        raise np.linalg.LinAlgError("eigenvalues did not converge")
    return float(values[0])
