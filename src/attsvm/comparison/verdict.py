"""A path against a solution: compare(), classify(), and the numbers that they use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm._support.validation import describe, is_finite
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.comparison.theory import NoTheorem, limit_norm
from attsvm.data.path import BLOCK, Path, exponent
from attsvm.data.selection import best_tokens, locally_optimal
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.norms.names import as_norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable, Solution


def compare(
    path: Path, solution: Solution, v: ArrayLike | None = None, *, tolerance: float = 0.01
) -> Verdict:
    """Does the path end in the solution's direction?

    The margin ratio is judged: the least margin of W/N(W) over the best possible one, 1 in the limit. It is
    meaningful even where the program has many solutions. Where several tokens of an example are selected,
    their logits may differ by at most a share `tolerance` of the best margin. With runs the worst run is
    judged, and medians are reported. Where the solution is unique, the cosine and, for lp norms, the
    directional Bregman divergence are reported.

    A path of another program (`Path.of`) is judged by its way up to the last step that softmax in float64
    resolves (`Path.logit_gap`): one that improved until then is inconclusive, and the reason says the step.

    The claim is not applicable when the path attends to other tokens than the solution selects, when a run
    did not move, or when the solution has a soft margin: no path tends to its W.

    Where the head was trained along, attention follows the offset program of its label margins and need not
    reach the plain margin: see `offset_program` of attsvm_lab.programs.

    v: the head; with it, the share of examples whose attended token is the best one is reported.
    tolerance: the share of the margin that may be missing, a number in [0, 1).
    """
    if not (is_finite(tolerance) and 0 <= tolerance < 1):
        raise ValueError(f"tolerance is {describe(tolerance)}. Pass a number from 0 to 1, such as 0.01.")
    _check(path, solution)
    ratio = _ratio(path, solution)
    ties = _tie_error(path, solution)
    attention, gap = path.attention_and_gap(solution.selected)
    resolved = path.resolved(gap)
    last, final_ties = ratio[..., -1], ties[..., -1]
    improves = _improves(path, resolved, 1 - ratio, tolerance) & _improves(path, resolved, ties, tolerance)
    evidence = [at_least("margin ratio", last.min(), 1 - tolerance)]
    if solution.constraints.tied.any():
        evidence.append(at_most("difference of tied logits over the margin", final_ties.max(), tolerance))
    if last.ndim:
        evidence.append(reported("margin ratio, median", np.median(last)))
    evidence += [
        reported("attention on the selected tokens", attention[..., -1].min()),
        reported("logit gap", gap[..., -1].min()),
        reported(f"{solution.norm} norm of W", np.median(path.norm(solution.norm)[..., -1])),
    ]
    directed = path.W.any((-2, -1))  # a weight of zero has no direction to draw
    numbers = {path.kind: path.index, "margin ratio": np.where(directed, ratio, np.nan)}
    numbers["attention on the selected tokens"] = attention
    traits = capabilities_of(solution.norm)
    if traits.strictly_convex:
        numbers["cosine"] = np.where(directed, cosine(path.W, solution.W), np.nan)
        evidence.append(reported("1 − cosine", np.median(1 - numbers["cosine"][..., -1])))
        if not traits.euclidean:  # where the divergence is 1 − cosine
            numbers["divergence"] = np.where(directed, divergence(path.W, solution.W, solution.norm), np.nan)
            evidence.append(reported("Bregman divergence", np.median(numbers["divergence"][..., -1])))
    if v is not None:
        share = (path.selected & best_tokens(path.tokens, v)).any(-1).mean()
        evidence.append(reported("share of best tokens", share))
    verdict = judge(
        f"W/N(W) tends to the {solution.norm} max-margin direction",
        *evidence,
        given={
            "the selection leaves tokens to win over": bool(solution.constraints.separating.any()),
            "the solution requires a margin": bool((solution.required > 0).any(-1).all()),
            "the solution has a hard margin": solution.slack is None,
            "the solution is certified": bool(np.all(solution.certified)),
            "the run moved": bool(np.all(_moved(path))),
            "the path attends to the selected tokens": not (path.selected & ~solution.selected).any(),
        },
        on_its_way=bool(np.all(improves)),
        numbers=numbers,
    )
    if verdict.status not in ("fails", "inconclusive") or resolved.all():
        return verdict
    step = path.index[resolved.reshape(-1, len(path.index)).all(0).argmin()]
    beyond = f"beyond what float64 softmax resolves from step {step:g} on"
    return replace(verdict, reason=f"{verdict.reason}; {beyond}")


def _improves(path: Path, resolved: Bool, errors: Float, tolerance: float) -> Bool:
    """Where errors (…, k) are small at the last resolved record, or have fallen by a tenth since halfway.

    True also where the path went beyond what is resolved before two records had a direction.
    """
    end, beyond = np.maximum(resolved.sum(-1) - 1, 0), ~resolved[..., -1]
    halfway = np.searchsorted(path.index, path.index[end] / 2)
    halfway = np.where(beyond & (halfway == end), np.maximum(end - 1, 0), halfway)
    last, middle = (np.take_along_axis(errors, at[..., None], -1)[..., 0] for at in (end, halfway))
    directed = np.take_along_axis(path.W.any((-2, -1)), halfway[..., None], -1)[..., 0]
    unrecorded = beyond & ((halfway == end) | ~directed)
    return np.asarray((last <= tolerance) | (last < 0.9 * middle) | unrecorded)


def margin_ratio(path: Path, solution: Solution) -> Float:
    """Least margin of W/N(W) relative to the best possible at every record (k,), with runs (runs, k).

    The solution is of the path's tokens or of fewer of them: its mask may leave out tokens. A soft margin is
    refused, as its W does not have the best margin. The ratio is zero where W is zero, negative where a
    selected token loses, and NaN where the solution's mask leaves no token to win over.
    """
    _check(path, solution, masked=True)
    if solution.slack is not None:
        raise ValueError(
            "the solution has a soft margin, and its W not the best margin. "
            "Pass a hard one: max_margin(path.tokens, path.selected)."
        )
    return _ratio(path, solution)


def _ratio(path: Path, solution: Solution) -> Float:
    counted = solution.constraints.bound > 0
    required = np.where(counted, solution.required[..., None], 1.0)

    def least(margins: Float, block: slice) -> Float:
        share = margins / required[..., None, block, :]
        return np.where(counted[..., None, block, :], share, np.inf).min((-2, -1))

    return _at_every_record(path, solution, least, np.minimum)


def _tie_error(path: Path, solution: Solution) -> Float:
    """Largest difference of the logits of tied tokens at W/N(W), over the best margin, at every record."""
    tied = solution.constraints.tied

    def largest(margins: Float, block: slice) -> Float:
        return np.where(tied[..., None, block, :], np.abs(margins), 0.0).max((-2, -1))

    return (
        _at_every_record(path, solution, largest, np.maximum) if tied.any() else np.zeros(path.W.shape[:-2])
    )


def _at_every_record(
    path: Path, solution: Solution, statistic: Callable[[Float, slice], Float], extreme: np.ufunc
) -> Float:
    """A statistic of the margins of W/N(W) over the best margin, at every record (…, k).

    statistic: of the margins (…, k, block, T) of a block of examples; extreme: joins those of two blocks.
    """
    W, best = np.ldexp(path.W, -exponent(path.W)), np.asarray(solution.margin)  # the ratio has no scale
    numbers = [statistic(margins, block) for block, margins in _margins(solution, W)]
    size = np.asarray(solution.norm.value(W))
    with np.errstate(invalid="ignore"):  # NaN where no token loses: any weight is best
        return np.asarray(extreme.reduce(numbers)) / np.where(size > 0, size, 1.0) / best[..., None]


def _margins(solution: Solution, W: Float) -> Iterator[tuple[slice, Float]]:
    """Blocks of examples and their margins at all weights, (…, k, d, e) → (…, k, block, T).

    One pass over the keys serves all weights: the keys may be in a file.
    """
    rows, records = solution.constraints, W.shape[:-2]
    step = max(1, BLOCK // (rows.T * math.prod(records)))
    for chunk, differences in rows.chunks():
        for start in range(chunk.start, chunk.stop, step):
            block = slice(start, min(start + step, chunk.stop))
            delta = differences[..., start - chunk.start : block.stop - chunk.start, :, :]
            queries, power = rows.queries[..., None, block, :], rows.units.exponent[..., None, block, None]
            directions = np.moveaxis(np.matmul(queries, np.swapaxes(W, -1, -2)), -3, -1)
            yield block, np.ldexp(np.moveaxis(np.matmul(delta, directions), -1, -3), power)


def cosine(path: Float, W: Float) -> Float:
    """Cosine between weights (…, k, d, e) and one weight (…, d, e)."""
    path, W = np.asarray(path), np.asarray(W)
    if path.shape[-2:] != W.shape[-2:]:
        raise ValueError(
            f"the weights have shapes {path.shape} and {W.shape}. Pass (…, k, d, e) and (…, d, e)."
        )
    path, W = (np.ldexp(x, -exponent(x)) for x in (path, W[..., None, :, :]))  # no overflow
    product = (path * W).sum((-2, -1))
    size = np.sqrt((path * path).sum((-2, -1)) * (W * W).sum((-2, -1)))
    return np.asarray(product / np.where(size > 0, size, 1.0))


def divergence(path: Float, W: Float, norm: Norm | str) -> Float:
    """Directional Bregman divergence of ψ = N^p / p from path (…, k, d, e) to W (…, d, e).

    D(Ŵ, V̂) = 1 − ⟨∇ψ(V̂), Ŵ⟩ for arguments with N = 1; 1 − cosine for p = 2

    norm: Entrywise(p) or Schatten(p).
    """
    norm = as_norm(norm)
    target = np.asarray(W)[..., None, :, :] / np.asarray(norm.value(W))[..., None, None, None]
    # Where N = 1, ∇ψ is the steepest direction of the dual norm.
    return np.asarray(1 - (norm.dual.steepest(np.asarray(path)) * target).sum((-2, -1)))


def classify(
    path: Path, v: ArrayLike, solution: Solution | None = None, *, norm: Norm | str | None = None
) -> Any:
    """Where a run ended: "global", "local", "neither" or "unmoved"; with runs an array of them.

    global: the run attends to the best tokens. local: its selection is locally optimal. neither: its
    selection is not locally optimal, or no weight separates it (the run is not finished, or tokens tie).
    unmoved: the last weight is zero, or the first one to a share of 1e-6, so the attention was not trained.
    solution: the program of path.selected in this norm, where it has been solved already.
    norm: of the program whose support tokens decide between local and neither. The default is that of the
        limit of what `train` was given; the Frobenius norm where no limit is known, and for other paths.
    """
    if path.function != "softmax":
        raise ValueError(f"the path's attention is {path.function}. Only softmax attention is classified.")
    if solution is not None:
        _check(path, solution)
    norm = _norm_of_the_limit(path) if norm is None else as_norm(norm)
    if solution is not None and not _is_of_the_definition(path, solution, norm):
        raise ValueError(
            "the solution is not the max-margin program of the tokens that the path attends to, "
            f"in the {norm} norm and with one margin for all. "
            f"Pass max_margin(path.tokens, path.selected, norm) with norm={norm!r}, or none."
        )
    moved, selected = np.asarray(_moved(path)), path.selected
    best = (selected == best_tokens(path.tokens, v)).all((-2, -1))
    kind = np.where(moved, np.where(best, "global", "neither"), "unmoved").astype(object)
    undecided = np.asarray(kind == "neither")
    if undecided.any() and solution is not None:
        kind[undecided & _locally_optimal(path.tokens, v, solution)] = "local"
    elif undecided.any():
        # A program of another norm than Frobenius may take a second: solve those that decide.
        runs: Any = np.flatnonzero(undecided) if kind.ndim else ...
        tokens = path.tokens if path.tokens.runs is None else path.tokens.run(runs)
        heads = np.asarray(v)[runs] if np.ndim(v) > 1 else v
        with suppress(NotSeparable):
            solution = max_margin(tokens, selected[runs], norm)
            kind[runs] = np.where(_locally_optimal(tokens, heads, solution), "local", "neither")
    return str(kind) if kind.ndim == 0 else kind.astype(str)


def _locally_optimal(tokens: Tokens, v: ArrayLike, solution: Solution) -> Bool:
    return np.asarray(locally_optimal(tokens, v, solution)) & solution.separable


def _norm_of_the_limit(path: Path) -> Norm:
    """The norm of the limit of what trained the path, of one of its heads; by default the Frobenius norm."""
    if path.trained is None:
        return frobenius
    if not path.trained:
        raise ValueError(
            "the path comes from a file or a copy, which does not hold the optimizer. "
            "Pass norm=limit_norm(weight, optimizer).norm."
        )
    weight, optimizer, batch = path.trained
    try:
        limit = limit_norm(getattr(weight, "weight", weight), optimizer, batch)
    except NoTheorem:
        return frobenius
    if isinstance(limit.norm, str):
        raise ValueError(f"the limit is that of the {limit.norm}. Pass norm=, that of attsvm_lab.programs.")
    return as_norm(limit.norm)


# ---------------------------------------------------------------------- details


def _check(path: object, solution: object, masked: bool = False) -> None:
    """Refuse a solution of other tokens than the path's; masked: its mask may leave out some."""
    if not (isinstance(path, Path) and isinstance(solution, Solution)):
        raise TypeError(
            f"got {type(path).__name__} and {type(solution).__name__}. Pass a path, of train or "
            "regularisation_path, and then the Solution of max_margin."
        )
    if path.heads is not None:
        raise ValueError(f"the path has {path.heads} heads. Compare one: compare(path.head(h), solution).")
    if path.W.shape[-2:] != solution.W.shape[-2:]:
        raise ValueError(
            f"the path has W {path.W.shape[-2:]} and the solution {solution.W.shape[-2:]}. "
            "Solve for the path's own tokens: max_margin(path.tokens, path.selected)."
        )
    runs = solution.tokens.runs
    if runs is not None and runs != path.runs:
        count = "none" if path.runs is None else path.runs
        raise ValueError(
            f"the solution has {runs} runs and the path {count}. Compare one run with one: solution.run(k)."
        )
    if path.tokens.mask.shape[-2:] != solution.selected.shape[-2:]:
        sizes = f"{path.tokens.mask.shape[-2:]}, the solution's {solution.selected.shape[-2:]}"
        raise ValueError(f"the path's tokens are (n, T) = {sizes}. Solve for path.tokens.")
    if not _same_tokens(path.tokens, solution.tokens, masked):
        masks = "its mask has tokens that the path's has not" if masked else "the masks differ"
        raise ValueError(
            f"the solution is of other tokens than the path: keys or queries differ, or {masks}. "
            "Solve for the path's: max_margin(path.tokens, path.selected)."
        )


def _is_of_the_definition(path: Path, solution: Solution, norm: Norm) -> bool:
    """Whether this program defines local optimality: other norms and margins have other support tokens."""
    required = np.asarray(solution.required)
    same_norm = _on_shape(solution.norm, path) == _on_shape(norm, path)
    same_margin = (required > 0).all() and (required == required.max(-1, keepdims=True)).all()
    selects_it = (solution.selected == path.selected).all()
    return bool(same_norm and same_margin and selects_it and solution.slack is None)


def _on_shape(norm: Norm, path: Path) -> Norm:
    """One norm for all norms that are equal on the path's weights."""
    if path.W.shape[-1] == 1:
        norm = capabilities_of(norm).on_column or norm
    return frobenius if capabilities_of(norm).euclidean else norm


def _same_tokens(path: Tokens, solution: Tokens, masked: bool) -> bool:
    """Whether the solution's tokens are the path's; masked: its mask may leave out some.

    Tokens without runs are compared with every run.
    """
    if path is solution:
        return True
    if not ((solution.mask <= path.mask).all() if masked else _same_array(path.mask, solution.mask)):
        return False
    same_queries = _same_array(path.queries, solution.queries)
    return same_queries and _same_keys(path.keys, solution.keys, solution.mask)


def _same_array(a: Any, b: Any) -> bool:
    return a is b or bool((_one_run(a) == _one_run(b)).all())


def _same_keys(a: Any, b: Any, mask: NDArray[Any]) -> bool:
    """Whether the tokens of the mask have the same keys: for masked tokens a file may hold anything."""
    if a is b:
        return True
    stored = next((keys for keys in (a, b) if isinstance(keys, Stored)), None)
    if stored is None:
        return bool((mask <= (_one_run(a) == _one_run(b)).all(-1)).all())
    if a.shape != b.shape:
        return False
    blocks = stored.parts()  # all keys together may not fit in memory
    return all((mask[block] <= (a[block] == b[block]).all(-1)).all() for block in blocks)


def _one_run(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or its first run where it is a view that repeats one run."""
    return array[:1] if array.strides[0] == 0 and len(array) else array


MOVED = 1e-6
"""A run has moved if some entry of W differs from the start by more than this share of the largest entry."""


def _moved(path: Path) -> Any:
    """Whether the last weight differs from the start; a path of radii starts at zero."""
    last, start = path.final, path.W[..., 0, :, :] if path.kind == "steps" and len(path.index) > 1 else 0
    scale = -exponent(last)
    last, start = np.ldexp(last, scale), np.ldexp(start, scale)
    return (np.abs(last - start) > MOVED * np.abs(last).max((-2, -1), keepdims=True)).any((-2, -1))
