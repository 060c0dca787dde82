"""What a norm is, and what it says of itself: the protocol `Norm` and the record `Capabilities`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

ActsOn = Literal["entries", "rows", "singular values", "other"]


@runtime_checkable
class Norm(Protocol):
    """A norm on matrices (…, d, e); a one-dimensional array is one vector.

    value(W): the norm, one number per leading index.
    dual: the norm N* with |⟨G, W⟩| ≤ N*(G) N(W), tight.
    steepest(G): the Δ with N(Δ) ≤ 1 that maximises ⟨G, Δ⟩ = N*(G); zero where G is zero.
    p: how several arrays count together, as K and Q do: by (N(K)^p + N(Q)^p)^(1/p).

    The arrays may be NumPy's or JAX's: a norm computes with the library of its argument.
    A norm may also have an attribute `capabilities`; without, those of `Capabilities()` are assumed.
    """

    @property
    def p(self) -> float: ...
    @property
    def dual(self) -> Norm: ...
    def value(self, W: Any) -> Any: ...
    def steepest(self, G: Any) -> Any: ...


RULES = frozenset({"p", "dual", "value", "steepest"})


def _unbounded(d: int, e: int) -> float:
    return math.inf


@dataclass(frozen=True)
class Capabilities:
    """What a norm says of itself besides its four rules. The defaults assume nothing.

    acts_on: what the norm is the lp norm of, with its own p: the entries of W, the lengths of its rows or its
        singular values.
    euclidean: it is the Frobenius norm.
    strictly_convex: its programs have one solution.
    on_column, on_row: the norm that it is on matrices (d, 1) and (1, e), where that has a name of its own.
    product: the norm min N(K) N(Q) over K Qᵀ = W, where it is known and no Schatten norm; or the name of one
        that another package registers.
    rounding: (d, e) ↦ bound on the relative error of `value` in units of 2⁻⁵³. A certificate counts it: a
        norm without such a bound is never certified.
    stretch: (d, e) ↦ bound on the norm of a matrix of Frobenius norm one. A certificate needs it, too.
    saved: the words that a file keeps of it, from which `names.from_saved` makes it again.
    """

    acts_on: ActsOn = "other"
    euclidean: bool = False
    strictly_convex: bool = False
    on_column: Norm | None = None
    on_row: Norm | None = None
    product: Norm | str | None = None
    rounding: Callable[[int, int], float] = _unbounded
    stretch: Callable[[int, int], float] = _unbounded
    saved: tuple[str, ...] = ()


UNKNOWN = Capabilities()


def capabilities_of(norm: Norm) -> Capabilities:
    """What a norm says of itself; nothing for a class that overrides a rule of its base alone."""
    if _overrides(type(norm)):
        return UNKNOWN
    stated: Capabilities = getattr(norm, "capabilities", UNKNOWN)
    return stated


def changes_a_rule(norm: Norm) -> bool:
    """Whether the norm's class inherits `capabilities` but overrides a rule: it may be another norm."""
    return _overrides(type(norm))


@lru_cache(maxsize=256)
def _overrides(kind: type) -> bool:
    for base in kind.__mro__:
        if "capabilities" in vars(base):
            return False
        if RULES & vars(base).keys():
            return hasattr(kind, "capabilities")
    return False
