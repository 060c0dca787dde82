"""Gradients of the layer on random programs, and its flag on degenerate ones, beside differences.

    python lab/benchmarks/layer_gradients.py --record lab/records/layer_gradients.json     # minutes, one core

Regular: the slope of a random function of W, N(W) and all multipliers along a random change of keys, queries
and margins, beside central differences of fourth order. Of steps 1e-3 to 1e-8 the record takes the one whose
difference agrees best with its neighbour's; it never looks at the gradient for that.

Degenerate: whether there is a derivative is what one-sided differences say. The change of W and multipliers
per step, forward and backward, at two steps: a derivative makes the four agree at some pair of steps, in
every direction that is tried. In l1 and l∞ W may not be unique, and differences of what the solver picks
need not show it: there a linear program asks how far a random sum of entries of W varies over all solutions.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog

import attsvm as att
from attsvm.norms.names import as_norm
from attsvm.torch import max_margin

NORMS = ("l1", "lp:1.5", "frobenius", "lp:3", "linf", "schatten:1.5", "schatten:3")
"""The seven norms in which W and multipliers have a derivative."""
OF_VALUE = ("nuclear", "spectral", "max-norm")
SHAPES = [(3, 4, 5, 1), (2, 3, 4, 3), (4, 5, 2, 2), (1, 2, 3, 1), (3, 2, 1, 4), (5, 3, 3, 2), (3, 3, 4, 3)]
STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
CLOSE = 1e-6
"""Relative error of a gradient that the issue of this record allows."""
ONE_SIDED = ((1e-5, 1e-6), (1e-6, 1e-7), (1e-7, 1e-8))
DIRECTIONS = 4
KINK = 0.03
"""Relative difference of one-sided slopes from which they have no common limit. A smooth one leaves the step
times the curvature; `unclear` counts what is between a tenth of it and this."""

SAME, SPREAD = 1e-9, 1e-4
"""Relative room that the linear program has, and what it may make of it where W is unique."""

Data = dict[str, torch.Tensor]


# ---------------------------------------------------------------------- programs


def random_program(rng: np.random.Generator, soft: bool = False) -> tuple[Data, np.ndarray]:
    """Gaussian keys, queries, margins; selected are the best tokens of a random W, one or several."""
    n, T, d, e = SHAPES[rng.integers(len(SHAPES))]
    keys, queries = rng.normal(size=(n, T, d)), rng.normal(size=(n, e)) if e > 1 else np.ones((n, 1))
    logits = np.einsum("ntd,de,ne->nt", keys, rng.normal(size=(d, e)), queries)
    selected = logits == logits.max(1, keepdims=True)
    if T > 2 and rng.random() < 0.25:  # a tie
        selected[0, np.argsort(logits[0])[-2]] = True
    data = {"keys": keys, "queries": queries, "required": rng.uniform(0.5, 2, n)}
    if soft:
        data |= {"slack": rng.uniform(0.1, 2, n)}
    return {name: torch.tensor(x) for name, x in data.items()}, selected


def results(data: Data, selected: np.ndarray, norm: str, value_only: bool = False) -> torch.Tensor:
    """W, N(W) and multipliers of every program of a batch, in one axis (r, k); NaN where there is none."""
    result = max_margin(**data, selected=selected, norm=norm, unseparable="nan")
    if value_only:
        return result.norm[:, None]
    parts = [result.W.flatten(1), result.norm[:, None], result.multipliers.flatten(1)]
    return torch.cat(parts, 1)


def moved(data: Data, direction: Data, steps: np.ndarray) -> Data:
    """The data at steps (r,) along a direction, as a batch."""
    t = torch.tensor(steps)
    return {k: x + t.reshape(-1, *[1] * x.ndim) * direction[k] for k, x in data.items()}


def a_direction(data: Data, rng: np.random.Generator) -> Data:
    return {k: x * torch.tensor(rng.normal(size=x.shape)) + 0.1 * torch.tensor(rng.normal(size=x.shape))
            for k, x in data.items()}  # fmt: skip


# ---------------------------------------------------------------------- regular programs


def central(
    data: Data, selected: np.ndarray, norm: str, direction: Data, weights: Any
) -> tuple[float, float]:
    """The slope by differences of fourth order at the step that agrees best, and how well that is."""
    offsets = np.array([-2, -1, 1, 2])
    steps = np.concatenate([h * offsets for h in STEPS])
    value_only = weights.shape[0] == 1
    with torch.no_grad():
        values = (results(moved(data, direction, steps), selected, norm, value_only) @ weights).numpy()
    table = values.reshape(len(STEPS), 4)
    slopes = (table @ np.array([1, -8, 8, -1])) / (12 * np.array(STEPS))
    apart = np.abs(np.diff(slopes)) / np.maximum(np.abs(slopes[1:]), 1e-300)
    best = int(np.nanargmin(apart)) if np.isfinite(apart).any() else 0
    return float(slopes[best + 1]), float(apart[best])


def gradient_error(
    data: Data, selected: np.ndarray, norm: str, rng: np.random.Generator
) -> dict[str, Any] | None:
    """Error of the gradient and of the differences, or None where the program is not separable."""
    one = {k: x[None].clone().requires_grad_() for k, x in data.items()}
    result = max_margin(**one, selected=selected, norm=norm, unseparable="nan")
    if not bool(result.separable):
        return None
    value_only = norm in OF_VALUE
    values = results(one, selected, norm, value_only)
    weights = torch.tensor(rng.normal(size=values.shape[1]))
    gradient = torch.autograd.grad((values @ weights).sum(), list(one.values()))
    direction = a_direction(data, rng)
    slope = sum(float((g[0] * direction[k]).sum()) for g, k in zip(gradient, one, strict=True))
    expected, spread = central(data, selected, norm, direction, weights)
    return {
        "regular": bool(result.regular),
        "error": abs(slope - expected) / abs(expected),
        "half": abs(0.5 * slope - expected) / abs(expected),
        "differences": spread,
    }


# ---------------------------------------------------------------------- degenerate programs


def degenerate(rng: np.random.Generator, norm: str) -> Iterator[tuple[str, Data, np.ndarray]]:
    """Programs of all families around one random program: kinks, and twins that have none."""
    data, selected = random_program(rng)
    n, T = selected.shape
    solution = attempted(data, selected, norm)
    if solution is None:
        return
    W, support = solution.W, solution.support
    losing = ~selected
    active, free = np.argwhere(support), np.argwhere(losing & ~support)

    def with_keys(keys: np.ndarray) -> Data:
        return data | {"keys": torch.tensor(keys)}

    keys = data["keys"].numpy()
    for i, t in active[:1]:
        places = [s for s in range(T) if losing[i, s] and s != t]
        if places:
            copied = keys.copy()
            copied[i, places[0]] = copied[i, t]
            yield "copy of a support token", with_keys(copied), selected
            behind = copied.copy()
            direction = W @ data["queries"][i].numpy()
            behind[i, places[0]] -= 0.05 * direction / (direction @ direction)
            yield "that copy, moved behind", with_keys(behind), selected
    for i, t in free[:1]:
        direction = W @ data["queries"][i].numpy()
        anchor = keys[i, selected[i].argmax()]
        slack = (anchor - keys[i, t]) @ direction - float(data["required"][i])
        touching = keys.copy()
        touching[i, t] += slack * direction / (direction @ direction)
        yield "token at its margin without a pull", with_keys(touching), selected
        near = keys.copy()
        near[i, t] += 0.98 * slack * direction / (direction @ direction)
        yield "that token, moved away", with_keys(near), selected
        places = [s for s in range(T) if losing[i, s] and not support[i, s] and s != t]
        if places:
            copied = keys.copy()
            copied[i, places[0]] = copied[i, t]
            yield "copy of a token without support", with_keys(copied), selected
    for i in range(n):
        both = [t for t in range(T) if support[i, t]]
        places = [s for s in range(T) if losing[i, s] and not support[i, s]]
        if len(both) >= 2 and places:
            between = keys.copy()
            between[i, places[0]] = between[i, both[:2]].mean(0)
            yield "mean of two support tokens", with_keys(between), selected
            break
    if n > 1:
        doubled = {k: x.clone() for k, x in data.items()}
        for x in doubled.values():
            x[1] = x[0]
        again = selected.copy()
        again[1] = again[0]
        yield "example twice", doubled, again
    if T > 2:
        tied, both = keys.copy(), selected.copy()
        first = selected[0].argmax()
        second = (first + 1) % T
        tied[0, second], both[0, second] = tied[0, first], True
        yield "selected token twice", with_keys(tied), both
    whole = {k: torch.round(x) if k != "required" else torch.ones_like(x) for k, x in data.items()}
    yield "whole numbers", whole, selected


def attempted(data: Data, selected: np.ndarray, norm: str) -> att.Solution | None:
    tokens = att.Tokens(data["keys"].numpy(), data["queries"].numpy())
    try:
        return att.max_margin(tokens, selected, norm, required=data["required"].numpy())
    except att.NotSeparable:
        return None


def without_derivative(data: Data, selected: np.ndarray, norm: str, rng: np.random.Generator) -> float:
    """How far slopes of W and multipliers differ by side and step, relative to them; ∞ if W is not unique."""
    if norm in ("l1", "linf") and not is_unique(data, selected, norm, rng):
        return np.inf
    directions = [a_direction(data, rng) for _ in range(DIRECTIONS)]
    worst = np.inf
    for pair in ONE_SIDED:
        worst = min(worst, max(one_sided(data, selected, norm, each, pair) for each in directions))
        if worst <= KINK:
            break
    return worst


def one_sided(
    data: Data, selected: np.ndarray, norm: str, direction: Data, pair: tuple[float, float]
) -> float:
    """The same along one direction, at two steps."""
    steps = np.array([0.0, *(sign * h for h in pair for sign in (1, -1))])
    with torch.no_grad():
        values = results(moved(data, direction, steps), selected, norm).numpy()
    if not np.isfinite(values).all():  # a change of the data makes the program inseparable
        return np.inf
    slopes = (values[1:] - values[0]) / steps[1:, None]
    size = np.linalg.norm(slopes, axis=1).max()
    apart = np.abs(slopes[:, None] - slopes[None]).max((0, 1))
    rounding = 1e-12 * np.linalg.norm(values[0]) / pair[1]
    return float(np.linalg.norm(apart) / size) if size > rounding else 0.0


def is_unique(data: Data, selected: np.ndarray, norm: str, rng: np.random.Generator) -> bool:
    """Whether a random sum of entries of W is the same over all W whose norm is the least up to SAME."""
    keys, queries, required = (data[k].numpy() for k in ("keys", "queries", "required"))
    solution = attempted(data, selected, norm)
    assert solution is not None
    size = as_norm(norm).value(solution.W)
    anchor = selected.argmax(1)
    delta = keys[np.arange(len(keys)), anchor][:, None] - keys
    rows = (delta[..., None] * queries[:, None, None]).reshape(*selected.shape, -1)
    k = rows.shape[-1]
    losing, tied = ~selected, selected & (np.arange(selected.shape[1]) != anchor[:, None])
    bound = np.broadcast_to(required[:, None], selected.shape)[losing]
    limit = size * (1 + SAME)
    if norm == "linf":
        limits, ones, box = np.zeros((0, k)), np.zeros(0), [(-limit, limit)] * k
        split = np.eye(k)
    else:  # W = P − Q, P and Q ≥ 0 with sum N
        split = np.hstack([np.eye(k), -np.eye(k)])
        limits, ones, box = np.ones((1, 2 * k)), np.array([limit]), [(0, None)] * (2 * k)
    A = np.vstack([-rows[losing] @ split, limits])
    b = np.concatenate([-bound * (1 - SAME), ones])
    equal = (rows[tied] @ split, np.zeros(tied.sum())) if tied.any() else (None, None)
    direction = rng.normal(size=k) @ split
    ends = [linprog(sign * direction, A, b, *equal, bounds=box, method="highs") for sign in (1, -1)]
    if not all(end.status == 0 for end in ends):
        raise RuntimeError("a linear program of the oracle was not solved")
    return float(-ends[1].fun - ends[0].fun) <= SPREAD * size


def flags(norm: str, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kinks, flags, and where they differ, on this many degenerate programs."""
    counts: Counter[str] = Counter()
    families: dict[str, Counter[str]] = {}
    differ = []
    while counts["programs"] < count:
        for family, data, selected in degenerate(rng, norm):
            batch = {k: x[None] for k, x in data.items()}
            result = max_margin(**batch, selected=selected, norm=norm, unseparable="nan")
            if not bool(result.separable) or counts["programs"] == count:
                continue
            spread = without_derivative(data, selected, norm, rng)
            kink, flagged = spread > KINK, not bool(result.regular)
            mine = families.setdefault(family, Counter())
            for each in (counts, mine):
                each["programs"] += 1
                each["kinks"] += kink
                each["flags"] += flagged
                each["missed"] += kink and not flagged
                each["false"] += flagged and not kink
                each["unclear"] += 0.1 * KINK < spread <= KINK
            if kink != flagged:
                numbers = {"strictness": float(result.strictness), "pivot": float(result.pivot)}
                differ.append(
                    {"family": family, "spread": spread, "shape": list(data["keys"].shape), **numbers}
                )
    return {"norm": norm, **counts, "families": {k: dict(v) for k, v in families.items()}, "differ": differ}


def regular(norm: str, count: int, rng: np.random.Generator, soft: bool = False) -> dict[str, Any]:
    """Errors of the gradient of this many programs with a derivative."""
    taken: list[dict[str, Any]] = []
    others = false = 0
    while len(taken) < count:
        data, selected = random_program(rng, soft)
        one = gradient_error(data, selected, norm, rng)
        if one is None:
            continue
        if one["regular"]:
            taken.append(one)
        else:
            others += 1
            false += norm in NORMS and not soft and without_derivative(data, selected, norm, rng) <= KINK
    errors, spread, half = (np.array([x[k] for x in taken]) for k in ("error", "differences", "half"))
    sharp = spread <= 0.1 * CLOSE
    return {
        "norm": norm,
        "soft": soft,
        "regular": count,
        "flagged": others,
        "flagged with a derivative": int(false),
        "median": float(np.median(errors)),
        "largest": float(errors.max()),
        "within": int((errors <= CLOSE).sum()),
        "sharp": int(sharp.sum()),
        "largest_where_sharp": float(errors[sharp].max(initial=0.0)),
        "half_within": int((half <= CLOSE).sum()),
    }


def tables(record: dict[str, Any]) -> str:
    """The page's two tables."""
    out = [
        "| norm | programs | median error | largest | within 1e-6 | flagged besides |",
        "|---|---|---|---|---|---|",
    ]
    for x in record["regular"]:
        name = f"{x['norm']}, soft" if x["soft"] else x["norm"]
        sharp = f"{x['median']:.0e} | {x['largest']:.0e} | {x['within']}"
        out.append(f"| {name} | {x['regular']} | {sharp} | {x['flagged']} |")
    families: dict[str, Counter[str]] = {}
    for x in record["flags"]:
        for family, counts in x["families"].items():
            families.setdefault(family, Counter()).update(counts)
    total: Counter[str] = Counter()
    out += [
        "",
        "| degenerate programs | number | without a derivative | flagged | missed | false |",
        "|---|---|---|---|---|---|",
    ]
    for family, counts in families.items():
        total.update(counts)
        out.append(_row(family, counts))
    return "\n".join([*out, _row("all", total)])


def _row(family: str, counts: Counter[str]) -> str:
    numbers = (counts[name] for name in ("programs", "kinks", "flags", "missed", "false"))
    return f"| {family} | {' | '.join(f'{number:,}' for number in numbers)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--programs", type=int, default=143, help="of each norm, regular and degenerate each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", type=Path, help="a record, whose tables are printed")
    parser.add_argument("--join", nargs="*", type=Path, help="records of parts, to be made one")
    parser.add_argument("--norms", nargs="*", default=[*NORMS, "soft", *OF_VALUE])
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(options.tables.read_text())))
        return
    if options.join:
        parts = [json.loads(part.read_text()) for part in options.join]
        whole = parts[0] | {
            name: [row for part in parts for row in part[name]] for name in ("regular", "flags")
        }
        whole["cpu_seconds"] = sum(part["cpu_seconds"] for part in parts)
        options.record.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf8")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", att.NotCertified)  # of copies that a step moves apart by 1e-8
    record: dict[str, Any] = {"seed": options.seed, "close": CLOSE, "kink": KINK, "regular": [], "flags": []}
    start = time.process_time()

    def printed(table: str, row: dict[str, Any]) -> None:
        record[table].append(row)
        print(f"{time.process_time() - start:5.0f} s", table, row, flush=True)

    for norm in options.norms:
        place = (*NORMS, *OF_VALUE, "soft").index(norm)
        rng = np.random.default_rng([options.seed, place])
        if norm in NORMS:
            printed("regular", regular(norm, options.programs, rng))
            printed("flags", flags(norm, options.programs, np.random.default_rng([options.seed, place, 1])))
        elif norm == "soft":
            printed("regular", regular("frobenius", options.programs, rng, soft=True))
        else:
            printed("regular", regular(norm, options.programs // 4, rng))
    record["cpu_seconds"] = round(time.process_time() - start)
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
