"""Parameterisations of the weight W: what is trained, and how a gradient in W reaches it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

from attsvm._support.validation import as_integer, describe, is_integer
from attsvm.norms.layouts import HeadLayout
from attsvm.training.programs import where
from attsvm.training.runs import contract, each
from attsvm.training.types import AnyArray

Params = dict[str, Array]


@runtime_checkable
class Weight(Protocol):
    """A parameterisation W(params).

    shapes(d, e): the shape of each parameter, by name.
    matrix(params): W (d, e).
    pullback(params, G): the gradient of each parameter from the gradient G (d, e) in W; linear in G,
        so the mantissa of a scaled gradient goes through and its log scale is kept.

    Ours take arrays that carry runs behind their own axes; others are mapped over them (runs.py).
    """

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]: ...
    def matrix(self, params: Params) -> Array: ...
    def pullback(self, params: Params, G: Array) -> Params: ...


@dataclass(frozen=True)
class FullWeight:
    """W itself (d, e); in the prompt model (e = 1) it is the prompt."""

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {"W": (d, e)}

    def matrix(self, params: Params) -> Array:
        return params["W"]

    def pullback(self, params: Params, G: Array) -> Params:
        return {"W": G}


FULL = FullWeight()


@dataclass(frozen=True)
class KeyQuery:
    """W = K Qᵀ with K (d, rank) and Q (e, rank); ∇_K = G Q, ∇_Q = Gᵀ K.

    rank: by default max(d, e), no restriction on W.
    separate: False takes K and Q as one parameter for the optimizer (one norm of the pair);
        True gives each its own optimizer and so its own normalisation, as the papers' code did.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines".
    """

    rank: int | None = None
    separate: bool = False

    def __post_init__(self) -> None:
        if self.rank is not None:
            _positive(self, "rank", "a positive integer, or None for full rank")

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        r = max(d, e) if self.rank is None else self.rank
        return {"K": (d, r), "Q": (e, r)}

    def matrix(self, params: Params) -> Array:
        return contract("dr,er->de", params["K"], params["Q"])

    def pullback(self, params: Params, G: Array) -> Params:
        return {"K": contract("de,er->dr", G, params["Q"]), "Q": contract("de,dr->er", G, params["K"])}


@dataclass(frozen=True, repr=False)
class Diagonal:
    """W = diag(w_1 ⊙ … ⊙ w_L) with L = depth factors (d,), by default one; needs e = d.

    separate: as in KeyQuery, of all factors.
    The factors are named w; k and q; w1 … wL. Diagonal(2) has diagonal K and Q, W = diag(k ⊙ q).
    Reference: Sheen et al. 2024, "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention".
    """

    depth: int = 1
    separate: bool = False

    def __post_init__(self) -> None:
        _positive(self, "depth", "how many factors, a positive integer")

    def __repr__(self) -> str:
        # Saved runs are compared by this text. With one factor `separate` has no effect.
        return "Diagonal()" if self.depth == 1 else f"Diagonal(depth={self.depth}, separate={self.separate})"

    @property
    def names(self) -> tuple[str, ...]:
        short_names = {1: ("w",), 2: ("k", "q")}
        return short_names.get(self.depth, tuple(f"w{j}" for j in range(1, self.depth + 1)))

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        if d != e:
            name = type(self).__name__
            raise ValueError(f"{name} needs keys and queries of equal width, got d={d}, e={e}.")
        return dict.fromkeys(self.names, (d,))

    def matrix(self, params: Params) -> Array:
        w = _product([params[name] for name in self.names])
        diagonal = jnp.eye(len(w), dtype=bool).reshape(len(w), len(w), *[1] * (w.ndim - 1))
        return where(diagonal, w[:, None], 0)

    def pullback(self, params: Params, G: Array) -> Params:
        g = jnp.einsum("dd...->d...", G)
        other_factors = {
            name: [params[factor] for factor in self.names if factor != name] for name in self.names
        }
        return {name: _product([g, *other_factors[name]]) for name in self.names}


ACROSS = ("joint", "apart", "concatenated")


@dataclass(frozen=True)
class MultiHead:
    """Several heads W_1 … W_H side by side, each a weight of its own: f(X) = Σ_h v_hᵀ Xᵀ softmax(X W_h z).

    The values are those of Linear(v) with v (H, c), or (c,) for all of them; with runs (runs, H, c).
    Parameters have the heads first: W (H, d, e), K (H, d, r), Q (H, e, r).
    norm: what the optimizer takes as one. "joint": all heads, as one vector or one block-diagonal matrix;
        "apart": every head has its own optimizer, and so its own normalisation; "concatenated": the matrices
        side by side as one, [K_1 … K_H], as most libraries store them; or a `HeadLayout`, whose every matrix
        is normalised by itself. Query heads that share keys in it hold equal copies of K.
    """

    count: int
    weight: Any = FULL
    norm: str | HeadLayout = "joint"

    def __post_init__(self) -> None:
        _positive(self, "count", "how many heads, a positive integer")
        check(self.weight)
        if isinstance(self.weight, MultiHead):
            raise ValueError("weight is MultiHead again. Pass a weight of one head, such as KeyQuery().")
        if isinstance(self.norm, HeadLayout):
            self._check_layout(self.norm)
        elif self.norm not in ACROSS:
            raise ValueError(
                f"norm is {self.norm!r}. Pass {', '.join(map(repr, ACROSS))} or a HeadLayout, such as "
                "HeadLayout.groups(8, 2)."
            )

    def _check_layout(self, layout: HeadLayout) -> None:
        expected = KeyQuery if layout.of_factors else FullWeight
        name = expected.__name__
        if layout.heads != self.count or type(self.weight) is not expected:
            raise ValueError(
                f"the layout {layout} has {layout.heads} heads {name}(), and the weight {self.count} of "
                f"{self.weight!r}. Pass MultiHead({layout.heads}, {name}(), layout)."
            )

    def tied(self, name: str, array: AnyArray) -> AnyArray:
        """Parameters (…, H, d, r) with the keys of the first head that reads them in all that do."""
        if name != "K" or not isinstance(self.norm, HeadLayout):
            return array
        key_of = self.norm.key_of
        return array[..., [key_of.index(g) for g in key_of], :, :]

    @property
    def separate(self) -> bool:
        return bool(getattr(self.weight, "separate", False))

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {name: (self.count, *shape) for name, shape in self.weight.shapes(d, e).items()}

    def matrix(self, params: Params) -> Array:
        """W (H, d, e)."""
        return jax.vmap(self.weight.matrix)(params)

    def pullback(self, params: Params, G: Array) -> Params:
        return jax.vmap(self.weight.pullback)(params, G)


OURS = (FullWeight, KeyQuery, Diagonal)


def matrix(weight: Weight, params: Params, last: bool) -> Array:
    """W (d, e) of the parameters; last: whether they carry runs behind their own axes."""
    return each(weight.matrix, last and not isinstance(weight, OURS))(params)


def pullback(weight: Weight, params: Params, G: Array, last: bool) -> Params:
    """The gradient of the parameters from that in W."""
    return each(weight.pullback, last and not isinstance(weight, OURS))(params, G)


def reached(weight: Weight, queries: AnyArray) -> AnyArray:
    """The entries of keys (…, n, d), or all or none of them (…, n, 1), that W z reads: none where z is zero.

    A diagonal weight reads an entry of the keys where the query's is not zero.
    """
    inner = weight.weight if isinstance(weight, MultiHead) else weight
    entries = queries != 0
    return entries if isinstance(inner, Diagonal) else entries.any(-1, keepdims=True)


def check(weight: object) -> None:
    """Refuse what is not a weight."""
    if isinstance(weight, type) or not isinstance(weight, Weight):
        raise TypeError(
            f"{weight!r} is not a weight. Pass FullWeight(), KeyQuery(), Diagonal() or MultiHead(count)."
        )


def _positive(weight: Any, name: str, expected: str) -> None:
    """Make a field a Python int: equal weights, also that of a saved run, must compare equal."""
    value = as_integer(getattr(weight, name))
    if not (is_integer(value) and value >= 1):
        raise ValueError(f"{name} is {describe(value)}. Pass {expected}.")
    object.__setattr__(weight, name, value)


def _product(factors: list[Array]) -> Array:
    return reduce(jnp.multiply, factors)
