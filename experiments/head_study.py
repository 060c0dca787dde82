"""How near the heads of a trained net are to the best margin, in several norms:

    python experiments/head_study.py RUNS OUT.json [--queries 8]

Reads every RUNS/*/heads-*.safetensors. For every layer and head the queries of the held-out batch that put
the largest attention on one token, at most one for each attended token, make a program. Given are the head's
own margin and the certified best one in each norm, entropy, norm, and how sure the selections are. Goes on
where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from attsvm.heads.head import softmax
from attsvm.heads.margins import margins
from attsvm.norms import Entrywise, Norm, frobenius, linf, nuclear, spectral
from attsvm.progress import Line
from attsvm.tokens import Tokens

NORMS: dict[str, Norm] = {
    "Frobenius": frobenius,
    "nuclear": nuclear,
    "spectral": spectral,
    "l1.1": Entrywise(1.1),
    "l3": Entrywise(3),
    "linf": linf,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=8, help="selections of a head in its program")
    parser.add_argument("--norms", nargs="*", default=list(NORMS), choices=list(NORMS))
    parser.add_argument("--only", default="", help="only files with this in their name")
    given = parser.parse_args(arguments)
    done = json.loads(given.out.read_text(encoding="utf8")) if given.out.is_file() else {}
    files = [file for file in sorted(given.runs.glob("*/heads-*.safetensors")) if given.only in str(file)]
    with Line(total=len(files)) as line:
        for count, file in enumerate(files):
            name = f"{file.parent.name}/{file.stem}"
            if name not in done:
                done[name] = list(study(file, given.queries, given.norms))
                given.out.write_text(json.dumps(done), encoding="utf8")
            line.show(name, count + 1)


def study(file: Path, queries: int, norms: list[str]) -> Iterator[dict[str, Any]]:
    """One record per layer and head."""
    with safe_open(file, "numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        heads = int(opened.metadata()["heads"])
    mask = arrays.pop("mask").astype(bool)
    for layer in range(len(arrays) // 3):
        query, key, states = (arrays[f"{layer}.{name}"].astype(float) for name in ("query", "key", "states"))
        width = len(query) // heads
        for head in range(heads):
            rows = slice(width * head, width * (head + 1))
            W = key[rows].T @ query[rows] / np.sqrt(width)
            yield {"layer": layer, "head": head, **one(W, states, mask, queries, norms)}


def one(W: Any, states: Any, mask: Any, queries: int, norms: list[str]) -> dict[str, Any]:
    """What one head selects, and its margins."""
    logits = np.where(mask[:, None], states @ W.T @ states.transpose(0, 2, 1), -np.inf)  # query, token
    seen = softmax(logits)
    entropy = -(np.where(seen > 0, seen * np.log(np.maximum(seen, 1e-300)), 0)).sum(-1)
    text, place = surest(np.where(mask, seen.max(-1), 0), seen.argmax(-1), queries).T
    tokens = Tokens(states[text], states[text, place], mask=mask[text])
    return {
        "norm": float(np.linalg.norm(W)),
        "entropy": float(entropy[mask].mean()),
        "confident": float((seen.max(-1)[mask] > 0.5).mean()),
        "mass": float(seen.max(-1)[text, place].mean()),
        "used": len(text),
        "margins": {name: _margins(tokens, logits[text, place].argmax(-1), W, name) for name in norms},
    }


def surest(mass: Any, selected: Any, count: int) -> Any:
    """(text, query) of the largest masses, one query for each selected token: repetitions say nothing new."""
    kept: dict[tuple[int, int], tuple[int, int]] = {}
    for text, place in zip(*np.unravel_index(np.argsort(-mass, axis=None), mass.shape), strict=True):
        if mass[text, place] > 0:
            kept.setdefault((int(text), int(selected[text, place])), (int(text), int(place)))
    return np.array(list(kept.values())[:count])


def _margins(tokens: Tokens, selected: Any, W: Any, name: str) -> dict[str, Any]:
    start = time.process_time()
    found = margins(tokens, selected, W, NORMS[name])
    fields = {"own": found.own, "best": found.best, "ratio": found.ratio, "cosine": found.cosine}
    plain = {key: None if np.isnan(value) else float(f"{value:.6g}") for key, value in fields.items()}
    return plain | {
        "certified": bool(found.certified),
        "conflict": found.conflict[:120],
        "seconds": round(time.process_time() - start, 2),
    }


if __name__ == "__main__":
    main()
