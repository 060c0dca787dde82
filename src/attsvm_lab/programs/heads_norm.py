"""The norm of several heads that steps on their parameters imply: `HeadsNorm`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attsvm.norms.capabilities import Norm, capabilities_of
from attsvm.norms.layouts import HeadLayout
from attsvm.norms.names import as_norm
from attsvm.norms.norms import Schatten, spectral
from attsvm.numbers import Float
from attsvm.numbers.threads import single_thread
from attsvm_lab.programs.heads_engine import Joint, Structure, solve_joint


@dataclass(frozen=True)
class HeadsNorm:
    """The norm of heads W_1 … W_H that steepest steps on their parameters imply, for a layout in matrices.

        F(W_1, …, W_H) = min N(K) N(Q)   over   K_h Q_hᵀ = W_h,      N = Schatten(p), 2 ≤ p ≤ ∞

    [K_1 … K_H] and [Q_1 … Q_H], each one matrix (`HeadLayout.fused`), have, with P_h = K_h K_hᵀ and
    R_h = Q_h Q_hᵀ,

        F = min ½ [S(Σ P_h) + S(Σ R_h)]   over   [[P_h, W_h], [W_hᵀ, R_h]] ⪰ 0,      S = Schatten(p/2)
        F*(M) = min ½ [S*(A) + S*(B)]     over   [[A, M_h], [M_hᵀ, B]] ⪰ 0 for all h

    semidefinite programs, whose values come as brackets. At p = 2 it is the sum of nuclear norms; heads on
    top of each other have Schatten(p/2) of the block diagonal; [K Q] in one matrix has the numerical radius
    at p = ∞. Where W itself is trained, F is the norm of the block matrix, any norm.
    Heads that share no matrix are normalised apart: F is the largest of their norms.

    layout: which parameters lie in which matrix. steps: the norm of the steps, exact Muon has `spectral`.
    Reference: docs/heads_proofs.md.
    """

    layout: HeadLayout
    steps: Norm = spectral

    def __post_init__(self) -> None:
        if not isinstance(self.layout, HeadLayout):
            raise TypeError(f"layout is {self.layout!r}. Pass a HeadLayout, such as HeadLayout.fused(8).")
        object.__setattr__(self, "steps", as_norm(self.steps))
        if self.layout.of_factors:
            self._exponent()

    def _exponent(self) -> float:
        """p of the Schatten norm of the steps on factors."""
        traits = capabilities_of(self.steps)
        p = 2.0 if traits.euclidean else self.steps.p if traits.acts_on == "singular values" else math.nan
        if not p >= 2:
            raise ValueError(
                f"steps on K and Q in the {self.steps} norm imply no convex norm of heads that is known. "
                "Pass Schatten(p) with p from 2 on: frobenius, spectral."
            )
        return float(p)

    @property
    def heads(self) -> int:
        return self.layout.heads

    @property
    def parts(self) -> tuple[PartNorm, ...]:
        """The norms of the components of the layout."""
        steps: Any = self.steps  # norms are frozen, and so hashable
        return tuple(_part(self.layout, steps, heads) for heads in self.layout.components)

    def bracket(self, W: Any) -> tuple[float, float]:
        """Bounds on F of heads (H, d, e) that hold in spite of rounding, near 1e-10 of it apart."""
        heads = self._checked(W)
        bounds = [part.bracket(heads[list(part.heads)]) for part in self.parts]
        return max(low for low, _ in bounds), max(high for _, high in bounds)

    def dual_bracket(self, M: Any) -> tuple[float, float]:
        """Bounds on F* of matrices (H, d, e): F*(M) = max Σ ⟨M_h, W_h⟩ over F(W) ≤ 1."""
        heads = self._checked(M)
        bounds = [part.dual_bracket(heads[list(part.heads)]) for part in self.parts]
        return sum(low for low, _ in bounds), sum(high for _, high in bounds)

    def value(self, W: Any) -> Any:
        """F of heads (…, H, d, e): the upper end of the bracket."""
        return self._of_each(self.bracket, W)

    def dual_value(self, M: Any) -> Any:
        """F* of matrices (…, H, d, e): the upper end of the bracket."""
        return self._of_each(self.dual_bracket, M)

    def _of_each(self, bracket: Callable[[Float], tuple[float, float]], W: Any) -> Any:
        W = np.asarray(W, np.float64)
        if W.ndim == 3:
            return bracket(W)[1]
        values = [bracket(heads)[1] for heads in W.reshape(-1, *W.shape[-3:])]
        return np.array(values).reshape(W.shape[:-3])

    def _checked(self, W: Any) -> Float:
        array = np.asarray(W, np.float64)
        if array.ndim != 3 or len(array) != self.heads or not array.size:
            raise ValueError(f"heads have shape {array.shape}. Pass {self.heads} of them, (H, d, e).")
        if not np.isfinite(array).all():
            raise ValueError("a head has a NaN or infinite entry.")
        mixes = any(part.structure is not None and part.structure.mixes for part in self.parts)
        if mixes and array.shape[1] != array.shape[2]:
            raise ValueError(f"heads have shape {array.shape}. K and Q in one matrix need one width, d = e.")
        return array

    def __str__(self) -> str:
        return f"norm of heads under {self.steps} steps on {self.layout}"


class Proof(NamedTuple):
    """What proves both bounds of a part: X_i of the dual, and Gram matrices of the factors; or nothing."""

    X: tuple[Float, ...] = ()
    grams: tuple[Float, ...] = ()


@dataclass(frozen=True)
class PartNorm:
    """The norm of one component of a layout: a semidefinite program, or a norm of one block matrix.

    heads: which of all heads. structure: of the semidefinite program, or None.
    closed: the norm of the block matrix of these heads, where it has a closed form; blocks: how they lie.
    """

    heads: tuple[int, ...]
    structure: Structure | None
    closed: Norm | None = None
    blocks: str = "diagonal"

    # ------------------------------------------------------------------ bounds from a proof

    def at_least_value(self, W: Float, proof: Proof) -> float:
        """A number that F(W) does not exceed."""
        if self.closed is not None:
            block = self.block(W)
            return float(self.closed.value(block)) * (1 + _rounding(self.closed, block.shape))
        assert self.structure is not None
        return self.structure.at_least_value(list(W), proof.grams)

    def at_least_dual(self, M: Float, proof: Proof, blur: float = 0.0) -> float:
        """A number that F*(M) does not exceed. blur: what M may be wrong by, in the Frobenius norm."""
        if self.closed is not None:
            block, dual = self.block(M), self.closed.dual
            stretch = capabilities_of(dual).stretch(*block.shape)
            return float(dual.value(block)) * (1 + _rounding(dual, block.shape)) + stretch * blur
        assert self.structure is not None
        return self.structure.at_least_dual(proof.X, list(M), blur)

    def block(self, W: Float) -> Float:
        """The heads (H, d, e) as one matrix."""
        H, d, e = W.shape
        if self.blocks == "side by side":
            return W.transpose(1, 0, 2).reshape(d, H * e)
        if self.blocks == "stacked":
            return W.reshape(H * d, e)
        whole = np.zeros((H, d, H, e))
        whole[np.arange(H), :, np.arange(H)] = W
        return whole.reshape(H * d, H * e)

    def unblock(self, block: Float, d: int, e: int) -> Float:
        """The heads (H, d, e) of the matrix that `block` makes."""
        H = len(self.heads)
        if self.blocks == "side by side":
            return block.reshape(d, H, e).transpose(1, 0, 2)
        if self.blocks == "stacked":
            return block.reshape(H, d, e)
        return block.reshape(H, d, H, e)[np.arange(H), :, np.arange(H)]

    # ------------------------------------------------------------------ values

    def bracket(self, W: Float) -> tuple[float, float]:
        if self.closed is not None or not W.any():
            return self._closed_bracket(self.closed, W)
        proof, M = _attained(self, W.tobytes(), W.shape)
        scale = float(np.abs(W).max())
        upper = self.at_least_value(W / scale, proof)
        gain = float((M * W).sum() / scale)
        blur = 8 * W.size * 2.0**-53 * float(np.abs(M * W).sum() / scale)
        return scale * (gain - blur) / self.at_least_dual(M, proof), scale * upper

    def dual_bracket(self, M: Float) -> tuple[float, float]:
        if self.closed is not None or not M.any():
            return self._closed_bracket(None if self.closed is None else self.closed.dual, M)
        proof, W = _bounded(self, M.tobytes(), M.shape)
        scale = float(np.abs(M).max())
        upper = self.at_least_dual(M / scale, proof)
        gain = float((M * W).sum() / scale)
        blur = 8 * W.size * 2.0**-53 * float(np.abs(M * W).sum() / scale)
        return scale * (gain - blur) / self.at_least_value(W, proof), scale * upper

    def _closed_bracket(self, norm: Norm | None, W: Float) -> tuple[float, float]:
        if norm is None:
            return 0.0, 0.0
        block = self.block(W)
        value, error = float(norm.value(block)), _rounding(norm, block.shape)
        return value * (1 - error), value * (1 + error)

    def spans(self, *arrays: Float) -> tuple[Float, Float]:
        """Orthonormal bases of the columns and of the rows of (k, d, e), one for both where K and Q mix.

        W outside of them would make no norm smaller.
        """
        columns = np.concatenate([a.transpose(1, 0, 2).reshape(a.shape[1], -1) for a in arrays], axis=1)
        rows = np.concatenate([a.transpose(2, 0, 1).reshape(a.shape[2], -1) for a in arrays], axis=1)
        assert self.structure is not None
        if self.structure.mixes:
            both = _span(np.concatenate([columns, rows], axis=1))
            return both, both
        return _span(columns), _span(rows)

    def expanded(self, joint: Joint, U: Float, V: Float, scale: float) -> tuple[Float, Proof]:
        """W (H, d, e) and the proof of a solution in the coordinates of two spans."""
        structure = self.structure
        assert structure is not None
        of_queries = set(structure.query_row) - set(structure.key_row)
        bases = [V if i in of_queries else U for i in range(len(joint.X))]
        X = tuple(base @ x @ base.T for base, x in zip(bases, joint.X, strict=True))
        grams = []
        for gram, heads in zip(joint.grams, structure.units, strict=True):
            base = _block_diagonal([U, *[V] * len(heads)])
            grams.append(scale * (base @ gram @ base.T))
        W = np.stack([scale * (U @ w @ V.T) for w in joint.W])
        return W, Proof(X, tuple(grams))


def _attained(part: PartNorm, data: bytes, shape: tuple[int, ...]) -> tuple[Proof, Float]:
    """The proof of F(W/scale), and the M (H, d, e) with F*(M) = 1 that attains it."""
    return _solved(part, data, shape, True)


def _bounded(part: PartNorm, data: bytes, shape: tuple[int, ...]) -> tuple[Proof, Float]:
    """The proof of F*(M/scale), and the W (H, d, e) that attains it."""
    return _solved(part, data, shape, False)


@lru_cache(maxsize=16)
def _solved(part: PartNorm, data: bytes, shape: tuple[int, ...], primal: bool) -> tuple[Proof, Float]:
    """The semidefinite program of a value; a certificate evaluates each norm twice."""
    array = np.frombuffer(data).reshape(shape)
    array = array / np.abs(array).max()
    assert part.structure is not None
    U, V = part.spans(array)
    inner = U.T @ array @ V
    d, e = inner.shape[1:]
    with single_thread():
        if primal:
            rows = np.eye(d * e).reshape(d * e, d, e)
            bounds, tied = list(inner.reshape(len(inner), -1)), [np.ones(d * e, bool)] * len(inner)
            joint = solve_joint(part.structure, [rows] * len(inner), bounds, tied)
            _, proof = part.expanded(joint, U, V, 1.0)
            return proof, np.stack([U @ lam.reshape(d, e) @ V.T for lam in joint.multipliers])
        none = [np.zeros((0, d, e))] * len(inner)
        empty, no = [np.zeros(0)] * len(inner), [np.zeros(0, bool)] * len(inner)
        joint = solve_joint(part.structure, none, empty, no, list(inner))
        W, proof = part.expanded(joint, U, V, 1.0)
        return proof, W


@lru_cache(maxsize=64)
def _part(layout: HeadLayout, steps: Any, heads: tuple[int, ...]) -> PartNorm:
    inner = layout.part(heads)
    if not inner.of_factors:
        side = len(inner.matrices[0]) == 1
        blocks = "diagonal" if len(heads) == 1 else "side by side" if side else "stacked"
        return PartNorm(heads, None, steps, blocks)
    p = 2.0 if capabilities_of(steps).euclidean else steps.p
    if _is_block_diagonal(inner, p):
        return PartNorm(heads, None, Schatten(p / 2))
    if 2 < p < math.inf and len(inner.matrices) > 2:
        raise ValueError(
            f"{steps} steps on {inner}, each normalised apart, have no program here. Pass spectral or "
            "frobenius, or put the matrices of a kind into one, one on top of the other."
        )
    return PartNorm(heads, Structure.of(inner, p))


def _is_block_diagonal(layout: HeadLayout, p: float) -> bool:
    """Whether F is Schatten(p/2) of the block diagonal: no heads share a row, or rows add up (p = 2)."""
    if layout.key_of != tuple(range(layout.heads)):
        # One K = I serves any heads of length one whose Q_h are normalised apart.
        alone = all(len(row) == len(matrix) == 1 for matrix in layout.matrices for row in matrix)
        return math.isinf(p) and alone and len(set(layout.key_of)) == 1
    rows = [row for matrix in layout.matrices for row in matrix]
    if p == 2:
        return (
            len({row[0][0] for row in rows for _ in row}) == 2
            and _one_kind(rows)
            and len(layout.matrices) <= 2
        )
    kinds = [{name[0] for row in matrix for name in row} for matrix in layout.matrices]
    one_norm = len(kinds) == 1 or kinds in ([{"K"}, {"Q"}], [{"Q"}, {"K"}])
    return all(len(row) == 1 for row in rows) and (one_norm or math.isinf(p))


def _one_kind(rows: Sequence[tuple[str, ...]]) -> bool:
    return all(len({name[0] for name in row}) == 1 for row in rows)


def _span(A: Float) -> Float:
    """An orthonormal basis of the columns, without directions of the size of rounding errors."""
    U, sigma, _ = np.linalg.svd(A, full_matrices=False)
    return U[:, sigma > max(A.shape) * 2.0**-52 * sigma[0]]


def _block_diagonal(blocks: Sequence[Float]) -> Float:
    heights, widths = zip(*(block.shape for block in blocks), strict=True)
    whole = np.zeros((sum(heights), sum(widths)))
    top = left = 0
    for block in blocks:
        whole[top : top + block.shape[0], left : left + block.shape[1]] = block
        top, left = top + block.shape[0], left + block.shape[1]
    return whole


def _rounding(norm: Norm, shape: tuple[int, ...]) -> float:
    return 2.0**-53 * capabilities_of(norm).rounding(*shape)
