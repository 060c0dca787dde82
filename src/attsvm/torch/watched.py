"""The attention modules of a model, with the inputs of their last forward pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm.query_key import FUSED, LATENT, PAIRS, named
from attsvm.torch.query_key import QueryKey
from attsvm.torch.readers import Inputs, Look, Reader, other_states, reader_of


class Call(NamedTuple):
    """What a module was given, and how many keys a cache held before it."""

    inputs: Inputs
    earlier: Any


class Watched:
    """Hooks that keep what every attention module was given; `looks` reads queries and keys from it anew.

    A module that one pass of the model calls several times (ALBERT's only layer) is read at each call,
    which are named `module#0`, `module#1`, …
    """

    def __init__(self, model: nn.Module, own: Mapping[type[nn.Module], QueryKey] | None = None) -> None:
        readers = {name: (module, _reader(module, own or {})) for name, module in _modules(model)}
        self._modules = {name: (module, read) for name, (module, read) in readers.items() if read}
        if not self._modules:
            raise ValueError(
                f"{type(model).__name__} has no attention module that can be read. Expected "
                "AttentionPooling, torch.nn.MultiheadAttention, or Hugging Face's layers with "
                f"{', '.join(map('/'.join, PAIRS))}, {', '.join(FUSED)} or {' and '.join(LATENT)}. "
                "Describe one of your own: "
                'MarginMonitor(model, {ItsClass: QueryKey("q", "k", heads=4)}).'
            )
        self.calls: dict[str, tuple[Call, ...]] = {}
        self._running = False  # whether the model itself runs, and not a part of it alone
        whole = next(module for _, module in _modules(model))
        self._hooks = [
            whole.register_forward_pre_hook(self._begin),
            *(
                module.register_forward_pre_hook(self._keep(name), with_kwargs=True)
                for name, (module, _) in self._modules.items()
            ),
            whole.register_forward_hook(self._end),
        ]
        if "torch._dynamo" in sys.modules:
            # Compiled code does not look for hooks again: what ran before must be compiled anew, with them.
            torch.compiler.reset()

    def modules(self) -> Iterator[tuple[nn.Module, Look]]:
        """Each module that was called, and what its heads saw then."""
        for name, look in self.looks():
            yield self._modules[name.partition("#")[0]][0], look

    def looks(self) -> Iterator[tuple[str, Look]]:
        """What the heads of every module saw, with the weights as they are now."""
        if not self.calls:
            raise RuntimeError("the model has not run since it is watched. Ask after a forward pass.")
        for name, calls in self.calls.items():
            module, read = self._modules[name]
            for number, (inputs, earlier) in enumerate(calls):
                if int(earlier) and other_states(inputs) is None:
                    raise ValueError(
                        f"the last forward pass went on from {int(earlier)} keys of a cache, which are not "
                        "kept. Record after a pass over whole sequences."
                    )
                told = name if len(calls) == 1 else f"{name}#{number}"
                yield told, read(module, _in_dtype_of(module, inputs))

    def close(self) -> None:
        """Remove the hooks and forget the kept inputs."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.calls = [], {}

    def _begin(self, *_: Any) -> None:
        self.calls, self._running = {}, True

    def _end(self, *_: Any) -> None:
        self._running = False

    def _keep(self, name: str) -> Callable[..., None]:
        names = list(inspect.signature(self._modules[name][0].forward).parameters)

        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # Not by Signature.bind, which torch.compile(fullgraph=True) cannot follow.
            inputs = {**dict(zip(names, args, strict=False)), **kwargs}
            memory: dict[int, Any] = {}  # the same tensor twice stays the same: self-attention is told by it
            kept = {key: _detached(value, memory) for key, value in inputs.items()}
            caches = [value for value in inputs.values() if hasattr(value, "get_seq_length")]
            layer = named(module, ("layer_idx", "layer_id")) or 0
            call = Call(kept, caches[0].get_seq_length(layer) if caches else 0)
            if self._running:
                self.calls[name] = (*self.calls.get(name, ()), call)
            elif (
                len(self.calls.get(name, ())) < 2
            ):  # else a checkpoint is computed again, in the backward pass
                self.calls[name] = (call,)

        return keep


# ---------------------------------------------------------------------- details


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its name in the model before torch.compile, whose wrappers are left out."""
    for name, module in model.named_modules():
        if "_orig_mod" not in module._modules:
            yield ".".join(part for part in name.split(".") if part != "_orig_mod") or "model", module


def _reader(module: nn.Module, own: Mapping[type[nn.Module], QueryKey]) -> Reader | None:
    """What was said of the module's class, or of one it comes from; else what is known."""
    for kind in type(module).__mro__:
        if kind in own:
            own[kind].check(module)
            return own[kind]
    return reader_of(module)


def _in_dtype_of(module: nn.Module, inputs: Inputs) -> Inputs:
    """Inputs in the type of the module's weights: under autocast a pass takes what a product refuses."""
    dtype = next((w.dtype for w in module.parameters() if w.is_floating_point()), None)
    memory: dict[int, Any] = {}

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(cast(part) for part in value)
        if dtype is None or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return memory.setdefault(id(value), value.to(dtype))

    return {key: cast(value) for key, value in inputs.items()}


def _detached(value: Any, memory: dict[int, Any]) -> Any:
    """Tensors without their graph, which would keep the whole last step in memory; no caches."""
    if isinstance(value, Tensor):
        return memory.setdefault(id(value), value.detach())
    if isinstance(value, tuple | list):
        return tuple(_detached(part, memory) for part in value)
    return value if isinstance(value, bool | int | float) else None
