"""One attention head of a transformer as the theory sees it: tokens, a weight, the model's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from attsvm.data.tokens import Tokens
from attsvm.numbers import Bool, Float

Space = Literal["hidden", "head"]
Place = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """Query positions of one attention head, with the weight that gives the model's own logits.

        a_t = x_tᵀ W z  =  the model's logit of token t, up to a constant per query

    space "hidden": x_t and z are the hidden states with a constant 1 appended, which carries the
        biases: W (d+1, d+1) = [W_K b_K]ᵀ [W_Q b_Q] · scaling. (b_K only adds a constant per query.)
    space "head": x_t and z are the head's own keys and queries after rotation and normalisation, and
        W = I · scaling. With rotary positions the form in hidden states depends on the distance between
        query and token, so that no single W (d+1, d+1) exists.
    tokens: n query positions, keys (n, T, d), queries (n, e), mask (n, T): what a query may see.
    attention (n, T): the softmax of the products of the model's own queries and keys.
    apart (n,): the largest difference of this attention from the model's map.
    text (n,), position (n,): where each query stands.
    """

    layer: int
    head: int
    space: Space
    tokens: Tokens
    W: Float
    attention: Float
    text: NDArray[np.intp]
    position: NDArray[np.intp]
    apart: Float | float = 0.0

    @property
    def logits(self) -> Float:
        """x_tᵀ W z, −∞ where masked: (n, T)."""
        logits = np.matmul(self.tokens.keys, (self.tokens.queries @ self.W.T)[..., None])[..., 0]
        return np.where(self.tokens.mask, logits, -np.inf)

    @property
    def recomputed(self) -> Float:
        """Attention from tokens and W alone (n, T)."""
        return np.asarray(softmax(self.logits, axis=-1))

    @property
    def error(self) -> float:
        """Largest difference between the recomputed attention and the model's, at most."""
        return float((np.abs(self.recomputed - self.attention).max(-1) + self.apart).max(initial=0.0))

    @property
    def selected(self) -> NDArray[np.intp]:
        """The token each query attends to most (n,)."""
        return np.argmax(self.logits, axis=-1)

    @property
    def chosen(self) -> Bool:
        """`selected` as booleans (n, T)."""
        return np.asarray(self.selected[:, None] == np.arange(self.tokens.T))

    def __repr__(self) -> str:
        size = f"{self.tokens.n} queries over {self.tokens.T} tokens, {self.tokens.d} wide"
        return f"Head({self.layer}·{self.head}: {size}, {self.space} space)"
