"""A model's queries, keys and values head by head, for optimizers that take a matrix as one: `split`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm._support.architectures import (
    FUSED,
    VALUES,
    LayerSlice,
    first_attribute,
    matrix_of,
    query_key_layers,
    width_of,
)
from attsvm.norms.layouts import HeadLayout
from attsvm.torch.attention_hooks import NO_ATTENTION, attention_modules
from attsvm.torch.readers import QueryKey, QueryKeyNorms


class Block(NamedTuple):
    """Outputs start … stop − 1 of a projection: queries "Q" or keys "K" of a head, or other outputs "V"."""

    kind: str
    head: int
    start: int
    stop: int


class HeadBlock(nn.Parameter):
    """One block of a matrix of the model as a parameter (width, in) of its own.

    It shares the matrix's memory, so that a step on it is a step of the model. Its gradient is that part of
    the matrix's gradient, and is None where that is; setting one to None sets the other.
    """

    def __new__(cls, matrix: Tensor, axis: int, block: Block) -> HeadBlock:
        rows = _outputs(matrix.detach(), axis, block)
        self: HeadBlock = torch.Tensor._make_subclass(cls, rows, True)
        self.matrix, self.axis, self.block = matrix, axis, block
        return self

    @property
    def grad(self) -> Tensor | None:
        if _outputs(self.matrix.detach(), self.axis, self.block).data_ptr() != self.data_ptr():
            raise RuntimeError(
                "the model's weights have moved since they were split, as .to() and .half() do. Call "
                "split(model) once they are in their place."
            )
        grad = self.matrix.grad
        return None if grad is None else _outputs(grad, self.axis, self.block)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            self.matrix.grad = None
            return
        if self.matrix.grad is None:
            self.matrix.grad = torch.zeros_like(self.matrix)
        _outputs(self.matrix.grad, self.axis, self.block).copy_(value)


@dataclass(frozen=True, eq=False)
class SplitMatrix:
    """A matrix of the model, and the blocks that its heads take of it.

    name, weight: the parameter. axis: 0 where outputs are rows (nn.Linear), 1 where they are columns (the
    Conv1D of transformers).
    """

    name: str
    weight: nn.Parameter
    axis: int
    blocks: tuple[Block, ...]

    @property
    def count(self) -> int:
        """The largest number of equal parts that cut no block."""
        out, starts = self.blocks[-1].stop, {block.start for block in self.blocks}
        counts = range(len(self.blocks), 1, -1)
        return next((c for c in counts if not out % c and {*range(0, out, out // c)} <= starts), 1)


@dataclass(frozen=True)
class AttentionLayout:
    """How the heads of one attention module lie in its matrices, and what the theory says of that.

    whole, apart: the matrices of a step on the model as it is, and on its blocks; None where W_QK is no
        product of two factors. `HeadsNorm` of attsvm_lab.programs has their norm. filled: outputs over inputs
        of a matrix with several blocks, the largest. note: what else the theory needs to know.
    """

    module: str
    heads: int
    groups: int
    whole: HeadLayout | None
    apart: HeadLayout | None
    filled: float
    note: str = ""

    def __str__(self) -> str:
        of_keys = "" if self.groups == self.heads else f", {self.groups} of the keys"
        fill = f"heads · width / d is {self.filled:.3g}: " + (
            "a head with a small gradient starves in a step on the whole"
            if self.filled > 1
            else "an exact step on the whole starves no head, Newton–Schulz one below 2e-3"
        )
        layout = "no layout of two factors" if self.whole is None else f"{self.whole} → {self.apart}"
        return "; ".join(filter(None, (f"{self.heads} heads{of_keys}: {layout}", fill, self.note)))


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """A model split by head: made by `split`.

    matrices: those that queries, keys and values take, in blocks. others: all other trained parameters.
    layouts: of every attention module. refused: what could not be split, by name, with the reason; it is
    among the others.
    """

    matrices: tuple[SplitMatrix, ...]
    others: list[nn.Parameter]
    layouts: tuple[AttentionLayout, ...]
    refused: dict[str, str]

    @cached_property
    def blocks(self) -> list[nn.Parameter]:
        """Every block of every matrix as a parameter (width, in), for any optimizer of one process or DDP."""
        blocks: list[nn.Parameter] = []
        for m in self.matrices:
            if hasattr(m.weight, "placements") or m.weight.ndim != 2 or m.weight.device.type == "meta":
                raise NotImplementedError(
                    f"{m.name} is a shard or has no memory yet, so its blocks are no views of it. Pass "
                    "groups() to an optimizer that cuts matrices itself, such as those of dion."
                )
            blocks += [HeadBlock(m.weight, m.axis, block) for block in m.blocks]
        return blocks

    def groups(self, count: str = "num_heads", axis: str = "axis") -> list[dict[str, Any]]:
        """Parameter groups of whole matrices with their numbers of heads, for optimizers that cut them.

        count: the name of the number, "num_heads" of dion, "heads" of per_head_muon.py. axis: the name of the
        axis, written where outputs are columns. A matrix whose blocks differ in width is cut where all parts
        are equal: K and V of a head of latent attention stay together.
        """
        by_kind: dict[tuple[int, int], list[nn.Parameter]] = {}
        for m in self.matrices:
            by_kind.setdefault((m.count, m.axis), []).append(m.weight)
        return [
            {"params": weights, count: number} | ({axis: 1} if columns else {})
            for (number, columns), weights in by_kind.items()
        ]

    def tag(self) -> None:
        """Write DeepSpeed's tags `muon_num_heads` and `muon_head_dim` on the matrices, equal parts of rows.

        deepspeed.initialize writes its own: split before it, and tag after it.
        """
        for m in self.matrices:
            if m.axis:
                raise NotImplementedError(f"{m.name} has its heads in columns, which DeepSpeed cannot cut.")
            count: Any = m.count if m.count > 1 else None
            tags: Any = m.weight
            tags.muon_num_heads = count
            tags.muon_head_dim = m.blocks[-1].stop // count if count else None

    def __str__(self) -> str:
        lines: dict[str, list[str]] = {}
        for layout in self.layouts:
            lines.setdefault(str(layout), []).append(layout.module)
        words = [f"{_some(modules)}: {line}" for line, modules in lines.items()]
        words += [f"{name}: not split, {reason}" for name, reason in self.refused.items()]
        count = sum(len(m.blocks) for m in self.matrices)
        return "\n".join(
            (
                f"{count} blocks of {len(self.matrices)} matrices, {len(self.others)} other parameters",
                *words,
            )
        )

    def __repr__(self) -> str:
        return f"Split({str(self).partition(chr(10))[0]})"


def split(model: nn.Module, own: Mapping[type[nn.Module], QueryKey] | None = None) -> Split:
    """Queries, keys and values of every head as parameters of their own: per-head Muon with any optimizer.

        parts = split(model)
        print(parts)                                            # which layout, and what the theory says of it
        optimizers = [torch.optim.Muon(parts.blocks, lr=2e-2), torch.optim.AdamW(parts.others, lr=3e-4)]

    A block shares the memory and the gradient of its matrix, so that the model, its checkpoints and
    clip_grad_norm_ stay as they are. Read are separate projections, fused ones in any order, grouped queries
    and the up-projections of latent attention, of the modules that MarginMonitor knows. Outputs and all else
    are left to `others`, and so is what is frozen. Split after the model is in its place and type. Optimizers
    that cut matrices themselves take `parts.groups()` instead, DeepSpeed `parts.tag()`.
    own: modules of your own, as for MarginMonitor.
    """
    names = {id(w): name for name, w in model.named_parameters()}
    matrices: dict[int, SplitMatrix] = {}
    layouts, refused = [], {}
    for name, module in attention_modules(model, own or {}):
        try:
            heads = _Heads.of(module, own or {})
        except NotImplementedError as reason:
            refused[name] = str(reason)
            continue
        if heads is None:
            continue
        parts = [_matrix(part, names) for part in heads.projections]
        layouts.append(_layout(name, module, heads, parts))
        matrices |= {id(part.weight): part for part in parts if part.weight.requires_grad}
    if not layouts:
        reasons = " ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"{type(model).__name__} {NO_ATTENTION} {reasons}".strip())
    others = [w for w in model.parameters() if w.requires_grad and id(w) not in matrices]
    return Split(tuple(matrices.values()), others, tuple(layouts), refused)


# ---------------------------------------------------------------------- what a module projects


class _Projection(NamedTuple):
    """A layer, and the blocks of its outputs."""

    layer: Any
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class _Heads:
    """The projections of one attention module. latent: keys are products of more than two factors."""

    projections: list[_Projection]
    heads: int
    groups: int
    latent: bool = False

    @classmethod
    def of(cls, module: nn.Module, own: Mapping[type[nn.Module], QueryKey]) -> _Heads | None:
        """Those of a module; None where every head already has a matrix of its own."""
        described = next((own[c] for c in type(module).__mro__ if c in own), None)
        if described is not None:
            query, key = described.layers(module)
            groups = described.groups or described.heads
            return cls._of_pair(query, key, described.heads, groups, _values(module, (query, key)))
        if isinstance(module, nn.MultiheadAttention):
            return cls._of_multihead(module)
        pairs = query_key_layers(module)
        if not pairs:
            known = first_attribute(module, FUSED)
            if known is None:
                return None
            raise NotImplementedError(
                f"nothing tells which outputs of {type(module).__name__}'s fused layer are queries and which "
                'keys. Describe it: split(model, {ItsClass: QueryKey("qkv", "qkv", heads=…)}).'
            )
        if len(pairs) > 1:
            return cls._of_latent(module, pairs)
        (query, key), width = pairs[0], width_of(module)
        heads, groups = (len(side.weight) // width for side in (query, key))
        if not groups or len(query.weight) % width or len(key.weight) % width or heads % groups:
            raise NotImplementedError(
                f"{len(query.weight)} outputs of queries and {len(key.weight)} of keys are no heads of width "
                f"{width}."
            )
        return cls._of_pair(query, key, heads, groups, _values(module, (query, key)))

    @classmethod
    def _of_pair(
        cls, query: LayerSlice, key: LayerSlice, heads: int, groups: int, value: LayerSlice | None
    ) -> _Heads:
        kinds = [(query, "Q", heads), (key, "K", groups)]
        if value is not None:
            kinds.append((value, "V", groups))
        return cls(_projections(kinds, groups), heads, groups)

    @classmethod
    def _of_multihead(cls, module: nn.MultiheadAttention) -> _Heads:
        heads, width = module.num_heads, module.embed_dim
        if module.in_proj_weight is not None:
            layer = SimpleNamespace(weight=module.in_proj_weight)
            query, key = LayerSlice(layer, 0, width), LayerSlice(layer, width, 2 * width)
            return cls._of_pair(query, key, heads, heads, None)
        query, key, value = (
            LayerSlice(SimpleNamespace(weight=w), 0, len(w))
            for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        )
        return cls._of_pair(query, key, heads, heads, value)

    @classmethod
    def _of_latent(cls, module: Any, pairs: Sequence[tuple[LayerSlice, LayerSlice]]) -> _Heads:
        (query, key), (_, rotary) = pairs
        heads, out = query.blocks, len(matrix_of(query.layer))
        both = LayerSlice(query.layer, 0, out // heads, heads)
        kinds = [(both, "Q", heads), (key, "K", heads), (rotary, "K", 1)]
        return cls(_projections(kinds, heads), heads, heads, latent=True)


def _values(module: nn.Module, pair: Iterable[LayerSlice]) -> LayerSlice | None:
    """The projection of values, where it is a layer of its own."""
    layer = first_attribute(module, VALUES)
    matrix = matrix_of(layer)
    if matrix is None or any(layer is side.layer for side in pair):
        return None
    return LayerSlice(layer, 0, len(matrix))


def _projections(kinds: Sequence[tuple[LayerSlice, str, int]], groups: int) -> list[_Projection]:
    """The blocks of every layer: slices cut into heads, and between them what else the layer gives."""
    by_layer: dict[int, tuple[Any, list[Block]]] = {}
    fused = {id(part.layer): part for part, *_ in kinds}
    for part, kind, count in kinds:
        size = len(matrix_of(part.layer)) // part.blocks
        width = (part.stop - part.start) * part.blocks // count
        each = count // part.blocks
        if count % part.blocks or width * each != part.stop - part.start:
            raise NotImplementedError(f"{part.stop - part.start} outputs are no {count} heads of one width.")
        _, blocks = by_layer.setdefault(id(part.layer), (part.layer, []))
        for h in range(count):
            start = h // each * size + part.start + h % each * width
            blocks.append(Block(kind, h, start, start + width))
    for key, (layer, blocks) in by_layer.items():
        blocks.sort(key=lambda block: block.start)
        gaps = _between(blocks, len(matrix_of(layer)), 1 if fused[key].blocks > 1 else groups)
        blocks += [gap._replace(head=h) for h, gap in enumerate(gaps)]
        blocks.sort(key=lambda block: block.start)
    return [_Projection(layer, tuple(blocks)) for layer, blocks in by_layer.values()]


def _between(blocks: Sequence[Block], out: int, heads: int) -> list[Block]:
    """Outputs that no block has: values or gates, cut into so many heads where they are as wide."""
    gaps, end = [], 0
    for block in [*blocks, Block("", 0, out, out)]:
        if block.start > end:
            width = (block.start - end) // heads
            whole = width * heads != block.start - end or width != blocks[-1].stop - blocks[-1].start
            cuts = [end, block.start] if whole else [*range(end, block.start + 1, width)]
            gaps += [Block("V", 0, *cut) for cut in pairwise(cuts)]
        end = block.stop
    return gaps


def _matrix(part: _Projection, names: Mapping[int, str]) -> SplitMatrix:
    weight = getattr(part.layer, "weight", None)
    name = names.get(id(weight), "")
    if not (name and isinstance(weight, nn.Parameter) and weight.is_floating_point()):
        raise ValueError(
            f"the weight of {type(part.layer).__name__} is no parameter of the model in floating point "
            "(quantised, or computed from others). Split the model that is trained."
        )
    return SplitMatrix(name, weight, int(type(part.layer).__name__ == "Conv1D"), part.blocks)


# ---------------------------------------------------------------------- layouts


def _layout(name: str, module: nn.Module, heads: _Heads, parts: Sequence[SplitMatrix]) -> AttentionLayout:
    rows = [[b for b in part.blocks if b.kind in "QK"] for part in parts]
    # All outputs of a matrix fill the space together, values among them.
    fills = [
        (len(part.blocks) > 1, part.blocks[-1].stop / part.weight.shape[1 - part.axis])
        for part, row in zip(parts, rows, strict=True)
        if row
    ]
    filled = max(fills)[1]
    notes = []
    if heads.latent:
        notes.append("latent attention: its keys are products of more than two factors, whose norm is open")
    if any(b.kind == "V" for part, row in zip(parts, rows, strict=True) if row for b in part.blocks):
        notes.append("values or gates are in the same matrix, which the norm of keys and queries leaves out")
    if not heads.latent and QueryKeyNorms.of(module, heads.heads, heads.groups, _width(rows)):
        notes.append("queries and keys are normalised: their gains set the size of logits")
    if any(not part.weight.requires_grad for part in parts):
        notes.append("frozen matrices are left out")
    if heads.latent:
        return AttentionLayout(name, heads.heads, heads.groups, None, None, filled, "; ".join(notes))
    words = sorted((tuple(f"{b.kind}{b.head}" for b in row) for row in rows if row), key=_keys_first)
    key_of = tuple(h * heads.groups // heads.heads for h in range(heads.heads))
    whole = HeadLayout(tuple((row,) for row in words), key_of)
    apart = HeadLayout(tuple(((word,),) for row in words for word in row), key_of)
    return AttentionLayout(name, heads.heads, heads.groups, whole, apart, filled, "; ".join(notes))


def _width(rows: Sequence[Sequence[Block]]) -> int:
    return next(b.stop - b.start for row in rows for b in row)


def _keys_first(row: tuple[str, ...]) -> str:
    return row[0][0]


def _outputs(x: Tensor, axis: int, block: Block) -> Tensor:
    """Outputs of a block as rows."""
    return (x.T if axis else x)[block.start : block.stop]


def _some(modules: Sequence[str]) -> str:
    return modules[0] if len(modules) == 1 else f"{modules[0]} and {len(modules) - 1} more"
