"""Where the two roads meet: a path is compared with a solution, and a claim is judged by its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.path import Path, exponent
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable, Solution
from attsvm.selection import best_tokens, locally_optimal

Status = Literal["holds", "fails", "inconclusive", "not applicable"]


@dataclass(frozen=True)
class Evidence:
    """One measured number and the bound it is held against; without a bound it is told, not judged."""

    what: str
    value: float
    sense: Literal["≥", "≤", ""] = ""
    bound: float = float("nan")

    @property
    def met(self) -> bool:
        if self.sense == "≥":
            return bool(self.value >= self.bound)
        return bool(self.value <= self.bound) if self.sense == "≤" else True

    def __str__(self) -> str:
        wanted = f"   (wanted {self.sense} {self.bound:.6g})" if self.sense else ""
        return f"{self.what}: {self.value:.6g}{wanted}"


def at_least(what: str, value: Any, bound: float) -> Evidence:
    """Evidence that must reach a bound from above."""
    return Evidence(what, float(value), "≥", float(bound))


def at_most(what: str, value: Any, bound: float) -> Evidence:
    """Evidence that must stay below a bound."""
    return Evidence(what, float(value), "≤", float(bound))


def told(what: str, value: Any) -> Evidence:
    """Evidence that is reported only."""
    return Evidence(what, float(value))


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the numbers that say so.

    status: "holds", "fails", "inconclusive" (not met, but the run was still on its way), or
        "not applicable" (a hypothesis is false: `reason` names it).
    evidence: the judged and the told numbers; numbers: arrays per run or record, for plots; the
        first is what the others are drawn against.
    """

    claim: str
    status: Status
    evidence: tuple[Evidence, ...]
    reason: str = ""
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def holds(self) -> bool:
        return self.status == "holds"

    def __getitem__(self, what: str) -> float:
        return next(e.value for e in self.evidence if e.what == what)

    def plot(self) -> Any:
        """A matplotlib figure of the curves the verdict carries."""
        from attsvm.figures.results import draw_verdict

        return draw_verdict(self)

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        lines = [f"{self.claim}: {self.status}{why}"]
        return "\n".join([*lines, *(f"  {e}" for e in self.evidence)])


def judge(
    claim: str,
    *evidence: Evidence,
    given: Mapping[str, bool] | None = None,
    on_its_way: bool = False,
    numbers: Mapping[str, NDArray[Any]] | None = None,
) -> Verdict:
    """A verdict from evidence.

    given: the hypotheses, by name; the first false one makes the claim not applicable.
    on_its_way: what is not met is still improving, so that failing it proves nothing.
    Raises ValueError where no evidence has a bound: such a claim could not fail.
    """
    numbers = numbers or {}
    broken = [name for name, true in (given or {}).items() if not true]
    if broken:
        return Verdict(claim, "not applicable", evidence, f"hypothesis false: {broken[0]}", numbers)
    if not any(e.sense for e in evidence):
        raise ValueError(f"{claim}: no number has a bound, so it could not fail. Pass at_least or at_most.")
    missed = [e.what for e in evidence if not e.met]
    if not missed:
        return Verdict(claim, "holds", evidence, "", numbers)
    status: Status = "inconclusive" if on_its_way else "fails"
    return Verdict(claim, status, evidence, f"not met: {', '.join(missed)}", numbers)


# ---------------------------------------------------------------------- a path against a solution


def compare(
    path: Path, solution: Solution, v: ArrayLike | None = None, *, tolerance: float = 0.01
) -> Verdict:
    """Does the path end in the solution's direction?

    Margin ratio first: the least margin of W/N(W) over the best possible, 1 in the limit. It means
    something even where the program has many solutions. Cosine and, for lp norms, the directional
    Bregman divergence are told where the solution is unique. The claim is not applicable when the path
    attends to other tokens than the solution selects. With runs the worst run is judged and medians
    are told.
    v: the head; given, the share of examples whose attended token is the best one is told.
    """
    _check(path, solution)
    if path.heads is not None:
        raise ValueError(f"the path has {path.heads} heads. Compare one: compare(path.head(h), solution).")
    if path.tokens.mask.shape[-2:] != solution.selected.shape[-2:]:
        sizes = f"{path.tokens.mask.shape[-2:]}, the solution's {solution.selected.shape[-2:]}"
        raise ValueError(f"the path's tokens are (n, T) = {sizes}. Solve for path.tokens.")
    ratio = margin_ratio(path, solution)
    mass = np.where(solution.selected[..., None, :, :], path.attention, 0.0).sum(-1)
    halfway = np.searchsorted(path.index, path.index[-1] / 2)
    last, middle = ratio[..., -1], ratio[..., halfway]
    on_its_way = bool(np.all((last >= 1 - tolerance) | (1 - last < 0.9 * (1 - middle))))
    evidence = [at_least("margin ratio", last.min(), 1 - tolerance)]
    if last.ndim:
        evidence.append(told("margin ratio, median", np.median(last)))
    evidence += [
        told("attention on the selected tokens", mass[..., -1, :].min()),
        told(f"{solution.norm} norm of W", np.median(path.norm(solution.norm)[..., -1])),
    ]
    numbers = {path.kind: path.index, "margin ratio": ratio, "attention on the selected tokens": mass.min(-1)}
    if unique(solution.norm):
        numbers["cosine"] = cosine(path.W, solution.W)
        evidence.append(told("1 − cosine", np.median(1 - numbers["cosine"][..., -1])))
        if solution.norm.p != 2:  # where the divergence is 1 − cosine
            numbers["divergence"] = divergence(path.W, solution.W, solution.norm)
            evidence.append(told("Bregman divergence", np.median(numbers["divergence"][..., -1])))
    if v is not None:
        best = (path.selected & best_tokens(path.tokens, v)).any(-1).mean()
        evidence.append(told("share of best tokens", best))
    return judge(
        f"W/N(W) tends to the {solution.norm} max-margin direction",
        *evidence,
        given={
            "the selection leaves tokens to win over": bool(solution.constraints.separating.any()),
            "the solution is certified": bool(np.all(solution.certified)),
            "the path attends to the selected tokens": not (path.selected & ~solution.selected).any(),
        },
        on_its_way=on_its_way,
        numbers=numbers,
    )


def margin_ratio(path: Path, solution: Solution) -> Float:
    """Least margin of W/N(W) relative to the best possible at every record (k,), with runs (runs, k).

    Zero where W is zero; negative where a selected token loses; NaN where no token is left to win over.
    """
    _check(path, solution)
    W, best = np.ldexp(path.W, -exponent(path.W)), np.asarray(solution.margin)  # the ratio has no scale
    rows = solution.constraints
    counted, asked = rows.bound > 0, solution.required[..., None]
    out = np.zeros(W.shape[:-2])
    for k in range(W.shape[-3]):
        margins = rows.token_margins(W[..., k, :, :])
        share = np.where(counted, margins / np.where(counted, asked, 1.0), np.inf).min((-2, -1))
        size = solution.norm.value(W[..., k, :, :])
        with np.errstate(invalid="ignore"):  # NaN where no token loses: any weight is best
            out[..., k] = share / np.where(size > 0, size, 1.0) / best
    return out


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


def divergence(path: Float, W: Float, norm: Norm) -> Float:
    """Directional Bregman divergence of ψ = N^p / p from path (…, k, d, e) to W (…, d, e).

    D(Ŵ, V̂) = 1 − ⟨∇ψ(V̂), Ŵ⟩ for arguments with N = 1; 1 − cosine for p = 2

    norm: Entrywise(p) or Schatten(p).
    """
    target = np.asarray(W)[..., None, :, :] / np.asarray(norm.value(W))[..., None, None, None]
    # Where N = 1, ∇ψ is the steepest direction of the dual norm.
    return np.asarray(1 - (norm.dual.steepest(np.asarray(path)) * target).sum((-2, -1)))


def unique(norm: Norm) -> bool:
    """Whether the program of this norm has one solution: strictly convex norms."""
    return 1 < norm.p < np.inf


def classify(path: Path, v: ArrayLike, solution: Solution | None = None) -> Any:
    """Where a run ended: "global", "local", "neither" or "unmoved"; with runs an array of them.

    global: it attends to the best tokens. local: its selection is locally optimal. neither: it is not,
    or no weight separates it (the run is not finished, or tokens tie). unmoved: the last weight is the
    one it started from, or zero; what it attends to was not trained.
    solution: the Frobenius program of path.selected, where it is already known.
    """
    moved = _moved(path)
    try:
        solution = solution or max_margin(path.tokens, path.selected)
    except NotSeparable:
        return "neither" if moved else "unmoved"
    best = (solution.selected == best_tokens(path.tokens, v)).all((-2, -1))
    local = np.asarray(locally_optimal(path.tokens, v, solution)) & solution.separable
    kind = np.where(moved, np.where(best, "global", np.where(local, "local", "neither")), "unmoved")
    return str(kind) if kind.ndim == 0 else kind


# ---------------------------------------------------------------------- details


def _check(path: object, solution: object) -> None:
    if not (isinstance(path, Path) and isinstance(solution, Solution)):
        raise TypeError(
            f"got {type(path).__name__} and {type(solution).__name__}. Pass a path, of train or "
            "regularisation_path, and then the Solution of max_margin."
        )
    if path.W.shape[-2:] != solution.W.shape[-2:]:
        raise ValueError(
            f"the path has W {path.W.shape[-2:]} and the solution {solution.W.shape[-2:]}. "
            "Solve for the path's own tokens: max_margin(path.tokens, path.selected)."
        )


def _moved(path: Path) -> Any:
    """Whether the last weight differs from the start; a path of radii starts at zero."""
    last, start = path.final, path.W[..., 0, :, :] if path.kind == "steps" and len(path.index) > 1 else 0
    return (last != start).any((-2, -1)) & (last != 0).any((-2, -1))
