"""Keys on a GPU, as torch or JAX hold them: priced there, and only margins come back.

Neither library is imported: whoever brings an array of one has it.
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

PART = 1 << 27
"""Numbers that are widened to float64 at once (1 GB); half as many where the GPU has no room for them."""


class OnDevice(Stored):
    """An array (n, T, d) of torch or JAX; it stays on its device and is not copied."""

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        super().__init__(array, name, exponent)
        self.library = library_of(array)
        self.part = PART

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

        def work(x: Any, anchor: Any, queries: Any) -> Any:
            return self._margins(x, anchor, queries @ across)

        return self._each(work, examples, anchor, queries)

    def _margins(self, x: Any, anchor: Any, y: Any) -> Any:
        once = _one_reading() if self.library.cuda else None
        if once is not None:
            return once(x.detach(), anchor, y)
        return self.library.compiled(_margins, x, anchor, y)

    def _rows(self, example: Index, token: Index) -> Float:
        with self.library.scope():
            return self._units(self.library.taken(self.array, example, token), example)

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
            found = self.library.numpy(self.library.joined(parts)) if parts else np.zeros((0, self.shape[1]))
        return found if found.flags.writeable else found.copy()


def _largest(library: Any, x: Any) -> Any:
    xp = library.xp
    top = library.double(xp.maximum(xp.amax(x, -1), -xp.amin(x, -1)))
    return xp.where(xp.isnan(top), xp.inf, top)


def _margins(library: Any, x: Any, anchor: Any, y: Any) -> Any:
    first = library.double(x[library.put(np.arange(len(x))), anchor])[:, None]
    # Numbers are widened as they are read: float64 less a half is float64.
    return library.product(first - library.to(x, x.dtype), y[:, :, None])[..., 0]


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
