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
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from attsvm.norms import Norm, RowWise, Schatten, frobenius
from attsvm.norms.names import as_norm
from attsvm.program.derivative.arguments import Choice, Data, Degenerate, Unseparable, check_options, prepared
from attsvm.program.derivative.batch import Batch, Measured, NotDifferentiable, Results, solve_batch
from attsvm.program.solution import Solution
from attsvm.torch.active_formula import Found, by_formula

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
        return self._measured.regular

    @property
    def strictness(self) -> Tensor:
        """How clearly every row is active or not (…,), relative to the program: 0 at a kink."""
        return self._measured.strictness

    @property
    def pivot(self) -> Tensor:
        """How clearly the active rows are independent (…,): from 1 down to 0, where one depends on others."""
        return self._measured.pivot

    @property
    def support(self) -> Tensor:
        """Tokens whose margin is the required one, or falls short of it: bool (…, n, T)."""
        return self._measured.support

    @property
    def solution(self) -> Solution:
        """The solver's `attsvm.Solution`, with one axis of runs; its certificate is made when asked."""
        if self.batch is None:
            raise RuntimeError(
                "no solution is kept under torch.func and torch.compile. Call max_margin outside of them."
            )
        return self.batch.solution

    @property
    def _measured(self) -> Measured:
        if self.found is not None:
            return Measured(self.found.regular, self.found.strictness, self.found.pivot, self.found.active)
        assert self.batch is not None
        return Measured(*(torch.from_numpy(x).to(self.W.device) for x in self.batch.measured))

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
    if not isinstance(keys, Tensor):
        raise TypeError(f"keys are a {type(keys).__name__}. Pass a tensor (…, n, T, d) of real numbers.")
    data, choice = prepared(Arrays(keys), keys, selected, queries, required, slack, mask)
    batch, found = None, None
    if _needs_formula():
        _refuse_without_formula(norm, "torch.func, torch.compile or jvp")
        constants = (None if x is None else x.detach() for x in data)
        found = Found(*torch.ops.attsvm.active_rows(*constants, *choice, unseparable, degenerate))
        results = by_formula(data, choice.selected, found)
        if unseparable == "nan" and data.price is None:
            results = _undefined_unless(found.separable, results, data)
        separable = found.separable
    else:
        batch = _solved(data, choice, norm)
        batch.check(unseparable, degenerate)
        results = Results(*Solve.apply(*data, choice.selected, batch))
        separable = torch.from_numpy(batch.over_axes(batch.separable)).to(keys.device)
    typed = Results._make(None if x is None else x.to(keys.dtype) for x in results)
    return MaxMargin(*typed, separable, batch, found)


class Arrays:
    """Tensors beside the keys, numbers in float64."""

    namespace = torch

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def array(self, name: str, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            return torch.as_tensor(np.asarray(x)).to(self.keys.device)
        if x.ndim and x.device != self.keys.device:
            devices = f"keys are on {self.keys.device} but {name} on {x.device}"
            raise ValueError(f"{devices}. Move them to one device.")
        return x.to(self.keys.device)

    def numbers(self, x: Tensor) -> Tensor:
        return x.to(torch.float64)

    def ones(self, *shape: int) -> Tensor:
        return self.keys.new_ones(shape)

    def arange(self, stop: int) -> Tensor:
        return torch.arange(stop, device=self.keys.device)

    def on_host(self, x: Tensor) -> NDArray[Any] | None:
        return None if _needs_formula() else x.numpy(force=True)


# ---------------------------------------------------------------------- one backward pass


def _solved(data: Data, choice: Choice, norm: Norm) -> Batch:
    """The batch, solved on the CPU. Arrays are copied: a user may change a tensor in place later."""
    arrays = [None if x is None else x.numpy(force=True).copy() for x in (*data, *choice)]
    return solve_batch(Data(*arrays[:4]), Choice(*arrays[4:]), norm)


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
            arrays = (None if bar is None else bar.numpy(force=True) for bar in bars)
            out = ctx.batch.pull_back(Results(*arrays))
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
    results = by_formula(data, selected, Found.of(batch, selected.device))
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


torch.library.define(
    "attsvm::active_rows",
    "(Tensor keys, Tensor queries, Tensor required, Tensor? price, Tensor selected, Tensor mask, "
    f"str unseparable, str degenerate) -> ({', '.join(['Tensor'] * len(Found._fields))})",
)


@torch.library.impl("attsvm::active_rows", "CompositeExplicitAutograd")
def _active_rows(*arguments: Any) -> Found:
    *arrays, unseparable, degenerate = arguments
    batch = _solved(Data(*arrays[:4]), Choice(*arrays[4:]), frobenius)
    batch.check(unseparable, degenerate)
    return Found.of(batch, arrays[0].device)


@torch.library.register_fake("attsvm::active_rows")
def _shapes(keys: Tensor, queries: Tensor, required: Tensor, price: Any, selected: Tensor, *_: Any) -> Found:
    one, flag = required[..., 0], selected[..., 0, 0]
    parts = torch.empty_like, (selected, selected, required.long(), flag, flag, one, one, flag)
    return Found._make((*map(*parts), required.new_empty((*one.shape, 3))))


@torch.library.register_vmap("attsvm::active_rows")
def _over_runs(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, ...]:
    """All runs of all examples of vmap in one batch."""

    def first(x: Any, dim: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    arrays = (first(x, dim) for x, dim in zip(arguments, in_dims, strict=True))
    return torch.ops.attsvm.active_rows(*arrays), (0,) * len(Found._fields)


def _undefined_unless(separable: Tensor, results: Results, data: Data) -> Results:
    """NaN where a run is not separable, in results of a hard margin and their derivatives."""
    axes, parts = separable.ndim, results[:4]
    flat = torch.cat([x.reshape(*separable.shape, -1) for x in parts], -1)
    inputs = torch.cat([x.flatten(axes) for x in data if x is not None], -1)
    sizes = [x[(0,) * axes].numel() for x in parts]
    undefined = Undefined.apply(flat, inputs, separable).split(sizes, -1)
    return Results._make((*(new.reshape(x.shape) for new, x in zip(undefined, parts, strict=True)), None))


class Undefined(torch.autograd.Function):
    """Results (…, k), of inputs (…, m): NaN where a run is not separable.

    The cotangent of its inputs is NaN, or zero if nothing depends on its results.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(results: Tensor, inputs: Tensor, separable: Tensor) -> Tensor:
        return torch.where(separable[..., None], results, torch.nan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, separable = ctx.saved_tensors
        undefined = (~separable & (bar != 0).any(-1))[..., None]
        return (
            torch.where(separable[..., None], bar, 0.0),
            torch.where(undefined, torch.nan, 0 * inputs),
            None,
        )

    @staticmethod
    def jvp(ctx: Any, of_results: Tensor, of_inputs: Tensor, _: None) -> Tensor:
        _, separable = ctx.saved_tensors
        undefined = (of_inputs != 0).any(-1, keepdim=True)
        return torch.where(separable[..., None], of_results, torch.where(undefined, torch.nan, 0.0))
