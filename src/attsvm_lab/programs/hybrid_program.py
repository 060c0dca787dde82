"""Programs in a hybrid norm: the central path in the product of the balls of its parts.

    max τ   subject to   N_k(W_k) < rate_k for every part,   ⟨A_j, W⟩ > τ b_j,   ties in the null space

It ends at the weight of norm one with the largest margin, and μ/room are its multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import capabilities_of
from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision.balls import Ball, Numbers, like
from attsvm.program.extended_precision.central_path import Problem, descend, follow
from attsvm.program.rows import Candidate, Rows
from attsvm_lab.programs.balls import unit_ball
from attsvm_lab.programs.hybrid import HybridNorm

GOAL, ENOUGH = 1e-10, 2e-9
"""Relative gap at which the path ends, and above which doubled numbers are tried."""

WORK, DOUBLED_WORK = 300_000_000, 20_000_000
"""Operations of a step, N² (N + m) for N unknowns and m rows: seconds per program."""

FIRST = 1e3
"""The first μ, where rows have length one and the largest bound is one."""

AHEAD = 1e-12
"""Room of a row that requires the order alone, where rows have length one."""


def solve_hybrid(program: Constraints, norm: HybridNorm, first: Callable[[], Answer]) -> Answer:
    """The answer in a norm that is the largest of lp, nuclear and spectral norms of its parts."""
    shapes = norm.shapes(program.d, program.e)
    for part, (d, e) in zip(norm.norms, shapes, strict=True):
        traits = capabilities_of(part)
        known = traits.euclidean or traits.acts_on == "entries"
        known |= traits.acts_on == "singular values" and (part.p in (1, math.inf) or min(d, e) == 1)
        if norm.p < math.inf or not known:
            raise ValueError(
                f"no program for the norm {norm}. Supported: p = ∞, with parts in Entrywise(p), nuclear and "
                "spectral norms."
            )
    start = first()
    if not (start.separable and start.W.any()):
        return start
    rows = Rows.of(program)
    best = rows.at_margin_one(Candidate(start.W, rows.pick(start.multipliers) * rows.length), norm)
    for doubled in (False, True):
        candidate = _on_path(rows, program, norm, best.W, doubled) if best.gap > ENOUGH else None
        if candidate is not None:
            best = min(best, rows.at_margin_one(candidate, norm), key=lambda answer: answer.gap)
    return best


def _on_path(rows: Rows, program: Constraints, norm: HybridNorm, W: Float, doubled: bool) -> Candidate | None:
    """The end of the path; None where it is too large.

    The unknowns are W_k/rate_k, in which rows have length one.
    W: a weight with the required margins, where the path starts if a row requires the order alone.
    """
    shape = program.d, program.e
    places = [part.ravel() for part in norm.parts(np.arange(W.size).reshape(shape))]
    order = np.concatenate(places)
    scale = np.concatenate([np.full(len(one), rate) for one, rate in zip(places, norm.rates, strict=True)])
    A = rows.dense.reshape(len(rows), -1)[:, order] * scale
    length = np.linalg.norm(A, axis=1)
    A, bounds, tied = A / length[:, None], rows.bound / length, rows.tied
    unit = float(bounds.max())
    free = _null_space(A[tied], A.shape[1])
    A_free, bounds = A[~tied] @ free, bounds[~tied] / unit
    balls = [unit_ball(part, one) for part, one in zip(norm.norms, norm.shapes(*shape), strict=True)]
    ball = Blocks(tuple(balls), tuple(map(len, places)))
    w, tau = np.zeros(free.shape[1]), -1.0
    if not (bounds > 0).all():
        size = 2 * float(norm.value(W))
        w, tau = free.T @ (W.ravel()[order] / scale) / size, 0.0
    heights = ball.heights(free @ w)
    N = len(w) + len(heights) + 1
    if N**2 * (N + len(bounds)) > (DOUBLED_WORK if doubled else WORK):
        return None
    X = np.zeros((W.size + len(heights), N))
    X[: W.size, : len(w)] = free
    X[W.size :, len(w) : -1] = np.eye(len(heights))
    L = np.zeros((len(bounds), N))
    L[:, : len(w)], L[:, -1] = A_free, -bounds
    gain = np.append(np.zeros(N - 1), 1.0)
    h = np.where(bounds > 0, 0.0, AHEAD)
    problem = Problem(Doubled(gain), Doubled(X), ball, Doubled(L), Doubled(h))
    y = np.concatenate([w, heights, [tau]])
    if doubled:
        end = follow(problem, y, GOAL * 1e-2, FIRST)
        if end is None:
            return None
        at, mu, room = end.y.hi, end.gap / problem.parameter, problem.room(end.y).hi
        point = (problem.ball.gradient(problem.X @ end.y) * mu).hi
    else:
        rounded = problem.rounded()
        at, mu = descend(rounded, y, FIRST, GOAL, np.inf)
        room, point = rounded.room(at), np.asarray(rounded.ball.gradient(rounded.X @ at)) * mu
    multipliers = np.zeros(len(rows))
    multipliers[~tied] = mu / room
    if tied.any():
        missing = point[: W.size] - multipliers[~tied] @ A[~tied]
        multipliers[tied] = np.linalg.lstsq(A[tied].T, missing, rcond=None)[0]
    weight = np.empty(W.size)
    weight[order] = scale * (free @ at[: len(w)])
    return Candidate(weight.reshape(shape), multipliers / length)


def _null_space(ties: Float, D: int) -> Float:
    """Orthonormal columns (D, k) in which all ties hold."""
    if not len(ties):
        return np.eye(D)
    _, sigma, Vt = np.linalg.svd(ties)
    return np.asarray(Vt[int((sigma > 1e-12 * sigma[0]).sum()) :].T)


# ---------------------------------------------------------------------- the product of the balls


@dataclass(frozen=True)
class Blocks:
    """Several balls at once: the entries of all, then the heights of all. sizes: the entries of each."""

    balls: tuple[Ball, ...]
    sizes: tuple[int, ...]

    @property
    def parameter(self) -> float:
        return sum(ball.parameter for ball in self.balls)

    def heights(self, x: Float) -> Float:
        pieces = np.split(x, np.cumsum(self.sizes)[:-1])
        each = [ball.heights(piece) for ball, piece in zip(self.balls, pieces, strict=True)]
        return np.concatenate(each)

    @cached_property
    def places(self) -> list[NDArray[np.intp]]:
        """Where a point has the entries and the heights of each ball."""
        entries, heights, places = 0, sum(self.sizes), []
        for ball, size in zip(self.balls, self.sizes, strict=True):
            count = len(ball.heights(np.zeros(size)))
            places.append(np.r_[entries : entries + size, heights : heights + count])
            entries, heights = entries + size, heights + count
        return places

    def inside(self, x: Numbers) -> bool:
        return all(ball.inside(x[place]) for ball, place in zip(self.balls, self.places, strict=True))

    def gradient(self, x: Numbers) -> Numbers:
        out = like(x, np.zeros(len(x)))
        for ball, place in zip(self.balls, self.places, strict=True):
            out[place] = ball.gradient(x[place])
        return out

    def hessian(self, x: Numbers) -> Numbers:
        out = like(x, np.zeros((len(x), len(x))))
        for ball, place in zip(self.balls, self.places, strict=True):
            out[place[:, None], place] = ball.hessian(x[place])
        return out
