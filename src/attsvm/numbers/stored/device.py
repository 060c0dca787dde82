"""Keys on a GPU, as torch or JAX hold them: priced there, and only margins come back.

Neither library is imported: whoever brings an array of one has it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.stored.array import Stored

PART = 1 << 27
"""Numbers that are widened to float64 at once (1 GB); half as many where the GPU has no room for them."""


class OnDevice(Stored):
    """An array (n, T, d) of torch or JAX; it stays on its device and is not copied."""

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        super().__init__(array, name, exponent)
        self.library = _Torch(array) if type(array).__module__.startswith("torch") else _Jax(array)
        self.part = PART

    def raw(self, examples: slice | Index) -> NDArray[Any]:
        with self.library.scope():
            return self.library.numpy(self.library.double(self.array[_sliced(examples)]))

    def largest(self) -> Float:
        self.passes += 1
        return self._each(self.library.largest, np.arange(len(self)))

    def products(self, vector: Float) -> Float:
        with self.library.scope():
            v = self.library.put(vector)
        self.passes += 1
        return self._each(lambda x: self.library.double(x) @ v, np.arange(len(self)))

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        with self.library.scope():
            across = self.library.put(W.T)

        def work(x: Any, anchor: Any, queries: Any) -> Any:
            return self.library.margins(x, anchor, queries @ across)

        return self._each(work, examples, anchor, queries)

    def _rows(self, example: Index, token: Index) -> Float:
        with self.library.scope():
            found = self.array[self.library.put(example), self.library.put(token)]
            return self._units(self.library.numpy(self.library.double(found)), example)

    def _each(self, work: Any, examples: Index, *arrays: Any) -> Float:
        """`work` on parts of the examples and of arrays (k, …), smaller ones where memory is short: (k, T).

        What it gives stays there until all parts are done: one transfer.
        """
        parts, start = [], 0
        while start < len(examples):
            stop = start + max(1, self.part // (self.shape[1] * self.shape[2]))
            try:
                with self.library.scope():
                    x = self.array[_sliced(examples[start:stop])]
                    more = (self.library.put(array[start:stop]) for array in arrays)
                    parts.append(work(x, *more))
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if stop - start <= 1:
                    raise MemoryError(
                        f"{self.name}[{start}] does not fit into the memory that is left on its GPU twice. "
                        "Free some, or pass the keys on the CPU."
                    ) from None
                self.part //= 2
                continue
            start = stop
        with self.library.scope():
            return self.library.joined(parts) if parts else np.zeros((0, self.shape[1]))


def out_of_memory(error: RuntimeError) -> bool:
    return "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)


def _sliced(examples: slice | Index) -> Any:
    """Neighbours as a slice, which copies nothing."""
    if isinstance(examples, slice):
        return examples
    together = len(examples) > 0 and bool((np.diff(examples) == 1).all())
    return slice(int(examples[0]), int(examples[-1]) + 1) if together else examples


@cache
def _one_reading() -> Any:
    """Margins by a kernel of our own, or None where torch came without Triton or it cannot compile."""
    torch = sys.modules["torch"]
    try:
        from attsvm.numbers.stored.one_reading import margins

        x, y = torch.ones((1, 2, 3), device="cuda"), torch.ones((1, 3), dtype=torch.float64, device="cuda")
        margins(x, torch.zeros(1, dtype=torch.long, device="cuda"), y).cpu()
    except Exception:  # a compiler that is missing has many names, and torch can do without
        return None
    return margins


class _Torch:
    def __init__(self, array: Any) -> None:
        self.torch, self.device, self.scope = sys.modules["torch"], array.device, nullcontext

    def put(self, array: NDArray[Any]) -> Any:
        return self.torch.as_tensor(np.array(array), device=self.device)

    def double(self, x: Any) -> Any:
        return x.detach().to(self.torch.float64)

    def numpy(self, x: Any) -> NDArray[Any]:
        """A copy in memory that the GPU can write to itself, which torch keeps for the next one."""
        here = self.torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return np.asarray(here.copy_(x.detach()).numpy())

    def joined(self, parts: list[Any]) -> Float:
        return self.numpy(self.torch.cat(parts))

    def largest(self, x: Any) -> Any:
        top = self.double(self.torch.maximum(x.amax(-1), -x.amin(-1)))
        return self.torch.where(self.torch.isnan(top), self.torch.inf, top)

    def margins(self, x: Any, anchor: Any, y: Any) -> Any:
        once = _one_reading() if x.is_cuda else None
        if once is not None:
            return once(x.detach(), anchor, y)
        first = self.double(x[self.torch.arange(len(x), device=self.device), anchor])[:, None]
        return self.torch.matmul(first - x.detach(), y[:, :, None])[..., 0]  # x is widened as it is read

    def factor(self, matrix: Any, added: Any, ridge: float) -> Any:
        """Cholesky factor of (matrix + diag(added)) with a ridge, or None."""
        diagonal = (self.torch.diagonal(matrix) + added) * (1 + ridge)
        shifted = self.torch.diagonal_scatter(matrix, diagonal)
        factor, failed = self.torch.linalg.cholesky_ex(shifted)
        return None if failed else factor

    def solve(self, factor: Any, right: Float) -> Float:
        found = self.torch.cholesky_solve(self.put(right)[:, None], factor)
        return self.numpy(found[:, 0])


class _Jax:
    def __init__(self, array: Any) -> None:
        self.jax, self.np = sys.modules["jax"], sys.modules["jax"].numpy
        self.device = next(iter(array.devices()))

    def scope(self) -> Any:
        """Where numbers may have 64 bits."""
        return self.jax.enable_x64(True)

    def put(self, array: NDArray[Any]) -> Any:
        return self.jax.device_put(np.asarray(array), self.device)

    def double(self, x: Any) -> Any:
        return x.astype(self.np.float64)

    def numpy(self, x: Any) -> NDArray[Any]:
        return np.asarray(x)

    def joined(self, parts: list[Any]) -> Float:
        return np.array(self.np.concatenate(parts))  # JAX's own cannot be written to

    def largest(self, x: Any) -> Any:
        top = self.double(self.np.maximum(x.max(-1), -x.min(-1)))
        return self.np.where(self.np.isnan(top), self.np.inf, top)

    def margins(self, x: Any, anchor: Any, y: Any) -> Any:
        x = self.double(x)
        first = x[self.np.arange(len(x)), anchor][:, None]
        return self.np.matmul(first - x, y[:, :, None])[..., 0]

    def factor(self, matrix: Any, added: Any, ridge: float) -> Any:
        """Cholesky factor of (matrix + diag(added)) with a ridge, or None."""
        place = self.np.arange(len(matrix))
        diagonal = (matrix[place, place] + added) * (1 + ridge)
        factor = self.np.linalg.cholesky(matrix.at[place, place].set(diagonal))
        return None if bool(self.np.isnan(factor[-1, -1])) else factor

    def solve(self, factor: Any, right: Float) -> Float:
        with self.scope():
            return self.numpy(self.jax.scipy.linalg.cho_solve((factor, True), self.put(right)))
