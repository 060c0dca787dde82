"""The semidefinite program of a joint norm of heads, by a primal-dual interior point.

    min ½ G(X)² − bᵀλ   subject to   S_u = [[X_k(u), M_h …], [M_hᵀ …, X_q(h) …]] ⪰ 0,   λ_j ≥ 0 where not tied
    M_h = C_h + Σ_j λ_j r_j   over the rows j of head h,      G(X) = ½ Σ_c κ_c (Σ_{i ∈ c} tr X_i^q)^(1/q)

u runs over key heads, h over the heads that read one; X_i is the dual of the Gram matrix of one row of a
matrix of the layout, c are the matrices, 1/q + 2/p = 1. The multipliers Y_u ⪰ 0 of S_u hold the weights:
W_h = −2 Y_12, P = 2 Y_11, R = 2 Y_22, and [[P, W], [Wᵀ, R]] ⪰ 0. At p = 2 every X_i of a matrix is one t_c I.
Steps: the HKM direction with Mehrotra's correction; the rows of a unit are eliminated before the X_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from attsvm.norms.layouts import HeadLayout
from attsvm.numbers import Bool, Float

GOAL, STEPS, PATIENCE = 3e-11, 80, 6
"""Relative gap at which the iteration ends; most steps in all, and most without a better gap."""

BOUNDARY = 0.98
"""Share of the way to the boundary that a step goes."""

EPSILON = 2.0**-53

RIDGES = (0.0, 1e-14, 1e-12, 1e-10)
"""Added to the diagonal of a matrix that rounding has made indefinite, relative to its largest entry."""

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Structure:
    """Where the blocks of a component of a layout lie; see the module.

    units: for each key head the heads that read it. key_row, query_row: the X_i of a key head and of a head.
    matrix_of_row: the matrix c of every X_i; scale: κ_c, so that one head has the norm Schatten(p/2).
    """

    p: float
    units: tuple[tuple[int, ...], ...]
    key_row: tuple[int, ...]
    query_row: tuple[int, ...]
    matrix_of_row: tuple[int, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, layout: HeadLayout, p: float) -> Structure:
        row_of: dict[str, int] = {}
        matrix_of_row: list[int] = []
        scale: list[float] = []
        for c, matrix in enumerate(layout.matrices):
            for row in matrix:
                row_of |= dict.fromkeys(row, len(matrix_of_row))
                matrix_of_row.append(c)
            side_by_side = any(len({name[0] for name in row}) == 2 for row in matrix)
            both = len({name[0] for row in matrix for name in row}) == 2
            scale.append(2.0 if side_by_side else 2.0 ** (2 / p) if both else 1.0)
        keys = range(max(layout.key_of) + 1)
        units = tuple(tuple(h for h, k in enumerate(layout.key_of) if k == g) for g in keys)
        key_row = tuple(row_of[f"K{g}"] for g in keys)
        query_row = tuple(row_of[f"Q{h}"] for h in range(layout.heads))
        return cls(p, units, key_row, query_row, tuple(matrix_of_row), tuple(scale))

    @property
    def q(self) -> float:
        return 1.0 if math.isinf(self.p) else math.inf if self.p == 2 else self.p / (self.p - 2)

    @property
    def mixes(self) -> bool:
        """Whether some X_i serves keys and queries: they then lie in one space."""
        return bool(set(self.key_row) & set(self.query_row))

    def rows_of(self, c: int) -> list[int]:
        return [i for i, matrix in enumerate(self.matrix_of_row) if matrix == c]

    # ------------------------------------------------------------------ the two norms

    def dual_value(self, X: Sequence[Float]) -> float:
        """G(X)."""
        spectra = [np.maximum(np.linalg.eigvalsh(x), 0.0) for x in X]
        return 0.5 * sum(
            scale * _lp(np.concatenate([spectra[i] for i in self.rows_of(c)]), self.q)
            for c, scale in enumerate(self.scale)
        )

    def value(self, Z: Sequence[Float]) -> float:
        """max_c ‖blockdiag Z_i‖ / κ_c in Schatten(p/2): the polar of G. Z_i: sums of Gram matrices."""
        spectra = [np.maximum(np.linalg.eigvalsh(z), 0.0) for z in Z]
        return max(
            _lp(np.concatenate([spectra[i] for i in self.rows_of(c)]), self.p / 2) / scale
            for c, scale in enumerate(self.scale)
        )

    def gram_sums(self, P: Sequence[Float], R: Sequence[Float]) -> list[Float]:
        """Z_i of every row: the sum of P_g over its key heads and of R_h over its heads."""
        shapes = dict.fromkeys(self.key_row, P[0].shape) | dict.fromkeys(self.query_row, R[0].shape)
        Z: list[Float] = [np.zeros(shapes[i]) for i in range(len(self.matrix_of_row))]
        for i, gram in zip((*self.key_row, *self.query_row), (*P, *R), strict=True):
            Z[i] = Z[i] + gram
        return Z

    def slack(self, X: Sequence[Float], M: Sequence[Float], unit: int) -> Float:
        """S_u with −M, whose trace with [[P, W], [Wᵀ, R]] is ≥ 0."""
        heads = self.units[unit]
        d, e = M[0].shape
        S = np.zeros((d + e * len(heads),) * 2)
        S[:d, :d] = X[self.key_row[unit]]
        for k, h in enumerate(heads):
            b = slice(d + k * e, d + (k + 1) * e)
            S[b, b] = X[self.query_row[h]]
            S[:d, b], S[b, :d] = -M[h], -M[h].T
        return S

    def zeros(self, d: int, e: int) -> tuple[tuple[Float, ...], tuple[Float, ...]]:
        """X_i and Gram matrices of W = 0."""
        sizes = [d if i in self.key_row else e for i in range(len(self.matrix_of_row))]
        return tuple(np.zeros((k, k)) for k in sizes), tuple(
            np.zeros((d + e * len(heads),) * 2) for heads in self.units
        )

    # ------------------------------------------------------------------ bounds that rounding cannot break

    def at_least_dual(self, X: Sequence[Float], M: Sequence[Float], blur: float = 0.0) -> float:
        """A number that F*(M) does not exceed: G of X, raised until every S_u is positive semidefinite.

        blur: what M may be wrong by, in the Frobenius norm.
        """
        shift = blur + max(_deficit(self.slack(X, M, u)) for u in range(len(self.units)))
        return self.dual_value([_symmetric(x) + shift * np.eye(len(x)) for x in X]) * _rounded_up(X)

    def at_least_value(self, W: Sequence[Float], grams: Sequence[Float]) -> float:
        """A number that F(W) does not exceed: that of Gram matrices, raised to be those of W's factors."""
        (d, e), P, R = W[0].shape, [], dict[int, Float]()
        for gram, heads in zip(grams, self.units, strict=True):
            whole = _symmetric(gram)
            for k, h in enumerate(heads):
                b = slice(d + k * e, d + (k + 1) * e)
                whole[:d, b], whole[b, :d] = W[h], W[h].T
            shift = _deficit(whole) * np.eye(len(whole))
            P.append((whole + shift)[:d, :d])
            for k, h in enumerate(heads):
                b = slice(d + k * e, d + (k + 1) * e)
                R[h] = (whole + shift)[b, b]
        return self.value(self.gram_sums(P, [R[h] for h in range(len(W))])) * _rounded_up(grams)


class Joint(NamedTuple):
    """What the program ends with, in its own units.

    W_h (d, e) and λ of each head; X_i; the Gram matrices [[P_g, W …], [Wᵀ …, R …]] of every unit; the gap.
    """

    W: list[Float]
    multipliers: list[Float]
    X: list[Float]
    grams: list[Float]
    gap: float


def solve_joint(
    structure: Structure,
    rows: Sequence[Float],
    bounds: Sequence[Float],
    tied: Sequence[Bool],
    constant: Sequence[Float] | None = None,
) -> Joint:
    """The program for rows (m_h, d, e) with bounds (m_h,) of every head; constant: C_h (d, e)."""
    return _InteriorPoint(structure, rows, bounds, tied, constant).run()


class _Direction(NamedTuple):
    X: list[Float]
    lam: Float
    s: Float
    S: list[Float]
    Y: list[Float]


class _InteriorPoint:
    def __init__(
        self,
        structure: Structure,
        rows: Sequence[Float],
        bounds: Sequence[Float],
        tied: Sequence[Bool],
        constant: Sequence[Float] | None,
    ) -> None:
        self.structure, self.rows = structure, list(rows)
        self.d, self.e = int(rows[0].shape[1]), int(rows[0].shape[2])
        self.of_head = _slices([len(row) for row in rows])
        self.b, self.tied = np.concatenate(bounds), np.concatenate(tied)
        self.C = [np.zeros((self.d, self.e)) for _ in rows] if constant is None else list(constant)
        sizes = dict.fromkeys(structure.key_row, self.d) | dict.fromkeys(structure.query_row, self.e)
        self.sizes = [sizes[i] for i in range(len(structure.matrix_of_row))]
        self.bases = [np.triu_indices(size) for size in self.sizes]
        self.of_row = _slices([len(basis[0]) for basis in self.bases])
        self.places = [self._places(u) for u in range(len(structure.units))]

    def _places(self, u: int) -> list[tuple[int, slice]]:
        """The X_i on the diagonal of S_u, with the indices of their blocks."""
        d, e, heads = self.d, self.e, self.structure.units[u]
        blocks = [slice(d + k * e, d + (k + 1) * e) for k in range(len(heads))]
        of_queries = [(self.structure.query_row[h], b) for h, b in zip(heads, blocks, strict=True)]
        return [(self.structure.key_row[u], slice(0, d)), *of_queries]

    @cached_property
    def shared(self) -> Float | None:
        """At p = 2, the columns t_c of X = Σ t_c I over the rows of c; otherwise None."""
        if self.structure.p != 2:
            return None
        columns = np.zeros((self.of_row[-1].stop, len(self.structure.scale)))
        for i, (s, t) in enumerate(self.bases):
            columns[self.of_row[i], self.structure.matrix_of_row[i]] = s == t
        return columns

    # ------------------------------------------------------------------ the iteration

    def run(self) -> Joint:
        count = len(self.b)
        level = 2.0 * max(1.0, *(float(np.linalg.norm(C, 2)) for C in self.C))
        X: list[Float] = [level * np.eye(size) for size in self.sizes]
        lam, s = np.where(self.tied, 0.0, 1.0 / max(count, 1)), np.where(self.tied, 0.0, 1.0)
        S = [self._slack(X, lam, u) for u in range(len(self.places))]
        Y: list[Float] = [np.eye(len(x)) for x in S]
        best, waited = Joint([], [], [], [], np.inf), 0
        for _ in range(STEPS):
            candidate = self._candidate(X, lam, Y)
            if candidate.gap < best.gap or not best.W:
                waited = 0 if candidate.gap < 0.9 * best.gap else waited + 1
                best = candidate
            else:
                waited += 1
            if best.gap <= GOAL or (waited >= PATIENCE and best.gap < 1e-6):
                break
            try:
                X, lam, s, S, Y = self._step(X, lam, s, S, Y)
            except (np.linalg.LinAlgError, ValueError):
                break
        return best

    def _slack(self, X: list[Float], lam: Float, u: int) -> Float:
        return self.structure.slack(X, [-M for M in self._combined(lam)], u)

    def _combined(self, lam: Float) -> list[Float]:
        return [
            C + np.tensordot(lam[part], row, 1)
            for C, row, part in zip(self.C, self.rows, self.of_head, strict=True)
        ]

    def _weights(self, Y: list[Float]) -> list[Float]:
        W: list[Float] = [np.zeros((self.d, self.e))] * len(self.rows)
        for u, heads in enumerate(self.structure.units):
            for h, (_, b) in zip(heads, self.places[u][1:], strict=True):
                W[h] = -2 * Y[u][: self.d, b]
        return W

    def _candidate(self, X: list[Float], lam: Float, Y: list[Float]) -> Joint:
        """The iterate with its gap: lower bᵀλ / G(X) or ⟨C, W⟩ / F(W), see `HeadsNorm`."""
        W = self._weights(Y)
        grams: list[Float] = [np.zeros_like(y) for y in Y]
        P: list[Float] = []
        R: list[Float] = [np.zeros((self.e, self.e))] * len(W)
        for u, heads in enumerate(self.structure.units):
            signs = np.ones(len(Y[u]))
            signs[self.d :] = -1.0
            grams[u] = 2 * Y[u] * np.outer(signs, signs)
            P.append(grams[u][: self.d, : self.d])
            for h, (_, b) in zip(heads, self.places[u][1:], strict=True):
                R[h] = grams[u][b, b]
        size = self.structure.value(self.structure.gram_sums(P, R))
        steep = self.structure.dual_value(X)
        if len(self.b):
            attained = np.concatenate([np.tensordot(row, w, 2) for row, w in zip(self.rows, W, strict=True)])
            gain, short = float(self.b @ lam), attained[~self.tied] / self.b[~self.tied]
            least = float(short.min()) if len(short) else 1.0
            if self.tied.any():  # the worst error of an equality counts as a gap of its own
                error = float(np.abs(attained - self.b)[self.tied].max())
                least -= error / max(float(np.abs(self.b).max()), 1e-300)
            gap = 1 - gain * least / (steep * size) if least > 0 and size > 0 else np.inf
        else:
            gain = float(sum((c * w).sum() for c, w in zip(self.C, W, strict=True)))
            gap = 1 - gain / (steep * size) if gain > 0 else np.inf
        return Joint(
            W, [lam[part] for part in self.of_head], X, grams, max(gap, 0.0) if gap == gap else np.inf
        )

    def _step(
        self, X: list[Float], lam: Float, s: Float, S: list[Float], Y: list[Float]
    ) -> tuple[list[Float], Float, Float, list[Float], list[Float]]:
        inverse = [cho_solve(cho_factor(x, lower=True), np.eye(len(x))) for x in S]
        inverse = [(z + z.T) / 2 for z in inverse]
        newton = _Newton(self, X, lam, s, inverse, Y)
        order = sum(map(len, S)) + int((~self.tied).sum())
        mu = (sum(float((y * x).sum()) for y, x in zip(Y, S, strict=True)) + float(lam @ s)) / order
        predictor = newton.direction(0.0, None)
        a = self._reach(predictor, lam, s, S, Y)
        after = sum(
            float(((y + a * dy) * (x + a * dx)).sum())
            for y, x, dy, dx in zip(Y, S, predictor.Y, predictor.S, strict=True)
        ) + float((lam + a * predictor.lam) @ (s + a * predictor.s))
        sigma = min(1.0, max((after / order / mu) ** 3, 1e-6)) if a > 0.1 else 0.5
        step = newton.direction(sigma * mu, predictor)
        a = min(1.0, BOUNDARY * self._reach(step, lam, s, S, Y, 1 / BOUNDARY))
        X = [x + a * dx for x, dx in zip(X, step.X, strict=True)]
        lam, s = lam + a * step.lam, s + a * step.s
        Y = [y + a * dy for y, dy in zip(Y, step.Y, strict=True)]
        return X, lam, s, [self._slack(X, lam, u) for u in range(len(S))], Y

    def _reach(
        self, step: _Direction, lam: Float, s: Float, S: list[Float], Y: list[Float], most: float = 1.0
    ) -> float:
        """How far a step stays inside the cones, at most `most`."""
        for matrices, changes in ((S, step.S), (Y, step.Y)):
            for x, dx in zip(matrices, changes, strict=True):
                L = np.linalg.cholesky(x)
                half = solve_triangular(L, dx, lower=True)
                low = float(np.linalg.eigvalsh(solve_triangular(L, half.T, lower=True))[0])
                most = min(most, -1 / low) if low < 0 else most
        for x, dx in ((lam, step.lam), (s, step.s)):
            falling = ~self.tied & (dx < 0)
            most = min(most, float((-x[falling] / dx[falling]).min(initial=np.inf)))
        return most


class _Newton:
    """Newton's system at one iterate, factorised once for predictor and corrector."""

    def __init__(
        self, path: _InteriorPoint, X: list[Float], lam: Float, s: Float, inverse: list[Float], Y: list[Float]
    ) -> None:
        self.path, self.X, self.lam, self.s, self.inverse, self.Y = path, X, lam, s, inverse, Y
        structure = path.structure
        slope, bend = _of_square(structure, X, path.bases, path.of_row)
        size = path.of_row[-1].stop
        H = bend
        self.residual_X = slope
        products: dict[tuple[int, int], list[tuple[Float, Float]]] = {}
        for u, places in enumerate(path.places):
            y, z = Y[u], inverse[u]
            for i, a in places:
                self.residual_X[path.of_row[i]] -= _folded(y[a, a], path.bases[i])
                for j, b in places:
                    if i <= j:
                        products.setdefault((i, j), []).append((y[a, b], z[a, b]))
        for (i, j), blocks in products.items():
            part = _pairs(blocks, path.bases[i], path.bases[j])
            H[path.of_row[i], path.of_row[j]] += part
            if i < j:
                H[path.of_row[j], path.of_row[i]] += part.T
        W = path._weights(Y)
        margins = [np.tensordot(row, w, 2) for row, w in zip(path.rows, W, strict=True)]
        self.residual_lam = np.concatenate(margins) - path.b - np.where(path.tied, 0.0, s)
        self.eliminated = []
        for u, heads in enumerate(structure.units):
            cross, own, index = self._of_rows(u, heads, size)
            if not len(index):
                continue
            own[np.diag_indices(len(own))] += np.where(
                path.tied[index], 0.0, s[index] / np.where(path.tied[index], 1.0, lam[index])
            )
            factor = _factored(own)
            solved = cho_solve(factor, cross.T)
            H -= cross @ solved
            self.eliminated.append((index, cross, factor, solved))
        if path.shared is not None:
            H = path.shared.T @ H @ path.shared
        self.factor = _factored((H + H.T) / 2)

    def _of_rows(self, u: int, heads: tuple[int, ...], size: int) -> tuple[Float, Float, Index]:
        """The parts of the matrix that belong to the multipliers of a unit: with the X_i, and among them."""
        path, y, z, places = self.path, self.Y[u], self.inverse[u], self.path.places[u]
        key = places[0][1]
        images, blocks = [], []
        for h, (_, b) in zip(heads, places[1:], strict=True):
            r = path.rows[h]
            moved = (y[:, key] @ r) @ z[b, :] + (y[:, b] @ r.transpose(0, 2, 1)) @ z[key, :]
            images.append((moved + moved.transpose(0, 2, 1)) / 2)
            blocks.append((h, b))
        image = np.concatenate(images) if images else np.zeros((0, *y.shape))
        index = np.concatenate([np.arange(path.of_head[h].start, path.of_head[h].stop) for h, _ in blocks])
        cross = np.zeros((size, len(index)))
        for i, a in places:
            cross[path.of_row[i]] += _folded(image[:, a, a], path.bases[i]).T
        own = np.concatenate(
            [2 * np.tensordot(image[:, key, b], path.rows[h], ((1, 2), (1, 2))) for h, b in blocks], axis=1
        )
        return cross, (own + own.T) / 2, index.astype(np.intp)

    def direction(self, mu: float, predictor: _Direction | None) -> _Direction:
        """The step towards the centre at μ, second-order terms of the predictor counted."""
        path = self.path
        wanted = [mu * z - y for z, y in zip(self.inverse, self.Y, strict=True)]
        positive = np.where(path.tied, 1.0, self.lam)
        wanted_s = np.where(path.tied, 0.0, mu / positive - self.s)
        if predictor is not None:
            for u, (dy, dx) in enumerate(zip(predictor.Y, predictor.S, strict=True)):
                product = dy @ dx @ self.inverse[u]
                wanted[u] = wanted[u] - (product + product.T) / 2
            wanted_s = wanted_s - np.where(path.tied, 0.0, predictor.lam * predictor.s / positive)
        right_X = -self.residual_X
        right_lam = -self.residual_lam + wanted_s
        for u, heads in enumerate(path.structure.units):
            for i, a in path.places[u]:
                right_X[path.of_row[i]] += _folded(wanted[u][a, a], path.bases[i])
            for h, (_, b) in zip(heads, path.places[u][1:], strict=True):
                right_lam[path.of_head[h]] += 2 * np.tensordot(path.rows[h], wanted[u][: path.d, b], 2)
        right = right_X.copy()
        for index, _, _, solved in self.eliminated:
            right -= solved.T @ right_lam[index]
        if path.shared is None:
            x = cho_solve(self.factor, right)
        else:
            x = path.shared @ cho_solve(self.factor, path.shared.T @ right)
        lam = np.zeros(len(path.b))
        for index, cross, factor, _ in self.eliminated:
            lam[index] = cho_solve(factor, right_lam[index] - cross.T @ x)
        X = [_unfolded(x[part], basis, size) for part, basis, size in self._rows()]
        S: list[Float] = []
        Y: list[Float] = []
        combined = [
            np.tensordot(lam[part], row, 1) for row, part in zip(path.rows, path.of_head, strict=True)
        ]
        for u in range(len(self.Y)):
            dS = path.structure.slack(X, [-M for M in combined], u)
            moved = self.Y[u] @ dS @ self.inverse[u]
            S.append(dS)
            Y.append(wanted[u] - (moved + moved.T) / 2)
        s = np.where(path.tied, 0.0, wanted_s - self.s / positive * lam)
        return _Direction(X, lam, s, S, Y)

    def _rows(self) -> list[tuple[slice, tuple[Index, Index], int]]:
        return list(zip(self.path.of_row, self.path.bases, self.path.sizes, strict=True))


def _factored(A: Float) -> tuple[Float, bool]:
    """The Cholesky factor of A, with the smallest of some ridges that makes it one.

    Near the end A has eigenvalues below its rounding, above all where a head is not the longest.
    """
    for ridge in RIDGES:
        try:
            return cho_factor(A + ridge * float(np.diagonal(A).max()) * np.eye(len(A)), lower=True)
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError("no factor")


def _slices(counts: Sequence[int]) -> list[slice]:
    """Consecutive slices of these lengths."""
    return [slice(a, b) for a, b in pairwise([0, *np.cumsum(counts).tolist()])]


# ---------------------------------------------------------------------- rounding


def _symmetric(A: Float) -> Float:
    return (A + A.T) / 2


def _deficit(A: Float) -> float:
    """What A needs on its diagonal to be positive semidefinite, rounding included."""
    x = np.linalg.eigvalsh(A)
    return max(-float(x[0]), 0.0) + 8 * len(A) * EPSILON * float(np.abs(x).max())


def _rounded_up(matrices: Sequence[Float]) -> float:
    """1 and the relative error of sums of matrices and of norms of their spectra."""
    return 1 + 16 * (len(matrices) + max(map(len, matrices))) * EPSILON


# ---------------------------------------------------------------------- symmetric matrices as vectors


def _folded(A: Float, basis: tuple[Index, Index]) -> Float:
    """⟨E, A⟩ (…, k) for E = e_s e_tᵀ + e_t e_sᵀ, and e_s e_sᵀ on the diagonal."""
    s, t = basis
    return np.where(s == t, A[..., s, t], A[..., s, t] + A[..., t, s])


def _unfolded(x: Float, basis: tuple[Index, Index], size: int) -> Float:
    """Σ x_k E_k."""
    A = np.zeros((size, size))
    A[basis] = x
    return A + np.triu(A, 1).T


def _pairs(blocks: list[tuple[Float, Float]], left: tuple[Index, Index], right: tuple[Index, Index]) -> Float:
    """Σ tr(E y F zᵀ) over blocks (y, z), symmetric in y and z, for all E of the left and F of the right."""
    (s, t), (k, m) = left, right
    ys, zs = (np.stack(part).reshape(len(blocks), -1) for part in zip(*blocks, strict=True))
    product = (ys.T @ zs).reshape(*blocks[0][0].shape, *blocks[0][0].shape)
    s, t = s[:, None], t[:, None]
    total = product[t, k, s, m]
    total += product[t, m, s, k]
    total += product[s, k, t, m]
    total += product[s, m, t, k]
    total *= np.where(s == t, 0.5, 1.0)
    total *= np.where(k == m, 0.5, 1.0)
    return np.asarray(total)


def _of_square(
    structure: Structure, X: list[Float], bases: list[tuple[Index, Index]], parts: list[slice]
) -> tuple[Float, Float]:
    """Gradient and Hessian of ½ G² in the bases of the X_i."""
    size, q = parts[-1].stop, 1.0 if structure.p == 2 else structure.q
    slope, bend, total = np.zeros(size), np.zeros((size, size)), 0.0
    for c, scale in enumerate(structure.scale):
        rows = structure.rows_of(c)
        spectra = [np.linalg.eigh(X[i]) for i in rows]
        if structure.p == 2:  # G reads t_c alone: the mean of the diagonal
            length = float(np.mean([x.mean() for x, _ in spectra]))
            trace = sum(len(x) for x, _ in spectra)
            powers = [np.eye(len(x)) / trace for x, _ in spectra]
        else:
            length = float(_lp(np.concatenate([x for x, _ in spectra]), q))
            powers = [(V * (np.maximum(x, 0) / length) ** (q - 1)) @ V.T for x, V in spectra]
        of_matrix = np.zeros(size)
        for i, power in zip(rows, powers, strict=True):
            of_matrix[parts[i]] = _folded(power, bases[i])
        if q > 1:
            for i, (x, V) in zip(rows, spectra, strict=True):
                bend[parts[i], parts[i]] += (
                    0.5 * scale / length * _bend(np.maximum(x / length, 1e-300), V, q, bases[i])
                )
            bend -= 0.5 * scale * (q - 1) / length * np.outer(of_matrix, of_matrix)
        total += 0.5 * scale * length
        slope += 0.5 * scale * of_matrix
    return total * slope, total * bend + np.outer(slope, slope)


def _bend(x: Float, V: Float, q: float, basis: tuple[Index, Index]) -> Float:
    """The derivative of X ↦ X^(q−1) in a basis, X = V diag(x) Vᵀ."""
    a, b = np.meshgrid(x, x)
    close = np.abs(a - b) <= 1e-6 * np.maximum(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = (a ** (q - 1) - b ** (q - 1)) / (a - b)
    quotient = np.where(close, (q - 1) * ((a + b) / 2) ** (q - 2), quotient)
    s, t = basis
    # E in the eigenbasis: rows V[s] and V[t].
    E = V[s][:, :, None] * V[t][:, None, :]
    E = np.where((s == t)[:, None, None], E, E + E.transpose(0, 2, 1)).reshape(len(s), -1)
    return np.asarray((E * quotient.ravel()) @ E.T)


def _lp(x: Float, p: float) -> float:
    if math.isinf(p):
        return float(np.abs(x).max(initial=0.0))
    top = float(np.abs(x).max(initial=0.0))
    return top * float(((np.abs(x) / top) ** p).sum() ** (1 / p)) if top > 0 else 0.0
