"""Max-margin token selection as a layer: certified solutions of many programs at once, with gradients.

    min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

The solvers of `program/` run on the CPU in float64, and so does the compiled backward pass. Where autograd
needs more than one backward pass (a second derivative, jvp, vmap, torch.compile), the solver finds the active
rows, and `active_formula.py` has the solution as a formula of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from attsvm.norms import Norm, RowWise, Schatten, frobenius
from attsvm.norms.names import as_norm
from attsvm.program.derivative.arguments import (
    Degenerate,
    Unseparable,
    check_keys,
    check_options,
    check_trailing,
    no_common_axes,
    outside,
)
from attsvm.program.derivative.batch import Batch, NotDifferentiable, solve_batch
from attsvm.program.derivative.pull_back import INDEPENDENT, STRICT
from attsvm.program.solution import Solution
from attsvm.torch.active_formula import Data, Found, Results, by_formula

EUCLIDEAN = (frobenius, Schatten(2), RowWise(2))
"""The names of the norm whose solutions have a formula."""

__all__ = ["MaxMargin", "NotDifferentiable", "max_margin"]


@dataclass(frozen=True, eq=False, repr=False)
class MaxMargin:
    """Solutions of max-margin programs as tensors.

    With gradients, and NaN where the program is not separable: W (…, d, e); norm N(W), margin 1/N(W) (…,);
    multipliers (…, n, T), those of `attsvm.Solution`, zero where there is no row; shortfall (…, n): ξ of a
    soft margin, else None.
    separable (…,); batch: the solver's results, None under torch.func and torch.compile, and found: theirs.
    """

    W: Tensor
    norm: Tensor
    margin: Tensor
    multipliers: Tensor
    shortfall: Tensor | None
    separable: Tensor
    batch: Batch | None
    found: Found | None

    @property
    def regular(self) -> Tensor:
        """Whether the solution has a derivative (…,): each row clearly active or not, and none redundant."""
        return self.separable & (self.strictness > STRICT) & (self.pivot > INDEPENDENT)

    @property
    def strictness(self) -> Tensor:
        """How clearly every row is active or not (…,), relative to the program: 0 at a kink."""
        return self._of_runs("strictness")

    @property
    def pivot(self) -> Tensor:
        """How clearly the active rows are independent (…,): from 1 down to 0, where one depends on others."""
        return self._of_runs("pivot")

    @property
    def support(self) -> Tensor:
        """Tokens whose margin is the required one, or falls short of it: bool (…, n, T)."""
        if self.batch is not None:
            return self._shaped(torch.from_numpy(self.batch.support))
        assert self.found is not None
        return self._shaped(self.found.active)

    @property
    def solution(self) -> Solution:
        """The solver's `attsvm.Solution`, with one axis of runs; its certificate is made when asked."""
        if self.batch is None:
            raise RuntimeError(
                "no solution is kept under torch.func and torch.compile. Call max_margin outside of them."
            )
        return self.batch.solution

    def _of_runs(self, name: str) -> Tensor:
        if self.batch is not None:
            return self._shaped(torch.from_numpy(np.array(getattr(self.batch.derivative, name))))
        return self._shaped(getattr(self.found, name))

    def _shaped(self, array: Tensor) -> Tensor:
        """An array (r, …) with the batch axes of the user, where the results are."""
        return array.reshape((*self.separable.shape, *array.shape[1:])).to(self.separable.device)

    def __repr__(self) -> str:
        d, e = self.W.shape[-2:]
        runs = f"{self.separable.numel()} programs" if self.separable.ndim else "one program"
        return f"MaxMargin({runs}, W {d} × {e}, {self.W.dtype} on {self.W.device})"


def max_margin(
    keys: Tensor,
    selected: Tensor | np.ndarray | Sequence[Any],
    queries: Tensor | None = None,
    *,
    norm: Norm | str = frobenius,
    required: Tensor | float = 1.0,
    slack: Tensor | float | None = None,
    mask: Tensor | None = None,
    unseparable: Unseparable = "raise",
    degenerate: Degenerate = "flag",
) -> MaxMargin:
    """Smallest W that separates the selected tokens from the others, for every program of a batch.

        min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

    keys (…, n, T, d); queries (…, n, e), or None: z is the constant 1, and W (d, 1) the prompt.
    selected: bool (…, n, T), or indices (…, n); several selected tokens of an example are tied.
    mask (…, n, T): True for a token, False for padding. The batch axes (…) broadcast.
    required, slack: one number, or (…, n); slack is the price C of a soft margin, see `attsvm.max_margin`.
    unseparable: "raise" NotSeparable, which names the runs, or "nan": NaN for their results and gradients.
    degenerate: what to do where the solution has no derivative: "flag" in `regular` alone, "warn", or "raise"
        NotDifferentiable.

    Gradients of keys, queries, required and slack. The results have the type and the device of the keys; the
    solver computes on the CPU in float64. The certificate covers W and its gap, not the gradient.
    """
    norm = norm if norm is frobenius else as_norm(norm)
    check_options(unseparable, degenerate)
    data, selected, mask, axes = _prepared(keys, selected, queries, required, slack, mask)
    options = unseparable, degenerate
    batch, found = None, None
    if _needs_formula():
        _refuse_without_formula(norm, "torch.func, torch.compile or jvp")
        constants = (None if x is None else x.detach() for x in data)
        found = Found(*torch.ops.attsvm.active_rows(*constants, selected, mask, *options, list(axes)))
        results = by_formula(data, selected, found)
        if unseparable == "nan" and data.price is None:
            results = _undefined_unless(found.separable, results, data)
        separable = found.separable
    else:
        batch = _solved(data, selected, mask, norm, axes)
        batch.check(*options)
        results = Results(*Solve.apply(*data, selected, batch))
        separable = torch.from_numpy(batch.separable).to(keys.device)
    shaped = (None if x is None else _with_axes(x, axes, keys.dtype) for x in results)
    return MaxMargin(*shaped, separable.reshape(axes), batch, found)


def _with_axes(x: Tensor, axes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Results (r, …) with the batch axes of the user, in the type of the keys."""
    return (x if len(axes) == 1 else x.reshape((*axes, *x.shape[1:]))).to(dtype)


# ---------------------------------------------------------------------- arguments


def _prepared(
    keys: Tensor,
    selected: Any,
    queries: Tensor | None,
    required: Tensor | float,
    slack: Tensor | float | None,
    mask: Tensor | None,
) -> tuple[Data, Tensor, Tensor, tuple[int, ...]]:
    """The arguments with one batch axis, numbers in float64, the rest as booleans; and the batch axes."""
    if not isinstance(keys, Tensor) or not keys.is_floating_point():
        raise TypeError(f"keys are {_described(keys)}. Pass a tensor (…, n, T, d) of real numbers.")
    check_keys(tuple(keys.shape), _described(keys))
    *batch, n, T, _ = keys.shape
    arrays = {
        "selected": selected if isinstance(selected, Tensor) else torch.as_tensor(np.asarray(selected)),
        "queries": keys.new_ones((n, 1)) if queries is None else queries,
        "required": required,
        "slack": slack,
        "mask": keys.new_ones((n, T), dtype=torch.bool) if mask is None else mask,
    }
    if not isinstance(selected, Tensor):
        arrays["selected"] = arrays["selected"].to(keys.device)
    for name, x in arrays.items():
        if isinstance(x, Tensor) and x.device != keys.device and x.ndim:
            raise ValueError(f"keys are on {keys.device} but {name} on {x.device}. Move them to one device.")
    chosen = _as_selected(arrays["selected"], n, T)
    _check_trailing("queries", arrays["queries"], "(…, n, e)", (n, None))
    _check_trailing("mask", arrays["mask"], "(…, n, T)", (n, T), torch.bool)
    margins = _per_example("required", required, keys, n)
    price = None if slack is None else _per_example("slack", slack, keys, n)
    shapes = [batch, arrays["queries"].shape[:-2], chosen.shape[:-2], arrays["mask"].shape[:-2]]
    shapes += [x.shape[:-1] for x in (margins, price) if x is not None]
    axes = tuple(batch)
    if any(shape and tuple(shape) != axes for shape in shapes):
        try:
            axes = tuple(torch.broadcast_shapes(*shapes))
        except RuntimeError:
            raise no_common_axes(tuple(shape) for shape in shapes) from None

    def flat(x: Tensor, axes_of_one: int) -> Tensor:
        if len(axes) == 1 and x.ndim == 1 + axes_of_one and x.shape[0] == axes[0]:
            return x
        shape = x.shape[x.ndim - axes_of_one :]
        return x.expand(*axes, *shape).reshape(-1, *shape)

    def real(x: Tensor, axes_of_one: int) -> Tensor:
        return flat(x, axes_of_one).to(torch.float64)

    data = Data(
        real(keys, 3),
        real(arrays["queries"], 2),
        real(margins, 1),
        None if price is None else real(price, 1),
    )
    return data, flat(chosen, 2), flat(arrays["mask"], 2), axes


def _described(x: Any) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"


def _as_selected(selected: Tensor, n: int, T: int) -> Tensor:
    """The selection as booleans (…, n, T)."""
    if selected.dtype == torch.bool:
        _check_trailing("selected", selected, "(…, n, T)", (n, T))
        return selected
    if selected.is_floating_point() or selected.is_complex():
        raise TypeError(f"selected is {_described(selected)}. Pass booleans (…, n, T) or indices (…, n).")
    _check_trailing("selected", selected, "booleans (…, n, T) or indices (…, n)", (n,))
    if not _needs_formula() and selected.numel():
        least, most = map(int, selected.aminmax())
        if least < 0 or most >= T:
            raise outside(least, most, T)
    return selected[..., None] == torch.arange(T, device=selected.device)


def _check_trailing(
    name: str, x: Any, axes: str, sizes: tuple[int | None, ...], dtype: torch.dtype | None = None
) -> None:
    """Refuse a tensor whose last axes have other sizes, or of another type."""
    fits = isinstance(x, Tensor) and dtype in (None, x.dtype)
    kind = "" if dtype is None else f" of {dtype}"
    check_trailing(name, tuple(x.shape) if fits else None, _described(x), axes + kind, sizes)


def _per_example(name: str, x: Tensor | float, keys: Tensor, n: int) -> Tensor:
    """One number, or (…, n), as a tensor (…, n)."""
    numbers = x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=torch.float64)
    numbers = numbers.to(keys.device)
    if numbers.ndim == 0:
        return numbers.expand(n)
    _check_trailing(name, numbers, "one number, or (…, n)", (n,))
    return numbers


# ---------------------------------------------------------------------- one backward pass


def _solved(data: Data, selected: Tensor, mask: Tensor, norm: Norm, axes: Sequence[int]) -> Batch:
    """The batch, solved on the CPU. Arrays are copied: a user may change a tensor in place later."""

    def copied(x: Tensor) -> Any:
        return x.numpy(force=True).copy()

    keys, queries, required = map(copied, data[:3])
    price = None if data.price is None else copied(data.price)
    return solve_batch(keys, queries, copied(mask), copied(selected), required, price, norm, tuple(axes))


class Solve(torch.autograd.Function):
    """The results of a solved batch. The backward pass is compiled; its own derivative is the formula's."""

    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        queries: Tensor,
        required: Tensor,
        price: Tensor | None,
        selected: Tensor,
        batch: Batch,
    ) -> tuple[Tensor | None, ...]:
        ctx.batch = batch
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(keys, queries, required, price, selected)
        return tuple(None if x is None else torch.from_numpy(x).to(keys.device) for x in batch.results)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, selected = ctx.saved_tensors
        needed = ctx.needs_input_grad[: len(tensors)]
        if torch.is_grad_enabled():
            gradients = _pulled_back_by_formula(Data(*tensors), selected, ctx.batch, bars, needed)
        else:
            arrays = [None if bar is None else bar.numpy(force=True) for bar in bars]
            out = ctx.batch.pull_back(*arrays)
            gradients = [
                torch.from_numpy(x).to(selected.device) if need else None
                for x, need in zip(out, needed, strict=True)
            ]
        return *gradients, None, None


def _pulled_back_by_formula(
    data: Data, selected: Tensor, batch: Batch, bars: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The same cotangents, with a graph of their own."""
    _refuse_without_formula(batch.solution.norm, "a second derivative")
    results = by_formula(data, selected, _found(batch, selected.device))
    pairs = [(x, bar) for x, bar in zip(results, bars, strict=True) if x is not None and bar is not None]
    inputs = [x for x, need in zip(data, needed, strict=True) if need]
    outputs, cotangents = zip(*pairs, strict=True)
    gradients = iter(torch.autograd.grad(outputs, inputs, cotangents, create_graph=True, allow_unused=True))
    return [next(gradients) if need else None for need in needed]


# ---------------------------------------------------------------------- transforms


def _needs_formula() -> bool:
    """Whether autograd asks for more than one backward pass can give."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _refuse_without_formula(norm: Norm, what: str) -> None:
    if norm not in EUCLIDEAN:
        raise NotImplementedError(
            f"{what} of a {norm} solution is not available. Pass norm='frobenius', or take one backward pass."
        )


def _found(batch: Batch, device: torch.device) -> Found:
    """What the solver found, as tensors; an inseparable run has no rows."""
    separable = batch.separable[:, None, None]
    rows, (basis, pivot) = batch.derivative.rows, batch.derivative.basis
    reference = np.where(separable[:, 0], rows.reference, -1)
    arrays = batch.support, basis & separable, reference, batch.separable, rows.strictness, pivot
    return Found(*(torch.from_numpy(np.array(x)).to(device) for x in arrays))


torch.library.define(
    "attsvm::active_rows",
    "(Tensor keys, Tensor queries, Tensor required, Tensor? price, Tensor selected, Tensor mask, "
    "str unseparable, str degenerate, int[] axes) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("attsvm::active_rows", "CompositeExplicitAutograd")
def _active_rows(
    keys: Tensor,
    queries: Tensor,
    required: Tensor,
    price: Tensor | None,
    selected: Tensor,
    mask: Tensor,
    unseparable: str,
    degenerate: str,
    axes: Sequence[int],
) -> tuple[Tensor, ...]:
    batch = _solved(Data(keys, queries, required, price), selected, mask, frobenius, axes)
    batch.check(unseparable, degenerate)
    return tuple(_found(batch, keys.device))


@torch.library.register_fake("attsvm::active_rows")
def _shapes(
    keys: Tensor, queries: Tensor, required: Tensor, price: Tensor | None, selected: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    runs = required.shape[:1]
    return (
        torch.empty_like(selected),
        torch.empty_like(selected),
        torch.empty_like(required, dtype=torch.int64),
        required.new_empty(runs, dtype=torch.bool),
        required.new_empty(runs),
        required.new_empty(runs),
    )


@torch.library.register_vmap("attsvm::active_rows")
def _over_runs(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, ...]:
    """All runs of all examples of vmap in one batch."""
    size, tensors, (*options, axes) = info.batch_size, arguments[:6], arguments[6:]

    def flat(x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1)

    parts = torch.ops.attsvm.active_rows(
        *(flat(x, dim) for x, dim in zip(tensors, in_dims, strict=False)), *options, [size, *axes]
    )
    return tuple(x.unflatten(0, (size, -1)) for x in parts), (0,) * len(parts)


def _undefined_unless(separable: Tensor, results: Results, data: Data) -> Results:
    """NaN where a run is not separable, in results of a hard margin and their derivatives."""
    flat = torch.cat([x.flatten(1) if x.ndim > 1 else x[:, None] for x in results[:4]], 1)
    inputs = torch.cat([x.flatten(1) for x in data if x is not None], 1)
    parts = Undefined.apply(flat, inputs, separable).split([x[0].numel() for x in results[:4]], 1)
    return Results(*(part.reshape(x.shape) for part, x in zip(parts, results[:4], strict=True)), None)


class Undefined(torch.autograd.Function):
    """Results (r, k), of inputs (r, m): NaN where a run is not separable.

    The cotangent of its inputs is NaN, or zero if nothing depends on its results.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(results: Tensor, inputs: Tensor, separable: Tensor) -> Tensor:
        return torch.where(separable[:, None], results, torch.nan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, separable = ctx.saved_tensors
        undefined = (~separable & (bar != 0).any(1))[:, None]
        return torch.where(separable[:, None], bar, 0.0), torch.where(undefined, torch.nan, 0 * inputs), None

    @staticmethod
    def jvp(ctx: Any, of_results: Tensor, of_inputs: Tensor, _: None) -> Tensor:
        _, separable = ctx.saved_tensors
        undefined = (of_inputs != 0).any(1, keepdim=True)
        return torch.where(separable[:, None], of_results, torch.where(undefined, torch.nan, 0.0))
