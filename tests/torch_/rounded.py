"""Torch whose every operation reads its numbers with another last digit."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class RoundedAnew(TorchDispatchMode):
    """As a compiler that computes a number once for a maximum and once more, by another kernel, for its
    derivative: a choice that hangs on such a number is made twice, and not alike."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A view shares its memory with what it shows, and a number written in place has a reader elsewhere.
        if not (operation.is_view or operation._schema.is_mutable):
            args, kwargs = tree_map(self._rounded, (args, kwargs))
        return operation(*args, **kwargs)

    def _rounded(self, x: Any) -> Any:
        if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
            return x
        noise = torch.randint(-1, 2, x.shape, generator=self.rng).to(x)
        return x * (1 + torch.finfo(x.dtype).eps * noise)
