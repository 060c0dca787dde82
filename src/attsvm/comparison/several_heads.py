"""A run of several heads against the joint program of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data.path import Path
from attsvm.numbers import Float
from attsvm.program.several_heads import HeadsSolution


def check_heads(path: Any, solution: HeadsSolution) -> None:
    """Refuse a path of other heads or tokens than the solution's."""
    if not isinstance(path, Path):
        raise TypeError(f"got {type(path).__name__}. Pass a path of train(), and then the solution.")
    if path.heads != solution.heads or path.runs is not None:
        runs = "" if path.runs is None else f" in {path.runs} runs"
        raise ValueError(
            f"the path has {path.heads or 'no'} heads{runs} and the solution {solution.heads}. Pass a path "
            "of one run with the same heads: path.run(index)."
        )
    if path.W.shape[-2:] != solution.W.shape[-2:] or not _same_tokens(path, solution):
        raise ValueError(
            "the solution is of other tokens than the path. Solve for the path's: "
            "max_margin(path.tokens, path.selected, norm)."
        )


def _same_tokens(path: Path, solution: HeadsSolution) -> bool:
    a, b = path.tokens, solution.tokens
    if a is b:
        return True
    return a.mask.shape == b.mask.shape and all(
        np.array_equal(np.asarray(x), np.asarray(y))
        for x, y in ((a.keys, b.keys), (a.queries, b.queries), (a.mask, b.mask))
    )


def joint_ratio(path: Path, solution: HeadsSolution, records: Any = slice(None)) -> Float:
    """The least margin of the heads over their norm, as a share of the best one, at some records (k,).

    Of parts that are normalised apart it is the least share. Every record solves a program for its norm.
    """
    return np.array([_share(W, solution) for W in path.W[records]])


def _share(W: Float, solution: HeadsSolution) -> float:
    shares = []
    for part, best in zip(solution.norm.parts, solution.margins, strict=True):
        heads = list(part.heads)
        margins = [_least(solution.rows[h], W[h]) for h in heads]
        size = part.bracket(W[heads])[1]
        shares.append(min(margins) / size / best if size > 0 else 0.0)
    return float(min(shares))


def _least(rows: Any, W: Float) -> float:
    bounded = ~rows.tied
    share = rows.margins(W)[bounded] / rows.bounds[bounded]
    return float(share.min(initial=np.inf))


def tie_error(path: Path, solution: HeadsSolution) -> float:
    """The largest difference of tied logits at the last record, over the least margin."""
    W = path.W[-1]
    ties = [
        np.abs(rows.margins(w)[rows.tied]).max(initial=0.0) for rows, w in zip(solution.rows, W, strict=True)
    ]
    least = min(_least(rows, w) for rows, w in zip(solution.rows, W, strict=True))
    return float(max(ties) / least) if least > 0 and np.isfinite(least) else 0.0
