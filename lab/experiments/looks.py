"""What is read off a model after an epoch: norms and entropies of its heads, selections, sparsity of weights.

Some epochs also leave `heads-EPOCH.safetensors`: the query and key weights of every layer and the states that
entered it on a fixed held-out batch, in float16, from which `head_study.py` solves the programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attsvm.torch import MarginMonitor

BIN, LARGE = 0.005, 0.06
"""Width of a histogram bin, and what the paper counts as a large weight."""


@contextmanager
def exactly(model: nn.Module) -> Iterator[None]:
    """Look in float32, without dropout and gradients, and leave the model as it was."""
    dtype, training = model.dtype, model.training
    model.dtype = torch.float32
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.dtype = dtype
        model.train(training)


def heads_of(model: nn.Module, run: Any) -> list[list[float]]:
    """[layer, head, norm, entropy, top mass, median margin] of every head on what `run` shows the model."""
    with MarginMonitor(model) as monitor:
        run()
        head_records = monitor.record(0)
    names = list(dict.fromkeys(record.module for record in head_records))
    rows = [
        (names.index(r.module), r.head, r.norm, r.entropy, r.top_mass, r.median_margin) for r in head_records
    ]
    return [[float(f"{x:.5g}") for x in row] for row in rows]


def states_of(model: nn.Module, run: Any) -> list[Tensor]:
    """The states that enter the attention of every block."""
    captured: list[Tensor] = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda _, arguments: captured.append(arguments[0]))
        for block in model.blocks
    ]
    run()
    for hook in hooks:
        hook.remove()
    return captured


def attention_of(model: nn.Module, run: Any, mask: Tensor | None = None) -> Tensor:
    """The last block's attention of the first token: (n, heads, T)."""
    module = model.blocks[-1].attention
    x = states_of(model, run)[-1]
    q, k = (
        layer(module_input).unflatten(-1, (module.heads, -1))
        for layer, module_input in ((module.query, x[:, 0]), (module.key, x))
    )
    logits = torch.einsum("nhw,nthw->nht", q, k) * module.attention_head_size**-0.5
    return (logits if mask is None else logits.masked_fill(~mask[:, None], -torch.inf)).softmax(-1)


def weights_of(model: nn.Module) -> dict[str, Any]:
    """How many query, key and value weights are large, and the histogram of |key weights|."""
    out: dict[str, Any] = {}
    for name in ("query", "key", "value"):
        entries = torch.cat(
            [getattr(block.attention, name).weight.detach().flatten() for block in model.blocks]
        ).abs()
        out[f"large_{name}"] = int((entries > LARGE).sum())
        out[f"largest_{name}"] = float(entries.max())
        counts = torch.histc(entries.clamp_max(0.4999).cpu(), 100, 0, 0.5)
        out[f"histogram_{name}"] = [int(x) for x in counts]
    return out


def keep_heads(model: nn.Module, states: list[Tensor], mask: Tensor, file: Path, epoch: int) -> None:
    """The file of query and key weights and of the states, in float16; it says of which epoch."""
    out = {"mask": mask.cpu()}
    for k, (block, x) in enumerate(zip(model.blocks, states, strict=True)):
        module = block.attention
        out |= {f"{k}.query": module.query.weight.half().cpu(), f"{k}.key": module.key.weight.half().cpu()}
        out[f"{k}.states"] = x.half().cpu().contiguous()
    save_file(out, file, {"heads": str(model.blocks[0].attention.heads), "epoch": str(epoch)})


@dataclass(frozen=True)
class TextLook:
    """Padded ids of held-out reviews (n, T), and of short sentences with their pivotal word's place."""

    held_out: Tensor
    sentences: Tensor
    pivotal: Tensor
    keep: frozenset[int] = frozenset()

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            out: dict[str, Any] = {"heads": heads_of(model, lambda: self._run(model, self.held_out))}
            out["pivotal"] = self.selection(model)
            if model.blocks[0].attention.token is not None:
                out["temperature"] = self.temperatures(model)
            if epoch in self.keep:
                self._keep(model, folder / f"heads-{epoch:04d}.safetensors", epoch)
        return out

    def last(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            self._keep(model, folder / "heads-last.safetensors", epoch)
            return weights_of(model)

    def selection(self, model: nn.Module) -> float:
        """Mean scaled attention of the pivotal words.

        The last block's attention of [CLS], mean over heads, scaled to [0, 1] over the sentence.
        """
        mask = self.sentences > 0
        attention = attention_of(model, lambda: self._run(model, self.sentences), mask).mean(1)
        low = attention.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
        high = attention.amax(1, keepdim=True)
        scaled = (attention - low) / (high - low)
        return float(scaled.gather(1, self.pivotal[:, None]).mean())

    def temperatures(self, model: nn.Module) -> list[float]:
        """Mean temperature of every layer on the held-out reviews, over heads and tokens."""
        mask = self.held_out > 0
        states = states_of(model, lambda: self._run(model, self.held_out))
        pairs = zip(model.blocks, states, strict=True)
        return [float(block.attention.temperature(x, mask, None)[mask].mean()) for block, x in pairs]

    def _run(self, model: Any, ids: Tensor) -> None:
        model.padded(ids, ids > 0)

    def _keep(self, model: nn.Module, file: Path, epoch: int) -> None:
        states = states_of(model, lambda: self._run(model, self.held_out))
        keep_heads(model, states, self.held_out > 0, file, epoch)


@dataclass(frozen=True)
class ImageLook:
    """Prepared pictures (n, channels, side, side); the first few are drawn, two enter the programs."""

    pictures: Tensor
    keep: frozenset[int] = frozenset()
    drawn: int = 4

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            run = self._run(model, len(self.pictures))
            attention = attention_of(model, run)[..., 1:]  # over the patches, as maps are drawn
            attention = attention / attention.sum(-1, keepdim=True)
            out: dict[str, Any] = {
                "heads": heads_of(model, self._run(model, min(8, len(self.pictures)))),
                "soft_sparsity": float((1 / attention.square().sum(-1)).mean()),
                "norm_last": combined_norm(model.blocks[-1].attention),
            }
            if epoch in self.keep:
                maps = attention[: self.drawn].mean(1).half().cpu()
                save_file({"maps": maps.contiguous()}, folder / f"maps-{epoch:04d}.safetensors")
        return out

    def last(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            attention = attention_of(model, self._run(model, self.drawn))[..., 1:].mean(1)
            save_file({"maps": attention.half().cpu().contiguous()}, folder / "maps-last.safetensors")
            states = states_of(model, self._run(model, 2))
            mask = torch.ones(states[0].shape[:2], dtype=torch.bool)
            keep_heads(model, states, mask, folder / "heads-last.safetensors", epoch)
            return weights_of(model)

    def _run(self, model: Any, count: int) -> Any:
        return lambda: model(self.pictures[:count], every=True)


def combined_norm(module: Any) -> float:
    """‖W_Kᵀ W_Q‖_F / √width of all heads side by side: the last layer's combined key-query matrix."""
    K, Q = (layer.weight.unflatten(0, (module.heads, -1)).double() for layer in (module.key, module.query))
    squares = ((K @ K.mT) * (Q @ Q.mT)).sum()
    return float(squares.clamp_min(0).sqrt() * module.attention_head_size**-0.5)
