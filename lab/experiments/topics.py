"""Topic changes of trained models, beside the table of "Dynamics of Spontaneous Topic Changes":

    python lab/experiments/topics.py                 # ten minutes on two cores

Fifty pairs of topics, models of one and of both, 100 sentences of every length for each. A weight is read in
four
ways: as trained; scaled to length one; scaled so with attention rounded to three decimals, as in the
published script; and as the certified program of the same sentences. Writes the record `topics` of the
package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import attsvm
from attsvm.next_token import Corpus, topic_sentences
from attsvm.numbers import Float
from attsvm_lab.claims.topics import FAR, Topics, changes, drawn, programs, trained
from summary import RECORDS, here, write

LENGTHS = (4, 8, 16, 24, 32, 64, 128, 256, 512)
ARROWS, AT_LENGTH = (4, 8, 12, 18), 20
READINGS = {"published": 3, "unit": None, "trained": None, "program": None}
"""Decimals of the attention, by reading."""
COUNTED = ("kept", "ambiguous", "changed", "top", "outnumbers all", "outnumbers some", "outnumbered")
"""The first three are all sentences, the others all changes: to another top token, or to a lower one that …
"""


def weights(topics: list[Topics], reading: str, trained_weights: dict[str, Float]) -> list[Float]:
    """Of A and of both topics, for every pair."""
    if reading == "program":
        return [FAR * programs(topics, name) for name in ("A", "both")]
    scale = {
        k: 1.0 if reading == "trained" else np.linalg.norm(W, axis=(1, 2), keepdims=True)
        for k, W in trained_weights.items()
    }
    return [trained_weights[name] / scale[name] for name in ("A", "both")]


def counts(
    topics: list[Topics], both: list[Float], texts: list[Corpus], decimals: int | None
) -> list[list[int]]:
    """As COUNTED, a list of all pairs for each."""
    counts_of = []
    for k, (pair, text, A, mixed) in enumerate(zip(topics, texts, *both, strict=True)):
        observed = changes(pair, text, A, mixed, k, decimals)
        lower, every, outnumbers_some = (
            observed.changed & observed.lower,
            observed.outnumbers_all,
            observed.outnumbers_some,
        )
        kinds = (
            observed.changed & ~observed.lower,
            lower & every,
            lower & outnumbers_some & ~every,
            lower & ~outnumbers_some,
        )
        counts_of.append(
            [int(kind.sum()) for kind in (observed.kept, observed.ambiguous, observed.changed, *kinds)]
        )
    return np.transpose(counts_of).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2_000, help="of 80/steps; published: 8,000 of 0.01")
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    lengths: dict[str, dict[str, list[list[int]]]] = {reading: {} for reading in READINGS}
    arrows: dict[str, dict[str, list[list[int]]]] = {reading: {} for reading in READINGS}
    cosines: dict[int, dict[str, float]] = {}
    record = {"counted": COUNTED, "lengths": lengths, "arrows": arrows, "cosines": cosines}
    origin = here() | {"command": "python lab/experiments/topics.py"}
    for L in ARROWS:
        topics = [drawn(pair, L) for pair in range(options.pairs)]
        trained_weights = {
            name: trained(topics, name, options.steps, 80 / options.steps) for name in ("A", "both")
        }
        best = {name: programs(topics, name) for name in ("A", "both")}
        each = {name: attsvm.cosine(trained_weights[name][:, None], best[name]) for name in trained_weights}
        cosines[L] = {name: round(float(each[name].mean()), 4) for name in each}
        both = {reading: weights(topics, reading, trained_weights) for reading in READINGS}
        cells = [(AT_LENGTH, arrows, str(L))]
        cells += [(T, lengths, str(T)) for T in LENGTHS] if ARROWS[0] == L else []
        for T, table, cell in cells:
            texts = [topic_sentences(one.A, options.sentences, T, k) for k, one in enumerate(topics)]
            for reading, decimals in READINGS.items():
                table[reading][cell] = counts(topics, both[reading], texts, decimals)
                print(L, T, reading, np.sum(table[reading][cell], axis=1), flush=True)
        write(options.out / "topics.json", {"made": origin, "sentences": options.sentences, **record})


if __name__ == "__main__":
    main()
