"""What enters the softmax of a transformers module, by a forward pass of the module that ends there.

A module calls an attention function of transformers, torch's attention, or a softmax of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

NAME = "attsvm-monitor"
"""The name of our attention function among those of transformers."""

POSITION_BIAS = "position_bias"
"""The option of that function whose numbers are added to the scaled logits (T5 and its kin)."""

PRODUCTS = ("matmul", "__matmul__", "bmm")

FORBIDDEN = -9_999.0
"""A mask that adds less forbids the token: models write −10,000, −1e9, their dtype's minimum or −∞."""


@dataclass(frozen=True)
class Tolerances:
    """What counts as equal although half precision has rounded it.

    slope: derivatives, relative to the largest. length: of vectors, relative to the longest; rounding moves
    them by 0.01. entropy: means of a head in nats; bfloat16 moves them by 0.05.
    """

    slope: float = 1e-3
    length: float = 0.03
    entropy: float = 0.1


HALF_PRECISION = Tolerances()


class AttentionInputs(NamedTuple):
    """Queries (n, heads, T, width), keys (n, groups, S, width), the mask, and the options by name."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    options: dict[str, Any]


class TracedModule(NamedTuple):
    """What enters the softmax of a module, and the outputs (…, out) of some of its layers on the way."""

    attention: AttentionInputs
    outputs: dict[nn.Module, Tensor]


class SoftmaxReached(Exception):
    """Carries AttentionInputs; nothing after the softmax is computed."""


def hf_attention_inputs(
    module: nn.Module, inputs: dict[str, Any], layers: Iterable[nn.Module] = ()
) -> TracedModule:
    """What the module passes to the attention function of transformers, or to a softmax of its own.

    Only the forward pass says in which order the module projects, normalises, clips, scales and rotates:
    families differ, and the names of their layers do not say it.
    """
    config: Any = getattr(module, "config", None)
    implementation = getattr(config, "_attn_implementation_internal", None)
    library: Any = sys.modules.get("transformers.modeling_utils")
    failure: Exception | None = None
    both = implementation is not None and library is not None
    for name in (NAME, implementation) if both else (implementation,):
        try:
            with (
                _outputs(layers) as outputs,
                TraceSoftmax(len(inputs["hidden_states"]), ends=name is implementation),
            ):
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


def softmax_inputs(module: nn.Module, inputs: dict[str, Any], batch: int) -> AttentionInputs | None:
    """What enters a softmax of products of any module, or None where its forward pass does not show it."""
    try:
        with TraceSoftmax(batch):
            module.forward(**inputs)
    except SoftmaxReached as reached:
        attention: AttentionInputs = reached.args[0]
        return attention
    except Exception:  # a module of somebody's own may need what hooks do not keep, such as a cache
        return None
    return None


class TraceSoftmax(TorchFunctionMode):
    """Inside, the first softmax of products (or torch's attention) raises SoftmaxReached; no dropout.

        logits = scale · query · key + offsets

    scale is the derivative of what enters the softmax by the product, which must be one number wherever a
    token is not forbidden; the offsets (masks, biases, positions) become a mask to add.
    ends: False for a pass without dropout that runs to its end.
    """

    def __init__(self, batch: int, ends: bool = True) -> None:
        super().__init__()
        self.batch, self.ends = batch, ends
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name == "dropout":  # it would consume random numbers of the training
            return args[0]
        if not self.ends:
            return function(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            raise SoftmaxReached(self._of_torch_attention(*args, **kwargs))
        if name == "softmax" and (inputs := self._of_softmax(args[0])):
            raise SoftmaxReached(inputs)
        with torch.enable_grad():
            out = function(*args, **kwargs)
            if name not in PRODUCTS or out.ndim < 3:
                return out
            leaf = out.detach().requires_grad_()
            self.products.append((args[0].detach(), args[1].detach(), leaf))
            return leaf.clone()  # a clone, because the model may divide it in place

    def _of_torch_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> AttentionInputs:
        mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.ndim)]
        options = {"scaling": query.shape[-1] ** -0.5 if scale is None else scale, "is_causal": is_causal}
        return AttentionInputs(self._by_head(query.detach()), self._by_head(key.detach()), mask, options)

    def _of_softmax(self, logits: Tensor) -> AttentionInputs | None:
        """The first product that enters these logits with one factor everywhere, or None."""
        for query, key, product in self.products:
            if product.shape[-2:] != logits.shape[-2:] or product.numel() != logits.numel():
                continue
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(logits.sum(), product, retain_graph=True, allow_unused=True)
            slopes = torch.zeros(1) if slope is None else slope.reshape(logits.shape)[logits > FORBIDDEN]
            scale = float(slopes[0]) if len(slopes) else 0.0
            if scale and bool(((slopes - scale).abs() <= HALF_PRECISION.slope * abs(scale)).all()):
                offsets = self._by_head(logits.detach()) - scale * self._by_head(product.detach())
                options = {"scaling": scale, "is_causal": False}
                return AttentionInputs(self._by_head(query), self._by_head(key.mT), offsets, options)
        return None

    def _by_head(self, x: Tensor) -> Tensor:
        """(n · heads, …) or (n, heads, …) → (n, heads, …)."""
        return x.reshape(self.batch, -1, *x.shape[-2:])


# ---------------------------------------------------------------------- details


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

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(keep))
        yield outputs


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
