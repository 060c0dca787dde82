"""What a program returns: a Solution with its Certificate, or NotSeparable with its proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from attsvm import norms
from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.tokens import Bool, Float, Tokens

TOLERANCE = 1e-8
"""Largest violation and gap of a certified solution."""

SUPPORT = 1e-6
"""A constraint is active when its margin exceeds the required one by less than this, relatively."""


@dataclass(frozen=True)
class Certificate:
    """How far a solution is from optimal at most, recomputed from the data.

    primal: largest shortfall of a margin, relative to the required one (where none is required, and
        for the inequality of tied tokens, to the largest required).
    dual: largest negative multiplier, relative, and excess of N*(Σ λ_j A_j) over 1.
    gap: 1 − lower/upper, where Σ λ_j b_j / N*(Σ λ_j A_j) ≤ best norm ≤ N(W) / least margin.

    One number each; with runs, arrays (runs,).
    """

    primal: Any
    dual: Any
    gap: Any

    @property
    def worst(self) -> Any:
        """The largest of the three."""
        return np.maximum(np.maximum(self.primal, self.dual), self.gap)

    def __str__(self) -> str:
        primal, dual, gap = (float(np.max(x)) for x in (self.primal, self.dual, self.gap))
        return f"primal violation {primal:.1e}, dual violation {dual:.1e}, relative gap {gap:.1e}"


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """The smallest W that separates the selected tokens from the others.

    W (d, e): the weight; multipliers (m,): one per constraint, for the program `min N(W)`, so
    that N*(Σ λ_j A_j) = 1 and Σ λ_j b_j = N(W); for Frobenius W = N(W) Σ λ_j A_j.
    The constraints are ordered by example, then token: `example` (m,) and `token` (m,) name them.
    With a runs axis W is (runs, d, e), multipliers (runs, m) (zero beyond a run's own m), and
    runs that cannot be separated have `separable` False, W = 0 and a Farkas proof as multipliers.
    """

    tokens: Tokens
    selected: Bool
    norm: Norm
    W: Float
    multipliers: Float
    required: Float
    separable: Bool

    @cached_property
    def constraints(self) -> Constraints:
        """The rows of the program."""
        return Constraints.of(self.tokens, self.selected, self.required)

    @property
    def margin(self) -> Any:
        """1/N(W): the best margin a weight of norm one can have; 0 where none separates."""
        with np.errstate(divide="ignore"):
            best = np.divide(1.0, self.norm.value(self.W))
        return _plain(np.where(self.separable, best, 0.0))

    @property
    def certificate(self) -> Certificate:
        """Violations and duality gap, recomputed from tokens, selection and norm at every access."""
        return certify(self.constraints, self.norm, self.W, self.token_multipliers)

    @property
    def certified(self) -> Any:
        """Whether violations and gap are at most 1e-8."""
        return _plain(self.separable & (self.certificate.worst <= TOLERANCE))

    @property
    def token_multipliers(self) -> Float:
        """The multipliers laid out over tokens (n, T), zero where there is no constraint."""
        return unpack(self.constraints, self.multipliers)

    @property
    def example(self) -> NDArray[np.intp]:
        """Example of each constraint (m,)."""
        return np.nonzero(self._one_run().active)[0]

    @property
    def token(self) -> NDArray[np.intp]:
        """Token of each constraint (m,)."""
        return np.nonzero(self._one_run().active)[1]

    @property
    def support(self) -> Bool:
        """Tokens whose constraint is active, bool (n, T): margin equal to the required one."""
        rows = self.constraints
        unit = np.maximum(rows.bound.max((-2, -1), keepdims=True), np.finfo(float).tiny)
        slack = (rows.margins(rows.scale(self.W)) - rows.bound) / unit
        return rows.separating & (slack <= SUPPORT) & np.asarray(self.separable)[..., None, None]

    @property
    def rank(self) -> Any:
        """Rank of W: singular values above 1e-6 of the largest."""
        sigma = np.linalg.svd(self.constraints.scale(self.W), compute_uv=False)
        return _plain((sigma > 1e-6 * np.maximum(sigma[..., :1], 1e-300)).sum(-1))

    def run(self, index: int) -> Solution:
        """The solution of one run."""
        if self.tokens.runs is None:
            raise ValueError("this solution has no runs axis.")
        tokens = self.tokens.run(index)
        m = int(self.constraints.active[index].sum())
        return Solution(
            tokens,
            self.selected[index],
            self.norm,
            self.W[index],
            self.multipliers[index, :m],
            self.required[index],
            self.separable[index],
        )

    def _one_run(self) -> Constraints:
        if self.tokens.runs is not None:
            raise ValueError("with a runs axis, ask one run: solution.run(0).example")
        return self.constraints

    def __repr__(self) -> str:
        return f"Solution({'; '.join(self._lines())})"

    def __str__(self) -> str:
        return "\n  ".join(self._lines())

    def _lines(self) -> list[str]:
        size = " × ".join(map(str, self.W.shape))
        if self.tokens.runs is None:
            certified = "certified" if self.certified else "NOT certified"
            return [
                f"{self.norm} max-margin solution, W {size}, rank {self.rank}, margin {self.margin:.6g}",
                f"{int(self.support.sum())} of {self.multipliers.size} constraints active",
                f"{certified}: {self.certificate}",
            ]
        can, good = int(np.sum(self.separable)), int(np.sum(self.certified))
        return [
            f"{self.norm} max-margin solutions, W {size}, median margin {np.median(self.margin):.6g}",
            f"{can} of {self.tokens.runs} runs separable, {good} certified",
            f"worst: {self.certificate}",
        ]

    def plot(self) -> Any:
        """A matplotlib figure: margins of all constraints and singular values of W."""
        from attsvm.figures.results import draw_solution

        return draw_solution(self)

    # ------------------------------------------------------------------ open format

    def save(self, file: str | PathLike[str]) -> None:
        """Write tokens, selection, norm, W and multipliers to an .npz file."""
        arrays: dict[str, Any] = dict(self.tokens.arrays())
        names = ("selected", "W", "multipliers", "required", "separable")
        arrays |= {name: getattr(self, name) for name in names}
        arrays["norm"] = np.array([type(self.norm).__name__, repr(self.norm.p)])
        np.savez(file, **arrays)

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Solution:
        """Read a solution that `save` wrote. Its certificate is recomputed, not read."""
        tokens = Tokens.load(file)
        with np.load(file, allow_pickle=False) as data:
            missing = {"selected", "norm", "W", "multipliers"} - set(data)
            if missing:
                raise ValueError(f"{file} is not a saved Solution: it has no {sorted(missing)}.")
            kind, p = data["norm"]
            if kind not in ("Entrywise", "Schatten"):
                raise ValueError(f"{file} has an unknown norm {kind!r}.")
            norm = cast(Norm, getattr(norms, str(kind))(float(p)))
            return cls(
                tokens,
                data["selected"],
                norm,
                data["W"],
                data["multipliers"],
                data["required"],
                data["separable"],
            )


class NotSeparable(ValueError):
    """No W puts the selected tokens above the others by the required margins.

    multipliers (m,): a Farkas proof, λ ≥ 0 on inequalities with Σ λ_j b_j > 0 and Σ λ_j A_j = 0,
        ordered as in `Solution`.
    conflict: the (example, token) pairs with a nonzero multiplier.
    residual: N*(Σ λ_j A_j) / Σ λ_j b_j; no W of norm below 1/residual can satisfy the rows.
    """

    def __init__(
        self,
        message: str,
        multipliers: Float,
        conflict: list[tuple[int, int]],
        residual: float,
    ) -> None:
        super().__init__(message)
        self.multipliers = multipliers
        self.conflict = conflict
        self.residual = residual


# ---------------------------------------------------------------------- the certificate


def certify(rows: Constraints, norm: Norm, W: Float, multipliers: Float) -> Certificate:
    """Recompute violations and gap of (W, λ): W in the units of the original tokens, λ (…, n, T)."""
    W = rows.scale(W)
    margins = rows.margins(W)
    largest = _over(rows.bound)[..., None, None]
    unit = np.where(rows.bound > 0, rows.bound, np.where(largest > 0, largest, 1.0))
    short = np.where(rows.separating, rows.bound - margins, 0.0)
    unequal = np.where(rows.tied, np.abs(margins), 0.0)
    primal = np.maximum(_over(np.maximum(short, unequal) / unit), 0.0)

    size = _over(np.abs(multipliers))
    negative = _over(np.where(rows.separating, -multipliers, 0.0))
    clipped = np.where(rows.separating, np.maximum(multipliers, 0.0), multipliers)
    steepness = np.asarray(norm.dual.value(rows.combine(np.where(rows.active, clipped, 0.0))))
    steepness = np.ldexp(steepness, rows.exponent)
    excess = np.where(size > 0, steepness - 1.0, 0.0)
    dual = np.maximum(np.maximum(negative / np.where(size > 0, size, 1.0), excess), 0.0)

    lower = (clipped * rows.bound).sum((-2, -1)) / np.where(steepness > 0, steepness, 1.0)
    counted = rows.bound > 0
    ratio = np.where(counted, margins / np.where(counted, rows.bound, 1.0), np.inf)
    least = ratio.min((-2, -1), initial=np.inf)
    value = np.ldexp(np.asarray(norm.value(W)), -rows.exponent)
    trivial = ~counted.any((-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(least > 0, value / np.minimum(least, 1.0), np.inf)
        gap = np.where(np.isfinite(upper), 1.0 - lower / upper, 1.0)
    gap = np.where(trivial, np.where(value > 0, 1.0, 0.0), gap)
    return Certificate(_plain(primal), _plain(dual), _plain(np.maximum(gap, 0.0)))


def pack(rows: Constraints, multipliers: Float) -> Float:
    """Multipliers over tokens (…, n, T) → one per constraint (…, m), zero beyond a run's own m."""
    if rows.runs is None:
        return multipliers[rows.active]
    counts = rows.active.sum((-2, -1))
    out = np.zeros((rows.runs, int(counts.max())))
    out[np.arange(out.shape[1]) < counts[:, None]] = multipliers[rows.active]
    return out


def unpack(rows: Constraints, multipliers: Float) -> Float:
    """The inverse of `pack`."""
    out = np.zeros(rows.active.shape)
    if rows.runs is None:
        out[rows.active] = multipliers
    else:
        counts = rows.active.sum((-2, -1))
        out[rows.active] = multipliers[np.arange(multipliers.shape[1]) < counts[:, None]]
    return out


def _over(rows: Float) -> Float:
    return np.asarray(rows.max((-2, -1), initial=0.0))


def _plain(x: Any) -> Any:
    return x.item() if np.ndim(x) == 0 else np.asarray(x)
