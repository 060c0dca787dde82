"""What is made of lab/studies/factor_times.toml: how long K and Q take, by the scale α of their start and m.

Of every cell, each level's share of runs that arrive and the median step, ∞ where fewer than half do. Small
starts are fitted by three laws of the median, large ones by a power of α and m.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from resampling import bootstrap

from attsvm_lab.sweeps.intervals import share

LEVELS = {"0.5": "arrival:nuclear@0.5", "0.8": "arrival:nuclear@0.8", "0.95": "arrival:nuclear@0.95"}
LEVELS |= {"0.99": "arrival:nuclear"}
LAWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "t = a + b log(1/α)": (lambda α: np.log(1 / α), lambda t: t, lambda t: t),
    "t = a + b/α": (lambda α: 1 / α, lambda t: t, lambda t: t),
    "t = a α^-b": (lambda α: np.log(1 / α), np.log, np.exp),
}
"""Of a start: what the time is linear in; how the time is read, and read back."""


def law(name: str, α: Any, t: Any) -> tuple[float, float, Callable[[Any], Any]]:
    """a, b and the predicted time of a law, by least squares on these starts."""
    of, read, back = LAWS[name]
    b, a = np.polyfit(of(α), read(t), 1)
    return float(a), float(b), lambda x: back(a + b * of(x))


def small_starts(α: Any, t: Any) -> dict[str, Any]:
    """Each law on the starts up to the quickest but the smallest one, which it predicts.

    error: the largest factor between law and median, on the fit and at the smallest start.
    """
    order = np.argsort(-α)
    α, t = α[order], t[order]
    kept = slice(int(np.argmin(t)), None)
    α, t = α[kept], t[kept]
    if len(α) < 4 or not np.isfinite(t).all():
        return {}
    told = {}
    for name in LAWS:
        a, b, predicted = law(name, α[:-1], t[:-1])
        fitted = np.exp(np.abs(np.log(np.maximum(predicted(α[:-1]), 1) / t[:-1])).max())
        ahead = float(max(predicted(α[-1:])[0], 1) / t[-1])
        told[name] = {"a": _digits(a), "b": _digits(b), "error": _digits(fitted), "smallest": _digits(ahead)}
    return told


def large_starts(α: Any, m: Any, t: Any) -> list[float]:
    """Exponents of α and m in t = c α^p m^q where both are large: 0.3 and up, 8 and up."""
    kept = (α >= 0.3) & (m >= 8) & np.isfinite(t)
    if kept.sum() < 4:
        return []
    columns = np.column_stack([np.ones(kept.sum()), np.log(α[kept]), np.log(m[kept])])
    found, *_ = np.linalg.lstsq(columns, np.log(t[kept]), rcond=None)
    return [_digits(x) for x in found[1:]]


def summary(done: Any) -> dict[str, Any]:
    """The record: every cell at every level, and the laws by optimizer, level and width."""
    cells, medians = [], []
    for k, cell in enumerate(done.cells):
        own = done.runs["cell"] == k
        α = float(str(cell.words["init"]).partition(":")[2])
        about = {"optimizer": str(cell.words["optimizer"]), "m": int(cell.words["rank"]), "start": α}
        levels = {}
        for level, name in LEVELS.items():
            known = np.isfinite(done.runs["margin_ratio:nuclear"][own])
            t = done.runs[name][own][known]
            t = np.where(np.isfinite(t), t, np.inf)
            low, high = bootstrap(lambda at, t=t: median(t[at]), len(t), resamples=200)
            came = share(np.isfinite(t))
            levels[level] = {
                "arrived": [_digits(x) for x in (came.value, came.low, came.high)],
                "steps": [_digits(x) if np.isfinite(x) else None for x in (median(t), low, high)],
            }
        ratio = done.runs["margin_ratio:nuclear"][own]
        end = float(np.nanmedian(ratio))
        cells.append(about | {"runs": int(np.isfinite(ratio).sum()), "end": _digits(end), "levels": levels})
        medians.append([level["steps"][0] or np.inf for level in levels.values()])
    return {"cells": cells, "laws": _laws(cells, np.array(medians))}


def _laws(cells: list[dict[str, Any]], medians: Any) -> list[dict[str, Any]]:
    rule, α, m = (np.array([cell[key] for cell in cells]) for key in ("optimizer", "start", "m"))
    told = []
    for optimizer in dict.fromkeys(rule):
        for j, level in enumerate(LEVELS):
            own = rule == optimizer
            widths = {
                int(w): small_starts(α[own & (m == w)], medians[own & (m == w), j]) for w in sorted(set(m))
            }
            large = large_starts(α[own], m[own], medians[own, j])
            told.append({"optimizer": str(optimizer), "level": level, "small": widths, "large": large})
    return told


def median(t: Any) -> float:
    """The step by which half have arrived, ∞ where they have not.

    Arrivals are known up to the recorded step before: the share that has arrived is interpolated between
    recorded steps, in log t.
    """
    steps, counts = np.unique(t[np.isfinite(t)], return_counts=True)
    came = np.cumsum(counts) / len(t)
    if not len(came) or came[-1] < 0.5:
        return np.inf
    return float(np.exp(np.interp(0.5, came, np.log(steps))))


def _digits(x: Any) -> float:
    return float(f"{float(x):.4g}")
