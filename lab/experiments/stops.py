"""Is the low rank that gradient descent writes into a head a stop? Small encoders, on a CPU:

    python lab/experiments/stops.py digits out/stops        # 36 trainings, nine minutes of one core
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import attsvm
from attsvm.norms import Norm
from head_kkt import ascent, pairs, stable_rank, standing
from optimizers import QUERY_KEY
from training import Settings, train

EPOCHS = (0, 1, 2, 5, 10, 20, 30, 40, 60, 80, 100)
"""After these a look is taken; the training ends after the last one that it reaches."""


class GradientSums:
    """Sums over batches of every head's gradients of W_Q and W_K, each of length one.

    Also the mean stable rank of these gradients since the last look.
    """

    def __init__(self, model: nn.Module) -> None:
        self.heads = model.blocks[0].attention.heads
        layers = [block.attention for block in model.blocks]
        self.weights = [layer.key.weight for layer in layers], [layer.query.weight for layer in layers]
        self.sums = [[0.0] * len(layers), [0.0] * len(layers)]
        self.ranks: list[float] = []
        for kind, weights in enumerate(self.weights):
            for layer, weight in enumerate(weights):
                weight.register_hook(lambda g, at=(kind, layer): self._add(g, *at))

    def _add(self, gradient: Tensor, kind: int, layer: int) -> None:
        heads = gradient.detach().unflatten(0, (self.heads, -1)).double()
        unit = heads / heads.norm(dim=(1, 2), keepdim=True).clamp_min(1e-300)
        self.sums[kind][layer] = self.sums[kind][layer] - unit
        self.ranks.append(float((1 / torch.linalg.eigvalsh(unit @ unit.mT)[:, -1]).mean()))

    def taken(self) -> tuple[Tensor, Tensor]:
        """The sums, as K and Q of `pairs` have them, (layers · heads, d, m)."""
        K, Q = (torch.cat(each).mT for each in self.sums)
        return K, Q


class HeadLook:
    """Where every head stands, and what was added to it, at some epochs."""

    def __init__(self, task: Any, norm: Norm, batches: Any) -> None:
        self.task, self.norm, self.batches = task, norm, batches

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        if epoch == 0:
            self.start, self.first = pairs(model), None
            self.sums = GradientSums(model)
        if epoch not in EPOCHS:
            return {}
        K, Q = pairs(model)
        M = ascent(self.task, model, self.batches)
        z = mean_queries(self.task, model, self.batches)
        rows = [standing(*each, self.norm) for each in zip(K, Q, M, strict=True)]
        columns = {"M z": share(M, z), "step": stable_rank(M @ Q @ Q.mT + K @ K.mT @ M)}
        columns["M beyond z"] = stable_rank(M - M @ z[:, :, None] * z[:, None])
        if epoch == 0:
            self.M = M
        else:
            K0, Q0 = self.start
            dK, dQ = K - K0, Q - Q0
            first, added = dK @ Q0.mT + K0 @ dQ.mT, K @ Q.mT - K0 @ Q0.mT
            SK, SQ = self.sums.taken()
            G = SK @ Q0.mT + K0 @ SQ.mT
            columns |= {
                "added": stable_rank(added), "added z": share(added, z),
                "first": stable_rank(first), "second": (dK @ dQ.mT).norm(dim=(1, 2)) / added.norm(dim=(1, 2)),
                "dK": stable_rank(dK), "dQ": stable_rank(dQ), "SK": stable_rank(SK), "SQ": stable_rank(SQ),
                "summed": stable_rank(G), "cos summed": cos(G, added),
                "cos start": cos(M, self.M),
                "cos M added": cos(M, added),
                "length": added.norm(dim=(1, 2)) / (K0 @ Q0.mT).norm(dim=(1, 2)),
            }
            columns["batch"] = torch.full((len(K),), float(np.mean(self.sums.ranks)))
            self.sums.ranks.clear()
        for name, values in columns.items():
            for row, x in zip(rows, values.tolist(), strict=True):
                row[name] = x
        return {"standing": rows, "heads": []}

    def last(self, model, epoch, folder):
        return {}


def cos(A: Tensor, B: Tensor) -> Tensor:
    return (A * B).sum((1, 2)) / (A.norm(dim=(1, 2)) * B.norm(dim=(1, 2)))


def share(M: Tensor, z: Tensor) -> Tensor:
    """Of ‖M‖², the part along unit vectors z."""
    return (M @ z[:, :, None]).square().sum((1, 2)) / M.square().sum((1, 2))


@torch.no_grad()
def mean_queries(task: Any, model: nn.Module, batches: Any) -> Tensor:
    """The direction of the mean query state of every head (layers · heads, d)."""
    sums: list[Any] = [0.0] * len(model.blocks)

    def add(layer: int, x: Tensor, kwargs: dict[str, Any]) -> None:
        line = kwargs.get("line")
        z = x[:, 0] if line is None else x[line.first]
        sums[layer] = sums[layer] + z.double().sum(0)

    hooks = [
        block.attention.register_forward_pre_hook(
            lambda _, args, kwargs, k=k: add(k, args[0], kwargs), with_kwargs=True
        )
        for k, block in enumerate(model.blocks)
    ]
    model.eval()
    for batch in batches:
        task.loss(model, batch)
    for hook in hooks:
        hook.remove()
    heads = model.blocks[0].attention.heads
    return torch.cat([(x / x.norm().clamp_min(1e-300)).expand(heads, -1) for x in sums])


def scaled(make, size, centred=False):
    """Models whose W_Q and W_K begin `size` times as large."""
    def made():
        model = make()
        with torch.no_grad():
            for block in model.blocks:
                block.attention.query.weight *= size
                block.attention.key.weight *= size
                if centred:
                    block.attention.register_forward_pre_hook(centre, with_kwargs=True)
        return model
    return made


def centre(_, args, kwargs):
    """Take the mean query from all states: keys and values move by a constant, which softmax forgets."""
    x, line = args[0], kwargs.get("line")
    z = x[:, 0] if line is None else x[line.first]
    return (x - z.mean(0), *args[1:]), kwargs
