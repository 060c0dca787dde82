"""A trained head beside attention: the offset program of a path's own label margins."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data.path import Path
from attsvm.numbers import Bool, Float
from attsvm.program.offset import OffsetMargin, offset_margin
from attsvm.program.solution import Solution


def offset_program(path: Path, solution: Solution, record: int = -1) -> OffsetMargin:
    """The program that attention follows where the head is trained with it, at one record of one run.

        max_{N(W) ≤ 1}  min_it  Γ_i / N(W_k) + (x_s − x_t)ᵀ W z,     Γ_i = Y_i v_kᵀ value_is

    path: of one run, with its trained head: train(…, train_head=…). solution: of `max_margin`, for the
    selection and the norm. record: which record of the path, by default the last.
    `.share(path.W[record])` is the share of the program's gain that the run has reached.
    """
    if path.v is None:
        raise ValueError("the path has no trained head. Pass train_head= to train, or use margin_ratio.")
    if path.runs is not None or path.heads is not None or solution.tokens.runs is not None:
        raise ValueError("the path has several runs or heads. Pass one: path.run(k), path.head(h).")
    size = float(solution.norm.value(path.W[record]))
    if not 0 < size < np.inf:
        raise ValueError(f"the weight of record {record} has the norm {size:g}. Pass one that has moved.")
    label = _label_margins(path, solution.selected, path.v[record])
    return offset_margin(solution.tokens, solution.selected, solution.norm, offsets=label / size)


def offset_shares(path: Path, solution: Solution) -> Float:
    """The share of the offset program's gain at the last record of every run (runs,), or NaN.

    It has none where the head is not trained or W is zero, nor where an example selects several tokens.
    """
    runs = (
        [(path, solution)]
        if path.runs is None
        else [(path.run(k), _of(solution, k)) for k in range(path.runs)]
    )
    return np.array([_share(one, its_solution) for one, its_solution in runs])


def _of(solution: Solution, run: int) -> Solution:
    return solution if solution.tokens.runs is None else solution.run(run)


def _share(path: Path, solution: Solution) -> float:
    moved, rows = bool(path.final.any()), solution.constraints
    if path.v is None or not moved or rows.tied.any() or not (solution.separable and rows.separating.any()):
        return float("nan")
    return offset_program(path, solution).share(path.final)


def _label_margins(path: Path, selected: Bool, v: Any) -> Float:
    """Y_i vᵀ value_is of the selected token of each example (n,)."""
    tokens = path.tokens.in_memory()
    values = tokens.values[np.arange(tokens.n), selected.argmax(-1)]
    return np.asarray(tokens.labels * (values @ v), np.float64)
