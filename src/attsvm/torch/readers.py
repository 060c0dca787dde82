"""Queries and keys of an attention module, recomputed from its inputs and its weights as they are now.

Three families are read: our AttentionPooling, torch.nn.MultiheadAttention, and Hugging Face's layers with
projections of queries and keys whose names `_support/architectures.py` lists. QueryKey describes a module of
the caller's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm._support.architectures import (
    LayerSlice,
    QueryKeySlices,
    first_attribute,
    matrix_of,
    query_key_layers,
    width_of,
)
from attsvm.torch.hf_attention_inputs import (
    FORBIDDEN,
    HALF_PRECISION,
    POSITION_BIAS,
    hf_attention_inputs,
    softmax_inputs,
)
from attsvm.torch.pooling import AttentionPooling
from attsvm.torch.statistics import Logits, statistics_of

QUERY_NORMS, KEY_NORMS = ("q_norm", "q_layernorm"), ("k_norm", "k_layernorm")
"""Attributes of attention modules that hold them: Qwen3, OLMo2, Gemma3; Persimmon."""


class AttentionReading(NamedTuple):
    """What the attention heads of one module compute: logits, in blocks, and the norms of their weights."""

    logits: Logits
    norms: Tensor  # (heads,) ‖W_QK‖_F of the logits x_tᵀ W_QK z
    self_attention: bool  # query i is token i: the mask of keys also says which queries count
    shrink: Callable[[Tensor], None]  # scales the logits of head h by factors[h] in the weights

    def query_counts(self) -> Tensor | bool:
        """Which queries count (…, t): not those of padding tokens, which may not attend to themselves."""
        allowed = self.logits.allowed
        if allowed is None or not self.self_attention:
            return True
        return allowed.expand(self.logits.shape).diagonal(dim1=-2, dim2=-1)


Inputs = dict[str, Any]
ModuleReader = Callable[[Any, Inputs], AttentionReading]


@dataclass(frozen=True)
class QueryKey:
    """Self-attention without rotary positions, by the names of its layers.

        logits = scale · (W_Q z)ᵀ (W_K x_t)

    query, key: the layers within the module that project the first argument of its forward pass; the same
        name twice where one layer projects queries, keys (and values) side by side, in this order.
    heads: of the queries; groups: of the keys, where several heads share one.
    width: of a head; by default the query layer's outputs over the heads, of a layer for both its inputs.
    scale: 1/√width by default. causal: whether query i attends to the tokens 0 … i only.
    mask: the argument of the forward pass that says which tokens count: booleans (n, T), or numbers to add or
        booleans (n, 1 or heads, T, T).

    The first reading of a module is compared with its forward pass, run up to a softmax that torch shows.
    """

    query: str
    key: str
    heads: int
    width: int | None = None
    groups: int | None = None
    scale: float | None = None
    causal: bool = False
    mask: str | None = None

    def __call__(self, module: nn.Module, inputs: Inputs) -> AttentionReading:
        """What the module's heads compute."""
        states = self._states(module, inputs)
        query, key = self.layers(module)
        groups = self.groups or self.heads
        q = split_heads(query.of(query.layer(states)), self.heads)
        k = split_heads(key.of(key.layer(states)), groups)
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        logits = masked_logits(q, k, scale, inputs.get(self.mask or ""), self.causal)
        norms = abs(scale) * product_norms(query.weight, key.weight, self.heads, groups)
        return AttentionReading(logits, norms, True, partial(shrink_rows, query.tensors, key.tensors, groups))

    def check(self, module: nn.Module) -> None:
        """Refuse names and sizes that the module does not have."""
        self.layers(module)

    def compare(self, module: nn.Module, inputs: Inputs, reading: AttentionReading) -> None:
        """Refuse a reading that is not the module's own attention, where its forward pass shows that."""
        own = softmax_inputs(module, inputs, len(self._states(module, inputs)))
        if own is None:
            return
        causal = bool(own.options["is_causal"])
        try:
            logits = masked_logits(own.query, own.key, float(own.options["scaling"]), own.mask, causal)
        except ValueError:  # keys of a cache, or blocks of tokens
            return
        sizes = [(x.shape[0], *x.shape[2:]) for x in (logits, reading.logits)]
        if sizes[0] != sizes[1]:
            return
        name = type(module).__name__
        if logits.shape[1] != self.heads:
            raise ValueError(f"{name} attends with {logits.shape[1]} heads, its QueryKey has {self.heads}.")
        counts = torch.as_tensor(reading.query_counts(), device=logits.query.device)
        of_module, described = (
            torch.where(counts, statistics_of(x).entropy, 0).mean((0, 2)) for x in (logits, reading.logits)
        )
        difference = (of_module - described).abs()
        if bool((difference > HALF_PRECISION.entropy).any()):
            head = int(difference.argmax())
            entropies = f"{float(of_module[head]):.3g}, by its QueryKey {float(described[head]):.3g}"
            raise ValueError(
                f"head {head} of {name} has a mean entropy of {entropies}. Describe its logits: causal=True "
                "where query i sees the tokens 0 … i only, mask= and scale= of its forward pass. Rotary "
                "positions are not read."
            )

    def layers(self, module: nn.Module) -> QueryKeySlices:
        """The layers of queries and keys."""
        rows, columns = self._matrix(module, self.query).shape
        key_rows = len(self._matrix(module, self.key))
        fused = self.query == self.key
        groups = self.groups or self.heads
        width = self.width or (columns if fused else rows) // self.heads
        queries, keys = self.heads * width, groups * width
        start = queries if fused else 0
        values = rows - queries - keys
        divides = self.width is not None or not (columns if fused else rows) % self.heads
        fits = (
            divides and values >= 0 and not values % groups if fused else (queries, keys) == (rows, key_rows)
        )
        if not fits or self.heads % groups or not width:
            raise ValueError(
                f"{self.heads} heads and {groups} of the keys, {width} wide, do not fit "
                f"{type(module).__name__}, whose {self.query} has {rows} outputs and {self.key} {key_rows}. "
                "Pass other heads, groups or width."
            )
        query, key = (module.get_submodule(name) for name in (self.query, self.key))
        return LayerSlice(query, 0, queries), LayerSlice(key, start, start + keys)

    @staticmethod
    def _states(module: nn.Module, inputs: Inputs) -> Tensor:
        """The first argument of the forward pass."""
        states: Tensor = inputs[next(iter(inspect.signature(module.forward).parameters))]
        return states

    def _matrix(self, module: nn.Module, name: str) -> Tensor:
        layers: dict[str, Any] = dict(module.named_modules())
        matrices = {path: matrix_of(layer) for path, layer in layers.items()}
        matrices = {path: matrix for path, matrix in matrices.items() if matrix is not None}
        if name not in matrices:
            problem = f"{type(module).__name__} has no layer {name!r} with a matrix"
            raise ValueError(f"{problem}. It has {', '.join(matrices) or 'none'}.")
        return matrices[name]


def reader_of(module: nn.Module) -> ModuleReader | None:
    """How to read the module's logits, or None where it is no attention of the three families."""
    if isinstance(module, AttentionPooling):
        return read_pooling
    if isinstance(module, nn.MultiheadAttention):
        return read_multihead
    if (
        query_key_layers(module)
        and width_of(module)
        and "hidden_states" in inspect.signature(module.forward).parameters
    ):
        return read_projected
    return None


def read_pooling(module: AttentionPooling, inputs: Inputs) -> AttentionReading:
    tokens, mask = inputs["tokens"], inputs.get("mask")
    key = module.logits(tokens, inputs.get("queries"))[..., None]  # the one query is 1
    key_mask = None if mask is None else mask[:, None, None]
    logits = Logits(torch.ones_like(key[:, :, :1]), key, key_mask, 1.0)
    norms = torch.stack([torch.linalg.matrix_norm(W) for W in module.weights])
    return AttentionReading(logits, norms, False, partial(shrink_each, list(module.weights)))


def read_multihead(module: nn.MultiheadAttention, inputs: Inputs) -> AttentionReading:
    if module.bias_k is not None or module.add_zero_attn:
        raise NotImplementedError("MultiheadAttention with bias_kv or add_zero_attn cannot be monitored.")
    query, key = inputs["query"], inputs["key"]
    self_attention = query is key
    query, key = ((x if x.ndim == 3 else x[None]) for x in (query, key))
    if not module.batch_first and inputs["query"].ndim == 3:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    Q, K, *_ = (
        module.in_proj_weight.chunk(3)
        if module.in_proj_weight is not None
        else (module.q_proj_weight, module.k_proj_weight)
    )
    biases = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
    q, k = (nn.functional.linear(x, w, b) for x, w, b in zip((query, key), (Q, K), biases, strict=True))
    heads, scale = module.num_heads, module.head_dim**-0.5
    mask = _multihead_mask(inputs.get("key_padding_mask"), inputs.get("attn_mask"), heads)
    logits = Logits(split_heads(q, heads), split_heads(k, heads), mask, scale)
    shrink = partial(
        shrink_rows,
        [x[None] for x in (Q, biases[0]) if x is not None],
        [x[None] for x in (K, biases[1]) if x is not None],
        heads,
    )
    return AttentionReading(logits, scale * product_norms(Q, K, heads, heads), self_attention, shrink)


def read_projected(module: nn.Module, inputs: Inputs) -> AttentionReading:
    """Hugging Face's layers: queries and keys as they enter the module's own attention."""
    pairs = query_key_layers(module)
    layers = {side.layer for pair in pairs for side in pair}
    (q, k, mask, options), outputs = hf_attention_inputs(module, inputs, layers)
    scale = options.get("scaling")
    scale = scale_of(module, q.shape[-1]) if scale is None else float(scale)
    causal = options.get("is_causal")  # CLIP passes it as an option and has no such attribute
    causal = getattr(module, "is_causal", False) if causal is None else causal
    logits = masked_logits(q, k, scale, mask, bool(causal), options.get(POSITION_BIAS))
    cap, window = (
        options.get(option, getattr(module, name, None))
        for option, name in (("softcap", "attn_logit_softcapping"), ("sliding_window", "sliding_window"))
    )
    logits = replace(logits, soft_cap=cap, window=window if logits.causal else None)
    cross_states, slices = key_states(inputs), projected_slices(pairs, q, k)
    hidden = inputs["hidden_states"]
    sources = [(query, hidden) for query, _ in pairs]
    sources += [(key, hidden if cross_states is None else cross_states) for _, key in pairs]
    for side, states in sources:
        if side.layer not in outputs:  # the module used the layer's weights without calling it
            outputs[side.layer] = side.layer(states)
    self_attention = cross_states is None and q.shape[2] == k.shape[2]
    normalised = QueryKeyNorms.of(module, q.shape[1], slices[0].heads[1], q.shape[-1])
    if normalised is not None:
        return AttentionReading(logits, abs(scale) * normalised.sizes, self_attention, normalised.shrink)
    stretches = torch.stack([projected.stretch(outputs) for projected in slices])
    norms = torch.stack([projected.norms for projected in slices]) * stretches.nan_to_num(1.0)[:, None]
    shrink = partial(_shrink, module, stretches, slices)
    norms = abs(scale) * torch.linalg.vector_norm(norms, dim=0)
    return AttentionReading(logits, norms, self_attention, shrink)


def masked_logits(q: Tensor, k: Tensor, scale: float, mask: Any, causal: bool, offsets: Any = None) -> Logits:
    """Logits under one of Hugging Face's masks: booleans (True counts) or numbers to add.

    A mask (n, 1 or heads, T, T) includes causality; one of tokens (n, T), or none, does not.
    offsets: more numbers (n or 1, heads, T, T) to add to the logits.
    """
    if mask is not None and mask.shape[-1] != k.shape[2]:
        raise ValueError(
            f"the last forward pass had {mask.shape[-1]} keys but {k.shape[2]} tokens (cached keys). "
            "Record after a pass over whole sequences."
        )
    causal = causal and (mask is None or mask.ndim != 4)
    if mask is not None and mask.ndim != 4:
        mask = mask.bool()[:, None, None]
    return Logits(q, k, _combined_mask([mask, offsets]), scale, causal)


def key_states(inputs: Inputs) -> Tensor | None:
    """The states that the keys come from in cross attention; None in self-attention."""
    for name in ("encoder_hidden_states", "key_value_states"):
        if inputs.get(name) is not None:
            return inputs[name]
    return None


# ---------------------------------------------------------------------- details


def _multihead_mask(padding: Tensor | None, mask: Tensor | None, heads: int) -> Tensor | None:
    """torch's masks as one of ours. Their True means ignore; numbers are added to the logits."""
    if padding is not None:
        padding = padding[:, None, None] if padding.ndim == 2 else padding[None, None, None]
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    return _combined_mask(~m if m is not None and m.dtype == torch.bool else m for m in (padding, mask))


def _combined_mask(masks: Iterable[Tensor | None]) -> Tensor | None:
    """At most two masks as one: booleans where all are, True for what counts, else numbers to add."""
    present = [m for m in masks if m is not None]
    present = [m if m.dtype == torch.bool else m.masked_fill(m <= FORBIDDEN, -torch.inf) for m in present]
    if len(present) < 2:
        return present[0] if present else None
    if all(m.dtype == torch.bool for m in present):
        return present[0] & present[1]
    a, b = (torch.where(m, 0.0, -torch.inf) if m.dtype == torch.bool else m for m in present)
    return a + b


def _shrink(module: nn.Module, stretches: Tensor, slices: Sequence[ProjectedSlices], factors: Tensor) -> None:
    if bool(stretches.isnan().any()):
        raise NotImplementedError(
            f"{type(module).__name__} normalises or limits queries and keys without gains that could "
            "shrink, so that its logits are not proportional to any weights. Leave its logits as they are."
        )
    for projected in slices:
        projected.shrink(factors)


# ---------------------------------------------------------------------- projections and their norms


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(n, T, heads · width) → (n, heads, T, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def scale_of(module: nn.Module, width: int) -> float:
    """The factor of a Hugging Face module's logits; older versions of GPT-2 have two switches for it."""
    if hasattr(module, "scaling"):
        return float(module.scaling)
    scale = width**-0.5 if getattr(module, "scale_attn_weights", True) else 1.0
    layer = int(getattr(module, "layer_idx", 0) or 0)
    return scale / (layer + 1) if getattr(module, "scale_attn_by_inverse_layer_idx", False) else scale


def product_norms(Q: Tensor, K: Tensor, heads: int, groups: int) -> Tensor:
    """‖K_hᵀ Q_h‖_F = √⟨K_h K_hᵀ, Q_h Q_hᵀ⟩ of every head, without the large product."""
    Q, K = Q.unflatten(0, (heads, -1)).double(), K.unflatten(0, (groups, -1)).double()
    K = K.repeat_interleave(heads // groups, 0)
    return ((Q @ Q.mT) * (K @ K.mT)).sum((-2, -1)).clamp_min(0).sqrt()


def shrink_each(weights: list[Tensor], factors: Tensor) -> None:
    """W_h ← factor_h W_h."""
    for W, factor in zip(weights, factors, strict=True):
        W.mul_(factor.to(W.dtype))


def shrink_rows(queries: list[Tensor], keys: list[Tensor], groups: int, factors: Tensor) -> None:
    """Multiply the logits of head h by factor_h: √factor_h in the queries and √factor_h in the keys.

    queries, keys: views (blocks, rows, …) with the rows of all heads. Keys that heads share cannot shrink for
    one head alone: there factor_h goes to the queries. Rotary positions do not change this, because they keep
    lengths.
    """
    shared = len(factors) != groups
    for tensors, power in ((queries, 1.0 if shared else 0.5), (keys, 0.0 if shared else 0.5)):
        for x in tensors if power else []:
            heads = x.unflatten(1, (len(factors) // len(x), -1))
            size = (factors**power).to(x.dtype).reshape(*heads.shape[:2], *(1 for _ in heads.shape[2:]))
            heads.mul_(size)


@dataclass(frozen=True)
class ProjectedSlices:
    """Some coordinates of all queries (n, heads, T, w) and keys (n, …, S, w), and their layers."""

    query_layer: LayerSlice
    key_layer: LayerSlice
    query: Tensor
    key: Tensor

    @property
    def heads(self) -> tuple[int, int]:
        """How many heads the queries have, and the keys: several heads may share one key."""
        return self.query.shape[1], len(self.key_layer.weight) // self.key.shape[-1]

    @property
    def norms(self) -> Tensor:
        """‖K_hᵀ Q_h‖_F of every head."""
        return product_norms(self.query_layer.weight, self.key_layer.weight, *self.heads)

    def shrink(self, factors: Tensor) -> None:
        """Multiply the products of head h by factor_h."""
        shrink_rows(self.query_layer.tensors, self.key_layer.tensors, self.heads[1], factors)

    def stretch(self, outputs: Mapping[nn.Module, Tensor]) -> Tensor:
        """How much longer queries and keys are than the layers' outputs, as one factor; NaN where it varies.

        Rotary positions rotate vectors and keep their lengths. Norms stretch each vector by its own factor.
        """
        product = self.query.new_ones((), dtype=torch.double)
        sides = zip((self.query_layer, self.key_layer), (self.query, self.key), self.heads, strict=True)
        for layer, x, heads in sides:
            output = outputs[layer.layer]
            p = split_heads(layer.of(output.reshape(len(x), -1, output.shape[-1])), heads)
            if p.ndim != x.ndim or p.shape[::2] != x.shape[::2] or x.shape[1] % heads:
                return product * torch.nan
            p = p.repeat_interleave(x.shape[1] // heads, 1)
            length, projected = (torch.linalg.vector_norm(y.detach().double(), dim=-1) for y in (x, p))
            square = (projected * projected).sum()
            factor = torch.where(square > 0, (length * projected).sum() / square, 1.0)
            constant = (length - factor * projected).abs().max() <= HALF_PRECISION.length * length.max()
            product = product * torch.where(constant, factor, torch.nan)
        return product


def projected_slices(pairs: Sequence[QueryKeySlices], query: Tensor, key: Tensor) -> list[ProjectedSlices]:
    """Queries and keys as they enter the softmax, split into the coordinates of each pair of layers."""
    widths = [len(query_layer.weight) // query.shape[1] for query_layer, _ in pairs]
    if sum(widths) != query.shape[-1] or query.shape[-1] != key.shape[-1]:
        raise NotImplementedError(
            f"{query.shape[1]} heads meet {query.shape[-1]} wide, but {sum(widths)} wide are projected: "
            "what else the layers give is not known."
        )
    coordinates = zip(pairs, query.split(widths, -1), key.split(widths, -1), strict=True)
    return [ProjectedSlices(*pair, q, k) for pair, q, k in coordinates]


# ---------------------------------------------------------------------- norms of queries and keys (QK-norm)


@dataclass(frozen=True)
class QueryKeyNorms:
    """The two norms of an attention module, whose heads share `groups` keys and are `width` wide.

        logit = scale · (γ_q ∘ q √w/‖q‖)ᵀ (γ_k ∘ k √w/‖k‖)

    W_Q and W_K may have any length. So a head is measured by its gains, and its logits shrink with them.

    A gain has an entry per coordinate of a head, shared by all heads, or one per coordinate of all heads.
    """

    query: nn.Module
    key: nn.Module
    heads: int
    groups: int
    width: int

    @classmethod
    def of(cls, module: nn.Module, heads: int, groups: int, width: int) -> QueryKeyNorms | None:
        """Those of a module; None where it has no norms with gains of these sizes."""
        query, key = first_attribute(module, QUERY_NORMS), first_attribute(module, KEY_NORMS)
        norms = cls(query, key, heads, groups, width)
        for norm, count in ((query, heads), (key, groups)):
            gains: Any = getattr(norm, "weight", None)
            if not isinstance(gains, Tensor) or gains.numel() not in (width, count * width):
                return None
        return norms

    @property
    def sizes(self) -> Tensor:
        """‖γ_q ∘ γ_k‖ times the lengths of normalised vectors, of every head (heads,)."""
        query, key = (
            self._by_head(norm, count) for norm, count in ((self.query, self.heads), (self.key, self.groups))
        )
        lengths = [_weight(norm).numel() ** 0.5 for norm in (self.query, self.key)]
        return torch.linalg.vector_norm(query * key, dim=1) * lengths[0] * lengths[1]

    def shrink(self, factors: Tensor) -> None:
        """Multiply the logits of head h by factor_h; where heads share gains, all by the least."""
        query_shared, key_shared = (
            _weight(norm).numel() == self.width and count > 1
            for norm, count in ((self.query, self.heads), (self.key, self.groups))
        )
        if query_shared:
            factors = factors.amin().expand(self.heads)
        both = query_shared or (self.groups == self.heads and not key_shared)
        powers = (0.5, 0.5) if both else (1.0, 0.0)  # what heads share cannot shrink for one of them
        _scale(self.query, factors ** powers[0])
        _scale(self.key, factors[:: self.heads // self.groups] ** powers[1])

    def _by_head(self, norm: nn.Module, count: int) -> Tensor:
        gains = (_weight(norm).detach().double() + _offset(norm)).reshape(-1, self.width)
        return gains.expand(count, -1).repeat_interleave(self.heads // count, 0)


def _weight(norm: nn.Module) -> Tensor:
    weight: Any = norm.weight
    return weight


def _offset(norm: nn.Module) -> float:
    """What a norm adds to its weight before it multiplies: 1 in Gemma's, 0 in all others that we know."""
    if isinstance(norm, nn.LayerNorm):
        return 0.0
    weight = _weight(norm)
    with torch.no_grad():
        outputs = norm(torch.ones_like(weight)).double() - weight.double()
    return float(outputs.mean().round())


def _scale(norm: nn.Module, factors: Tensor) -> None:
    """Multiply the outputs by one factor, or by one of each head."""
    offset, parameters = _offset(norm), [_weight(norm), getattr(norm, "bias", None)]
    for parameter, added in zip(parameters, (offset, 0.0), strict=True):
        if parameter is not None:
            shared = parameter.numel() // len(factors) * len(factors) != parameter.numel() or bool(
                (factors == factors[0]).all()
            )
            wide = factors[:1] if shared else factors.repeat_interleave(parameter.numel() // len(factors))
            parameter.copy_(
                ((parameter.double() + added) * wide.to(parameter.device) - added).to(parameter.dtype)
            )
