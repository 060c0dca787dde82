"""The offset program: the best weight of norm one where each example brings an offset of its own.

    max_{N(W) ≤ 1}  min_it  o_i + (x_s − x_t)ᵀ W z        min_{λ ≥ 0, Σ λ = 1}  Σ λ_it o_i + N*(Σ λ_it A_it)

With values and outputs trained along, attention sees o_i = Γ_i / N(W), the label margins of what it selects.

Newton's method on the value τ: the smallest W with the margins τ − o_i is a max-margin program, and its
multipliers are the next bound on τ. An example with o_i > τ requires nothing, until W puts a token above its
selected one by more than o_i − τ. Such negative rows, and contradictions between examples, are left to the
central path of the program itself, which has an interior whatever the data.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.path import Path
from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.norms.names import as_norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.certificate import EPSILON, TOLERANCE
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision.central_path import FIRST, Problem, descend, follow
from attsvm.program.rows import Rows, Span
from attsvm.program.solution import NotCertified, Solution
from attsvm.program.solve import solve
from attsvm_lab.programs.balls import SingularValues, unit_ball

ROUNDS = 40
"""Programs that Newton's method may solve. From the right it is monotone; most draws take four to eight."""

GAP_GOAL = 1e-10
"""Relative gap at which Newton's method stops. Engines end near 1e-9 or below."""

STALLED = 1e-13
"""Relative fall of the bound below which Newton's method has arrived, or will not."""

PATH_GOAL, DOUBLED_WORK, WORK = 1e-12, 20_000_000, 300_000_000
"""Gap at which the path ends, and operations of a step, in doubled numbers and in float64, at most."""

NO_GAIN = 1e-6
"""Share of the longest row below which a gain counts as none: the gap is then relative to that share."""


@dataclass(frozen=True, eq=False, repr=False)
class OffsetMargin:
    """A weight of norm at most one, and the multipliers that prove its value the largest up to `gap`.

    W (d, e): N(W) = 1, or less where a longer one is no better; multipliers (n, T): λ ≥ 0 with Σ λ = 1, zero
    for selected tokens and padding; offsets (n,): o_i in logits per unit of N(W).
    """

    tokens: Tokens
    selected: Bool
    norm: Norm
    offsets: Float
    W: Float
    multipliers: Float

    @cached_property
    def _rows(self) -> Constraints:
        return Constraints.of(self.tokens, self.selected)

    @property
    def value(self) -> float:
        """min_it o_i + (x_s − x_t)ᵀ W z at most, rounding counted against it."""
        return _value(self._rows, self.norm, self.offsets, self.W, longest=1.0)

    @cached_property
    def bound(self) -> float:
        """No weight of norm one has a larger value: Σ λ_it o_i + N*(Σ λ_it A_it), rounding included."""
        return _bound(self._rows, self.norm, self.offsets, self.multipliers)

    @property
    def least_offset(self) -> float:
        """The value of W = 0: the smallest offset of an example with a losing token."""
        return _least_offset(self._rows, self.offsets)

    @property
    def gain(self) -> float:
        """What attention adds to the worst example: value − least_offset."""
        return self.value - self.least_offset

    @property
    def gap(self) -> float:
        """(bound − value) / gain, recomputed; where no weight gains, relative to 1e-6 of the longest row."""
        excess, unit = self.bound - self.value, NO_GAIN * _longest(self._rows, self.norm)
        gain = max(self.bound - self.least_offset, unit)
        return max(excess, 0.0) / gain if gain > 0 else 0.0

    @property
    def certified(self) -> bool:
        """Whether the gap is at most 1e-8."""
        return bool(self.gap <= TOLERANCE)

    @property
    def above(self) -> Bool:
        """Tokens that W puts above the selected one (n, T): there training would change the selection."""
        rows = self._rows
        return rows.separating & (rows.token_margins(self.W) < -NO_GAIN * _longest(rows, self.norm))

    def value_of(self, W: ArrayLike) -> float:
        """min_it o_i + (x_s − x_t)ᵀ W z / N(W) of any weight (d, e), less rounding."""
        W = np.asarray(W, np.float64)
        if W.shape != self.W.shape:
            raise ValueError(f"W has shape {W.shape} but the program's is {self.W.shape}. Pass (d, e).")
        return _value(self._rows, self.norm, self.offsets, W)

    def share(self, W: ArrayLike) -> float:
        """The share of the gain that a weight reaches at norm one: 1 for a solution, 0 for W = 0."""
        return (self.value_of(W) - self.least_offset) / self.gain if self.gain > 0 else float("nan")

    def __repr__(self) -> str:
        proof = "certified" if self.certified else f"NOT certified, at most {self.bound:.6g}"
        above = int(self.above.sum())
        negative = f"; {above} tokens above the selected ones" if above else ""
        return f"OffsetMargin({self.norm}: {self.value:.6g}, gain {self.gain:.6g}, {proof}{negative})"


def offset_margin(
    tokens: Tokens, selected: ArrayLike, norm: Norm | str = frobenius, *, offsets: ArrayLike
) -> OffsetMargin:
    """The weight of norm one with the largest least margin, where every example has an offset of its own.

        max_{N(W) ≤ 1}  min_it  o_i + (x_s − x_t)ᵀ W z,  s selected, t not

    Where values and outputs are trained along, the loss falls like Σ_i e^{−Γ_i} (1 + Σ_t g_it e^{−m_it}): QK
    sees offsets o_i = Γ_i / N(W), with Γ_i = Y_i vᵀ x_is the label margins of the attended tokens. Equal
    offsets give `max_margin`. A positive gain needs only the examples with the least offsets to be separable.

    tokens: keys (n, T, d), queries (n, e), no runs axis; selected: one token per example.
    norm: as of `max_margin`.
    offsets: one number per example (n,), in logits per unit of N(W).

    Warns `NotCertified` where the gap is above 1e-8.
    """
    norm, tokens = as_norm(norm), as_tokens(tokens)
    if tokens.runs is not None:
        raise ValueError(f"the tokens have {tokens.runs} runs. Pass those of one: tokens.run(0).")
    tokens = tokens.in_memory()
    selection = _one_each(tokens, selected)
    margins = _as_offsets(tokens, offsets)
    problem = _Problem(tokens, selection, norm, margins)
    with np.errstate(all="ignore"):
        problem.by_newton()
        if not problem.arrived:
            problem.by_path()
    solution = OffsetMargin(tokens, selection, norm, margins, problem.W, problem.multipliers)
    if not solution.certified:
        warnings.warn(
            f"the offset program is not certified: relative gap {solution.gap:.1e}, and 1e-8 is allowed. "
            f"W has the value {solution.value:.6g}; the best one is at most {solution.bound:.6g}. Where W "
            "must put a token above a selected one, only lp, nuclear and spectral norms are certified.",
            NotCertified,
            stacklevel=2,
        )
    return solution


def _one_each(tokens: Tokens, selected: ArrayLike) -> Bool:
    selection = as_selected(tokens, selected)
    several = np.flatnonzero(selection.sum(-1) != 1)
    if several.size:
        raise ValueError(
            f"selected picks {int(selection[several[0]].sum())} tokens in example {several[0]}. "
            "Pass one token per example: the label margin of a mixture depends on its shares."
        )
    if not (tokens.mask & ~selection).any():
        raise ValueError("no example has a losing token. Pass at least one example of two tokens.")
    return np.asarray(selection)


def _as_offsets(tokens: Tokens, offsets: ArrayLike) -> Float:
    array = np.asarray(offsets, np.float64)
    if array.shape not in ((), (tokens.n,)):
        raise ValueError(
            f"offsets has shape {array.shape} but tokens has n={tokens.n}. Pass one number per example "
            f"({tokens.n},), such as the label margins over N(W)."
        )
    if not np.isfinite(array).all():
        raise ValueError("an offset is NaN or infinite. Pass finite label margins.")
    return np.broadcast_to(array, (tokens.n,)).copy()


# ---------------------------------------------------------------------- the two bounds


def _least_offset(rows: Constraints, offsets: Float) -> float:
    return float(offsets[rows.separating.any(-1)].min())


def _value(rows: Constraints, norm: Norm, offsets: Float, W: Float, longest: float = 0.0) -> float:
    """The least of o_i + margin at W / N(W), less rounding; that of W = 0 where N(W) is 0.

    longest: a weight of a norm up to this stays as it is.
    """
    if not np.isfinite(W).all():
        raise ValueError("W has a NaN or infinite entry. Pass a finite weight.")
    d, e = W.shape
    unit = float(np.abs(W).max()) or 1.0
    size = float(norm.value(W / unit)) * (1 + EPSILON * capabilities_of(norm).rounding(d, e))
    size, W = max(size, longest / unit), W / unit
    if not size > 0:
        return _least_offset(rows, offsets)
    reach = np.ldexp(rows.reach, rows.units.exponent) * float(np.linalg.norm(W)) / size
    margins = rows.token_margins(W) / size
    doubt = EPSILON * ((d + e + 6) * reach + 2 * np.abs(offsets))
    each = np.where(rows.separating, offsets[:, None] + margins - doubt[:, None], np.inf)
    return float(each.min())


def _bound(rows: Constraints, norm: Norm, offsets: Float, multipliers: Float) -> float:
    """Σ λ o + N*(Σ λ A) for the positive part of λ at sum one, rounding added; ∞ where λ is zero."""
    lam = np.where(rows.separating, np.maximum(multipliers, 0.0), 0.0)
    total = float(lam.sum())
    if not 0 < total < np.inf:
        return np.inf
    lam = lam / total
    exponent = rows.units.exponent
    top = int(exponent.max())
    scaled = np.ldexp(lam, (exponent - top)[:, None])
    M, dual = rows.combine(scaled), norm.dual
    terms = np.count_nonzero(lam) + sum(M.shape) + 8
    blur = terms * EPSILON * float((scaled.sum(-1) * rows.reach).sum())
    steep = float(dual.value(M)) * (1 + EPSILON * capabilities_of(dual).rounding(*M.shape))
    steep += capabilities_of(dual).stretch(*M.shape) * blur
    each = lam.sum(-1)
    base = _least_offset(rows, offsets)
    above = float(each @ (offsets - base))  # a large offset costs no digits where it has no multiplier
    rounding = EPSILON * (terms * above + 4 * abs(base))
    return base + above + rounding + float(np.ldexp(steep, top))


def _longest(rows: Constraints, norm: Norm) -> float:
    """An upper bound on the margin of any row at norm one: its length, stretched."""
    reach = np.ldexp(rows.reach, rows.units.exponent)[rows.separating.any(-1)]
    return float(reach.max()) * capabilities_of(norm.dual).stretch(rows.d, rows.e)


# ---------------------------------------------------------------------- the two methods


class _Problem:
    """The best weight and multipliers so far, by the two bounds."""

    def __init__(self, tokens: Tokens, selected: Bool, norm: Norm, offsets: Float) -> None:
        self.tokens, self.selected, self.norm, self.offsets = tokens, selected, norm, offsets
        self.rows = Constraints.of(tokens, selected)
        self.W: Float = np.zeros((tokens.d, tokens.e))
        self.multipliers: Float = np.zeros(self.rows.active.shape)
        self.base = self.value = _least_offset(self.rows, offsets)
        self.bound = np.inf

    @property
    def arrived(self) -> bool:
        return bool(self.bound - self.value <= 0.1 * TOLERANCE * (self.bound - self.base))

    def offer(self, W: Float, multipliers: Float) -> None:
        """Keep W if its value is the largest so far, and the multipliers if their bound is the smallest."""
        size = float(self.norm.value(W)) if np.isfinite(W).all() else 0.0
        for candidate in (W / size, W / max(size, 1.0)) if 0 < size < np.inf else ():
            value = _value(self.rows, self.norm, self.offsets, candidate, longest=1.0)
            if value > self.value:
                self.value, self.W = value, candidate
        bound = _bound(self.rows, self.norm, self.offsets, multipliers)
        if bound < self.bound:
            lam = np.where(self.rows.separating, np.maximum(multipliers, 0.0), 0.0)
            self.bound, self.multipliers = bound, lam / lam.sum()

    def by_newton(self) -> None:
        """The next τ is the bound of the multipliers; at first all examples require the same."""
        used = self.rows.separating.any(-1)
        required: Float = np.ones(self.tokens.n)
        for _ in range(ROUNDS):
            last = self.bound
            self.offer(*self._smallest(np.flatnonzero(used), required))
            fall = last - self.bound
            if self.bound - self.value <= GAP_GOAL * (self.bound - self.base):
                break
            if not fall > STALLED * (self.bound - self.base):
                break
            required = self.bound - self.offsets
            used = self.rows.separating.any(-1) & (required > 0)

    def _smallest(self, examples: Any, required: Float) -> tuple[Float, Float]:
        """The smallest W with these margins, and its multipliers (n, T), or those of a contradiction."""
        t, multipliers = self.tokens, np.zeros(self.rows.active.shape)
        some = Tokens(t.keys[examples], t.queries[examples], mask=t.mask[examples])
        program = Constraints.of(some, self.selected[examples], required[examples])
        answer = solve(program, self.norm)
        if answer.separable:
            W, lam, _ = program.units.restored(answer.W, answer.multipliers, np.asarray(True))
        else:
            power = -program.units.exponent
            W, lam = self.W * 0, np.ldexp(answer.multipliers, (power - power.max())[:, None])
        multipliers[examples] = lam
        return W, multipliers

    def by_path(self) -> None:
        """max τ  with  N(W) < 1,  o_j + ⟨A_j, W⟩ − τ > 0: its central path, in the units of the rows."""
        end = _on_path(self.rows, self.norm, self.offsets - self.base)
        if end is not None:
            self.offer(*end)


def _on_path(program: Constraints, norm: Norm, offsets: Float) -> tuple[Float, Float] | None:
    """W and multipliers (n, T) at the end of the path; None where the norm has no ball, or it is too large.

    Schatten(p) with 1 < p < ∞ has no barrier here but for p = 2, nor has the max-norm.
    """
    traits, rows = capabilities_of(norm), Rows.of(program, program.separating, zeros=True)
    spectrum = traits.acts_on == "singular values"
    if not (traits.euclidean or traits.acts_on == "entries" or (spectrum and norm.p in (1, np.inf))):
        return None
    span = rows.span if spectrum or traits.euclidean else Span(np.eye(rows.d), np.eye(rows.e))
    inner = rows.within(span)
    length = np.ldexp(rows.length, program.units.exponent[rows.example])
    zero = ~(np.asarray(rows.delta.any(1)) & np.asarray(rows.queries.any(1))[rows.owner])
    unit = float(np.where(zero, 0.0, length).max()) or 1.0
    A = inner.dense * np.where(zero, 0.0, length / unit)[:, None]
    shape = (inner.d, inner.e)
    ball = unit_ball(norm, shape)
    point = _end_of_path(A, offsets[rows.example] / unit, ball)
    if point is None:
        return None
    w, lam = point
    return span.expand(w.reshape(shape)), rows.spread(lam)


def _end_of_path(A: Float, offsets: Float, ball: Any) -> tuple[Float, Float] | None:
    """W flat (D,) and multipliers (m,) of the rows A (m, D) at the end of the path."""
    (m, D), heights = A.shape, ball.heights(np.zeros(A.shape[1]))
    N = D + len(heights) + 1
    work = N**2 * (N + m)
    if isinstance(ball, SingularValues) and ball.trace:
        work *= 2
    if work > WORK:
        return None
    X, L = np.zeros((N - 1, N)), np.zeros((m, N))
    X[:, : N - 1] = np.eye(N - 1)
    L[:, :D], L[:, -1] = A, -1.0
    gain = np.append(np.zeros(N - 1), 1.0)
    # The value begins at one, so that a goal relative to it can be reached where nothing is gained.
    h = offsets + 1.0
    program = Problem(Doubled(gain), Doubled(X), ball, Doubled(L), Doubled(h))
    start = np.concatenate([np.zeros(D), heights, [0.0]])
    first = 1e3 * (1 + float(np.abs(h).max()))
    end = follow(program, start, PATH_GOAL, min(first, FIRST)) if work <= DOUBLED_WORK else None
    if end is not None:
        y, mu = end.y.hi, end.gap / program.parameter
        return y[:D], mu / np.asarray((program.room(end.y)).hi)
    rounded = program.rounded()
    y, mu = descend(rounded, start, first, 1e-10, FIRST)
    return y[:D], mu / rounded.room(y)


# ---------------------------------------------------------------------- beside a trained head


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


def _label_margins(path: Path, selected: Bool, v: Any) -> Float:
    """Y_i vᵀ value_is of the selected token of each example (n,)."""
    tokens = path.tokens.in_memory()
    values = tokens.values[np.arange(tokens.n), selected.argmax(-1)]
    return np.asarray(tokens.labels * (values @ v), np.float64)
