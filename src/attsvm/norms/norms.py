"""Norms of a weight W: the program's objective, the certificate's test, the optimizer's geometry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from attsvm.norms.capabilities import ActsOn, Capabilities, Norm


@dataclass(frozen=True)
class _Exponent:
    """A norm by its exponent p in [1, ∞]; its dual is of the same kind, with 1/p + 1/q = 1."""

    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", _exponent(self.p))

    @property
    def dual(self) -> Self:
        return type(self)(_conjugate(self.p))


@dataclass(frozen=True)
class Entrywise(_Exponent):
    """Entrywise lp norm, p in [1, ∞].

        N(W) = (Σ |W_ij|^p)^(1/p),     steepest(G) = sign(G) |G|^(q−1) / ‖G‖_q^(q−1),   1/p + 1/q = 1

    Steepest directions: p = 2 normalised gradient, p = ∞ sign, p = 1 one signed coordinate
    (the first largest). Reference: Julistiono et al. 2024, "Optimizing Attention with Mirror Descent".
    """

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities("entries", self.p)

    def value(self, W: Any) -> Any:
        xp, flat, _ = _flatten(W)
        return _lp_value(xp, flat, self.p)

    def steepest(self, G: Any) -> Any:
        xp, flat, shape = _flatten(G)
        return xp.reshape(_lp_steepest(xp, flat, self.p), shape)

    def value_along(self, x: Any, axis: int = 0) -> Any:
        """The norm of vectors along an axis."""
        return _lp_value(*_library(x), self.p, axis)

    def steepest_along(self, g: Any, axis: int = 0) -> Any:
        """The steepest direction of vectors along an axis."""
        return _lp_steepest(*_library(g), self.p, axis)

    def __str__(self) -> str:
        return {1: "l1", 2: "Frobenius", math.inf: "l∞"}.get(self.p, f"l{self.p:g}")


@dataclass(frozen=True)
class Schatten(_Exponent):
    """Schatten p norm, the lp norm of the singular values, p in [1, ∞].

        N(W) = ‖σ(W)‖_p,     steepest(U diag(σ) Vᵀ) = U diag(steepest_lp(σ)) Vᵀ

    p = 1 is the nuclear, p = 2 the Frobenius, p = ∞ the spectral norm; the steepest direction of the
    spectral norm is the exact Muon direction U Vᵀ. Singular values below rounding
    (max(d, e)·ε·σ_max) count as zero, or noise would be blown up to full size.
    Reference: Fan et al. 2025, "Implicit Bias of Spectral Descent and Muon".
    """

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities("singular values", self.p)

    def value(self, W: Any) -> Any:
        xp, M, _ = _matrix(W)
        if self.p == 2:
            return frobenius.value(M)
        M, scale = _unit_scale(xp, M)
        return _lp_value(xp, singular_values(xp, M), self.p) * scale[..., 0, 0]

    def steepest(self, G: Any) -> Any:
        xp, M, shape = _matrix(G)
        if self.p == 2:
            return frobenius.steepest(G)
        M, _ = _unit_scale(xp, M)
        U, sigma, Vt = xp.linalg.svd(M, full_matrices=False)
        cut = max(M.shape[-2:]) * xp.finfo(M.dtype).eps * sigma[..., :1]
        sigma = xp.where(sigma > cut, sigma, xp.zeros_like(sigma))
        direction = (U * _lp_steepest(xp, sigma, self.p)[..., None, :]) @ Vt
        return xp.reshape(direction, shape)

    def __str__(self) -> str:
        names = {1: "nuclear", 2: "Frobenius", math.inf: "spectral"}
        return names.get(self.p, f"Schatten {self.p:g}")


@dataclass(frozen=True)
class RowWise(_Exponent):
    """lp norm of the lengths of the rows, p in [1, ∞]; p = 2 is the Frobenius norm.

        N(W) = (Σ_i |w_i|^p)^(1/p),     steepest(G): rows g_i / |g_i| times steepest_lp of the lengths |g_i|

    p = ∞ is the longest row, `LongestRow()`: its steepest direction has every row at length one. A vector is
    a column: its rows are its entries.
    """

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities("rows", self.p)

    def value(self, W: Any) -> Any:
        xp, M, _ = _matrix(W)
        return _lp_value(xp, _lp_value(xp, M, 2), self.p)

    def steepest(self, G: Any) -> Any:
        xp, M, shape = _matrix(G)
        rows = _unit(xp, M, -1)
        if self.p < math.inf:
            rows = rows * _lp_steepest(xp, _lp_value(xp, M, 2), self.p)[..., None]
        return xp.reshape(rows, shape)

    def __str__(self) -> str:
        return {1: "sum of rows", 2: "Frobenius", math.inf: "longest row"}.get(self.p, f"rows l{self.p:g}")


def LongestRow() -> RowWise:
    """The length of the longest row, max_i |w_i|. Its steps on K and Q make the max-norm of K Qᵀ small.

    Its dual is the sum of the rows' lengths, and its steepest direction normalises every row.
    """
    return RowWise(math.inf)


# ---------------------------------------------------------------------- capabilities


@lru_cache(maxsize=256)
def _capabilities(acts_on: ActsOn, p: float) -> Capabilities:
    """The capabilities of the lp norm of the entries, the lengths of the rows or the singular values."""
    spectrum, rows = acts_on == "singular values", acts_on == "rows"

    def rounding(d: int, e: int) -> float:
        return 8 * (d + e) * min(d, e) ** 0.5 if spectrum else d * e + 8

    def stretch(d: int, e: int) -> float:
        count = min(d, e) if spectrum else d if rows else d * e
        return float(count ** max(1 / p - 0.5, 0.0))

    family = {"entries": "Entrywise", "rows": "RowWise", "singular values": "Schatten"}[acts_on]
    return Capabilities(
        acts_on,
        euclidean=p == 2,
        strictly_convex=1 < p < math.inf,
        on_column=frobenius if spectrum else Entrywise(p) if rows else None,
        on_row=frobenius if spectrum or rows else None,
        product="max-norm" if rows and p == math.inf else None,
        rounding=rounding,
        stretch=stretch,
        saved=(family, repr(p)),
    )


# ---------------------------------------------------------------------- details


def _exponent(p: float) -> float:
    try:
        value = float(p)
    except (TypeError, ValueError):
        value = math.nan
    if not value >= 1:
        raise ValueError(f"a norm needs p in [1, ∞], got {p!r}.")
    return value


def _conjugate(p: float) -> float:
    if p == 1:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1)


def _library(array: Any) -> tuple[Any, Any]:
    """The array and its library: NumPy for plain Python input, JAX for its arrays and tracers."""
    if not hasattr(array, "__array_namespace__"):
        array = np.asarray(array)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    return array.__array_namespace__(), array


def _flatten(W: Any) -> tuple[Any, Any, tuple[int, ...]]:
    xp, array = _library(W)
    shape = tuple(array.shape)
    return xp, xp.reshape(array, shape if len(shape) <= 1 else (*shape[:-2], shape[-2] * shape[-1])), shape


def _matrix(W: Any) -> tuple[Any, Any, tuple[int, ...]]:
    xp, array = _library(W)
    shape = tuple(array.shape)
    return xp, array[:, None] if len(shape) == 1 else array, shape


def _unit_scale(xp: Any, M: Any) -> tuple[Any, Any]:
    """M over its largest entry, and that entry: without it powers of 1e±150 would over- or underflow."""
    largest = xp.max(xp.abs(M), axis=(-2, -1), keepdims=True, initial=0)
    safe = xp.where(largest > 0, largest, xp.ones_like(largest))
    return M / safe, safe


def singular_values(xp: Any, M: Any) -> Any:
    """The singular values of matrices (…, d, e); NaN where an entry is not finite, as svd would raise."""
    finite = xp.all(xp.isfinite(M), axis=(-2, -1), keepdims=True)
    sigma = xp.linalg.svd(xp.where(finite, M, xp.zeros_like(M)), compute_uv=False)
    return xp.where(finite[..., 0], sigma, xp.nan)


def _relative(xp: Any, x: Any, axis: int) -> tuple[Any, Any]:
    size = xp.abs(x)
    largest = xp.max(size, axis=axis, keepdims=True, initial=0)  # of nothing, too
    return size / xp.where(largest > 0, largest, xp.ones_like(largest)), largest


def _lp_value(xp: Any, x: Any, p: float, axis: int = -1) -> Any:
    size, largest = _relative(xp, x, axis)
    largest = xp.squeeze(largest, axis=axis)
    if math.isinf(p):
        return largest
    total = xp.sum(size if p == 1 else size**p, axis=axis)
    return largest * total ** (1 / p)


def _lp_steepest(xp: Any, g: Any, p: float, axis: int = -1) -> Any:
    if p == 2:
        return _unit(xp, g, axis)
    size, _ = _relative(xp, g, axis)
    if p == 1:
        shape = [1] * g.ndim
        shape[axis] = g.shape[axis]
        first = xp.argmax(size, axis=axis, keepdims=True) == xp.reshape(xp.arange(g.shape[axis]), shape)
        return xp.where(first, xp.sign(g), xp.zeros_like(g))
    if math.isinf(p):
        return xp.sign(g)
    q = _conjugate(p)
    norm = xp.expand_dims(_lp_value(xp, size, q, axis), axis)
    # (size/norm)^(q−1) rather than size^(q−1)/norm^(q−1): the quotient stays in [0, 1].
    ratio = size / xp.where(norm > 0, norm, xp.ones_like(norm))
    return xp.sign(g) * ratio ** (q - 1)


def _unit(xp: Any, g: Any, axis: int) -> Any:
    """g/‖g‖, zero where g is zero; one division per vector, and no quotient overflows."""
    largest = xp.max(xp.abs(g), axis=axis, keepdims=True)
    scaled = g * (1 / xp.where(largest > 0, xp.maximum(largest, xp.finfo(g.dtype).tiny), 1))
    total = xp.sum(scaled * scaled, axis=axis, keepdims=True)
    return scaled * (1 / xp.sqrt(xp.where(total > 0, total, 1)))


# ---------------------------------------------------------------------- the named norms

l1 = Entrywise(1)
linf = Entrywise(math.inf)
frobenius = Entrywise(2)
nuclear = Schatten(1)
spectral = Schatten(math.inf)

NORMS: dict[str, Norm] = {
    "frobenius": frobenius,
    "nuclear": nuclear,
    "spectral": spectral,
    "l1": l1,
    "linf": linf,
    "longest-row": LongestRow(),
}
"""Norms by the words of command lines, studies and arguments."""

FAMILIES: dict[str, Callable[[float], Norm]] = {"lp": Entrywise, "schatten": Schatten}
"""Norms whose word is followed by a colon and an exponent."""

SAVED: dict[str, Callable[..., Norm]] = {
    "Entrywise": lambda p: Entrywise(float(p)),
    "Schatten": lambda p: Schatten(float(p)),
    "RowWise": lambda p: RowWise(float(p)),
}
"""Norms by the first of their words in a file (`Capabilities.saved`), made from the other words."""
