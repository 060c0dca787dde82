"""Muon on matrices, signs on the rest: is the hybrid margin the one that training maximises?

    python lab/experiments/mixtures.py --record lab/records/mixtures.json     # minutes on one core

weight   W = [W_z b], queries [z; 1]: W_z by spectral steps, b by signs at a rate of its own.
factors  W_z = K Q_zᵀ and b = K b_Q: K and Q_z by spectral steps, the bias b_Q of the queries by signs.
head     W, or K and Q, by spectral steps, and the head v by signs: the offset program.

Shares of the certified margin in percent, in the predicted norm and in others.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import attsvm as att
from attsvm_lab import programs
from attsvm_lab.claims.instances import falling, limit_by_length, settled
from values_and_outputs import interval

RATES = (0.1, 0.3, 1.0)
STEPS, RATE = {"weight": 8_000, "factors": 40_000, "head": 20_000}, 0.4
N, T, D = 8, 4, 5


def with_one(tokens: att.Tokens) -> att.Tokens:
    """The same tokens with a 1 behind every query."""
    one = np.ones((*tokens.queries.shape[:-1], 1))
    queries = np.concatenate([tokens.queries, one], -1)
    return att.Tokens(tokens.keys, queries, labels=tokens.labels)


def share(path: att.Path, norm: att.Norm) -> dict[str, float]:
    """The least margin at norm one in percent of the certified best, and the limit of this share."""
    best = att.max_margin(path.tokens, path.selected, norm)
    if not best.certified:
        return {"share": float("nan"), "limit": float("nan")}
    shares = 100 * np.asarray(att.margin_ratio(path, best))
    return {"share": float(shares[-1]), "limit": limit_by_length(shares, path.norm(norm))}


def biased(seeds: list[int], rho: float, factors: bool) -> list[dict[str, float] | None]:
    """The shares of every draw; None where the selection changed in the last half."""
    tokens, v = att.datasets.sphere(N, T, D, seed=seeds)
    sizes, steps = (D, 1), STEPS["factors" if factors else "weight"]
    parts: tuple[str, str] = ("spectral", "linf")
    if factors:
        weight: Any = att.KeyQuery(rank=D + 1)
        of_Q = att.HybridNorm(parts, sizes, (1.0, rho), axis=0)
        rule = att.steepest((att.spectral, of_Q), falling(RATE / 4))
        predicted = att.limit_norm(weight, rule).norm
        naive = att.HybridNorm(parts, sizes, (1.0, rho))
    else:
        weight = att.FullWeight()
        rule = att.steepest(att.HybridNorm(parts, sizes, (1.0, rho)), falling(RATE))
        predicted = att.limit_norm(weight, rule).norm
        naive = att.HybridNorm(("spectral", "frobenius"), sizes, (1.0, rho))
    others = {
        "other norm of the bias": naive,
        "rate over 3": att.HybridNorm(predicted.norms, sizes, (1.0, predicted.rates[1] / 3)),
        "spectral": att.spectral,
        "max entry": att.linf,
    }
    runs = att.train(
        with_one(tokens),
        att.Linear(v),
        weight=weight,
        optimizer=rule,
        steps=steps,
        record=[steps // 2, steps],
    )
    norms, each = {"predicted": predicted, **others}, []
    for k in range(len(seeds)):
        path = runs.run(k)
        shares = {name: share(path, norm) for name, norm in norms.items()} if settled(path) else {}
        flat = {f"{name}, {what}": one[what] for name, one in shares.items() for what in one}
        each.append(flat or None)
    return each


def beside_head(seeds: list[int], ratio: float, factors: bool) -> list[dict[str, float] | None]:
    """The share of the offset program where v takes signs, its limit, and the share of the plain margin."""
    tokens, v = att.datasets.sphere(10, 4, 6, seed=seeds)
    size = 0.1 if factors else RATE
    runs = att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery() if factors else att.FullWeight(),
        optimizer=att.steepest((att.spectral, att.spectral) if factors else att.spectral, falling(size)),
        train_head=att.steepest(att.linf, falling(size * ratio)),
        steps=STEPS["head"],
        record=[STEPS["head"] // 2, STEPS["head"]],
    )
    each = []
    for k in range(len(seeds)):
        path = runs.run(k)
        if not settled(path):
            each.append(None)
            continue
        best = att.max_margin(path.tokens, path.selected, att.spectral)
        shares = []
        for record in (-2, -1):
            program = programs.offset_program(path, best, record)
            shares.append(100 * program.share(path.W[record]))
        each.append(
            {
                "share": shares[1],
                "limit": limit_by_length(shares, path.norm(att.spectral)),
                "plain": 100 * float(att.margin_ratio(path, best)[-1]),
                "negative": float(program.above.any()),
            }
        )
    return each


def table(name: str, rate: float, each: list[dict[str, float] | None]) -> dict[str, Any]:
    """Medians with intervals, over draws whose programs have no negative row."""
    runs = [one for one in each if one is not None and not one.get("negative")]
    row: dict[str, Any] = {"what": name, "rate": rate, "drawn": len(each), "runs": len(runs)}
    for key in runs[0] if runs else ():
        values = [one[key] for one in runs if np.isfinite(one[key])]
        row[key] = [*interval(values), min(values)] if values else None
    print(json.dumps(row), flush=True)
    return row | {"each": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="+", default=["weight", "factors", "head"])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=6400)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", att.NotCertified)
    seeds, rows = list(range(options.first, options.first + options.seeds)), []
    began = time.process_time()
    for rate in RATES:
        for what in options.what:
            if what == "head":
                for factors in (False, True):
                    name = "K, Q and v" if factors else "W and v"
                    rows.append(table(name, rate, beside_head(seeds, rate, factors)))
            else:
                rows.append(table(what, rate, biased(seeds, rate, what == "factors")))
    if options.record:
        settings = {"steps": STEPS, "rate": RATE, "first": options.first, "seeds": options.seeds}
        record = {"settings": settings, "cpu_seconds": round(time.process_time() - began), "rows": rows}
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
