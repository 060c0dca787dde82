"""Adam in mini-batches: is the margin in a norm of its own multipliers the column that Adam lacks?

    python lab/experiments/adam_batches.py --record lab/records/adam_batches.json     # minutes on one core

adam      Adam on W, then on K and Q, in batches of 1, 2, 4 and all of n = 8 examples: shares of the best
          margin in l∞, l2, the fixed point of `adam_margin`, and for K and Q in norms of factors, too.
momentum  steepest steps in l∞, spectral and l2, batch against momentum: shares of their own margin and l2's.

factors   Is a pair K, Q trained by Adam at the fixed point of its own factors? Cosines of K and Q with the
          directions that their multipliers give, and with signs and gradients.

All shares are in percent, with the limit of the share: what is missing is a number of logits.
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

SIZE = N, T, D = 8, 4, 6
BATCHES = (1, 2, 4, N)
STEPS, RATE = 40_000, 0.2
MEMORIES = {"0.9, 0.95": (0.9, 0.95), "0.9, 0.99": (0.9, 0.99)}
"""b1 and b2: about 20 and 100 steps are remembered, where an epoch has 8 to 1."""

NORMS = {"l∞": att.linf, "spectral": att.spectral, "l2": att.frobenius}
MOMENTA = (0.0, 0.9, 0.99)


def at_zero(shares: list[float], lengths: list[float]) -> dict[str, float]:
    """The last share, and the limit linear in 1/N(W)."""
    return {"share": 100 * shares[1], "limit": 100 * limit_by_length(shares, lengths)}


def of_norm(path: att.Path, norm: att.Norm) -> dict[str, float] | None:
    best = att.max_margin(path.tokens, path.selected, norm)
    if not best.certified:
        return None
    shares = [float(x) for x in np.asarray(att.margin_ratio(path, best))[-2:]]
    return at_zero(shares, [float(x) for x in path.norm(norm)[-2:]])


def of_adam(path: att.Path, batch: int) -> dict[str, float] | None:
    if batch == N:
        return of_norm(path, att.linf)
    best = programs.adam_margin(path.tokens, path.selected, batch=batch)
    if not best.certified:
        return None
    pair = path.W[-2:]
    return at_zero([best.share(W) for W in pair], [best.value(W) for W in pair])


def trained(seeds: list[int], rule: Any, batch: int, factors: bool) -> list[att.Path]:
    """The runs whose selection did not change in the last half."""
    tokens, v = att.datasets.sphere(*SIZE, seed=seeds)
    runs = att.train(
        tokens,
        att.Linear(v),
        weight=att.KeyQuery() if factors else att.FullWeight(),
        optimizer=rule,
        steps=STEPS,
        record=[STEPS // 2, STEPS],
        batch=None if batch == N else att.Batches(batch, seed=seeds),
    )
    return [path for k in range(len(seeds)) if settled(path := runs.run(k))]


def row(about: dict[str, Any], each: list[dict[str, dict[str, float] | None]], drawn: int) -> dict[str, Any]:
    out: dict[str, Any] = {**about, "drawn": drawn, "runs": len(each)}
    for name in each[0] if each else ():
        for what in ("share", "limit"):
            values = [one[name][what] for one in each if one[name] is not None]
            values = [value for value in values if np.isfinite(value)]
            out[f"{name}, {what}"] = [*interval(values), len(values)] if values else None
    print(json.dumps(out, ensure_ascii=False), flush=True)
    return out


def adam(seeds: list[int]) -> list[dict[str, Any]]:
    rows = []
    for factors in (False, True):
        for memory, betas in MEMORIES.items():
            for batch in BATCHES:
                rule = att.adam(falling(RATE / 3 if factors else RATE), *betas, eps=0)
                each = []
                for path in trained(seeds, rule, batch, factors):
                    shares = {"l∞": of_norm(path, att.linf), "l2": of_norm(path, att.frobenius)}
                    shares["fixed point"] = of_adam(path, batch)
                    if factors:
                        shares["nuclear"] = of_norm(path, att.nuclear)
                        shares["max-norm"] = of_norm(path, att.MaxNorm())
                    else:
                        shares["fixed point of batch 1"] = of_adam(path, 1)
                    each.append(shares)
                about = {"what": "K and Q" if factors else "W", "memory": memory, "batch": batch}
                rows.append(row(about, each, len(seeds)))
    return rows


def momentum(seeds: list[int]) -> list[dict[str, Any]]:
    rows = []
    for name, norm in NORMS.items():
        for memory in MOMENTA:
            for batch in (1, 4, N):
                rule = att.steepest(norm, falling(RATE), momentum=memory)
                each = [
                    {"own norm": of_norm(path, norm), "l2": of_norm(path, att.frobenius)}
                    for path in trained(seeds, rule, batch, False)
                ]
                about = {"what": "steepest", "norm": name, "momentum": memory, "batch": batch}
                rows.append(row(about, each, len(seeds)))
    return rows


def cosine(a: Any, b: Any) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def gradients(path: att.Path, v: Any) -> Any:
    """The gradient of each example by −W (n, d, e) at the last record, up to one factor."""
    tokens, i = path.tokens, np.arange(N)
    s = path.attention[-1].argmax(-1)
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, path.W[-1], tokens.queries)
    score = tokens.labels[:, None] * (tokens.values @ v)
    gain = score[i, s][:, None] - score
    log = np.log(np.abs(gain) + 1e-300) + logits - logits[i, s][:, None] - score[i, s][:, None]
    log[i, s] = -np.inf
    weight = np.sign(gain) * np.exp(log - log.max())
    return np.einsum("nt,ntd,ne->nde", weight, tokens.keys[i, s][:, None] - tokens.keys, tokens.queries)


def factors(seeds: list[int]) -> list[dict[str, Any]]:
    """P⁻¹ ∘ Σ G_i of the factors' own gradients, P² the mean square of those of batches."""
    rows, (tokens, v) = [], att.datasets.sphere(*SIZE, seed=seeds)
    for steps in (5_000, 20_000, 80_000):
        for batch in (1, 4, N):
            rule = att.adam(falling(RATE / 3), 0.9, 0.95, eps=0)
            runs = att.train(
                tokens,
                att.Linear(v),
                weight=att.KeyQuery(),
                optimizer=rule,
                steps=steps,
                record=[steps // 2, steps],
                batch=None if batch == N else att.Batches(batch, seed=seeds),
            )
            single, whole = (N - batch) / (N - 1), (batch - 1) / (N - 1)
            each = []
            for path, head in ((runs.run(k), np.asarray(v)[k]) for k in range(len(seeds))):
                if not settled(path):
                    continue
                G, K, Q = gradients(path, head), np.asarray(path.K[-1]), np.asarray(path.Q[-1])
                pairs = (K, G @ Q), (Q, G.transpose(0, 2, 1) @ K)
                P = [np.sqrt(single * (g * g).sum(0) + whole * g.sum(0) ** 2) for _, g in pairs]
                own = [cosine(X, g.sum(0) / p) for (X, g), p in zip(pairs, P, strict=True)]
                signs = [cosine(X, np.sign(g.sum(0))) for X, g in pairs]
                plain = [cosine(X, g.sum(0)) for X, g in pairs]
                each.append({"fixed point": min(own), "signs": min(signs), "gradient": min(plain)})
            about = {"what": "factors", "steps": steps, "batch": batch}
            names = ("fixed point", "signs", "gradient")
            medians = {name: interval([one[name] for one in each]) for name in names}
            rows.append({**about, "runs": len(each), **medians})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="+", default=["adam", "momentum", "factors"])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--first", type=int, default=6700)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", att.NotCertified)
    seeds, began = list(range(options.first, options.first + options.seeds)), time.process_time()
    studies = {"adam": adam, "momentum": momentum, "factors": factors}
    rows = [row for what in options.what for row in studies[what](seeds)]
    if options.record:
        settings = {"steps": STEPS, "rate": RATE, "first": options.first, "seeds": options.seeds}
        record = {"settings": settings, "cpu_seconds": round(time.process_time() - began), "rows": rows}
        options.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
