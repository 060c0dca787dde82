"""Vectors that are given by themselves or by their Gram matrix: convex hulls and dual cones.

What methods for several objectives ask of their gradients at every step. Both answers are exact, and carry
their proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.numbers import Float
from attsvm.program.certificate import TOLERANCE, plain
from attsvm.program.frobenius.nonnegative import solve_nonnegative

INDEFINITE = 1e-6
"""How negative an eigenvalue may be at unit diagonal, per vector: single precision makes it so."""

ZERO_OF_VECTORS, ZERO_OF_GRAM = 1e-13, 1e-7
"""Length of a mean of vectors, per mean of their lengths, that is rounding. A Gram matrix holds squares."""


def smallest_in_hull(vectors: ArrayLike | None = None, *, gram: ArrayLike | None = None) -> HullPoint:
    """The shortest vector in the convex hull of some vectors.

        min ‖Σ α_j g_j‖   subject to  α ≥ 0,  Σ α_j = 1

    vectors (m, d), or their Gram matrix gram (m, m), one of both; leading axes are further problems. If
    the vectors are gradients of objectives, all objectives fall along minus the shortest one (MGDA). The norm
    of `separate(vectors)` is 1/length. If zero is in the hull, nothing separates, and the weights prove it.
    Reference: Désidéri 2012, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization".
    """
    family = Family.of(vectors, gram)
    K, length = family.flat
    separated = length > 0
    bound = np.where(separated, 1.0 / np.where(separated, length, 1.0), 1.0)
    shortest = np.where(separated, length, np.inf).min(-1, keepdims=True)
    bound = np.where(separated, bound * np.where(np.isfinite(shortest), shortest, 1.0), 1.0)
    lam = solve_nonnegative(K, bound, np.arange(len(K)), family.factor)
    share = lam * bound  # weights of vectors, not of vectors at length one; zero vectors count as one
    return HullPoint(family, (share / share.sum(-1, keepdims=True)).reshape(family.shape))


def dual_cone_projection(
    weights: ArrayLike, vectors: ArrayLike | None = None, *, gram: ArrayLike | None = None
) -> ConeProjection:
    """The projection of Σ u_j g_j on the dual cone of the vectors g_j, in weights v.

        min vᵀ G v   subject to  v ≥ u;         x = Σ v_j g_j has  ⟨g_j, x⟩ ≥ 0  for every j

    weights u (…, m): any number of them, of any sign; vectors (m, d), or their Gram matrix gram (m, m), one
    of both. The nearest point x is unique; its weights are so where no vector depends on the others.
    Reference: Quinton and Rey 2024, "Jacobian descent for multi-objective optimization".
    """
    family = Family.of(vectors, gram)
    m = family.shape[-1]
    if family.shape != (m,):
        raise ValueError(
            f"{family.name} has {len(family.shape) - 1} leading axes. Pass one matrix for all weights."
        )
    u = _numbers(weights, "weights")
    if u.shape[-1:] != (m,) or not u.size:
        raise ValueError(f"weights has shape {u.shape} but there are m={m} vectors. Pass (…, {m}).")
    K, length = family.flat
    flat = u.reshape(-1, m) * length
    image, first = flat @ K[0], np.zeros(len(flat), np.int64)
    reached = np.sqrt(np.maximum((image * flat).sum(-1), 0.0))
    lam = solve_nonnegative(K, -image, first, family.factor, reached)
    added = np.divide(lam, length, out=np.zeros_like(flat), where=length > 0)
    return ConeProjection(family, u, u + added.reshape(u.shape))


# ---------------------------------------------------------------------- results


@dataclass(frozen=True, eq=False, repr=False)
class HullPoint:
    """The shortest vector of a convex hull.

    weights (…, m): ≥ 0, of sum one. All else is recomputed from them and the vectors.
    """

    family: Family
    weights: Float

    @property
    def vector(self) -> Float:
        """Σ α_j g_j (…, d); only where the vectors were given."""
        return self.family.combine(self.weights)

    @cached_property
    def _squares(self) -> tuple[Float, Float]:
        """|x|², and the least ⟨g_j, x⟩ (…)."""
        products, square = self.family.products(self.weights)
        return square, products.min(-1)

    @property
    def length(self) -> Any:
        """|x| of the shortest vector x (…)."""
        return plain(np.sqrt(self._squares[0]))

    @property
    def least_length(self) -> Any:
        """No vector of the hull is shorter: min_j ⟨g_j, x⟩ / |x| where that is positive, else 0."""
        square, least = self._squares
        length = np.sqrt(np.where(square > 0, square, 1.0))
        return plain(np.where(square > 0, np.maximum(least, 0.0) / length, 0.0))

    @property
    def contains_zero(self) -> Any:
        """Whether zero is in the hull, as far as rounding lets the vectors, or their Gram matrix, tell."""
        zero = ZERO_OF_GRAM if self.family.vectors is None else ZERO_OF_VECTORS
        return plain(np.sqrt(self._squares[0]) <= zero * (self.weights * self.family.length).sum(-1))

    @property
    def gap(self) -> Any:
        """1 − least_length/length; where zero is in the hull, |x| / Σ α_j |g_j|."""
        length = np.asarray(self.length)
        mean = (self.weights * self.family.length).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(mean > 0, length / mean, 0.0)
            return plain(np.where(self.contains_zero, zero, 1.0 - self.least_length / length))

    @property
    def certified(self) -> Any:
        """Whether the length is the least up to 1e-8, or zero up to rounding."""
        return plain((np.asarray(self.gap) <= TOLERANCE) | self.contains_zero)

    def __repr__(self) -> str:
        carriers = np.count_nonzero(self.weights, axis=-1)
        size = f"length {np.max(self.length):.6g}, {np.max(carriers)} of {self.weights.shape[-1]} vectors"
        word = "certified" if np.all(self.certified) else "NOT certified"
        several = "" if self.weights.ndim == 1 else f"{carriers.size} hulls, the longest: "
        return f"HullPoint({several}{size}, {word}, gap {np.max(self.gap):.1e})"


@dataclass(frozen=True, eq=False, repr=False)
class ConeProjection:
    """Projections on a dual cone. requested u, weights v (…, m): v ≥ u; all else is recomputed from them.

    Residuals are those of the conditions v ≥ u, G v ≥ 0, (v − u)ᵀ G v = 0, relative to the length of the
    vector Σ u_j g_j that is projected.
    """

    family: Family
    requested: Float
    weights: Float

    @property
    def vector(self) -> Float:
        """Σ v_j g_j (…, d); only where the vectors were given."""
        return self.family.combine(self.weights)

    @cached_property
    def _residuals(self) -> tuple[Float, Float]:
        products, _ = self.family.products(self.weights)
        unit = np.sqrt(self.family.products(self.requested)[1])
        # A sum that cancels has no digits below the rounding of its terms.
        unit = np.maximum(unit, 1e-7 * (np.abs(self.requested) * self.family.length).sum(-1))
        each = self.family.length * unit[..., None]
        wrong = np.divide(-products, each, out=np.zeros_like(products), where=each > 0)
        gap = np.abs(((self.weights - self.requested) * products).sum(-1))
        square = unit * unit
        return wrong.max(-1, initial=0.0), np.divide(gap, square, out=np.zeros_like(gap), where=square > 0)

    @property
    def violation(self) -> Any:
        """The largest −⟨g_j, x⟩ / |g_j| (…)."""
        return plain(self._residuals[0])

    @property
    def gap(self) -> Any:
        """|(v − u)ᵀ G v| (…). With no violation, x lies within its root of the projection."""
        return plain(self._residuals[1])

    @property
    def certified(self) -> Any:
        """Whether violation and gap are at most 1e-8, and v ≥ u."""
        below = (self.weights < self.requested).any(-1)
        return plain(~below & (np.maximum(*self._residuals) <= TOLERANCE))

    def __repr__(self) -> str:
        word = "certified" if np.all(self.certified) else "NOT certified"
        worst = f"violation {np.max(self.violation):.1e}, gap {np.max(self.gap):.1e}"
        size = f"{self.weights[..., 0].size} × {self.weights.shape[-1]} weights"
        return f"ConeProjection({size}, {word}, {worst})"


# ---------------------------------------------------------------------- the vectors


@dataclass(frozen=True, eq=False)
class Family:
    """m vectors (…, m, d), or only their Gram matrix (…, m, m)."""

    vectors: Float | None
    gram: Float
    length: Float

    @classmethod
    def of(cls, vectors: ArrayLike | None, gram: ArrayLike | None) -> Family:
        """The family, checked: one of both, not empty, finite; a Gram matrix symmetric and semidefinite."""
        if (vectors is None) == (gram is None):
            raise ValueError(
                "pass vectors (…, m, d) or gram=(…, m, m), one of both: "
                f"{'both came' if gram is not None else 'none came'}."
            )
        name = "gram" if vectors is None else "vectors"
        array = _numbers(gram if vectors is None else vectors, name)
        if array.ndim < 2 or not array.size:
            raise ValueError(f"{name} has shape {array.shape}. Pass one row per vector, and at least one.")
        if vectors is None:
            return cls(None, array, _checked_lengths(array))
        size = np.abs(array).max((-2, -1), keepdims=True)
        scaled = array / np.where(size > 0, size, 1.0)  # no square over- or underflows
        length = np.sqrt(np.einsum("...jd,...jd->...j", scaled, scaled)) * size[..., 0]
        unit = np.divide(array, length[..., None], out=np.zeros_like(array), where=length[..., None] > 0)
        return cls(array, unit @ unit.swapaxes(-1, -2), length)

    @property
    def name(self) -> str:
        return "gram" if self.vectors is None else "vectors"

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, m)."""
        return self.length.shape

    @property
    def flat(self) -> tuple[Float, Float]:
        """The Gram matrices at unit diagonal (g, m, m), and the lengths (g, m)."""
        m = self.shape[-1]
        length = self.length.reshape(-1, m)
        return np.ascontiguousarray(self.cosines.reshape(-1, m, m)), length

    @cached_property
    def cosines(self) -> Float:
        """The Gram matrices of the vectors at length one (…, m, m)."""
        if self.vectors is not None:
            return self.gram
        inverse = np.divide(1.0, self.length, out=np.zeros_like(self.length), where=self.length > 0)
        return self.gram * inverse[..., :, None] * inverse[..., None, :]

    def factor(self, index: int) -> Float:
        """Vectors (m, k) at length one with the Gram matrix of one problem."""
        m = self.shape[-1]
        if self.vectors is not None:
            array, length = self.vectors.reshape(-1, m, self.vectors.shape[-1])[index], self.flat[1][index]
            unit = np.divide(array, length[:, None], out=np.zeros_like(array), where=length[:, None] > 0)
            if array.shape[1] <= m:
                return unit
            coordinates = np.asarray(np.linalg.qr(unit.T, mode="r"))
            return np.ascontiguousarray(coordinates.T)
        values, basis = np.linalg.eigh(self.flat[0][index])
        real = values > m * np.finfo(float).eps * max(values[-1], 0.0)
        return np.ascontiguousarray(basis[:, real] * np.sqrt(values[real]))

    def combine(self, weights: Float) -> Float:
        """Σ w_j g_j: (…, m) → (…, d)."""
        if self.vectors is None:
            raise ValueError("the vector needs the vectors themselves. Pass them instead of gram.")
        return np.matmul(weights[..., None, :], self.vectors)[..., 0, :]

    def products(self, weights: Float) -> tuple[Float, Float]:
        """⟨g_j, x⟩ (…, m) and |x|² (…) of x = Σ w_j g_j."""
        if self.vectors is not None:
            x = self.combine(weights)
            return np.matmul(self.vectors, x[..., None])[..., 0], (x * x).sum(-1)
        products = np.matmul(self.gram, weights[..., None])[..., 0]
        return products, np.maximum((products * weights).sum(-1), 0.0)


def _numbers(array: ArrayLike | None, name: str) -> Float:
    """The array in float64, if it is finite."""
    numbers = np.asarray(array, dtype=np.float64)
    if not np.isfinite(numbers).all():
        place = np.argwhere(~np.isfinite(numbers))[0].tolist()
        raise ValueError(f"{name} has a NaN or infinite entry at {place}. Pass finite numbers.")
    return numbers


def _checked_lengths(gram: Float) -> Float:
    """√G_jj, if the matrices are symmetric and semidefinite up to the rounding of single precision."""
    m = gram.shape[-1]
    if gram.shape[-2] != m:
        raise ValueError(f"gram has shape {gram.shape}. Pass a square matrix (…, m, m), or vectors instead.")
    diagonal = np.einsum("...jj->...j", gram)
    if (diagonal < 0).any():
        raise ValueError(f"gram has the diagonal entry {diagonal.min():.3g}. Pass squares of lengths, ≥ 0.")
    length = np.sqrt(diagonal)
    inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    cosines = gram * inverse[..., :, None] * inverse[..., None, :]
    allowed = INDEFINITE * m
    if (gram[np.broadcast_to(length[..., None] == 0, gram.shape)] != 0).any():
        raise ValueError(
            "gram has a zero on its diagonal and another entry beside it. Pass the inner products of vectors."
        )
    if not (np.abs(cosines - cosines.swapaxes(-1, -2)) <= allowed).all():
        raise ValueError("gram is not symmetric. Pass (gram + gram.T) / 2, if the difference is rounding.")
    try:
        np.linalg.cholesky(cosines + allowed * np.eye(m))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(cosines).min())
        raise ValueError(
            f"gram is not semidefinite: at unit diagonal it has the eigenvalue {least:.3g}. "
            "Pass the inner products of vectors."
        ) from None
    return length
