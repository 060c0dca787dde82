"""Arrays of torch and JAX, where they are: one set of words for both. Neither library is imported.

Whoever brings an array of one has it; it is known by the module of its type.
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
    """Whether an array is torch's or JAX's and lies on a device of its own."""
    if home(value) == "torch":
        return bool(value.is_cuda)
    return home(value) == "jax" and any(device.platform != "cpu" for device in value.devices())


def on_host(value: Any) -> NDArray[Any]:
    """An array of torch or JAX in the host's memory as NumPy's, without a copy.

    bfloat16 has the type of ml_dtypes, which JAX brings.
    """
    if home(value) != "torch":
        return np.asarray(value)
    tensor = value.detach()
    if str(tensor.dtype) != "torch.bfloat16":
        return np.asarray(tensor.numpy())
    from ml_dtypes import bfloat16

    return np.asarray(tensor.contiguous().view(sys.modules["torch"].int16).numpy().view(bfloat16))


def as_array(value: Any) -> Any:
    """Numbers on a GPU as they are, without their gradient; all others as one of NumPy's arrays."""
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
        """One of NumPy's arrays where the others are."""
        return self.xp.as_tensor(np.array(array), device=self.device)

    def to(self, x: Any, dtype: Any) -> Any:
        return x.detach().to(dtype)

    def double(self, x: Any) -> Any:
        return self.to(x, self.xp.float64)

    def taken(self, x: Any, *places: NDArray[Any]) -> NDArray[Any]:
        """x[places] of places (k,) in float64, in the host's memory."""
        return self.numpy(self.double(x[tuple(map(self.put, places))]))

    def compiled(self, function: Any, *given: Any) -> Any:
        """function(library, …) of arrays where they are."""
        return function(self, *given)

    def numpy(self, x: Any) -> NDArray[Any]:
        """A copy in memory that the GPU can write to itself, which torch keeps for the next one."""
        here = self.xp.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return np.asarray(here.copy_(x.detach()).numpy())

    def joined(self, parts: Any) -> Any:
        """Arrays one after the other along their first axis."""
        return self.xp.cat(list(parts))

    def product(self, a: Any, b: Any) -> Any:
        """a b, in the full precision of its factors."""
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

    cuda = False  # what torch's compilers can read

    def __init__(self, array: Any) -> None:
        self.jax, self.xp = sys.modules["jax"], sys.modules["jax"].numpy
        self.device = next(iter(array.devices()))

    def scope(self) -> Any:
        """Where numbers may have 64 bits."""
        return self.jax.enable_x64(True)

    def put(self, array: Any) -> Any:
        return self.jax.device_put(np.asarray(array), self.device)

    def to(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def double(self, x: Any) -> Any:
        return self.to(x, self.xp.float64)

    def taken(self, x: Any, *places: NDArray[Any]) -> NDArray[Any]:
        """As torch's; so many places are filled up that a program serves all numbers to a power of two."""
        count = len(places[0])
        room = (0, (1 << (count - 1).bit_length()) - count if count else 0)
        return self.numpy(self.compiled(_taken, x, *(np.pad(place, room) for place in places)))[:count]

    def compiled(self, function: Any, *given: Any) -> Any:
        """As torch's, in one program: else JAX compiles every operation on its own."""
        return _program(self.jax, function)(self, *given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jax) and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.device)

    def numpy(self, x: Any) -> NDArray[Any]:
        return np.asarray(x)

    def joined(self, parts: Any) -> Any:
        return self.xp.concatenate(list(parts))

    def product(self, a: Any, b: Any) -> Any:
        return self.xp.matmul(a, b, precision="highest")  # else JAX rounds factors to fewer digits

    def factor(self, matrix: Any, added: Any, ridge: float) -> Any:
        factor = self.compiled(_factor, matrix, added, ridge)
        return None if bool(self.xp.isnan(factor[-1, -1])) else factor

    def solve(self, factor: Any, right: Float) -> Float:
        with self.scope():
            return self.numpy(self.jax.scipy.linalg.cho_solve((factor, True), self.put(right)))


@cache
def _program(jax: Any, function: Any) -> Any:
    return jax.jit(function, static_argnums=0)


def _taken(library: Jax, x: Any, *places: Any) -> Any:
    return library.double(x[places])


def _factor(library: Jax, matrix: Any, added: Any, ridge: Any) -> Any:
    place = library.xp.arange(len(matrix))
    diagonal = (matrix[place, place] + added) * (1 + ridge)
    return library.xp.linalg.cholesky(matrix.at[place, place].set(diagonal))
