"""QueryKey: how MarginMonitor reads an attention module of your own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from attsvm.query_key import Part, matrix_of
from attsvm.torch.projections import product_norms, shrink_rows, split
from attsvm.torch.readers import Inputs, Look, masked


@dataclass(frozen=True)
class QueryKey:
    """Self-attention without rotary positions, by the names of its layers.

        logits = scale · (W_Q z)ᵀ (W_K x_t)

    query, key: the layers within the module that project the first argument of its forward pass; the same
        name twice where one layer projects queries, keys (and values) side by side, in this order.
    heads: of the queries; groups: of the keys, where several heads share one.
    width: of a head; by default the query layer's outputs over the heads, of a layer for both its inputs.
    scale: 1/√width by default. causal: whether query i attends to the tokens 0 … i only.
    mask: the argument of the forward pass that says which tokens count: booleans (n, T), or numbers to add or
        booleans (n, 1 or heads, T, T).
    """

    query: str
    key: str
    heads: int
    width: int | None = None
    groups: int | None = None
    scale: float | None = None
    causal: bool = False
    mask: str | None = None

    def __call__(self, module: nn.Module, inputs: Inputs) -> Look:
        """What the module's heads saw."""
        states: Tensor = inputs[next(iter(inspect.signature(module.forward).parameters))]
        first, second, width, groups = self._layers(module)
        q, k = (
            split(part.of(part.layer(states)), heads)
            for part, heads in ((first, self.heads), (second, groups))
        )
        scale = width**-0.5 if self.scale is None else self.scale
        logits = masked(q, k, scale, inputs.get(self.mask or ""), self.causal)
        norms = abs(scale) * product_norms(first.weight, second.weight, self.heads, groups)
        return Look(logits, norms, True, partial(shrink_rows, first.tensors, second.tensors, groups))

    def check(self, module: nn.Module) -> None:
        """Refuse names and sizes that the module does not have."""
        self._layers(module)

    def _layers(self, module: nn.Module) -> tuple[Part, Part, int, int]:
        """The layers of queries and keys, the width of a head, and the heads of the keys."""
        (rows, columns), (others, _) = (self._matrix(module, name).shape for name in (self.query, self.key))
        fused = self.query == self.key
        groups = self.groups or self.heads
        width = self.width or (columns if fused else rows) // self.heads
        queries, keys = self.heads * width, groups * width
        begin = queries if fused else 0
        fits = begin + keys <= rows if fused else (queries, keys) == (rows, others)
        if not fits or self.heads % groups or not width:
            raise ValueError(
                f"{self.heads} heads and {groups} of the keys, {width} wide, do not fit "
                f"{type(module).__name__}, whose {self.query} has {rows} outputs and {self.key} {others}. "
                "Pass other heads, groups or width."
            )
        query, key = (module.get_submodule(name) for name in (self.query, self.key))
        return Part(query, 0, queries), Part(key, begin, begin + keys), width, groups

    def _matrix(self, module: nn.Module, name: str) -> Tensor:
        layers: dict[str, Any] = dict(module.named_modules())
        known = {one: matrix for one, layer in layers.items() if (matrix := matrix_of(layer)) is not None}
        if name not in known:
            told = f"{type(module).__name__} has no layer {name!r} with a matrix"
            raise ValueError(f"{told}. It has {', '.join(known) or 'none'}.")
        return known[name]
