"""Nesterov–Todd scaling of a pair of positive definite matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dsyevd

from attsvm.tokens import Float


@dataclass(frozen=True, eq=False)
class Scaling:
    """Coordinates in which P and Q become the same diagonal matrix.

        P = G diag(v) Gᵀ,    Q = G⁻ᵀ diag(v) G⁻¹

    forward (k, k): G; backward (k, k): G⁻ᵀ; values (k,): v.
    Reference: Todd, Toh, Tütüncü 1998, "On the Nesterov–Todd direction in semidefinite programming".
    """

    forward: Float
    backward: Float
    values: Float

    @classmethod
    def of(cls, P: Float, Q: Float) -> Scaling:
        """From Cholesky factors, so that neither G nor its inverse is inverted."""
        R, L = np.linalg.cholesky(P), np.linalg.cholesky(Q)
        U, values, Vt = np.linalg.svd(R.T @ L)
        root = np.sqrt(values)
        return cls(R @ (U / root), L @ (Vt.T / root), values)

    def scaled_P(self, dP: Float) -> Float:
        """G⁻¹ dP G⁻ᵀ."""
        return self.backward.T @ dP @ self.backward

    def scaled_Q(self, dQ: Float) -> Float:
        """Gᵀ dQ G."""
        return self.forward.T @ dQ @ self.forward

    def newton(self, target: float, correction: Float | None = None) -> Float:
        """The scaled sum dP̂ + dQ̂ that moves P̂ Q̂ to target · I, less a second-order correction.

        Solves  ½(v X + X v) = target · I − v² − correction  for X.
        """
        right = np.diag(target - self.values**2)
        if correction is not None:
            right -= correction
        return 2 * right / (self.values[:, None] + self.values)

    def reach(self, step: Float) -> float:
        """Largest α with diag(v) + α step ⪰ 0, for a scaled step."""
        root = np.sqrt(self.values)
        values, _, failed = dsyevd(step / (root[:, None] * root), compute_v=0)
        if failed:
            raise np.linalg.LinAlgError("eigenvalues did not converge")
        least = values[0]
        return float(np.inf if least >= 0 else -1 / least)
