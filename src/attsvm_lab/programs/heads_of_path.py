"""A run of several heads against the joint program of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge
from attsvm.numbers import Float
from attsvm_lab.programs.heads_solution import HeadsSolution


def compare_heads(path: att.Path, solution: HeadsSolution, *, tolerance: float = 0.01) -> Verdict:
    """Does a path of several heads end in the solution's direction? See att.compare.

    Judged is the least margin of all heads over their joint norm, at the last record and halfway; of heads
    normalised apart, the worst part.
    """
    _check(path, solution)
    halfway = int(np.searchsorted(path.index, path.index[-1] / 2))
    records = sorted({halfway, len(path.index) - 1})
    ratio = ratio_of_heads(path, solution, records)
    last, middle, ties = float(ratio[-1]), float(ratio[0]), _tie_error(path, solution)
    evidence = [at_least("margin ratio", last, 1 - tolerance)]
    if any(rows.tied.any() for rows in solution.rows):
        evidence.append(at_most("difference of tied logits over the margin", ties, tolerance))
    start = path.W[0] if path.kind == "steps" and len(path.index) > 1 else 0
    moved = bool((path.W[-1] != start).any((-2, -1)).all())
    return judge(
        f"W/F(W) tends to the max-margin direction in the {solution.norm}",
        *evidence,
        given={
            "the selection leaves tokens to win over": any((~rows.tied).any() for rows in solution.rows),
            "the path is one of softmax attention": path.function == "softmax",
            "the solution is certified": solution.certified,
            "the run moved": moved,
            "the path attends to the selected tokens": not (path.selected & ~solution.selected).any(),
        },
        on_its_way=1 - last < 0.9 * (1 - middle),
        numbers={path.kind: path.index[records], "margin ratio": ratio},
    )


def _check(path: Any, solution: HeadsSolution) -> None:
    """Refuse a path of other heads or tokens than the solution's."""
    if not isinstance(path, att.Path):
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
            "max_margin_of_heads(path.tokens, path.selected, norm)."
        )


def _same_tokens(path: att.Path, solution: HeadsSolution) -> bool:
    a, b = path.tokens, solution.tokens
    if a is b:
        return True
    return a.mask.shape == b.mask.shape and all(
        np.array_equal(np.asarray(x), np.asarray(y))
        for x, y in ((a.keys, b.keys), (a.queries, b.queries), (a.mask, b.mask))
    )


def ratio_of_heads(path: att.Path, solution: HeadsSolution, records: Any = slice(None)) -> Float:
    """The least margin of the heads over their norm, as a share of the best one, at some records (k,).

    Of parts that are normalised apart it is the least share. Every record solves a program for its norm.
    """
    _check(path, solution)
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


def _tie_error(path: att.Path, solution: HeadsSolution) -> float:
    """The largest difference of tied logits at the last record, over the least margin."""
    W = path.W[-1]
    ties = [
        np.abs(rows.margins(w)[rows.tied]).max(initial=0.0) for rows, w in zip(solution.rows, W, strict=True)
    ]
    least = min(_least(rows, w) for rows, w in zip(solution.rows, W, strict=True))
    return float(max(ties) / least) if least > 0 and np.isfinite(least) else 0.0
