"""Next-token programs of the induction-like heads that the language models kept:

    python lab/experiments/language_heads.py RUNS OUT.json [--queries 8]

RUNS is what drive.py gathered (OUT/small). Random tokens are read twice. A query of the second reading is a
sentence of `attsvm.next_token` that copies: among the tokens before it an induction head (Olsson et al. 2022)
chooses the one after the earlier copy, which is the next token. A token in its place is a token of the
vocabulary, its vector the state that enters the head. Judged are, in the norms of the law of halves, the
margins of the head and of what training added to it, on

    own: the surest choices of every kept head, whatever they are, also of the net before training
    same: choices in common of two nets of a seed whose optimizers the law names, by those two of their heads
        that have the most of them; pairs with fewer than four are left out.
 `ordered`: of the surest queries in held-out reviews, by the number
of the token alone, the share that an order of the tokens for each query explains; beside it that of choices
drawn at random from the same sentences.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file
from scipy.special import softmax

from attsvm import next_token as nt
from attsvm._support.progress import ProgressLine
from head_programs import margins
from head_study import LEAST, surest
from language import EARLIEST

NORMS = ("nuclear", "Frobenius", "spectral")
LAW = ("gd", "schatten4", "muon")
"""The optimizers that the law of halves gives these norms."""
SURE = 400
"""Queries in reviews whose order is looked for."""


class Kept(NamedTuple):
    """A head: its place, W (d, d), what was added or None, states and attention."""

    layer: int
    head: int
    W: Any
    added: Any | None
    states: Any  # (texts, T, d)
    attention: Any  # (texts, T, T), causal
    natural: tuple[Any, Any, Any]  # ids, where and mass (windows, T) in held-out reviews


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=8, help="choices of a head in its program")
    parser.add_argument("--norms", nargs="*", default=list(NORMS), choices=NORMS)
    options = parser.parse_args(arguments)
    records: dict[str, Any] = {}
    shared_records: dict[str, Any] = {}
    for nets in by_seed(options.runs).values():
        records |= studied(nets, options.queries, options.norms)
        shared_records |= together(nets, options.queries, options.norms)
        options.out.write_text(json.dumps(records | {"same": shared_records}), encoding="utf8")


def by_seed(runs: Path) -> dict[str, dict[str, list[Kept]]]:
    """Seed → training → its kept heads, the best first; `start` is a net before training."""
    nets: dict[str, dict[str, list[Kept]]] = {}
    for file in sorted(runs.glob("*/heads-*.safetensors")):
        name, seed = file.parent.name, file.parent.name.rsplit("-", 1)[-1]
        nets.setdefault(seed, {})[name if file.stem == "heads-last" else f"start-{seed}"] = opened(file)
    return nets


def opened(file: Path) -> list[Kept]:
    """The heads of a file, those first that attend most to the token after an earlier copy."""
    arrays = load_file(file)
    places = [tuple(map(int, name.split(".")[:2])) for name in arrays if name.endswith(".where")]
    return sorted((_head(arrays, *place) for place in places), key=lambda head: -score(head.attention))


def _head(arrays: dict[str, Any], layer: int, head: int) -> Kept:
    def product(end: str) -> Any:
        K, Q = (arrays[f"{layer}.{head}.{name}{end}"].astype(float) for name in ("key", "query"))
        return K.T @ Q / np.sqrt(len(K))

    W, states = product(""), arrays[f"{layer}.states"].astype(float)
    logits = states @ W.T @ states.transpose(0, 2, 1)
    logits[:, ~np.tri(states.shape[1], dtype=bool)] = -np.inf
    added = W - product(".start") if f"{layer}.{head}.key.start" in arrays else np.zeros(1)
    natural = [arrays[name].astype(int) for name in ("held_out", f"{layer}.{head}.where")]
    mass = arrays[f"{layer}.{head}.mass"].astype(float)
    return Kept(
        layer, head, W, added if added.any() else None, states, softmax(logits, axis=-1), (*natural, mass)
    )


def wanted(T: int) -> tuple[Any, Any]:
    """The queries of the second reading, and the place after the earlier copy of each."""
    period = T // 2
    at = np.arange(period + 1, T)
    return at, at - period + 1


def score(attention: Any) -> float:
    """Mean attention on those places."""
    at, source = wanted(attention.shape[1])
    return float(attention[:, at, source].mean())


def studied(nets: dict[str, list[Kept]], queries: int, norms: list[str]) -> dict[str, Any]:
    """The kept heads of all nets of a seed, each on its own choices."""
    records: dict[str, Any] = {}
    with ProgressLine(total=len(nets)) as line:
        for count, (name, heads) in enumerate(nets.items()):
            line.show(name, count)
            records[name] = [alone(head, queries, norms) for head in heads]
    return records


def alone(head: Kept, queries: int, norms: list[str]) -> dict[str, Any]:
    """A head by itself."""
    return {
        "head": [head.layer, head.head, score(head.attention)],
        "right": right(head.attention),
        "own": judged(head, own(head.attention, queries), norms),
        "ordered": ordered(*head.natural),
    }


def right(attention: Any) -> float:
    """The share of queries of the second reading that choose the next token."""
    at, source = wanted(attention.shape[1])
    return float((attention.argmax(-1)[:, at] == source).mean())


def together(nets: dict[str, list[Kept]], queries: int, norms: list[str]) -> dict[str, Any]:
    """`net and net` → both nets' heads on the choices that they share, where these are enough."""
    law = [name for rule in LAW for name in nets if f"+{rule}-heads" in name]
    records = {}
    for names in combinations(law, 2):
        pairs = [
            (shared(x.attention, y.attention, queries), x, y)
            for x, y in product(*(nets[name] for name in names))
        ]
        choices, *heads = max(pairs, key=lambda pair: len(pair[0]))
        if len(choices) >= LEAST:
            records[" and ".join(names)] = [
                {"head": [head.layer, head.head, score(head.attention)], "own": judged(head, choices, norms)}
                for head in heads
            ]
    return records


def shared(first: Any, second: Any, queries: int) -> Any:
    """(text, query, choice) that two heads choose alike in the second reading, one for each token."""
    at, _ = wanted(first.shape[1])
    winners = first.argmax(-1)
    alike = (winners == second.argmax(-1)) & np.isin(np.arange(first.shape[1]), at)
    mass = np.where(alike, (first.max(-1) + second.max(-1)) / 2, 0)
    return _choices(surest(mass, winners, queries), winners)


def own(attention: Any, queries: int) -> Any:
    """(text, query, choice) of a head's surest queries in the second reading, one for each token."""
    at, _ = wanted(attention.shape[1])
    late, mass = np.isin(np.arange(attention.shape[1]), at), attention.max(-1)
    winners = attention.argmax(-1)
    return _choices(surest(np.where(late, mass, 0), winners, queries), winners)


def _choices(places: Any, winners: Any) -> Any:
    text, query = places.astype(int).reshape(-1, 2).T
    return np.stack([text, query, winners[text, query]], 1)


def judged(head: Kept, choices: Any, norms: list[str]) -> dict[str, Any]:
    """A head on some choices: the program of their corpus, by norm."""
    if len(choices) < LEAST:
        return {"used": len(choices)}
    corpus, text = of_places(choices, len(head.states), head.states.shape[1]), choices[:, 0]
    tokens = nt.sentence_tokens(corpus, head.states.reshape(-1, head.states.shape[-1]))
    weights = {"": head.W} | ({} if head.added is None else {"added ": head.added})
    mass = float(head.attention[text, choices[:, 1], choices[:, 2]].mean())
    programs = {norm: margins(tokens, choices[:, 2], weights, norm) for norm in norms}
    return {"used": len(choices), "mass": mass, "margins": programs}


def of_places(choices: Any, texts: int, T: int) -> nt.Corpus:
    """The corpus whose vocabulary is all tokens in their places: a sentence copies one of those before it."""
    text, query, choice = choices.T
    ids = np.where(np.arange(T) <= query[:, None], text[:, None] * T + np.arange(T), -1)
    names = tuple(f"{n}.{i}" for n in range(texts) for i in range(T))
    return nt.Corpus(ids[:, : query.max() + 1], text * T + choice, names, queries=text * T + query)


def ordered(ids: Any, where: Any, mass: Any, seed: int = 0) -> list[float | None]:
    """Sentences whose query asks twice or more, and shares that an order explains: the head's, and chance."""
    late = np.where(np.arange(ids.shape[1]) >= min(EARLIEST, ids.shape[1] // 2), mass, 0)
    n, i = np.unravel_index(np.argsort(-late, axis=None)[: min(SURE, np.count_nonzero(late))], late.shape)
    query_tokens, count = np.unique(ids[n, i], return_counts=True)
    repeated = np.isin(ids[n, i], query_tokens[count > 1])
    n, i = n[repeated], i[repeated]
    if len(n) < LEAST:
        return [len(n), None, None]
    drawn = np.random.default_rng(seed).integers(i + 1)
    return [len(n), *(explained(ids, n, i, choice) for choice in (where[n, i], drawn))]


def explained(ids: Any, n: Any, i: Any, choice: Any) -> float:
    """The share of sentences whose choice no other sentence of the same query contradicts."""
    names, rows = np.unique(ids, return_inverse=True)
    rows = rows.reshape(ids.shape)
    sentences = np.where(np.arange(ids.shape[1]) <= i[:, None], rows[n], -1)
    corpus = nt.Corpus(sentences, rows[n, choice], tuple(map(str, names)))
    tied = nt.Priorities.of(corpus).selected & (corpus.ids != corpus.winners[:, None])
    return float(1 - tied.any(-1).mean())


if __name__ == "__main__":
    main()
