"""Numbers of twice the precision: a sum of two float64, hi + lo, with |lo| at most half a unit of hi.

About 31 digits, by operations whose rounding errors are themselves computed exactly. Arrays broadcast as in
NumPy. Valid while no product leaves 1e±290.
Reference: Dekker 1971, "A floating-point technique for extending the available precision"; Joldes, Muller
and Popescu 2017, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.numbers import Float, doubled_loops as loops

ROUNDING = 2.0**-100
"""Relative error of one operation, a sum of up to sixteen million terms included."""


def exact_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b as the rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a · b as the rounded product and its error."""
    product = a * b
    a_high, b_high = _half(a), _half(b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _half(a: Any) -> Any:
    """The upper half of the digits."""
    big = loops.SPLITTER * a
    return big - (big - a)


class Doubled:
    """An array of numbers hi + lo."""

    __array_ufunc__ = None  # NumPy arrays leave the operators to this class
    __slots__ = ("hi", "lo")

    def __init__(self, hi: Any, lo: Any = None) -> None:
        self.hi = np.asarray(hi, np.float64)
        self.lo = np.zeros_like(self.hi) if lo is None else np.asarray(lo, np.float64)

    @classmethod
    def of(cls, x: Any) -> Doubled:
        return x if isinstance(x, Doubled) else cls(x)

    @classmethod
    def difference(cls, a: Float, b: Float) -> Doubled:
        """a − b, without any error."""
        return cls(*exact_sum(a, -b))

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Any) -> Doubled:
        other = Doubled.of(other)
        high, low = exact_sum(self.hi, other.hi)
        end, rest = exact_sum(self.lo, other.lo)
        high, low = _normal(high, low + end)
        return Doubled(*_normal(high, low + rest))

    def __mul__(self, other: Any) -> Doubled:
        other = Doubled.of(other)
        high, low = exact_product(self.hi, other.hi)
        return Doubled(*_normal(high, low + (self.hi * other.lo + self.lo * other.hi)))

    def __truediv__(self, other: Any) -> Doubled:
        other = Doubled.of(other)
        first = self.hi / other.hi
        rest = self - other * first
        second = rest.hi / other.hi
        rest = rest - other * second
        high, low = _normal(first, second)
        return Doubled(*_normal(high, low + rest.hi / other.hi))

    def __neg__(self) -> Doubled:
        return Doubled(-self.hi, -self.lo)

    def __sub__(self, other: Any) -> Doubled:
        return self + -Doubled.of(other)

    def __rsub__(self, other: Any) -> Doubled:
        return -self + other

    def __rtruediv__(self, other: Any) -> Doubled:
        return Doubled.of(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def sqrt(self) -> Doubled:
        """The root, by one step of Newton's method from the rounded one."""
        root = np.sqrt(self.hi)
        rest = self - Doubled(*exact_product(root, root))
        return Doubled(*_normal(root, rest.hi / np.where(root > 0, 2 * root, 1.0)))

    def sum(self, axis: int = -1) -> Doubled:
        """The sum along an axis, in pairs."""
        hi, lo = np.moveaxis(self.hi, axis, 0), np.moveaxis(self.lo, axis, 0)
        if not len(hi):
            return Doubled(np.zeros(hi.shape[1:]))
        part = Doubled(hi, lo)
        while len(part.hi) > 1:
            half = len(part.hi) // 2
            pairs = part[:half] + part[half : 2 * half]
            part = pairs if len(part.hi) == 2 * half else stacked([pairs, part[2 * half :]])
        return part[0]

    def __matmul__(self, other: Any) -> Doubled:
        """The product of a matrix (n, k) with a matrix (k, m) or a vector (k,)."""
        other = Doubled.of(other)
        if other.ndim == 1:
            return (other[None] @ self.T)[0]  # a long row, which the loop takes in vectors
        out = np.zeros((2, len(self), other.shape[1]))
        loops.product(*self._contiguous(), *other._contiguous(), *out)
        return Doubled(*out)

    def _contiguous(self) -> tuple[Float, Float]:
        return np.ascontiguousarray(self.hi), np.ascontiguousarray(self.lo)

    # ------------------------------------------------------------------ shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    @property
    def ndim(self) -> int:
        return self.hi.ndim

    @property
    def T(self) -> Doubled:
        return Doubled(self.hi.T, self.lo.T)

    def __len__(self) -> int:
        return len(self.hi)

    def __getitem__(self, index: Any) -> Doubled:
        return Doubled(self.hi[index], self.lo[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        value = Doubled.of(value)
        self.hi[index], self.lo[index] = value.hi, value.lo

    def reshape(self, *shape: int) -> Doubled:
        return Doubled(self.hi.reshape(*shape), self.lo.reshape(*shape))

    def copy(self) -> Doubled:
        return Doubled(self.hi.copy(), self.lo.copy())


def stacked(parts: list[Doubled], axis: int = 0) -> Doubled:
    """The parts one after the other along an axis."""
    return Doubled(np.concatenate([p.hi for p in parts], axis), np.concatenate([p.lo for p in parts], axis))


def _normal(high: Any, low: Any) -> tuple[Any, Any]:
    """The same sum with the larger part as large as it can be; |high| ≥ |low|."""
    total = high + low
    return total, low - (total - high)
