"""Solutions of smooth norms to the last digits: Newton steps on the active rows.

A gap of 1e-10 leaves W an error of its root, 1e-5. On the rows S that are active the solution is that of a
system without inequalities,

    A_S W = b_S,    ∇(N^p/p)(W) = Σ_S μ_j A_j,    N(W) = 1

which a few steps solve from there. They cost less than the interior point took: S has fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import solve_triangular

from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import Cholesky
from attsvm.numbers.threads import single_thread
from attsvm.program import bounds
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Candidate, Rows, Span

STEPS, ROUNDS = 8, 3
"""Newton steps on some rows; and how often these rows may change."""

FLAT, DENSE = 1e-6, 600
"""Curvature of |w|^p, p > 2, below which its inverse costs digits; and unknowns and rows up to which their
system is then solved as it is."""

SMALLEST = 1e-12
"""Least curvature of |w|^p, p > 2, relative to that of w = 1: it vanishes at w = 0."""

SETTLED = 1e-10
"""Relative size of a step after which no further one is needed: steps square it."""

FAR = 0.1
"""Relative size of a first step that leads away from the solution: the rows are not those of its support."""

NUMBERS, DEPENDENT, REFINED = 1 << 20, 1e-12, 3
"""Numbers in the active rows that are factored at most; distance of a unit row from the others that is none;
and steps that solve their system."""

ROUNDED = 1e-13
"""Gap that is rounding: a smaller one is no reason to refuse a polished solution."""


def polished(program: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The answer of one run with W to the last digits, or as it is if Newton steps do not improve it.

    For norms with one solution that follows smoothly from its multipliers: Entrywise(p) and Schatten(p),
    1 < p < ∞.
    """
    linearise = linearisation(norm)
    if linearise is None or not answer.separable or not answer.W.any() or not answer.gap < np.inf:
        return answer
    pool = Rows.of(program, program.tied | (answer.multipliers != 0))
    # Calls of BLAS on few rows are too small for threads, and cheaper than to set their number.
    threads = nullcontext() if pool.features is not None else single_thread()
    with threads, np.errstate(all="ignore"):
        lam, W = pool.pick(answer.multipliers) * pool.length, answer.W
        active = _active(pool, W, lam)
        for _ in range(ROUNDS):
            system = System.of(pool, active, norm, linearise)
            if system is None:
                break
            point = system.solved(W, lam[active])
            if point is None:
                break
            candidate = _answer(program, pool, active, norm, point)
            if candidate.gap <= max(answer.gap, ROUNDED):
                return candidate
            changed = _exchanged(pool, active, point)
            if (changed == active).all():
                break
            active = changed
    return answer


def on_active_rows(program: Constraints, answer: Answer) -> Answer | None:
    """In the Frobenius norm, the answer of one run by orthogonal factors of its active rows.

    Gram matrices lose the square of the condition of the rows, orthogonal factors its first power. None where
    there are more active rows than unknowns, too many numbers in them, or rows that depend on each other.
    """
    rows = Rows.of(program, program.tied | (answer.multipliers > 0))
    if not 0 < len(rows) <= rows.d * rows.e or len(rows) * rows.d * rows.e > NUMBERS:
        return None
    with single_thread(), np.errstate(all="ignore"):
        A = rows.dense
        Q, R = np.linalg.qr(A.T)
        if not np.abs(np.diagonal(R)).min() > DEPENDENT:
            return None
        W, lam = np.zeros(A.shape[1]), np.zeros(len(A))
        for _ in range(REFINED):
            W += Q @ solve_triangular(R, rows.bound - A @ W, trans=1)
        for _ in range(REFINED):
            lam += solve_triangular(R, Q.T @ (W - lam @ A))
        point = Candidate(W.reshape(rows.d, rows.e), lam)
        return _answer(program, rows, np.ones(len(rows), bool), frobenius, point)


def _active(rows: Rows, W: Float, lam: Float) -> Bool:
    """Rows whose multiplier is larger than their slack, both relative to the program."""
    unit, total = float(rows.bound.max(initial=0.0)), float(lam @ rows.bound)
    share, slack = lam * unit / total, (rows.margins(W) - rows.bound) / unit
    return rows.tied | (share > slack)


def _exchanged(rows: Rows, active: Bool, point: Candidate) -> Bool:
    """The active rows without those that pull the wrong way, and with those that W violates."""
    negative = np.zeros(len(rows), bool)
    negative[active] = point.multipliers < 0
    short = rows.margins(point.W) < rows.bound * (1 - ROUNDED)
    return np.asarray(rows.tied | (active & ~negative) | (short & ~active))


def _answer(program: Constraints, pool: Rows, active: Bool, norm: Norm, point: Candidate) -> Answer:
    """The answer of W and the multipliers of the active rows, with its gap over all rows."""
    multipliers = np.zeros(len(pool))
    multipliers[active] = point.multipliers
    if not (np.isfinite(point.W).all() and np.isfinite(multipliers).all()):
        return Answer(0 * point.W, 0 * program.bound)
    margins = program.margins(point.W)
    least = bounds.least_margin(program, margins)
    answer = pool.at_margin_one(Candidate(point.W, multipliers), norm, least)
    if not program.relaxed or not 0 < least < np.inf:  # without a margin the gap is infinite already
        return answer
    missed = bounds.missed(program, margins) / (least * float(program.bound.max()))
    return Answer(answer.W, answer.multipliers, gap=max(float(answer.gap), missed))


# ---------------------------------------------------------------------- the system of some rows


class Map(Protocol):
    """The derivative of W in M = Σ μ_j A_j."""

    def __call__(self, X: Float, /) -> Float: ...
    def gram(self, rows: Rows, /) -> Float: ...


Linearise = Callable[[Float, Float], tuple[Map, Float]]
"""W and M, both of norm one → map and offset:  W + dW = W + offset + map(dM)  stays tied to M + dM."""


@dataclass(frozen=True, eq=False)
class System:
    """A W = b with W tied to M = Aᵀμ, in the span of its rows."""

    rows: Rows
    norm: Norm
    linearise: Linearise
    expand: Callable[[Float], Float]
    reduce: Callable[[Float], Float]

    @classmethod
    def of(cls, pool: Rows, active: Bool, norm: Norm, linearise: Linearise) -> System | None:
        """Those of the active rows; None where there are more of them than unknowns, or none."""
        rows = pool.some(active)
        if not 0 < len(rows) <= rows.d * rows.e:
            return None
        if capabilities_of(norm).acts_on == "singular values":
            # Outside the span of the rows W is zero, which no step reaches where M has no slope.
            span = Span.exactly(rows.delta, rows.queries[np.unique(rows.owner)])
            return cls(rows.within(span), norm, linearise, span.expand, span.reduce)
        return cls(rows, norm, linearise, np.asarray, np.asarray)

    def solved(self, W: Float, lam: Float) -> Candidate | None:
        """W and multipliers by Newton steps from a pair near the solution; None if they lead away from it."""
        size, steep = float(self.norm.value(W)), float(self.norm.dual.value(self.rows.combine(lam)))
        if not (size > 0 and steep > 0):
            return None
        W, mu, bound, least = self.reduce(W) / size, lam / steep, self.rows.bound / size, FAR
        for _ in range(STEPS):
            try:
                dW, dmu = self._step(W, mu, bound)
            except np.linalg.LinAlgError:
                return None
            moved = float(np.linalg.norm(dW) / np.linalg.norm(W))
            if not moved < least:
                return None if least == FAR else Candidate(self.expand(W) * size, mu)
            W, mu, least = W + dW, mu + dmu, moved
            if moved <= SETTLED:
                break
        return Candidate(self.expand(W) * size, mu)

    def _step(self, W: Float, mu: Float, bound: Float) -> tuple[Float, Float]:
        """dW and dμ of a Newton step; the solve is refined once."""
        image, offset = self.linearise(W, self.rows.combine(mu))
        if isinstance(image, Diagonal) and image.flat and W.size + len(mu) <= DENSE:
            return image.saddle(self.rows, offset, bound - self.rows.margins(W))
        factor = Cholesky(lambda: image.gram(self.rows))
        residual, dmu = bound - self.rows.margins(W + offset), np.zeros_like(mu)
        dW = offset
        for _ in range(2):
            change = factor.solve(residual)
            # W is refined with μ: a new product with the map, up to 1e10, would undo the refinement.
            dW, dmu = dW + image(self.rows.combine(change)), dmu + change
            residual = bound - self.rows.margins(W + dW)
        return dW, dmu


# ---------------------------------------------------------------------- W of M


def linearisation(norm: Norm) -> Linearise | None:
    """How W and M are tied: of the two maps, W of M and M of W, the one with a derivative at zero."""
    if not 1 < norm.p < np.inf:
        return None
    match capabilities_of(norm).acts_on:
        case "entries":
            return _of_entries(norm.p)
        case "singular values":
            return _of_singular_values(norm.p)
    return None


@dataclass(frozen=True, eq=False)
class Diagonal:
    """X ↦ V ∘ X."""

    V: Float

    @property
    def flat(self) -> bool:
        """Whether some entry of W hardly moves M."""
        return float(self.V.max()) > 1 / FLAT

    def saddle(self, rows: Rows, offset: Float, residual: Float) -> tuple[Float, Float]:
        """dW and dμ with  dW/V − Aᵀ dμ = offset/V,  A dW = residual."""
        A, N = rows.dense, offset.size
        matrix = np.block([[np.diag(1 / self.V.ravel()), -A.T], [A, np.zeros((len(A), len(A)))]])
        step = np.linalg.solve(matrix, np.concatenate([(offset / self.V).ravel(), residual]))
        return step[:N].reshape(offset.shape), step[N:]

    def __call__(self, X: Float) -> Float:
        return self.V * X

    def gram(self, rows: Rows) -> Float:
        """A diag(V) Aᵀ."""
        if rows.features is not None:
            return np.asarray((rows.features * self.V.ravel()) @ rows.features.T)
        from attsvm.program.entrywise.newton import gram

        (k, d), e, g = rows.delta.shape, rows.e, len(rows.queries)
        edges, zero = np.append(rows.starts, k), np.zeros(k)
        scratch, out = (np.empty((e, d)), np.empty((g, d)), np.zeros((k, d))), np.empty((k, k))
        delta, queries = np.ascontiguousarray(rows.delta), np.ascontiguousarray(rows.queries)
        gram(delta, queries, edges, self.V.ravel(), zero, zero, *scratch, out)
        return out.T


def _of_entries(p: float) -> Linearise:
    def linearise(W: Float, M: Float) -> tuple[Map, Float]:
        if p < 2:
            q = p / (p - 1)
            size = np.abs(M)
            return Diagonal((q - 1) * size ** (q - 2)), np.sign(M) * size ** (q - 1) - W
        size = np.abs(W)
        V = 1 / ((p - 1) * size ** (p - 2) + SMALLEST)
        return Diagonal(V), V * (M - np.sign(W) * size ** (p - 1))

    return linearise


def _of_singular_values(p: float) -> Linearise:
    from attsvm.program.schatten.curved import of_power, of_root, power

    def linearise(W: Float, M: Float) -> tuple[Map, Float]:
        if p < 2:
            singular = np.linalg.svd(M)
            return of_power(singular, 1 / (p - 1)), power(singular, 1 / (p - 1)) - W
        singular = np.linalg.svd(W)
        image = of_root(singular, p - 1, SMALLEST)
        return image, image(M - power(singular, p - 1))

    return linearise
