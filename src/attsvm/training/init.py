"""Where training starts: zeros, arrays, seeded draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from attsvm._support.validation import as_seeds, describe, is_finite
from attsvm.training.types import AnyArray, Arrays, Floats, Shape
from attsvm.training.weights import MultiHead, Weight


@dataclass(frozen=True)
class Draw:
    """A seeded start: one start for an integer seed, a runs axis for several seeds.

    Same seed, same start on every platform: `numpy.random.Generator(numpy.random.PCG64(seed))`
    draws the parameters in the order that the weight names them (K before Q).
    """

    seeds: tuple[int, ...]
    runs: bool
    sample: Callable[[np.random.Generator, Shape], Floats]

    def __call__(self, shapes: Mapping[str, Shape], heads: int | None = None) -> Arrays:
        """heads: so many draws of every parameter, one after the other, as its first axis."""
        each = []
        for seed in self.seeds:
            rng = np.random.Generator(np.random.PCG64(seed))

            def drawn(shape: Shape, rng: np.random.Generator = rng) -> Floats:
                several = range(1 if heads is None else heads)
                draws = np.stack([self.sample(rng, shape) for _ in several])
                return draws[0] if heads is None else draws

            each.append({name: drawn(shape) for name, shape in shapes.items()})
        return {n: np.stack([params[n] for params in each]) if self.runs else each[0][n] for n in shapes}


def gaussian(seed: int | Iterable[int], scale: float = 1.0) -> Draw:
    """Entries N(0, scale²)."""
    if not is_finite(scale):
        raise ValueError(f"scale is {describe(scale)}. Pass a number, the standard deviation.")
    return Draw(*seeds_of(seed), lambda rng, shape: scale * rng.standard_normal(shape))


def uniform(seed: int | Iterable[int]) -> Draw:
    """Entries uniform on ±1/√d, d the first axis: what the papers' linear layers start from."""
    return Draw(*seeds_of(seed), lambda rng, shape: (2 * rng.random(shape) - 1) / math.sqrt(shape[0]))


def starting_point(weight: Weight, init: Any, size: tuple[int, int], dtype: DTypeLike) -> Arrays:
    """The parameters a run starts from, each with its own shape or a leading runs axis.

    init: None (zeros, or uniform(0) for a product of factors, whose zero is a saddle), a draw
    such as gaussian(seed), one array, or one array per parameter as a tuple or mapping.
    """
    shapes = weight.shapes(*size)
    factors = len(shapes) > 1
    if init is None:
        init = uniform(0) if factors else {name: np.zeros(shape) for name, shape in shapes.items()}
    values: AnyArray = _by_name(init, shapes) if not isinstance(init, Draw) else _drawn(init, weight, shapes)
    arrays = {name: _checked(name, values[name], shape, dtype) for name, shape in shapes.items()}
    if isinstance(weight, MultiHead) and any(
        (weight.tied(name, array) != array).any() for name, array in arrays.items()
    ):
        raise ValueError("heads that share keys start from different K. Pass equal copies, or a draw.")
    if factors and not any(array.any() for array in arrays.values()) and _is_saddle(weight, shapes, size):
        raise ValueError(
            f"init is zero in {' and '.join(shapes)}, a saddle that training never leaves. "
            "Pass init=uniform(seed) or a nonzero array."
        )
    return arrays


def _is_saddle(weight: Weight, shapes: Mapping[str, Shape], size: tuple[int, int]) -> bool:
    """Whether parameters that are zero have a gradient of zero, as a product of factors has."""
    heads = (weight.count,) if isinstance(weight, MultiHead) else ()
    zeros: Any = {name: np.zeros(shape) for name, shape in shapes.items()}
    gradients = weight.pullback(zeros, np.ones((*heads, *size)))  # type: ignore[arg-type]
    return not any(np.asarray(gradient).any() for gradient in gradients.values())


def _drawn(init: Draw, weight: Weight, shapes: Mapping[str, Shape]) -> Arrays:
    if isinstance(weight, MultiHead):
        drawn = init({name: shape[1:] for name, shape in shapes.items()}, weight.count)
        return {name: weight.tied(name, array) for name, array in drawn.items()}
    return init(shapes)


def seeds_of(seed: int | Iterable[int]) -> tuple[tuple[int, ...], bool]:
    """The seeds, and whether several were given."""
    seeds = as_seeds(seed)
    return ((seeds,), False) if isinstance(seeds, int) else (tuple(seeds), True)


def _by_name(init: Any, shapes: Mapping[str, Shape]) -> Mapping[str, ArrayLike]:
    if isinstance(init, Mapping):
        if set(init) != set(shapes):
            raise ValueError(f"init has {sorted(init)}. Pass {', '.join(shapes)}.")
        return init
    if len(shapes) == 1:
        return {next(iter(shapes)): init}
    if isinstance(init, tuple) and len(init) == len(shapes):
        return dict(zip(shapes, init, strict=True))
    raise ValueError(f"init must give {' and '.join(shapes)}. Pass ({', '.join(shapes)}) or uniform(seed).")


def _checked(name: str, value: ArrayLike, shape: Shape, dtype: DTypeLike) -> Floats:
    try:
        raw = np.asarray(value)
        if raw.dtype.kind in "SUOMm":
            raise TypeError
        array = raw.real.astype(dtype)
    except (TypeError, ValueError, OverflowError):  # a list of rows of different lengths, say
        raise ValueError(f"init {name} is not an array of real numbers {shape}.") from None
    if raw.dtype.kind == "c":
        raise ValueError(f"init {name} is complex. Pass an array of real numbers {shape}, such as its .real.")
    if array.shape[-len(shape) :] != shape or array.ndim > len(shape) + 1:
        with_runs = f"(runs, {', '.join(map(str, shape))})"
        raise ValueError(f"init {name} has shape {array.shape}. Pass {shape}, or {with_runs}.")
    if not np.isfinite(array).all():
        raise ValueError(f"init {name} has a NaN or infinite entry.")
    return array
