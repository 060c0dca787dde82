"""What an attention module of transformers passes to its attention function, by its own forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from attsvm.torch.trace_softmax import AttentionInputs, SoftmaxReached, TraceSoftmax

NAME = "attsvm-monitor"
"""The name of our attention function among those of transformers."""

POSITION_BIAS = "position_bias"
"""The option of that function whose numbers are added to the scaled logits (T5 and its kin)."""


class TracedModule(NamedTuple):
    """What enters the softmax of a module, and the outputs (…, out) of some of its layers on the way."""

    attention: AttentionInputs
    outputs: dict[nn.Module, Tensor]


def hf_attention_inputs(
    module: nn.Module, inputs: dict[str, Any], layers: Iterable[nn.Module] = ()
) -> TracedModule:
    """What the module passes to the attention function of transformers, or to a softmax of its own.

    The forward pass is run, because it alone says in which order the module projects, normalises, clips,
    scales and rotates: families differ, and the names of their layers do not say it.
    """
    config: Any = getattr(module, "config", None)
    implementation = getattr(config, "_attn_implementation_internal", None)
    library: Any = sys.modules.get("transformers.modeling_utils")
    failure: Exception | None = None
    both = implementation is not None and library is not None
    for name in (NAME, implementation) if both else (implementation,):
        try:
            with _outputs(layers) as outputs, TraceSoftmax(inputs, ends=name is implementation):
                if name is NAME:
                    library.AttentionInterface.register(NAME, _raise_inputs)
                    config._attn_implementation_internal = NAME  # the setter would also change submodels
                module.forward(**inputs)
        except SoftmaxReached as reached:
            return TracedModule(_checked(module, reached.args[0], inputs), outputs)
        except (AttributeError, KeyError, TypeError) as error:  # needs a cache, or states of another layer
            failure = error
        finally:
            if name is NAME:
                config._attn_implementation_internal = implementation
    why = (
        f"cannot be read from its inputs alone: {failure}"
        if failure
        else "has no softmax of products to read"
    )
    raise NotImplementedError(f"{type(module).__name__} {why}.") from failure


def _raise_inputs(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Any:
    raise SoftmaxReached(AttentionInputs(query, key, attention_mask, options))


@contextmanager
def _outputs(layers: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Inside, the first output of each layer. DeBERTa calls the same layers again, for its positions."""
    outputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, _: Any, output: Tensor) -> None:
        outputs.setdefault(layer, output.detach().clone())  # a clone, because OLMo clips outputs in place

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _checked(module: nn.Module, attention: AttentionInputs, inputs: dict[str, Any]) -> AttentionInputs:
    """Refuse numbers that the attention function would use in an unknown way.

    Numbers that came with the inputs pass through all layers, whether a layer reads them or not.
    """
    for name, value in attention.options.items():
        from_module = inputs.get(name) is not value or "bias" in name
        numbers = isinstance(value, Tensor) and value.is_floating_point()
        if numbers and from_module and name != POSITION_BIAS:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which the monitor cannot read.")
    return attention
