"""What a program returns: a Solution with its Certificate, or NotSeparable with its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path as File
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from attsvm.files import check_shapes, naming, read_arrays, write_arrays
from attsvm.max_norm import MaxNorm
from attsvm.norms import Entrywise, Norm, Schatten
from attsvm.numbers import Bool, Float
from attsvm.program.asked import as_required
from attsvm.program.certificate import TOLERANCE, Certificate, certify, certify_soft, plain
from attsvm.program.constraints import Constraints
from attsvm.selection import as_selected
from attsvm.tokens import Tokens

_AXES = {"W": "de", "multipliers": "m", "required": "n", "separable": "", "slack": "n"}
"""The saved arrays of which every run has its own, and their axes."""

SUPPORT = 1e-6
"""A constraint is active when its margin exceeds the required one by less than this, relatively."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """The smallest W that separates the selected tokens from the others.

    W (d, e): the weight; multipliers (m,): one per constraint, for the program `min N(W)`, so
    that N*(Σ λ_j A_j) = 1 and Σ λ_j b_j = N(W); for Frobenius W = N(W) Σ λ_j A_j.
    The constraints are ordered by example, then token: `example` (m,) and `token` (m,) name them.
    With a runs axis W is (runs, d, e), multipliers (runs, m) (zero beyond a run's own m), and
    runs that cannot be separated have `separable` False, W = 0 and a Farkas proof as multipliers.

    With a slack (n,), the price C of falling short, W is the soft-margin solution, its multipliers
    are those of `min ½‖W‖² + Σ C_i ξ_i`, so that W = Σ λ_j A_j and Σ_t λ_it ≤ C_i.
    """

    tokens: Tokens
    selected: Bool
    norm: Norm
    W: Float
    multipliers: Float
    required: Float
    separable: Bool
    slack: Float | None = None

    @cached_property
    def constraints(self) -> Constraints:
        """The rows of the program."""
        return Constraints.of(self.tokens, self.selected, self.required)

    @property
    def margin(self) -> Any:
        """1/N(W): the best margin a weight of norm one can have; 0 where none separates."""
        with np.errstate(divide="ignore"):
            best = np.divide(1.0, self.norm.value(self.W))
        return plain(np.where(self.separable, best, 0.0))

    @property
    def certificate(self) -> Certificate:
        """Violations and duality gap, recomputed from tokens, selection and norm at every access."""
        if self.slack is not None:
            return certify_soft(self.constraints, self.W, self.token_multipliers, self.slack)
        return certify(self.constraints, self.norm, self.W, self.token_multipliers)

    @property
    def shortfall(self) -> Float:
        """How far each example falls short of its required margin (n,): ξ_i, recomputed from W."""
        rows = self.constraints
        short = self.required[..., None] - rows.token_margins(self.W)
        return np.where(rows.separating, short, 0.0).max(-1)

    @property
    def certified(self) -> Any:
        """Whether violations and gap are at most 1e-8."""
        return plain(self.separable & (self.certificate.worst <= TOLERANCE))

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
        """Tokens whose constraint is active, bool (n, T): margin equal to the required one (less ξ)."""
        rows = self.constraints
        largest = np.maximum(self.required.max(-1), np.finfo(float).tiny)[..., None, None]
        short = 0.0 if self.slack is None else self.shortfall[..., None]
        over = (rows.token_margins(self.W) - self.required[..., None] + short) / largest
        return rows.separating & (over <= SUPPORT) & np.asarray(self.separable)[..., None, None]

    @property
    def rank(self) -> Any:
        """Rank of W: singular values above 1e-6 of the largest."""
        sigma = np.linalg.svd(
            self.W / np.maximum(np.abs(self.W).max((-2, -1), keepdims=True), 1e-300), compute_uv=False
        )
        return plain((sigma > 1e-6 * np.maximum(sigma[..., :1], 1e-300)).sum(-1))

    def run(self, index: int) -> Solution:
        """The solution of one run."""
        if self.tokens.runs is None:
            raise ValueError("this solution has no runs axis.")
        m, slack = int(self.constraints.m[index]), None if self.slack is None else self.slack[index]
        asked, can = self.required[index], self.separable[index]
        W, multipliers = self.W[index], self.multipliers[index, :m]
        tokens, selected = self.tokens.run(index), self.selected[index]
        return Solution(tokens, selected, self.norm, W, multipliers, asked, can, slack)

    def _one_run(self) -> Constraints:
        if self.tokens.runs is not None:
            raise ValueError("with a runs axis, ask one run: solution.run(0).example")
        return self.constraints

    def __repr__(self) -> str:
        return f"Solution({'; '.join(self._lines())})"

    def __str__(self) -> str:
        return "\n  ".join(self._lines())

    def _lines(self) -> list[str]:
        kind = "max-margin" if self.slack is None else f"soft-margin (C = {_span(self.slack)})"
        size = " × ".join(map(str, self.W.shape))
        if self.tokens.runs is None:
            certificate, fall = self.certificate, ""  # once: stored keys are read for it
            certified = self.separable and certificate.worst <= TOLERANCE
            if self.slack is not None:
                short = int((self.shortfall > SUPPORT * self.required).sum())
                fall = f", {short} of {self.tokens.n} examples fall short"
            return [
                f"{self.norm} {kind} solution, W {size}, rank {self.rank}, margin {self.margin:.6g}",
                f"{int(self.support.sum())} of {self.multipliers.size} constraints active{fall}",
                f"{'certified' if certified else 'NOT certified'} {certificate}",
            ]
        can, good = int(np.sum(self.separable)), int(np.sum(self.certified))
        solved = f"{can} of {self.tokens.runs} runs separable, " if self.slack is None else ""
        return [
            f"{self.norm} {kind} solutions, W {size}, median margin {np.median(self.margin):.6g}",
            f"{solved}{good} certified",
            f"worst {self.certificate}",
        ]

    def plot(self) -> Any:
        """A matplotlib figure: margins of all constraints and singular values of W."""
        from attsvm.figures.results import draw_solution

        return draw_solution(self)

    # ------------------------------------------------------------------ open format

    def save(self, file: str | PathLike[str]) -> File:
        """Write tokens, selection, norm, W and multipliers to an .npz file; returns its name.

        Tokens that are stored elsewhere stay there: `load` then asks for them.
        """
        arrays: dict[str, Any] = {} if self.tokens.elsewhere else dict(self.tokens.arrays())
        arrays |= {
            name: getattr(self, name) for name in ("selected", *_AXES) if getattr(self, name) is not None
        }
        arrays["norm"] = np.array([type(self.norm).__name__, repr(self.norm.p)])
        return write_arrays(file, arrays, (self.tokens.keys, self.tokens.values))

    @classmethod
    def load(cls, file: str | PathLike[str], tokens: Tokens | None = None) -> Solution:
        """Read a solution that `save` wrote. Its certificate is recomputed, not read.

        tokens: those that it solves, where they were stored elsewhere and so not saved with it.
        """
        arrays = read_arrays(file, in_place=True)
        with naming(file):
            if tokens is None and "multipliers" in arrays and "keys" not in arrays:
                raise ValueError(
                    "the solution of tokens that stay elsewhere. Pass them: Solution.load(file, tokens)."
                )
            tokens = Tokens.from_arrays(arrays) if tokens is None else tokens
            found = cls(tokens, **_parts(tokens, arrays))
            check_shapes(arrays, {"multipliers": "m"}, {"m": int(found.constraints.m.max())}, tokens.runs)
            return found


def _parts(tokens: Tokens, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The arrays of a saved solution, checked, under the names of its fields."""
    missing = {"selected", "norm", *_AXES} - {"slack"} - set(arrays)
    if missing:
        raise ValueError(f"not a saved Solution: no array {', '.join(sorted(missing))}.")
    check_shapes(arrays, _AXES, {letter: getattr(tokens, letter) for letter in "nde"}, tokens.runs)
    parts = {name: arrays[name] for name in _AXES if name in arrays}
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise ValueError(
            "W, a multiplier or a required margin is not finite. Scale the tokens and solve again."
        )
    parts |= {
        "separable": parts["separable"].astype(bool),
        "required": as_required(tokens, parts["required"]),
    }
    families: dict[str, Callable[[float], Norm]] = {"Entrywise": Entrywise, "Schatten": Schatten}
    families["MaxNorm"] = lambda _: MaxNorm()
    words = arrays["norm"].ravel().tolist()
    if len(words) != 2 or words[0] not in families:
        raise ValueError(f"unknown norm {words}. Known: {', '.join(families)}, each with its p.")
    norm = families[words[0]](float(words[1]))
    return parts | {"norm": norm, "selected": as_selected(tokens, arrays["selected"])}


@dataclass(frozen=True)
class Explanation:
    """A contradiction in words, with its proof; see `NotSeparable`."""

    message: str
    multipliers: Float
    conflict: list[tuple[int, int]]
    residual: float


class NotSeparable(ValueError):
    """No W puts the selected tokens above the others by the required margins.

    multipliers (m,): a Farkas proof, λ ≥ 0 on inequalities with Σ λ_j b_j > 0 and Σ λ_j A_j = 0,
        ordered as in `Solution`.
    conflict: the (example, token) pairs with a nonzero multiplier.
    residual: N*(Σ λ_j A_j) / Σ λ_j b_j; no W of norm below 1/residual can satisfy the rows.

    Who only asks whether there is a W does not wait for a shorter proof and its words: `explain` gives
    them when they are first asked for.
    """

    def __init__(self, explain: Callable[[], Explanation]) -> None:
        super().__init__(explain)

    @cached_property
    def explanation(self) -> Explanation:
        """The shortest proof at hand, and its words."""
        return cast(Explanation, self.args[0]())

    @property
    def multipliers(self) -> Float:
        return self.explanation.multipliers

    @property
    def conflict(self) -> list[tuple[int, int]]:
        return self.explanation.conflict

    @property
    def residual(self) -> float:
        return self.explanation.residual

    def __str__(self) -> str:
        return self.explanation.message

    def __repr__(self) -> str:
        return f"NotSeparable({self.explanation.message!r})"


def pack(program: Constraints, multipliers: Float) -> Float:
    """Multipliers over tokens (…, n, T) → one per constraint (…, m), zero beyond a run's own m."""
    packed = multipliers[program.active]
    if program.runs is None:
        return packed
    counts = program.m
    most = int(counts.max())
    if packed.size == most * program.runs:  # every run has as many
        return packed.reshape(program.runs, most)
    out = np.zeros((program.runs, most))
    out[np.arange(most) < counts[:, None]] = packed
    return out


def unpack(program: Constraints, multipliers: Float) -> Float:
    """The inverse of `pack`."""
    out = np.zeros(program.active.shape)
    if program.runs is None:
        out[program.active] = multipliers
    else:
        out[program.active] = multipliers[np.arange(multipliers.shape[1]) < program.m[:, None]]
    return out


def _span(numbers: Float) -> str:
    """All numbers in one: the number, or from the least to the largest."""
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
