"""Which replacement keeps a head alive.

python lab/benchmarks/practice/head_surgery.py MODEL TEXTS HELD

For a few heads of every layer, alone: the head's rank-r truncations and the max-margin weights of its
confident selections, on the texts these come from and on held-out texts. Then all heads at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np

from attsvm.heads.head import Head
from attsvm.heads.model import Reader, load
from attsvm.heads.record import record, sample
from attsvm.heads.surgery import change, difference, fitted, operated, output, separating, truncated
from attsvm.heads.texts import Texts
from attsvm.norms import frobenius, nuclear
from attsvm.numbers import Float

RANKS = (1, 2, 4, 8, 16)


def replacements(head: Head) -> Iterator[tuple[str, Float]]:
    """Other weights for a head, each at the scale that fits its attention best."""
    for rank in RANKS:
        yield f"rank {rank}", fitted(head, truncated(head, rank))
    yield "Frobenius max-margin", separating(head, frobenius)
    yield "nuclear max-margin", separating(head, nuclear)


def alone(
    reader: Reader, texts: Texts, held_out: Texts, per_layer: int, queries: int
) -> dict[str, list[Float]]:
    """Rows (kept, kept confident, divergence, output) on texts and held-out texts, by replacement."""
    output_before, said_held = output(reader, texts), output(reader, held_out)
    rows: dict[str, list[Float]] = {}
    for layer, held_layer in zip(record(reader, texts), record(reader, held_out), strict=True):
        for number in np.random.default_rng(layer.layer).choice(layer.heads, per_layer, replace=False):
            at = sample(layer.at(int(number), 0.5), queries, 0)
            if not at.size:
                continue
            for name, W in replacements(layer.head(int(number), at)):
                on_texts = change(reader, texts, layer, int(number), W, output_before)
                on_held_out = change(reader, held_out, held_layer, int(number), W, said_held)
                rows.setdefault(name, []).append(np.array([*astuple(on_texts), *astuple(on_held_out)]))
    return rows


def together(reader: Reader, texts: Texts) -> Iterator[tuple[int, float]]:
    """The change of the output when every head of the model has its best rank-r weight."""
    output_before = output(reader, texts)
    layers = list(record(reader, texts))
    heads = [layer.head(h, layer.at(h)[:, :1]) for layer in layers for h in range(layer.heads)]
    for rank in RANKS:
        weights = {(head.layer, head.head): truncated(head, rank) for head in heads}
        with operated(reader, weights, layers[0].hidden is not None):
            yield rank, difference(reader, output_before, output(reader, texts))


def main() -> None:
    """Print the two tables in Markdown; medians over heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, help="one text per line")
    parser.add_argument("held", type=Path, help="held-out texts, one per line")
    parser.add_argument("--count", type=int, default=20, help="texts taken from each file")
    parser.add_argument("--per-layer", type=int, default=2, help="heads per layer")
    parser.add_argument("--queries", type=int, default=32, help="confident queries per head")
    options = parser.parse_args()
    reader = load(options.model)
    texts, held_out = (
        reader.tokenise(path.read_text(encoding="utf8").splitlines()[: options.count])
        for path in (options.texts, options.held)
    )
    columns = ("kept", "confident kept", "KL", "output")
    print(f"| replacement | {' | '.join(columns)} | held-out: {' | '.join(columns)} |")
    print("|---" * 9 + "|")
    for name, rows in alone(reader, texts, held_out, options.per_layer, options.queries).items():
        middle = np.nanmedian(np.array(rows), axis=0)
        print(f"| {name} ({len(rows)} heads) | " + " | ".join(f"{x:.2g}" for x in middle) + " |", flush=True)
    print("\n| every head at rank | output |\n|---|---|")
    for rank, moved in together(reader, held_out):
        print(f"| {rank} | {moved:.2g} |", flush=True)


if __name__ == "__main__":
    main()
