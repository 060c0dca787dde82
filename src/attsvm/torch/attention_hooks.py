"""Hooks on the attention modules of a model, which keep the inputs of the last forward pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm._support.architectures import FUSED, LATENT, PAIRS, first_attribute, matrix_of
from attsvm.torch.readers import (
    AttentionReading,
    Inputs,
    ModuleReader,
    QueryKey,
    key_states,
    reader_of,
)

NO_ATTENTION = (
    "has no attention module that can be read. Expected AttentionPooling, torch.nn.MultiheadAttention, or "
    f"Hugging Face's layers with {', '.join(map('/'.join, PAIRS))}, {', '.join(FUSED)} or "
    f"{' and '.join(LATENT)}. Describe one of your own: "
    'MarginMonitor(model, {ItsClass: QueryKey("q", "k", heads=4)}).'
)
"""What is wrong with a model of which no module is known."""


class ModuleCall(NamedTuple):
    """The inputs of one call of a module, and how many keys a cache held before the call."""

    inputs: Inputs
    cached_keys: Any


class AttentionHooks:
    """Hooks that keep the inputs of every attention module; `readings` computes queries and keys from them.

    A module that one pass of the model calls several times (ALBERT's only layer) is read at each call,
    and its calls are named `module#0`, `module#1`, …
    """

    def __init__(self, model: nn.Module, readers: Mapping[type[nn.Module], QueryKey] | None = None) -> None:
        named = list(_modules(model))
        pairs = {name: (module, _reader(module, readers or {})) for name, module in named}
        self._modules = {name: (module, read) for name, (module, read) in pairs.items() if read}
        if not self._modules:
            raise ValueError(f"{type(model).__name__} {NO_ATTENTION}")
        self.calls: dict[str, tuple[ModuleCall, ...]] = {}
        self._compared: set[str] = set()  # modules whose QueryKey is known to be right
        self._model_runs = False  # False while a submodule runs by itself
        _, inner = named[0]
        self._hooks = [
            inner.register_forward_pre_hook(self._begin),
            *(
                module.register_forward_pre_hook(self._keep(name), with_kwargs=True)
                for name, (module, _) in self._modules.items()
            ),
            inner.register_forward_hook(self._end),
        ]
        if "torch._dynamo" in sys.modules:
            # Compiled code does not look for new hooks: drop it, so that the next pass compiles them in.
            torch.compiler.reset()

    @property
    def count(self) -> int:
        """How many modules have hooks."""
        return len(self._modules)

    def module_readings(self) -> Iterator[tuple[nn.Module, AttentionReading]]:
        """Each module that was called, and what its heads computed then."""
        for name, reading in self.readings():
            yield self._modules[name.partition("#")[0]][0], reading

    def readings(self) -> Iterator[tuple[str, AttentionReading]]:
        """What the heads of every module compute from the kept inputs, with the weights as they are now."""
        if not self.calls:
            raise RuntimeError("the model has not run since it is watched. Ask after a forward pass.")
        for name, calls in self.calls.items():
            module, read = self._modules[name]
            for number, (inputs, cached_keys) in enumerate(calls):
                if int(cached_keys) and key_states(inputs) is None:
                    raise ValueError(
                        f"the last forward pass went on from {int(cached_keys)} keys of a cache, which are "
                        "not kept. Record after a pass over whole sequences."
                    )
                call_name = name if len(calls) == 1 else f"{name}#{number}"
                inputs = _in_dtype_of(module, inputs)
                reading = read(module, inputs)
                if isinstance(read, QueryKey) and name not in self._compared:
                    read.compare(module, inputs, reading)
                    self._compared.add(name)
                yield call_name, reading

    def close(self) -> None:
        """Remove the hooks and forget the kept inputs."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.calls = [], {}

    def _begin(self, *_: Any) -> None:
        self.calls, self._model_runs = {}, True

    def _end(self, *_: Any) -> None:
        self._model_runs = False

    def _keep(self, name: str) -> Callable[..., None]:
        parameters = list(inspect.signature(self._modules[name][0].forward).parameters)

        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # Not by Signature.bind, which torch.compile(fullgraph=True) cannot follow.
            inputs = {**dict(zip(parameters, args, strict=False)), **kwargs}
            copies: dict[int, Any] = {}  # one copy per tensor: self-attention has one tensor as query and key
            detached = {key: _detached(value, copies) for key, value in inputs.items()}
            caches = [value for value in inputs.values() if hasattr(value, "get_seq_length")]
            layer = first_attribute(module, ("layer_idx", "layer_id")) or 0
            call = ModuleCall(detached, caches[0].get_seq_length(layer) if caches else 0)
            calls = self.calls.get(name, ())
            if self._model_runs:
                self.calls[name] = (*calls, call)
            elif len(calls) < 2:  # else a checkpoint recomputes the call in the backward pass
                self.calls[name] = (call,)

        return keep


# ---------------------------------------------------------------------- details


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its name before torch.compile, whose wrappers are left out."""
    for name, module in model.named_modules():
        if "_orig_mod" not in module._modules:
            yield ".".join(step for step in name.split(".") if step != "_orig_mod") or "model", module


def attention_modules(
    model: nn.Module, readers: Mapping[type[nn.Module], QueryKey]
) -> Iterator[tuple[str, nn.Module]]:
    """The attention modules of a model by name, those with a fused layer of unknown order included."""
    for name, module in _modules(model):
        unknown = matrix_of(first_attribute(module, FUSED)) is not None
        if _reader(module, readers) is not None or unknown:
            yield name, module


def _reader(module: nn.Module, readers: Mapping[type[nn.Module], QueryKey]) -> ModuleReader | None:
    """The caller's reader of the module's class, or of one that it derives from; else ours."""
    for ancestor in type(module).__mro__:
        if ancestor in readers:
            readers[ancestor].check(module)
            return readers[ancestor]
    return reader_of(module)


def _in_dtype_of(module: nn.Module, inputs: Inputs) -> Inputs:
    """Inputs in the type of the module's weights: autocast converts other types, but our products do not."""
    dtype = next((w.dtype for w in module.parameters() if w.is_floating_point()), None)
    copies: dict[int, Any] = {}

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(cast(entry) for entry in value)
        if dtype is None or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return copies.setdefault(id(value), value.to(dtype))

    return {key: cast(value) for key, value in inputs.items()}


def _detached(value: Any, copies: dict[int, Any]) -> Any:
    """Tensors detached from their graph, which would keep the last step in memory; caches become None."""
    if isinstance(value, Tensor):
        return copies.setdefault(id(value), value.detach())
    if isinstance(value, tuple | list):
        return tuple(_detached(entry, copies) for entry in value)
    return value if isinstance(value, bool | int | float) else None
