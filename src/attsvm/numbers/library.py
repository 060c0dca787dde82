"""One interface for arrays of torch and JAX, on their devices. Neither library is imported.

The caller who passes such an array has imported its library; the module of the array's type names it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float


def home(value: Any) -> str:
    """The package that made an array: "numpy", "torch", "jax", "dask", …"""
    name = type(value).__module__.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def on_gpu(value: Any) -> bool:
    """Whether an array of torch or JAX lies on a device other than the CPU."""
    if home(value) == "torch":
        return bool(value.is_cuda)
    return home(value) == "jax" and any(device.platform != "cpu" for device in value.devices())


def on_host(value: Any) -> NDArray[Any]:
    """An array of torch or JAX in the host's memory as a NumPy array, without a copy.

    The dtype of bfloat16 is that of ml_dtypes, which JAX depends on.
    """
    if home(value) != "torch":
        return np.asarray(value)
    tensor = value.detach()
    if str(tensor.dtype) != "torch.bfloat16":
        return np.asarray(tensor.numpy())
    from ml_dtypes import bfloat16

    return np.asarray(tensor.contiguous().view(sys.modules["torch"].int16).numpy().view(bfloat16))


def as_array(value: Any) -> Any:
    """An array on a GPU unchanged, without its gradient; any other as a NumPy array."""
    if not on_gpu(value):
        return on_host(value)
    return value.detach() if home(value) == "torch" else value


def library_of(array: Any) -> Torch | Jax:
    """The library that holds an array, with the array's device."""
    return Torch(array) if home(array) == "torch" else Jax(array)


def out_of_memory(error: RuntimeError) -> bool:
    return "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)


class Torch:
    """torch, on the device of a tensor."""

    def __init__(self, array: Any) -> None:
        self.xp, self.device, self.scope = sys.modules["torch"], array.device, nullcontext
        self.cuda = bool(array.is_cuda)

    def put(self, array: Any) -> Any:
        """A NumPy array, copied to the device."""
        return self.xp.as_tensor(np.array(array), device=self.device)

    def to(self, x: Any, dtype: Any) -> Any:
        return x.detach().to(dtype)

    def double(self, x: Any) -> Any:
        return self.to(x, self.xp.float64)

    def gather(self, x: Any, *places: NDArray[Any]) -> NDArray[Any]:
        """x[places] of places (k,) in float64, in the host's memory."""
        return self.numpy(self.double(x[tuple(map(self.put, places))]))

    def compiled(self, function: Any, *arguments: Any) -> Any:
        """function(library, …) of arrays on the device."""
        return function(self, *arguments)

    def numpy(self, x: Any) -> NDArray[Any]:
        """A copy in pinned memory, to which the GPU writes directly and which torch reuses."""
        pinned = self.xp.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return np.asarray(pinned.copy_(x.detach()).numpy())

    def joined(self, arrays: Any) -> Any:
        """Arrays one after the other along their first axis."""
        return self.xp.cat(list(arrays))

    def product(self, a: Any, b: Any) -> Any:
        """a b, in the full precision of a and b."""
        return a @ b

    def factor(self, matrix: Any, added: Any, ridge: float) -> Any:
        """Cholesky factor of (matrix + diag(added)) with a ridge, or None."""
        diagonal = (self.xp.diagonal(matrix) + added) * (1 + ridge)
        factor, failed = self.xp.linalg.cholesky_ex(self.xp.diagonal_scatter(matrix, diagonal))
        return None if failed else factor

    def solve(self, factor: Any, right: Float) -> Float:
        """(L Lᵀ)⁻¹ right (k,) of a Cholesky factor L."""
        return self.numpy(self.xp.cholesky_solve(self.put(right)[:, None], factor)[:, 0])


class Jax:
    """JAX, on the device of an array."""

    cuda = False  # no kernel of Triton reads arrays of JAX

    def __init__(self, array: Any) -> None:
        self.jax, self.xp = sys.modules["jax"], sys.modules["jax"].numpy
        self.device = next(iter(array.devices()))

    def scope(self) -> Any:
        """A context in which numbers may have 64 bits."""
        return self.jax.enable_x64(True)

    def put(self, array: Any) -> Any:
        return self.jax.device_put(np.asarray(array), self.device)

    def to(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def double(self, x: Any) -> Any:
        return self.to(x, self.xp.float64)

    def gather(self, x: Any, *places: NDArray[Any]) -> NDArray[Any]:
        """As torch's. The places are padded to a power of two, so that one program serves many lengths."""
        count = len(places[0])
        padding = (0, (1 << (count - 1).bit_length()) - count if count else 0)
        return self.numpy(self.compiled(_gather, x, *(np.pad(place, padding) for place in places)))[:count]

    def compiled(self, function: Any, *arguments: Any) -> Any:
        """As torch's, in one program: otherwise JAX compiles every operation by itself."""
        return _program(self.jax, function)(self, *arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jax) and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.device)

    def numpy(self, x: Any) -> NDArray[Any]:
        return np.asarray(x)

    def joined(self, arrays: Any) -> Any:
        return self.xp.concatenate(list(arrays))

    def product(self, a: Any, b: Any) -> Any:
        return self.xp.matmul(a, b, precision="highest")  # by default JAX may round a and b to fewer digits

    def factor(self, matrix: Any, added: Any, ridge: float) -> Any:
        factor = self.compiled(_factor, matrix, added, ridge)
        return None if bool(self.xp.isnan(factor[-1, -1])) else factor

    def solve(self, factor: Any, right: Float) -> Float:
        with self.scope():
            return self.numpy(self.jax.scipy.linalg.cho_solve((factor, True), self.put(right)))


@cache
def _program(jax: Any, function: Any) -> Any:
    return jax.jit(function, static_argnums=0)


def _gather(library: Jax, x: Any, *places: Any) -> Any:
    return library.double(x[places])


def _factor(library: Jax, matrix: Any, added: Any, ridge: Any) -> Any:
    place = library.xp.arange(len(matrix))
    diagonal = (matrix[place, place] + added) * (1 + ridge)
    return library.xp.linalg.cholesky(matrix.at[place, place].set(diagonal))
