"""Numbers of twice the precision: a sum of two float64, hi + lo, with |lo| at most half a unit of hi.

About 31 digits, by operations whose rounding errors are themselves computed exactly. Arrays broadcast as in
NumPy. Valid while no product leaves 1e±290.
Reference: Dekker 1971, "A floating-point technique for extending the available precision"; Joldes, Muller
and Popescu 2017, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.numbers import Float
from attsvm.numbers.compiled import exactly, exactly_inner

ROUNDING = 2.0**-100
"""Relative error of one operation, a sum of up to sixteen million terms included."""

SPLITTER = 2.0**27 + 1.0
"""Its product with a number separates the upper half of the digits from the lower one."""


def exact_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b as the rounded sum and its error."""
    total = a + b
    rounded_b = total - a
    return total, (a - (total - rounded_b)) + (b - rounded_b)


def exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a · b as the rounded product and its error."""
    product = a * b
    a_high, b_high = _upper_digits(a), _upper_digits(b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_digits(a: Any) -> Any:
    """The upper half of the digits."""
    big = SPLITTER * a
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

    def __add__(self, term: Any) -> Doubled:
        term = Doubled.of(term)
        high, low = exact_sum(self.hi, term.hi)
        sum_of_low, error = exact_sum(self.lo, term.lo)
        high, low = _fast_two_sum(high, low + sum_of_low)
        return Doubled(*_fast_two_sum(high, low + error))

    def __mul__(self, factor: Any) -> Doubled:
        factor = Doubled.of(factor)
        high, low = exact_product(self.hi, factor.hi)
        return Doubled(*_fast_two_sum(high, low + (self.hi * factor.lo + self.lo * factor.hi)))

    def __truediv__(self, divisor: Any) -> Doubled:
        divisor = Doubled.of(divisor)
        first = self.hi / divisor.hi
        remainder = self - divisor * first
        second = remainder.hi / divisor.hi
        remainder = remainder - divisor * second
        high, low = _fast_two_sum(first, second)
        return Doubled(*_fast_two_sum(high, low + remainder.hi / divisor.hi))

    def __neg__(self) -> Doubled:
        return Doubled(-self.hi, -self.lo)

    def __sub__(self, term: Any) -> Doubled:
        return self + -Doubled.of(term)

    def __rsub__(self, term: Any) -> Doubled:
        return -self + term

    def __rtruediv__(self, dividend: Any) -> Doubled:
        return Doubled.of(dividend) / self

    __radd__, __rmul__ = __add__, __mul__

    def sqrt(self) -> Doubled:
        """The root, by one step of Newton's method from the rounded one."""
        root = np.sqrt(self.hi)
        remainder = self - Doubled(*exact_product(root, root))
        return Doubled(*_fast_two_sum(root, remainder.hi / np.where(root > 0, 2 * root, 1.0)))

    def sum(self, axis: int = -1) -> Doubled:
        """The sum along an axis, in pairs."""
        hi, lo = np.moveaxis(self.hi, axis, 0), np.moveaxis(self.lo, axis, 0)
        if not len(hi):
            return Doubled(np.zeros(hi.shape[1:]))
        terms = Doubled(hi, lo)
        while len(terms) > 1:
            count = len(terms) // 2
            pairs = terms[:count] + terms[count : 2 * count]
            terms = pairs if len(terms) == 2 * count else stacked([pairs, terms[2 * count :]])
        return terms[0]

    def __matmul__(self, right: Any) -> Doubled:
        """The product of a matrix (n, k) with a matrix (k, m) or a vector (k,)."""
        right = Doubled.of(right)
        if right.ndim == 1:
            return (right[None] @ self.T)[0]  # the loop vectorises over the entries of a row
        out = np.zeros((2, len(self), right.shape[1]))
        _add_matrix_product(*self._contiguous(), *right._contiguous(), *out)
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


def stacked(arrays: list[Doubled], axis: int = 0) -> Doubled:
    """The arrays one after the other along an axis."""
    return Doubled(np.concatenate([a.hi for a in arrays], axis), np.concatenate([a.lo for a in arrays], axis))


def _fast_two_sum(high: Any, low: Any) -> tuple[Any, Any]:
    """The rounded sum and its error, for |high| ≥ |low|."""
    total = high + low
    return total, low - (total - high)


# ---------------------------------------------------------------------- compiled loops
# Arrays hi and lo in, hi and lo out. Each operation rounds as written: no sum is reordered, no product fused.


@exactly_inner
def _add_product(total, error, a, a_low, b, b_low, sign):  # type: ignore[no-untyped-def]
    """total + error + sign · (a + a_low)(b + b_low); error collects the rounding errors of total."""
    a, a_low = sign * a, sign * a_low
    product = a * b
    big = SPLITTER * a
    a_high = big - (big - a)
    big = SPLITTER * b
    b_high = big - (big - b)
    a_tail, b_tail = a - a_high, b - b_high
    product_error = ((a_high * b_high - product) + a_high * b_tail + a_tail * b_high) + a_tail * b_tail
    new = total + product
    rounded = new - total
    error += (total - (new - rounded)) + (product - rounded)
    return new, error + (product_error + (a * b_low + a_low * b))


@exactly_inner
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    rounded_b = total - a
    return total, (a - (total - rounded_b)) + (b - rounded_b)


@exactly_inner
def _quotient(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
    first = a / b
    total, error = _two_sum(*_add_product(a, a_low, first, 0.0, b, b_low, -1.0))
    second = total / b
    total, error = _two_sum(*_add_product(total, error, second, 0.0, b, b_low, -1.0))
    first, second = _two_sum(first, second)
    return _two_sum(first, second + total / b)


@exactly
def _add_matrix_product(a, a_low, b, b_low, out, out_low):  # type: ignore[no-untyped-def]
    """out += A B: (n, k), (k, m) → (n, m). The sums of a row are independent, so that they vectorise."""
    for i in range(out.shape[0]):
        for c in range(a.shape[1]):
            for j in range(out.shape[1]):
                out[i, j], out_low[i, j] = _add_product(
                    out[i, j], out_low[i, j], a[i, c], a_low[i, c], b[c, j], b_low[c, j], 1.0
                )
        for j in range(out.shape[1]):
            out[i, j], out_low[i, j] = _two_sum(out[i, j], out_low[i, j])


@exactly
def cholesky_in_place(matrix, low):  # type: ignore[no-untyped-def]
    """Replace a matrix (N, N) by its lower Cholesky factor; False where there is none."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            total, error = matrix[i, j], low[i, j]
            for c in range(j):
                total, error = _add_product(
                    total, error, matrix[i, c], low[i, c], matrix[j, c], low[j, c], -1.0
                )
            total, error = _two_sum(total, error)
            if j < i:
                matrix[i, j], low[i, j] = _quotient(total, error, matrix[j, j], low[j, j])
            elif total > 0.0:
                first = np.sqrt(total)
                total, error = _two_sum(*_add_product(total, error, first, 0.0, first, 0.0, -1.0))
                matrix[i, i], low[i, i] = _two_sum(first, total / (2.0 * first))
            else:
                return False
    return True


@exactly
def solve_in_place(lower, low, x, x_low):  # type: ignore[no-untyped-def]
    """X := (L Lᵀ)⁻¹ X of a Cholesky factor L, for X (N, k)."""
    N = len(lower)
    for k in range(x.shape[1]):
        for i in range(N):
            total, error = x[i, k], x_low[i, k]
            for c in range(i):
                total, error = _add_product(total, error, lower[i, c], low[i, c], x[c, k], x_low[c, k], -1.0)
            total, error = _two_sum(total, error)
            x[i, k], x_low[i, k] = _quotient(total, error, lower[i, i], low[i, i])
        for i in range(N - 1, -1, -1):
            total, error = x[i, k], x_low[i, k]
            for c in range(i + 1, N):
                total, error = _add_product(total, error, lower[c, i], low[c, i], x[c, k], x_low[c, k], -1.0)
            total, error = _two_sum(total, error)
            x[i, k], x_low[i, k] = _quotient(total, error, lower[i, i], low[i, i])
