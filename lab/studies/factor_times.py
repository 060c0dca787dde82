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
    used = slice(int(np.argmin(t)), None)
    α, t = α[used], t[used]
    if len(α) < 4 or not np.isfinite(t).all():
        return {}
    record = {}
    for name in LAWS:
        a, b, predicted = law(name, α[:-1], t[:-1])
        fitted = np.exp(np.abs(np.log(np.maximum(predicted(α[:-1]), 1) / t[:-1])).max())
        ahead = float(max(predicted(α[-1:])[0], 1) / t[-1])
        record[name] = {
            "a": _digits(a),
            "b": _digits(b),
            "error": _digits(fitted),
            "smallest": _digits(ahead),
        }
    return record


def large_starts(α: Any, m: Any, t: Any) -> list[float]:
    """Exponents of α and m in t = c α^p m^q where both are large: 0.3 and up, 8 and up."""
    used = (α >= 0.3) & (m >= 8) & np.isfinite(t)
    if used.sum() < 4:
        return []
    columns = np.column_stack([np.ones(used.sum()), np.log(α[used]), np.log(m[used])])
    coefficients, *_ = np.linalg.lstsq(columns, np.log(t[used]), rcond=None)
    return [_digits(x) for x in coefficients[1:]]


def summary(study: Any) -> dict[str, Any]:
    """The record: every cell at every level, and the laws by optimizer, level and width."""
    cells, medians = [], []
    for k, cell in enumerate(study.cells):
        of_cell = study.runs["cell"] == k
        α = float(str(cell.words["init"]).partition(":")[2])
        about = {"optimizer": str(cell.words["optimizer"]), "m": int(cell.words["rank"]), "start": α}
        levels = {}
        for level, name in LEVELS.items():
            finite = np.isfinite(study.runs["margin_ratio:nuclear"][of_cell])
            t = study.runs[name][of_cell][finite]
            t = np.where(np.isfinite(t), t, np.inf)
            low, high = bootstrap(lambda at, t=t: median(t[at]), len(t), resamples=200)
            came = share(np.isfinite(t))
            levels[level] = {
                "arrived": [_digits(x) for x in (came.value, came.low, came.high)],
                "steps": [_digits(x) if np.isfinite(x) else None for x in (median(t), low, high)],
            }
        ratio = study.runs["margin_ratio:nuclear"][of_cell]
        end = float(np.nanmedian(ratio))
        cells.append(about | {"runs": int(np.isfinite(ratio).sum()), "end": _digits(end), "levels": levels})
        medians.append([level["steps"][0] or np.inf for level in levels.values()])
    return {"cells": cells, "laws": _laws(cells, np.array(medians))}


def _laws(cells: list[dict[str, Any]], medians: Any) -> list[dict[str, Any]]:
    rule, α, m = (np.array([cell[key] for cell in cells]) for key in ("optimizer", "start", "m"))
    records = []
    for optimizer in dict.fromkeys(rule):
        for j, level in enumerate(LEVELS):
            of_optimizer = rule == optimizer
            widths = {
                int(w): small_starts(α[of_optimizer & (m == w)], medians[of_optimizer & (m == w), j])
                for w in sorted(set(m))
            }
            large = large_starts(α[of_optimizer], m[of_optimizer], medians[of_optimizer, j])
            records.append({"optimizer": str(optimizer), "level": level, "small": widths, "large": large})
    return records


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
