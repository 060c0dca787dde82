"""How near the heads of a trained net are to the best margin, in several norms:

    python lab/experiments/head_study.py RUNS OUT.json [--queries 8]
    python lab/experiments/head_study.py RUNS OUT.json --together sentiment-3-mirror1.1-0 sentiment-3-adam-0 …

Reads every RUNS/*/heads-*.safetensors. For every layer and head the queries of the held-out batch that put
the largest attention on one token, at most one for each attended token, make a program. Given are the head's
own margin and the certified best one in each norm, those of its factors K and Q in two of them (`FACTORS`),
entropy, soft sparsity, norm, rank, how many of its weights are in use, and how sure the selections are. Where
a training of the same seed kept its heads-0000, what training added is judged beside the head. Goes on where
it was.

--together: the last heads of trainings that share their seed, judged on the same selections: those which all
of these nets make, the surest on average first; heads with fewer than four are left out. A net keeps its own
states, so that only what is asked of it is shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from scipy.special import softmax

from attsvm._support.progress import ProgressLine
from attsvm.data.tokens import Tokens
from head_programs import NORMS, margins

LEAST = 4
"""Shared selections without which heads are not compared."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=8, help="selections of a head in its program")
    parser.add_argument("--norms", nargs="*", default=list(NORMS), choices=list(NORMS))
    parser.add_argument("--together", nargs="*", default=(), help="trainings judged on the same selections")
    parser.add_argument("--only", default="", help="only files with this in their name")
    options = parser.parse_args(arguments)
    records = json.loads(options.out.read_text(encoding="utf8")) if options.out.is_file() else {}
    files = [file for file in sorted(options.runs.glob("*/heads-*.safetensors")) if options.only in str(file)]
    settings = (options.queries, options.norms)
    jobs: list[tuple[str, Any]] = [
        (f"{file.parent.name}/{file.stem}", lambda file=file: study([file], *settings, start_of(file))[0])
        for file in files
    ]
    if options.together:
        jobs = [("same", lambda: together(options.runs, options.together, *settings))]
    with ProgressLine(total=len(jobs)) as line:
        for count, (name, job) in enumerate(jobs):
            line.show(name, count)
            if name not in records:
                records[name] = job()
                options.out.write_text(json.dumps(records), encoding="utf8")


def together(runs: Path, names: list[str], queries: int, norms: list[str]) -> dict[str, Any]:
    """Training → its heads, on the selections of all of them."""
    files = [runs / name / "heads-last.safetensors" for name in names]
    return dict(zip(names, study(files, queries, norms, start_of(files[0])), strict=True))


def start_of(file: Path) -> Path | None:
    """The heads before training: of this training, or of another one with its seed, which starts so too."""
    seed = file.parent.name.rsplit("-", 1)[-1]
    candidates = sorted(file.parent.parent.glob(f"*-{seed}/heads-0000.safetensors"))
    alike = [
        candidate for candidate in candidates if _shape(candidate) == _shape(file)
    ]  # a net of another size has other weights
    return next(
        (candidate for candidate in alike if candidate.parent == file.parent), alike[0] if alike else None
    )


class Kept(NamedTuple):
    """A head of a file: logits are x_tᵀ W z with W = Kᵀ Q."""

    K: Any  # (width, d), divided by √width
    Q: Any  # (width, d)
    states: Any  # (n, T, d)
    mask: Any  # (n, T)
    logits: Any  # (n, query, token)

    @property
    def W(self) -> Any:
        return self.K.T @ self.Q


def study(
    files: list[Path], queries: int, norms: list[str], start: Path | None = None
) -> list[list[dict[str, Any]]]:
    """For every file one record per layer and head, on selections that the heads of all files make."""
    records: list[list[dict[str, Any]]] = [[] for _ in files]
    for layer, head, (*nets, start_net) in zip_heads([*files, start or files[0]]):
        attention = [softmax(net.logits, axis=-1) for net in nets]
        winners = np.array([each.argmax(-1) for each in attention])
        shared = (winners == winners[0]).all(0) & nets[0].mask
        places = surest(np.where(shared, np.mean(attention, axis=0).max(-1), 0), winners[0], queries)
        if len(places) < (LEAST if len(files) > 1 else 1):
            continue
        text, place = places.T
        selected = winners[0][text, place]
        for record, net, each in zip(records, nets, attention, strict=True):
            tokens = Tokens(net.states[text], net.states[text, place], mask=net.mask[text])
            about = {"layer": layer, "head": head, "used": len(text), **described(net, each)}
            about["mass"] = float(each[text, place, selected].mean())
            weights = {"": net.W}
            if start and (start_net.W != net.W).any():
                weights["added "] = net.W - start_net.W
                about |= shaped("added ", weights["added "], net.K - start_net.K, net.Q - start_net.Q)
            judged = {n: margins(tokens, selected, weights, n, (net.K, net.Q)) for n in norms}
            record.append(about | {"margins": judged})
    return records


def zip_heads(files: list[Path]) -> Iterator[tuple[int, int, list[Kept]]]:
    """Layer, head, and this head of every file."""
    nets = [_opened(file) for file in files]
    arrays, heads = nets[0]
    for layer in range(len(arrays) // 3):
        for head in range(heads):
            heads_here = []
            for net, _ in nets:
                query, key, states = (
                    net[f"{layer}.{name}"].astype(float) for name in ("query", "key", "states")
                )
                mask, width = net["mask"].astype(bool), len(query) // heads
                rows = slice(width * head, width * (head + 1))
                K, Q = key[rows] / np.sqrt(width), query[rows]
                logits = np.where(mask[:, None], states @ Q.T @ K @ states.transpose(0, 2, 1), -np.inf)
                heads_here.append(Kept(K, Q, states, mask, logits))
            yield layer, head, heads_here


def _opened(file: Path) -> tuple[dict[str, Any], int]:
    with safe_open(file, "numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        about = opened.metadata()
    last = file.parent / "last.json"
    if file.stem == "heads-last" and "epoch" in about and last.is_file():
        end = json.loads(last.read_text(encoding="utf8"))["epoch"]
        if int(about["epoch"]) != end:
            raise ValueError(f"{file} is of epoch {about['epoch']}, last.json of {end}. Gather both again.")
    return arrays, int(about["heads"])


def _shape(file: Path) -> tuple[set[str], str]:
    with safe_open(file, "numpy") as opened:
        return set(opened.keys()), opened.metadata()["heads"]


def described(net: Kept, attention: Any) -> dict[str, float]:
    """Norm and shape of a head; of its attention s the entropy, the soft sparsity 1/‖s‖², and how many of
    its queries put more than half on one token."""
    entropy = -(np.where(attention > 0, attention * np.log(np.maximum(attention, 1e-300)), 0)).sum(-1)
    measures = {
        "entropy": entropy,
        "soft": 1 / np.square(attention).sum(-1),
        "confident": attention.max(-1) > 0.5,
    }
    means = {name: float(x[net.mask].mean()) for name, x in measures.items()}
    return {"norm": float(np.linalg.norm(net.W)), **means, **shaped("", net.W, net.K, net.Q)}


def shaped(kind: str, W: Any, K: Any, Q: Any) -> dict[str, float]:
    """Stable rank ‖W‖_F² / ‖W‖² of a head, and the spread of the entries of K and Q, (Σ|w|)² / (n Σw²).

    The spread is one where all entries have one size and 1/n where one is not zero; 2/π of normal ones.
    """
    sizes = np.linalg.svd(W, compute_uv=False)
    spread = np.mean([np.abs(x).sum() ** 2 / (x.size * np.square(x).sum()) for x in (K, Q) if x.any()])
    return {f"{kind}rank": float(np.square(sizes / sizes[0]).sum()), f"{kind}spread": float(spread)}


def surest(mass: Any, selected: Any, count: int) -> Any:
    """(text, query) of the largest masses, one query for each selected token: repetitions say nothing new."""
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for text, place in zip(*np.unravel_index(np.argsort(-mass, axis=None), mass.shape), strict=True):
        if mass[text, place] > 0:
            places.setdefault((int(text), int(selected[text, place])), (int(text), int(place)))
    return np.array(list(places.values())[:count])


if __name__ == "__main__":
    main()
