"""A max-margin attention head as a layer, beside softmax and entmax heads: few-shot selection of tokens.

    python lab/experiments/max_margin_head.py --record heads.json    # 5 minutes of a core
    python lab/experiments/max_margin_head.py --tables lab/records/max_margin_head.json

Prints the tables of docs/lab/max_margin_head.md. An episode has a direction of its own. One token of a
sequence lies along it; its value is what the head must read. A few sequences come with this token marked; a
head makes a prompt of them, and attends with it to other sequences. A linear map is trained through the head.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.torch import max_margin
from summary import here

T, SIGNAL, NUISANCE = 12, 8, 8
LOUD, LOUD_OF_AN_EPISODE = 2.0, 4
"""Size of the tokens in loud directions, and how many of these an episode has of its own."""

EPISODES, FRESH, STEPS, RATE = 16, 8, 120, 0.03
TESTED = 400
WORLDS = {
    "overlap": {"strength": 1.5, "spread": 0.4, "own": False},
    "overlap, loud": {"strength": 1.5, "spread": 0.4, "own": True},
    "clean, loud": {"strength": 0.5, "spread": 0.05, "own": True},
}
CELLS: list[dict[str, Any]] = [
    {"world": "overlap", "n": 4},
    {"world": "overlap, loud", "n": 4},
    {"world": "overlap, loud", "n": 12},
    {"world": "clean, loud", "n": 4},
    {"world": "clean, loud", "n": 8},
    {"world": "clean, loud", "n": 8, "wrong": 0.2},
]


@dataclass
class Episodes:
    """keys (b, n, T, d), marked (b, n); fresh (b, m, T, d), values (b, m, T), informative (b, m)."""

    keys: Tensor
    marked: Tensor
    fresh: Tensor
    values: Tensor
    informative: Tensor


class World:
    """Where signal and nuisance lie, a rotation of its own, and what an episode is like.

    strength: of the informative token along its direction; spread: of all tokens in the signal; own: whether
    some directions of the signal are loud, others in each episode, which the map cannot learn.
    """

    def __init__(self, seed: int, strength: float, spread: float, own: bool) -> None:
        self.strength, self.spread, self.own = strength, spread, own
        self.random = np.random.default_rng(seed)
        self.rotation = np.linalg.qr(self.random.standard_normal((SIGNAL + NUISANCE,) * 2))[0]

    def episodes(self, count: int, n: int, wrong: float) -> Episodes:
        random, m = self.random, n + FRESH
        direction = random.standard_normal((count, 1, SIGNAL))
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        signal = self.spread * random.standard_normal((count, m, T, SIGNAL))
        if self.own:
            loud = random.standard_normal((count, LOUD_OF_AN_EPISODE, SIGNAL))
            loud -= (loud @ direction.swapaxes(1, 2)) * direction
            loud /= np.linalg.norm(loud, axis=-1, keepdims=True)
            signal += LOUD * np.einsum(
                "bmtk,bks->bmts", random.standard_normal((count, m, T, LOUD_OF_AN_EPISODE)), loud
            )
        informative = random.integers(0, T, (count, m))
        np.put_along_axis(
            signal,
            informative[..., None, None],
            np.take_along_axis(signal, informative[..., None, None], 2)
            + self.strength * direction[:, :, None],
            2,
        )
        nuisance = LOUD * random.standard_normal((count, m, T, NUISANCE))
        tokens = torch.from_numpy(np.concatenate([signal, nuisance], -1) @ self.rotation)
        other = random.integers(0, T, (count, n))
        marked = np.where(random.random((count, n)) < wrong, other, informative[:, :n])
        values = torch.from_numpy(random.standard_normal((count, FRESH, T)))
        arrays = torch.from_numpy(marked), tokens[:, n:], values, torch.from_numpy(informative[:, n:])
        return Episodes(tokens[:, :n], *arrays)


# ---------------------------------------------------------------------- heads: keys, marked, numbers → prompt


Prompt = Callable[[Tensor, Tensor, Tensor], Tensor]


def of_max_margin(keys: Tensor, marked: Tensor, size: Tensor) -> Tensor:
    """The soft-margin prompt; the price is learnt."""
    return max_margin(keys, marked, slack=size.exp().expand(keys.shape[1])).W[..., 0]


def of_hard_margin(keys: Tensor, marked: Tensor, size: Tensor) -> Tensor:
    """The max-margin prompt; an episode that is not separable has none and counts as wrong."""
    solution = max_margin(keys, marked, unseparable="nan")
    return torch.where(solution.separable[:, None], solution.W[..., 0], 0.0)


def of_descent(attention: Callable[[Tensor], Tensor], steps: int) -> Prompt:
    """Gradient descent on the loss of a kind of attention; its rate is learnt, in units of a stable one."""

    def prompt(keys: Tensor, marked: Tensor, size: Tensor) -> Tensor:
        target = torch.nn.functional.one_hot(marked, T).to(keys.dtype)
        centred = (keys - keys.mean(2, keepdim=True)).flatten(1, 2).detach()
        rate = size.exp() * keys.shape[1] * T / torch.linalg.matrix_norm(centred, 2).square()
        p = keys.new_zeros(keys.shape[0], keys.shape[-1])
        for _ in range(steps):
            slope = attention(torch.einsum("bntd,bd->bnt", keys, p)) - target
            p = p - rate[:, None] * torch.einsum("bnt,bntd->bd", slope, keys) / keys.shape[1]
        return p

    return prompt


def of_means(keys: Tensor, marked: Tensor, size: Tensor) -> Tensor:
    """The mean of the marked tokens less the mean of all."""
    index = marked[..., None, None].expand(*marked.shape, 1, keys.shape[-1])
    return keys.gather(2, index)[:, :, 0].mean(1) - keys.mean((1, 2))


def softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def entmax(logits: Tensor) -> Tensor:
    """1.5-entmax: [z/2 − τ]₊², of sum one (Peters et al. 2019)."""
    z = logits / 2
    ordered = z.sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    mean, square = ordered.cumsum(-1) / count, ordered.square().cumsum(-1) / count
    tau = mean - ((1 / count - square + mean.square()).clamp_min(0)).sqrt()
    last = (tau <= ordered).sum(-1, keepdim=True) - 1
    return (z - tau.gather(-1, last)).clamp_min(0).square()


HEADS: dict[str, tuple[Prompt, Callable[[Tensor], Tensor], float]] = {
    "max-margin, soft": (of_max_margin, softmax, -2.0),
    "max-margin, hard": (of_hard_margin, softmax, 0.0),
    "softmax, 10 steps": (of_descent(softmax, 10), softmax, 0.0),
    "entmax, 10 steps": (of_descent(entmax, 10), entmax, 0.0),
    "means": (of_means, softmax, 0.0),
}
"""How the prompt is made, what attention it is for, and where the logarithm of its number begins."""


# ---------------------------------------------------------------------- training


def trained(head: str, seed: int, world: str, n: int, wrong: float = 0.0, steps: int = STEPS) -> dict:
    """Train the map, the head's number and the sharpness; error and right tokens in fresh episodes."""
    prompt, attention, start = HEADS[head]
    drawn, began = World(seed, **WORLDS[world]), time.process_time()
    embed = torch.eye(SIGNAL + NUISANCE, dtype=torch.float64).requires_grad_()
    size = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    sharp = torch.zeros((), dtype=torch.float64, requires_grad=True)
    rule = torch.optim.Adam([x for x in (embed, size, sharp) if x.requires_grad], lr=RATE)

    def read(episodes: Episodes) -> tuple[Tensor, Tensor]:
        p = prompt(episodes.keys @ embed, episodes.marked, size)
        logits = sharp.exp() * torch.einsum("bmtd,bd->bmt", episodes.fresh @ embed, p)
        read = (attention(logits) * episodes.values).sum(-1)
        wanted = episodes.values.gather(-1, episodes.informative[..., None])[..., 0]
        right = (logits.argmax(-1) == episodes.informative) & (p != 0).any(-1)[:, None]
        return (read - wanted).square().mean(), right.double().mean()

    with torch.no_grad():  # logits of size one: entmax of larger ones has no gradient
        first = drawn.episodes(EPISODES, n, wrong)
        p = prompt(first.keys, first.marked, size)
        sharp -= torch.einsum("bmtd,bd->bmt", first.fresh, p).std().log()
    for _ in range(steps):
        rule.zero_grad()
        read(drawn.episodes(EPISODES, n, wrong))[0].backward()
        rule.step()
    with torch.no_grad():
        error, right = read(drawn.episodes(TESTED, n, wrong))
    seconds = time.process_time() - began
    return {"error": float(error), "right": float(right), "seconds": round(seconds, 2)}


# ---------------------------------------------------------------------- tables


def name(cell: dict) -> str:
    wrong = f", {cell['wrong']:.0%} of the marks wrong" if cell.get("wrong") else ""
    return f"{cell['world']}, n = {cell['n']}{wrong}"


def interval(rows: list[dict], cell: str, head: str, of: str) -> str:
    """The median over seeds with the least and the largest."""
    values = [row[of] for row in rows if row["cell"] == cell and row["head"] == head]
    return f"{np.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]" if values else "–"


def print_tables(rows: list[dict]) -> None:
    for title, of in {
        "right tokens": "right",
        "squared error": "error",
        "seconds of a core": "seconds",
    }.items():
        print(f"\n| {title} | {' | '.join(HEADS)} |\n|{'---|' * (1 + len(HEADS))}")
        for cell in map(name, CELLS):
            print(f"| {cell} | {' | '.join(interval(rows, cell, head, of) for head in HEADS)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    rows = []
    for cell in CELLS:
        for head in HEADS:
            for seed in range(options.first, options.first + options.seeds):
                rows.append({"cell": name(cell), "head": head, "seed": seed} | trained(head, seed, **cell))
            print(name(cell), head, interval(rows, name(cell), head, "right"), flush=True)
            if options.record:
                made = here() | {"command": "python lab/experiments/max_margin_head.py"}
                options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


if __name__ == "__main__":
    main()
