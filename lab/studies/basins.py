"""Basins: the data of lab/studies/basins.toml, what it measures, and what is made of it.

A draw has several locally optimal selections, all enumerated by `attsvm.selections`. Trained from many
random starts, each has a probability. Three numbers of a selection, known before training, may predict it:

    margin   1/‖p^mm‖ of its program
    score    Σ_i γ_i of its tokens: within a draw the same order as the gap to the best tokens
    angle    the share of directions that attend to it, the solid angle of its cone

and, as a control that must fail, the margins of the draw's selections in a shuffled order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from resampling import bootstrap, rounded
from scipy.stats import kendalltau, spearmanr

import attsvm as att

PREDICTORS = ("margin", "score", "angle", "shuffled")
FEW = 4
"""A draw with fewer locally optimal selections has no order to speak of."""
DIRECTIONS = 20_000


def draws(n: int, T: int, d: int, starts: int, seed: Iterable[int]) -> tuple[att.Tokens, Any]:
    """prompt_sphere(n, T, d) with one draw for every `starts` seeds."""
    return att.datasets.prompt_sphere(n, T, d, seed=[s // starts for s in seed])


def ended(path: att.Path) -> float:
    """The tokens that a run attends to, α_1 … α_n, as the number Σ α_i T^(i−1)."""
    return float(code(path.selected))


def code(selected: Any) -> Any:
    """Selections (…, n, T) as numbers (…)."""
    selected_index = np.asarray(selected).argmax(-1)
    return selected_index @ np.asarray(selected).shape[-1] ** np.arange(selected_index.shape[-1])


def predictors(tokens: att.Tokens, v: Any, solutions: list[att.Solution], seed: int) -> dict[str, Any]:
    """Each number of each locally optimal selection, by name (selections,)."""
    selections = np.stack([solution.selected for solution in solutions])
    margin = np.array([float(solution.margin) for solution in solutions])
    rng = np.random.default_rng([1, seed])
    logits = tokens.keys @ rng.standard_normal((DIRECTIONS, 1, tokens.d, 1))
    attended = code(logits[..., 0] == logits[..., 0].max(-1, keepdims=True))
    return {
        "margin": margin,
        "score": (att.scores(tokens, v) * selections).sum((-2, -1)),
        "angle": (attended[:, None] == code(selections)).mean(0),
        "shuffled": rng.permutation(margin),
    }


def judged(tokens: att.Tokens, v: Any, ends: Any, draw: int) -> dict[str, Any] | None:
    """Of one draw: the probabilities of its selections, and how each predictor orders them.

    None where there are too few selections, or all runs ended at one of them only.
    """
    solutions = att.selections(tokens, v)
    if len(solutions) < FEW:
        return None
    share = (np.asarray(ends)[:, None] == code(np.stack([solution.selected for solution in solutions]))).mean(
        0
    )
    if np.ptp(share) == 0:
        return None
    predictions = predictors(tokens, v, solutions, draw)
    return {
        "share": share,
        "rank": [spearmanr(predictions[name], share)[0] for name in PREDICTORS],
        "pairs": [kendalltau(predictions[name], share)[0] for name in PREDICTORS],
        "first": [share[predictions[name].argmax()] for name in PREDICTORS],
        "relative": predictions["margin"] / predictions["margin"].max(),
    }


def summary(study: Any) -> dict[str, Any]:
    """The record of a finished study: of every cell, what predicts where a run ends."""
    cells = []
    for k, cell in enumerate(study.cells):
        of_cell = study.runs["cell"] == k
        n, T, d, starts = (int(cell.words[name]) for name in ("n", "T", "d", "starts"))
        ends = study.runs["basins:ended"][of_cell].reshape(-1, starts)
        tokens, v = att.datasets.prompt_sphere(n, T, d, seed=range(len(ends)))
        each = [judged(tokens.run(i), v[i], ends[i], i) for i in range(len(ends))]
        judged_draws = [draw for draw in each if draw is not None]
        start = float(str(cell.words["init"]).partition(":")[2])
        about = {"n": n, "T": T, "d": d, "start": start, "runs": cell.runs}
        cells.append(about | _cell(judged_draws, cell))
    return {"predictors": PREDICTORS, "cells": cells}


def _cell(judged_draws: list[dict[str, Any]], cell: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "draws": len(judged_draws),
        "selections": sum(len(draw["share"]) for draw in judged_draws),
    }
    record["elsewhere"] = rounded([1 - cell.quantities["global"].value - cell.quantities["local"].value])[0]
    for name in ("rank", "pairs", "first"):
        values = np.array([draw[name] for draw in judged_draws])
        low, high = bootstrap(lambda at, v=values: np.nanmean(v[at], 0), len(values))
        record[name] = [rounded(x) for x in zip(np.nanmean(values, 0), low, high, strict=True)]
    record["likeliest"] = rounded([np.mean([draw["share"].max() for draw in judged_draws])])[0]
    relative, share = (
        np.concatenate([draw[name] for draw in judged_draws]) for name in ("relative", "share")
    )
    edges = np.quantile(relative, np.linspace(0, 1, 7))
    at = np.clip(np.searchsorted(edges, relative, side="right") - 1, 0, 5)
    record["curve"] = [rounded([relative[at == j].mean(), share[at == j].mean()]) for j in range(6)]
    return record
