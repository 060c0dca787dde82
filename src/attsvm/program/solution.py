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

from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm
from attsvm.norms.names import from_saved, saved_words
from attsvm.numbers import Bool, Float
from attsvm.numbers.files import check_shapes, naming, read_arrays, write_arrays
from attsvm.program.certificate import TOLERANCE, Certificate, certify, plain
from attsvm.program.constraints import Constraints, as_required

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
        return Constraints.of(self.tokens, self.selected, self.required, self.slack)

    @cached_property
    def margin(self) -> Any:
        """The margin that W attains at norm one, relative to the required margins; 0 where none separates.

            min_j (⟨A_j, W⟩ / b_j) / N(W)

        A certified solution attains 1/N(W), the best margin there is. With a slack it is 1/N(W).
        """
        size, least = np.asarray(self.norm.value(self.W)), np.asarray(1.0)
        if self.slack is None:
            least = self._least_margin()
        with np.errstate(divide="ignore", invalid="ignore"):
            attained = np.where((size > 0) | (least > 0), least / size, 0.0)
        return plain(np.where(self.separable, attained, 0.0))

    @property
    def margin_bound(self) -> Any:
        """No weight of norm one has a larger margin: the multipliers prove it. ∞ with a slack."""
        with np.errstate(divide="ignore"):
            bound = np.divide(1.0, self.certificate.least_norm)
        return plain(np.where(self.separable, bound, 0.0))

    def _least_margin(self) -> Float:
        """The least margin per required margin (…,); exactly 1 where it is 1 up to the tolerance."""
        rows = self.constraints
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = rows.token_margins(self.W) / self.required[..., None]
        bounded = rows.separating & (self.required > 0)[..., None]
        least = ratio.min((-2, -1), initial=np.inf, where=bounded)
        return np.where((np.abs(least - 1) <= TOLERANCE) | np.isinf(least), 1.0, least)

    @property
    def certificate(self) -> Certificate:
        """Violations and duality gap, recomputed from tokens, selection and norm at every access."""
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
        return self.constraints.unpack(self.multipliers)

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
        largest = np.maximum(rows.units.required.max(-1), np.finfo(float).tiny)[..., None, None]
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
        required, separable = self.required[index], self.separable[index]
        W, multipliers = self.W[index], self.multipliers[index, :m]
        tokens, selected = self.tokens.run(index), self.selected[index]
        return Solution(tokens, selected, self.norm, W, multipliers, required, separable, slack)

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
            lines = [
                f"{self.norm} {kind} solution, W {size}, rank {self.rank}, margin {self.margin:.6g}",
                f"{int(self.support.sum())} of {self.multipliers.size} constraints active{fall}",
                f"{'certified' if certified else 'NOT certified'} {certificate}",
            ]
            if certified or self.slack is not None:
                return lines if certified else [lines[-1], *lines[:-1]]
            with np.errstate(divide="ignore"):
                bound = float(np.divide(1.0, certificate.least_norm))
            return [lines[2], f"{lines[0]}, the best one at most {bound:.6g}", lines[1]]
        separable, certified = int(np.sum(self.separable)), int(np.sum(self.certified))
        solved = f"{separable} of {self.tokens.runs} runs separable, " if self.slack is None else ""
        lines = [
            f"{self.norm} {kind} solutions, W {size}, median margin {np.median(self.margin):.6g}",
            f"{solved}{certified} certified",
            f"worst {self.certificate}",
        ]
        doubtful = separable - certified
        return [f"{doubtful} of {self.tokens.runs} runs NOT certified", *lines] if doubtful else lines

    def plot(self) -> Any:
        """A matplotlib figure: margins of all constraints and singular values of W."""
        from attsvm.plotting.results import draw_solution

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
        arrays["norm"] = np.array(saved_words(self.norm))
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
            solution = cls(tokens, **_checked_fields(tokens, arrays))
            check_shapes(arrays, {"multipliers": "m"}, {"m": int(solution.constraints.m.max())}, tokens.runs)
            return solution


def _checked_fields(tokens: Tokens, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The arrays of a saved solution, checked, under the names of its fields."""
    missing = {"selected", "norm", *_AXES} - {"slack"} - set(arrays)
    if missing:
        raise ValueError(f"not a saved Solution: no array {', '.join(sorted(missing))}.")
    check_shapes(arrays, _AXES, {letter: getattr(tokens, letter) for letter in "nde"}, tokens.runs)
    fields = {name: arrays[name] for name in _AXES if name in arrays}
    if not all(np.isfinite(array).all() for array in fields.values()):
        raise ValueError(
            "W, a multiplier or a required margin is not finite. Scale the tokens and solve again."
        )
    return fields | {
        "separable": fields["separable"].astype(bool),
        "required": as_required(tokens, fields["required"]),
        "norm": from_saved(arrays["norm"].ravel().tolist()),
        "selected": as_selected(tokens, arrays["selected"]),
    }


@dataclass(frozen=True)
class Contradiction:
    """Rows that contradict each other: a proof, and a message that names them; see `NotSeparable`."""

    message: str
    multipliers: Float
    conflict: list[tuple[int, int]]
    residual: float


class NotCertified(UserWarning):
    """A solution is not proven optimal: its certificate has a violation or a gap above 1e-8.

    The solution holds the best weight and multipliers that were found: `margin` is what its W attains, and no
    weight of norm one has a margin above `margin_bound`.
    """

    @classmethod
    def of(cls, solution: Solution, certificate: Certificate, uncertified: NDArray[np.intp]) -> NotCertified:
        """The warning for a solution and its certificate; uncertified: the runs that it is about."""
        worst, number = np.atleast_1d(certificate.worst), solution.tokens.runs
        subject = f"{len(uncertified)} of {number} runs are" if number else "the solution is"
        first = int(uncertified[np.argmax(worst[uncertified])])
        message = f"{subject} not certified: violations or relative gap {worst[first]:.1e}"
        message += f" (run {first}), and 1e-8 is allowed." if number else ", and 1e-8 is allowed."
        if solution.slack is None:
            margin, bound = (np.atleast_1d(x)[first] for x in (solution.margin, solution.margin_bound))
            message += f" W attains the margin {margin:.6g}; the best one is at most {bound:.6g}."
        price = (
            "slack=C allows a few examples to fall short" if solution.slack is None else "so is a smaller C"
        )
        return cls(
            f"{message} Examples of similar scale, and selected tokens that are not nearly equal to others, "
            f"or nearly averages of them, are easier to prove; {price}."
        )


class NotSeparable(ValueError):
    """No W puts the selected tokens above the others by the required margins.

    multipliers (m,): a Farkas proof, λ ≥ 0 on inequalities with Σ λ_j b_j > 0 and Σ λ_j A_j = 0,
        ordered as in `Solution`.
    conflict: the (example, token) pairs with a nonzero multiplier.
    residual: N*(Σ λ_j A_j) / Σ λ_j b_j; no W of norm below 1/residual can satisfy the rows.

    The shorter proof and its message take time: `explain` computes them when they are first read.
    """

    def __init__(self, explain: Callable[[], Contradiction]) -> None:
        super().__init__(explain)

    @cached_property
    def explanation(self) -> Contradiction:
        """A short proof, and the message."""
        return cast(Contradiction, self.args[0]())

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


def _span(numbers: Float) -> str:
    """The number where all are equal, else the least and the largest."""
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
