"""What an attention module of transformers hands to its attention function, by its own forward pass."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from torch import Tensor, nn

NAME = "attsvm-monitor"
"""Of our attention function, among those of transformers."""


class Handed(NamedTuple):
    """Queries (n, heads, T, width), keys (n, groups, T, width), the mask, and the options by name."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    options: dict[str, Any]


class _Reached(Exception):
    """Carries what was handed over; nothing behind it is computed."""


def handed(module: nn.Module, inputs: dict[str, Any]) -> Handed | None:
    """What the module hands over for these inputs, or None where it has an attention of its own.

    The forward pass itself says in which order it projects, normalises, clips, scales and rotates: families
    differ, and what is read from their parts' names would be a guess.
    """
    config: Any = getattr(module, "config", None)
    before = getattr(config, "_attn_implementation_internal", None)
    library: Any = sys.modules.get("transformers.modeling_utils")
    if before is None or library is None:
        return None
    library.AttentionInterface.register(NAME, _reached)
    config._attn_implementation_internal = NAME  # not by its setter, which would change parts of a model
    try:
        module.forward(**inputs)
    except _Reached as found:
        return _checked(module, found.args[0], inputs)
    except (AttributeError, KeyError, TypeError) as missed:  # a cache, or states of another layer
        told = f"{type(module).__name__} cannot be read from its inputs alone: {missed}"
        raise NotImplementedError(told) from missed
    finally:
        config._attn_implementation_internal = before
    return None


def _reached(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Any:
    raise _Reached(Handed(query, key, attention_mask, options))


def _checked(module: nn.Module, found: Handed, inputs: dict[str, Any]) -> Handed:
    """Refuse numbers that the attention function would add to the logits, or beside them.

    Those that came with the inputs pass through all layers, whoever reads them.
    """
    for name, value in found.options.items():
        own = inputs.get(name) is not value or "bias" in name
        if isinstance(value, Tensor) and value.is_floating_point() and own:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which the monitor cannot read.")
    return found
