"""The smallest W with prescribed margins: equalities alone, of any sign, in every norm that has programs.

    min N(W)  subject to  δ_jᵀ W z_j = b_j        max bᵀλ  subject to  N*(Σ λ_j δ_j z_jᵀ) ≤ 1

Entries: the program of one losing token, whose rows are written out as vectors. Schatten(p), 1 < p < ∞:
Newton's method on an exponent that moves from 2 to p. Nuclear, spectral and max-norm: the central path of the
dual ball.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, capabilities_of, nuclear, spectral
from attsvm.norms.names import as_norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.certificate import TOLERANCE
from attsvm.program.extended_precision.central_path import FIRST, Problem, descend, follow
from attsvm.program.finite_part import divided
from attsvm.program.interior_engine import FLOOR, length, nearer, paces_of
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows, Span
from attsvm.program.schatten.curved import of_power, of_root, power
from attsvm.program.solution import NotCertified
from attsvm_lab.programs.balls import SingularValues, unit_ball
from attsvm_lab.programs.max_norm import MaxNorm

GAP_GOAL = 1e-11
"""Relative gap at which the central path ends."""

DOUBLED_WORK, WORK = 20_000_000, 200_000_000
"""Operations of a step in doubled numbers and in float64 at most: a fraction of a second each."""

DEPENDENT = 1e-10
"""A row of length one this close to the span of others says nothing that these do not."""

STEPS, HALVINGS = 30, 20
"""Newton steps at one exponent, and halvings of a step, at most."""

NEAREST, FARTHEST = 1.0001, 1_000.0
"""The exponents that Newton's method reaches."""

SETTLED, ROUNDING = 1e-24, 1e-15
"""Fall of the cost, which is of order one, below which a step is nothing, and the rounding of the cost."""


def finite_part_in(tokens: Tokens, attention: ArrayLike, selected: ArrayLike, norm: Norm | str) -> Float:
    """Smallest W in a norm that divides attention among the selected tokens as given: see att.finite_part.

        min N(W)  subject to  (x_s − x_t)ᵀ W z = log(s_s / s_t),  s, t selected

    norm: Entrywise(p), Schatten(p) or MaxNorm(), or its name, as in `max_margin`. Nuclear, spectral and
        max-norm take small problems: of more than about 25 × 25 in the span of the rows they are refused.
    A W that is not proven to be the smallest, to 1e-8, comes with the warning `NotCertified`.
    """
    norm = as_norm(norm)

    def in_norm(delta: Float, queries: Float, margins: Float, first: Float) -> Float:
        return _certified(delta, queries, margins, norm, first)

    return divided(tokens, attention, selected, in_norm)


def _certified(delta: Float, queries: Float, margins: Float, norm: Norm, first: Float) -> Float:
    """The same margins by the least W in the norm; first: in the Frobenius norm."""
    if min(first.shape) == 1:
        traits = capabilities_of(norm)
        norm = (traits.on_column if first.shape[1] == 1 else traits.on_row) or norm
    if capabilities_of(norm).euclidean:
        return first
    W, _, gap = smallest(delta, queries, margins, norm, first)
    if gap > TOLERANCE:
        warnings.warn(
            NotCertified(f"the {norm} finite part is not certified: its relative gap is at most {gap:.1e}."),
            stacklevel=6,
        )
    return W


class Prescribed(NamedTuple):
    """W (d, e), the multipliers (k,) of its rows, and the relative gap between N(W) and their lower bound."""

    W: Float
    multipliers: Float
    gap: float


def smallest(delta: Float, queries: Float, margins: Float, norm: Norm, first: Float) -> Prescribed:
    """The W of least norm with these margins (k,) of the rows δ_j (k, d) and z_j (k, e), of length one.

    first (d, e): that of the Frobenius norm; the margins are those of some W.
    """
    traits, rows = capabilities_of(norm), _rows(delta, queries)
    used = _independent(rows.dense)
    pool, b = rows.some(used), margins[used]
    if traits.acts_on == "entries":
        candidates = [_of_entries]
    elif traits.acts_on == "singular values":
        candidates = [_curved, _on_path] if NEAREST <= norm.p <= FARTHEST else [_on_path]
    elif isinstance(norm, MaxNorm):
        candidates = [_on_path]
    else:
        raise ValueError(
            f"no finite part for the norm {norm}. Supported: Entrywise(p), Schatten(p) and MaxNorm()."
        )
    best = Prescribed(first, np.zeros(len(rows)), np.inf)
    for solve in candidates:
        with np.errstate(all="ignore"):
            W, multipliers = solve(pool, b, norm, first)
        if np.isfinite(W).all() and np.isfinite(multipliers).all():
            W, lam = _corrected(pool.dense, b, W.reshape(first.shape)), np.zeros(len(rows))
            lam[used] = multipliers
            best = min(best, Prescribed(W, lam, gap(rows, margins, norm, W, lam)), key=lambda x: x.gap)
        if best.gap <= TOLERANCE:
            break
    return best


def _rows(delta: Float, queries: Float) -> Rows:
    """Rows of length one, each with its own query."""
    index, zero, one = np.arange(len(delta)), np.zeros(len(delta)), np.ones(len(delta))
    if queries.shape[1] == 1:
        delta, queries, owner = delta * queries, np.ones((1, 1)), 0 * index
    else:
        owner = index
    tied, shape = np.ones(len(delta), bool), (len(delta), 1)
    return Rows(delta, queries, owner, zero, tied, one * np.inf, one, index, 0 * index, shape)


def gap(rows: Rows, margins: Float, norm: Norm, W: Float, multipliers: Float) -> float:
    """1 − bᵀλ / (N*(Σ λ_j A_j) N(W)) at most, rounding included."""
    M, shape, dual = rows.combine(multipliers), W.shape, norm.dual
    epsilon = np.finfo(float).eps
    terms = epsilon * (len(rows) + sum(shape) + 8)
    blur = terms * float(np.abs(multipliers).sum()) * capabilities_of(dual).stretch(*shape)
    steep = float(dual.value(M)) * (1 + epsilon * capabilities_of(dual).rounding(*shape)) + blur
    size = float(norm.value(W)) * (1 + epsilon * capabilities_of(norm).rounding(*shape))
    gained = float(multipliers @ margins) - terms * float(np.abs(multipliers) @ np.abs(margins))
    return max(1.0 - gained / (steep * size), 0.0) if steep > 0 and size > 0 else 1.0


def _independent(A: Float) -> Bool:
    """Rows (k,) that span the others."""
    used = np.zeros(len(A), bool)
    triangle, order = qr(A.T, mode="r", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    used[order[: np.count_nonzero(size > DEPENDENT * size[0])]] = True
    return used


def _corrected(A: Float, b: Float, W: Float) -> Float:
    """W with the margins b, which it nearly has: the nearest one in the Frobenius norm."""
    for _ in range(2):
        W = W + np.linalg.lstsq(A, b - A @ W.ravel(), rcond=None)[0].reshape(W.shape)
    return W


# ---------------------------------------------------------------------- entries


def _of_entries(rows: Rows, b: Float, norm: Norm, first: Float) -> tuple[Float, Float]:
    """One row asks for a margin, and is tight at the end; the others, less their share of it, are ties."""
    A, lead = rows.dense, int(np.abs(b).argmax())
    anchor = A[lead] / b[lead]
    ties = np.delete(A - np.outer(b, anchor), lead, axis=0)
    tokens = Tokens(np.concatenate([anchor[None], anchor - ties, np.zeros((1, A.shape[1]))])[None])
    selected = np.append(np.ones(len(A), bool), False)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)  # the gap is measured afterwards
        solution = max_margin(tokens, selected, norm)
    lam = np.zeros(len(A))
    lam[np.arange(len(A)) != lead] = solution.token_multipliers[0, 1:-1]
    lam[lead] = (solution.token_multipliers[0, -1] - lam @ b) / b[lead]
    return solution.W, lam


# ---------------------------------------------------------------------- nuclear, spectral, max-norm


def _on_path(rows: Rows, b: Float, norm: Norm, first: Float) -> tuple[Float, Float]:
    """The end of the central path of the dual ball, in doubled numbers where that takes little.

    Schatten(p) gets that of the nearer end, 1 or ∞.
    """
    of_factors = isinstance(norm, MaxNorm)  # it depends on the coordinates
    if of_factors:
        span = Span(np.eye(rows.d), np.eye(rows.e))
    else:
        span, norm = rows.span, nuclear if norm.p < 2 else spectral
    inner = rows.within(span)
    shape = (inner.d, inner.e)
    ball = DualMaxNormBall(*shape, trace=True) if of_factors else unit_ball(norm.dual, shape)
    A = inner.dense
    (k, D), heights = A.shape, ball.heights(np.zeros(A.shape[1]))
    count = len(heights)
    X = np.zeros((D + count, k + count))
    X[:D, :k] = A.T
    X[D:, k:] = np.eye(count)
    none = np.zeros((0, k + count))
    program = Problem(
        Doubled(np.append(b, np.zeros(count))), Doubled(X), ball, Doubled(none), Doubled(np.zeros(0))
    )
    start, work = np.append(np.zeros(k), heights), (k + count) ** 2 * (k + D + 2 * count)
    if work > WORK:
        raise ValueError(
            f"the {norm} finite part of {k} ratios spans {shape[0]} × {shape[1]}, which takes too much time. "
            "Select fewer tokens, or pass norm=frobenius."
        )
    end = follow(program, start, GAP_GOAL) if work <= DOUBLED_WORK else None
    if end is not None:
        return span.expand(end.W.hi[:D].reshape(shape)), end.y.hi[:k]
    rounded = program.rounded()
    y, mu = descend(rounded, start, FIRST, GAP_GOAL, FIRST)
    return span.expand((ball.gradient(X @ y) * mu)[:D].reshape(shape)), y[:k]


class DualMaxNormBall(SingularValues):
    """The same with diagonal P and Q, the unit ball of the dual max-norm."""

    def _corner(self, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.arange(size), np.arange(size)

    def heights(self, x: Float) -> Float:
        """More than the sums beside them."""
        X = np.abs(x.reshape(self.d, self.e))
        return np.concatenate([X.sum(1), X.sum(0)]) + 1.8 * (1 - X.sum()) / (self.d + self.e)


# ---------------------------------------------------------------------- Schatten(p), 1 < p < ∞


def _curved(rows: Rows, b: Float, norm: Norm, first: Float) -> tuple[Float, Float]:
    """Newton's method on the multipliers for p < 2, on W for p > 2: so the map has a derivative at 0."""
    p, pace, span = 2.0, paces_of(norm.p)[0][0], rows.span
    inner, W = rows.within(span), span.reduce(first)
    lam = np.linalg.lstsq(rows.dense.T, first.ravel(), rcond=None)[0]
    while p != norm.p:
        p = nearer(p, norm.p, pace)
        W, lam = _by_multipliers(inner, b, p, lam) if p < 2 else _by_weight(inner, b, p, W, lam)
    return span.expand(W), lam


def _by_multipliers(rows: Rows, b: Float, p: float, lam: Float) -> tuple[Float, Float]:
    """min ‖M‖_q^q / q − b̂ᵀλ  for the b̂ along b with b̂ᵀλ = ‖M‖_q = 1."""
    q = p / (p - 1)

    def cost(lam: Float) -> float:
        return float((_sigma(rows.combine(lam)) ** q).sum()) / q - float(lam @ unit)

    for _ in range(STEPS):
        U, sigma, Vt = np.linalg.svd(rows.combine(lam))
        size = length(sigma, q)
        lam, singular = lam / size, (U, sigma / size, Vt)
        W, unit = power(singular, q - 1), b / float(lam @ b)
        slope = rows.margins(W) - unit
        step = -_solved(of_power(singular, q - 1).gram(rows), slope)
        shorter = _shortened(cost, lam, step, -float(step @ slope))
        if shorter is None:
            break
        lam = shorter
    return W * float(lam @ b), lam


def _by_weight(rows: Rows, b: Float, p: float, W: Float, lam: Float) -> tuple[Float, Float]:
    """min ‖W‖_p^p / p over the W with the margins b̂ along b for which ‖W‖_p = 1."""
    whole = b

    def cost(W: Float) -> float:
        return float((_sigma(W) ** p).sum()) / p

    for _ in range(STEPS):
        U, sigma, Vt = np.linalg.svd(W)
        size = length(sigma, p)
        W, b, singular = W / size, b / size, (U, sigma / size, Vt)
        slope, bend = power(singular, p - 1), of_root(singular, p - 1, FLOOR)
        short = b - rows.margins(W)
        lam = _solved(bend.gram(rows), rows.margins(bend(slope)) + short)
        step = bend(rows.combine(lam) - slope)
        shorter = _shortened(cost, W, step, -float((step * slope).sum()))
        if shorter is None:
            break
        W = shorter
    return W * float(np.linalg.norm(whole) / np.linalg.norm(b)), lam


def _sigma(W: Float) -> Float:
    return np.linalg.svd(W, compute_uv=False)


def _solved(lower: Float, right: Float) -> Float:
    """The solution of a positive system of which the lower triangle is right; refined once."""
    matrix = np.tril(lower) + np.tril(lower, -1).T
    x = np.linalg.lstsq(matrix, right, rcond=1e-15)[0]
    return np.asarray(x + np.linalg.lstsq(matrix, right - matrix @ x, rcond=1e-15)[0])


def _shortened(cost: Callable[[Float], float], x: Float, step: Float, fall: float) -> Float | None:
    """x and so much of the step that the cost falls as a convex one does; None where it falls no more."""
    if not fall > SETTLED:
        return None
    before, share = cost(x), 1.0
    for _ in range(HALVINGS):
        trial = x + share * step
        if cost(trial) <= before - 1e-4 * share * fall + ROUNDING:
            return trial
        share /= 2
    return None
