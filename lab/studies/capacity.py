"""Capacity: the data of lab/studies/capacity.toml, what it measures, and what is made of it.

A prompt p selects the first token of n examples if (x_1 − x_t)ᵀp > 0 for all t > 1. Up to which n is there
one? A draw is decided by a certified program, or by multipliers that prove that there is none.

    load = n / n*,     n* = d · attsvm_lab.datasets.capacity(T, strength)

The law has no free constant: half of the draws must be separable at load 1, whatever T, d and strength, and
the window in which the share falls must close like d^(−1/2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from resampling import rounded
from scipy.special import ndtr

import attsvm as att
from attsvm_lab import datasets

PROVED = 1e-7
"""Bound on N*(Σ λ_j A_j) / Σ λ_j: no prompt shorter than its inverse has margin one, a thousand times the
usual length."""
WORDS = ("separable", "not separable", "undecided")
RESAMPLES = 400
STEPS, TINY = 15, 1e-12
"""Of the fit; shares are kept this far from 0 and 1."""


def loaded(load: float, T: int, d: int, strength: float, seed: Iterable[int]) -> tuple[att.Tokens, Any]:
    """`planted` with n = load · n* examples, rounded."""
    return datasets.planted(examples(load, T, d, strength), T, d, strength, seed)


def examples(load: float, T: int, d: int, strength: float) -> int:
    return max(1, round(load * d * datasets.capacity(T, strength)))


def selectable(path: att.Path) -> str:
    """separable, not separable, or undecided where neither is certified."""
    try:
        solution = att.max_margin(path.tokens, np.zeros(path.tokens.n, int))
    except att.NotSeparable as no:
        return WORDS[1] if no.residual <= PROVED else WORDS[2]
    return WORDS[0] if solution.certified else WORDS[2]


# ---------------------------------------------------------------------- what is made of it


def summary(study: Any) -> dict[str, Any]:
    """The record: how many draws of every cell are separable, and the fits."""
    cells = []
    for cell in study.cells:
        T, d, strength = int(cell.words["T"]), int(cell.words["d"]), float(cell.words["strength"])
        counts = (cell.quantities.get(f"capacity:selectable = {outcome}") for outcome in WORDS[:2])
        hits, misses = (0 if quantity is None else round(quantity.value * cell.runs) for quantity in counts)
        n = examples(float(cell.words["load"]), T, d, strength)
        cells.append(
            {"T": T, "strength": strength, "d": d, "n": n, "separable": hits, "draws": hits + misses}
        )
    undecided = len(study.runs["cell"]) - sum(cell["draws"] for cell in cells)
    return {"undecided": undecided, "cells": cells} | fitted(cells)


def fitted(cells: list[dict[str, Any]], resamples: int = RESAMPLES) -> dict[str, Any]:
    """Of every T, strength and d: the load at which half of the draws are separable, and the width of the
    window.

    share = Φ((place − n/n*)/width), by maximum likelihood; intervals by resampling draws. Then the
    exponent of the width in d, over all T and strengths, each with a constant of its own.
    """
    groups: dict[tuple[int, float, int], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["T"], cell["strength"], cell["d"]), []).append(cell)
    rng = np.random.default_rng(0)
    rows, logs = [], []
    for (T, strength, d), group in groups.items():
        most = d * datasets.capacity(T, strength)
        load = np.array([cell["n"] / most for cell in group])
        draws, hits = (np.array([cell[name] for cell in group]) for name in ("draws", "separable"))
        best = window(load, hits, draws)
        resampled = [window(load, rng.binomial(draws, hits / draws), draws) for _ in range(resamples)]
        low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
        row = {"T": T, "strength": strength, "d": d, "capacity": round(most / d, 4)}
        row |= {name: rounded([best[k], low[k], high[k]]) for k, name in enumerate(("place", "width"))}
        rows.append(row)
        logs.append(((T, strength), np.log(d), np.log(best[1]), np.log(np.array(resampled)[:, 1])))
    return {"groups": rows, "exponent": _exponent(logs)}


def window(load: Any, hits: Any, draws: Any) -> Any:
    """Place and width (2,) of the likeliest curve Φ((place − load)/width), by Fisher's scoring."""
    x = np.stack([np.ones_like(load), -load], axis=1)
    at = np.array([5.0, 5.0])
    for _ in range(STEPS):
        z = x @ at
        share, slope = np.clip(ndtr(z), TINY, 1 - TINY), np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        weight = draws * slope**2 / (share * (1 - share))
        pull = x.T @ (slope * (hits - draws * share) / (share * (1 - share)))
        move = np.linalg.solve((x.T * weight) @ x, pull)
        at = at + move * min(1, 2 / np.abs(move).max())
    return np.array([at[0] / at[1], 1 / at[1]])


def _exponent(logs: list[tuple[Any, ...]]) -> list[float]:
    """Slope of log width in log d, with a constant for each T and strength; then its interval."""
    kinds = sorted({row[0] for row in logs})
    group = np.array([kinds.index(row[0]) for row in logs])

    def slope(y: Any) -> float:
        x, y = (v - np.array([v[group == k].mean() for k in range(len(kinds))])[group] for v in (places, y))
        return float((x * y).sum() / (x * x).sum())

    places, resampled = np.array([row[1] for row in logs]), np.array([row[3] for row in logs])
    low, high = np.quantile([slope(column) for column in resampled.T], [0.025, 0.975])
    return rounded([slope(np.array([row[2] for row in logs])), low, high])
