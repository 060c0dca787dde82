"""What an attention module of transformers gives to its attention, by its own forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from attsvm.torch.softmax_seen import Met, Reached, SoftmaxSeen

NAME = "attsvm-monitor"
"""Of our attention function, among those of transformers."""

ADDED = "position_bias"
"""The option of that function whose numbers are added to the scaled logits (T5 and its kin)."""


class Handed(NamedTuple):
    """What meets in the attention, and what the layers asked for gave on the way (…, out)."""

    met: Met
    outputs: dict[nn.Module, Tensor]


def handed(module: nn.Module, inputs: dict[str, Any], layers: Iterable[nn.Module] = ()) -> Handed:
    """What the module hands to the attention function of transformers, or to a softmax of its own.

    The forward pass itself says in which order it projects, normalises, clips, scales and rotates: families
    differ, and what is read from their parts' names would be a guess.
    """
    config: Any = getattr(module, "config", None)
    chosen = getattr(config, "_attn_implementation_internal", None)
    library: Any = sys.modules.get("transformers.modeling_utils")
    missed: Exception | None = None
    for name in (NAME, chosen) if chosen is not None and library is not None else (chosen,):
        try:
            with _outputs(layers) as outputs, SoftmaxSeen(inputs, ends=name is chosen):
                if name is NAME:
                    library.AttentionInterface.register(NAME, _reached)
                    config._attn_implementation_internal = NAME  # its setter would change parts of a model
                module.forward(**inputs)
        except Reached as found:
            return Handed(_checked(module, found.args[0], inputs), outputs)
        except (AttributeError, KeyError, TypeError) as error:  # a cache, or states of another layer
            missed = error
        finally:
            if name is NAME:
                config._attn_implementation_internal = chosen
    why = (
        f"cannot be read from its inputs alone: {missed}" if missed else "has no softmax of products to read"
    )
    raise NotImplementedError(f"{type(module).__name__} {why}.") from missed


def _reached(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Any:
    raise Reached(Met(query, key, attention_mask, options))


@contextmanager
def _outputs(layers: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Inside, what each of the layers gives first: DeBERTa projects its positions by the same ones, later."""
    kept: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, _: Any, output: Tensor) -> None:
        kept.setdefault(layer, output.detach().clone())  # some are clipped in place (OLMo)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def _checked(module: nn.Module, found: Met, inputs: dict[str, Any]) -> Met:
    """Refuse numbers that the attention function would use in a way that is not known.

    Those that came with the inputs pass through all layers, whoever reads them.
    """
    for name, value in found.options.items():
        own = inputs.get(name) is not value or "bias" in name
        if isinstance(value, Tensor) and value.is_floating_point() and own and name != ADDED:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which the monitor cannot read.")
    return found
