"""Keys on a GPU, in arrays of torch or JAX: margins are computed there, and only margins are copied back.

Neither library is imported: the caller who passes such an array has imported it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.library import library_of, out_of_memory
from attsvm.numbers.stored.array import Stored

BLOCK = 1 << 27
"""Numbers that are widened to float64 at once (1 GB), halved each time the GPU runs out of memory."""


class OnDevice(Stored):
    """An array (n, T, d) of torch or JAX; it stays on its device and is not copied."""

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        super().__init__(array, name, exponent)
        self.library = library_of(array)
        self.block_size = BLOCK

    def raw(self, examples: slice | Index) -> NDArray[Any]:
        with self.library.scope():
            return self.library.numpy(self.library.double(self.array[_sliced(examples)]))

    def largest(self) -> Float:
        self.passes += 1
        return self._each(lambda x: self.library.compiled(_largest, x), np.arange(len(self)))

    def products(self, vector: Float) -> Float:
        with self.library.scope():
            v = self.library.put(vector)
        self.passes += 1
        return self._each(lambda x: self.library.double(x) @ v, np.arange(len(self)))

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        with self.library.scope():
            across = self.library.put(W.T)

        def of_block(x: Any, anchor: Any, queries: Any) -> Any:
            return self._margins(x, anchor, queries @ across)

        return self._each(of_block, examples, anchor, queries)

    def _margins(self, x: Any, anchor: Any, y: Any) -> Any:
        kernel = _triton_margins() if self.library.cuda else None
        if kernel is not None:
            return kernel(x.detach(), anchor, y)
        return self.library.compiled(_margins, x, anchor, y)

    def _rows(self, example: Index, token: Index) -> Float:
        with self.library.scope():
            return self._units(self.library.gather(self.array, example, token), example)

    def _each(self, work: Any, examples: Index, *arrays: Any) -> Float:
        """`work` on blocks of the examples and of arrays (k, …), halved when memory runs out: (k, T).

        The results stay on the device until all blocks are done, and are copied at once.
        """
        results, start = [], 0
        while start < len(examples):
            stop = start + max(1, self.block_size // (self.shape[1] * self.shape[2]))
            try:
                with self.library.scope():
                    x = self.array[_sliced(examples[start:stop])]
                    blocks = (self.library.put(array[start:stop]) for array in arrays)
                    results.append(work(x, *blocks))
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if stop - start <= 1:
                    raise MemoryError(
                        f"{self.name}[{start}] does not fit into the memory that is left on its GPU twice. "
                        "Free some, or pass the keys on the CPU."
                    ) from None
                self.block_size //= 2
                continue
            start = stop
        with self.library.scope():
            if not results:
                return np.zeros((0, self.shape[1]))
            out = self.library.numpy(self.library.joined(results))
        return out if out.flags.writeable else out.copy()


def _largest(library: Any, x: Any) -> Any:
    xp = library.xp
    top = library.double(xp.maximum(xp.amax(x, -1), -xp.amin(x, -1)))
    return xp.where(xp.isnan(top), xp.inf, top)


def _margins(library: Any, x: Any, anchor: Any, y: Any) -> Any:
    first = library.double(x[library.put(np.arange(len(x))), anchor])[:, None]
    # float64 minus float16 is float64, so that numbers are widened as they are read.
    return library.product(first - library.to(x, x.dtype), y[:, :, None])[..., 0]


def _sliced(examples: slice | Index) -> Any:
    """Consecutive examples as a slice, which copies nothing."""
    if isinstance(examples, slice):
        return examples
    consecutive = len(examples) > 0 and bool((np.diff(examples) == 1).all())
    return slice(int(examples[0]), int(examples[-1]) + 1) if consecutive else examples


@cache
def _triton_margins() -> Any:
    """Our Triton kernel for margins, or None where torch came without Triton or Triton cannot compile."""
    torch = sys.modules["torch"]
    try:
        from attsvm.numbers.stored.triton_margins import margins

        x, y = torch.ones((1, 2, 3), device="cuda"), torch.ones((1, 3), dtype=torch.float64, device="cuda")
        margins(x, torch.zeros(1, dtype=torch.long, device="cuda"), y).cpu()
    except Exception:  # a missing compiler raises errors of many types; the general formula needs none
        return None
    return margins
