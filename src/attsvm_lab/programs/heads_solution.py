"""The smallest heads W_1 … W_H that separate the selected tokens of each, in one norm of all of them.

    min F(W_1, …, W_H)   subject to   (x_s − x_t)ᵀ W_h z ≥ required,   s selected by head h, t not

Heads that share no matrix, and a norm of the block diagonal, have one program per head; a norm of the matrix
[W_1 … W_H] has the program of tokens with block queries; others are semidefinite (heads_engine.py).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.numbers.threads import single_thread
from attsvm.program.certificate import EPSILON, TOLERANCE, Certificate
from attsvm.program.constraints import Constraints, as_required
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotCertified, NotSeparable, Solution
from attsvm_lab.programs.heads_engine import solve_joint
from attsvm_lab.programs.heads_norm import HeadsNorm, PartNorm, Proof


class Rows(NamedTuple):
    """The rows of one head: differences δ (m, d), queries z (m, e), bounds, tied, example and token (m,)."""

    delta: Float
    queries: Float
    bounds: Float
    tied: Bool
    example: Any
    token: Any

    @classmethod
    def of(cls, tokens: Tokens, selected: ArrayLike, required: Float) -> Rows:
        program = Constraints.of(tokens, selected, required)
        example, token = np.nonzero(program.active)
        keys = np.asarray(tokens.keys)
        delta = keys[example, program.anchor[example]] - keys[example, token]
        tied = program.tied[example, token]
        bounds = np.where(tied, 0.0, required[example])
        return cls(delta, np.asarray(tokens.queries)[example], bounds, tied, example, token)

    @property
    def length(self) -> Float:
        return np.linalg.norm(self.delta, axis=1) * np.linalg.norm(self.queries, axis=1)

    def margins(self, W: Float) -> Float:
        return np.einsum("md,md->m", self.delta, self.queries @ W.T)

    def combine(self, multipliers: Float) -> Float:
        return np.asarray((multipliers[:, None] * self.delta).T @ self.queries)


@dataclass(frozen=True, eq=False, repr=False)
class HeadsSolution:
    """The smallest heads W_1 … W_H that separate the selected tokens of each.

    W (H, d, e): the heads. multipliers (H, n, T): one per token, zero where there is no constraint, so that
    F*(Σ_j λ_hj r_hj) = 1 and Σ λ b = F(W). selected bool (H, n, T), required (n,).
    proofs: for every part of the norm the matrices that prove both bounds: the X_i of the dual, and the Gram
    matrices [[P, W], [Wᵀ, R]] of factors; nothing where the norm has a closed form.
    """

    tokens: Tokens
    selected: Bool
    norm: HeadsNorm
    W: Float
    multipliers: Float
    required: Float
    proofs: tuple[Proof, ...]

    @cached_property
    def rows(self) -> tuple[Rows, ...]:
        """The rows of every head."""
        return tuple(Rows.of(self.tokens, selected, self.required) for selected in self.selected)

    @property
    def heads(self) -> int:
        return len(self.W)

    @property
    def margins(self) -> Float:
        """The margin of every part at norm one (parts,): heads in different parts share no matrix."""
        with np.errstate(divide="ignore"):
            return 1 / np.array([bounds.upper for bounds in self._bounds])

    @property
    def margin(self) -> float:
        """The least margin of all heads at norm one, 1/F(W)."""
        return float(self.margins.min())

    @property
    def margin_bound(self) -> float:
        """No heads of norm one have a larger least margin: the multipliers prove it."""
        with np.errstate(divide="ignore"):
            return float(1 / np.array([bounds.lower for bounds in self._bounds]).max())

    @property
    def certificate(self) -> Certificate:
        """Violations and duality gap, the worst over the parts, recomputed at every access."""
        bounds = self._bounds
        return Certificate(
            max(part.primal for part in bounds),
            max(part.dual for part in bounds),
            max(part.gap for part in bounds),
            sum(len(rows.bounds) for rows in self.rows),
            max(part.lower for part in bounds),
        )

    @property
    def certified(self) -> bool:
        """Whether violations and gap are at most 1e-8."""
        return bool(self.certificate.worst <= TOLERANCE)

    @property
    def _bounds(self) -> list[_Bounds]:
        pairs = zip(self.norm.parts, self.proofs, strict=True)
        return [_bounds_of(part, proof, self) for part, proof in pairs]

    def __repr__(self) -> str:
        return f"HeadsSolution({self})"

    def __str__(self) -> str:
        size = " × ".join(map(str, self.W.shape[1:]))
        kind = "certified" if self.certified else "NOT certified"
        margin = f"margin {self.margin:.6g} in the {self.norm}"
        return f"{self.heads} heads {size}, {margin}; {kind} {self.certificate}"


class _Bounds(NamedTuple):
    """What one part of a solution proves: violations, and bounds on the smallest norm."""

    primal: float
    dual: float
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        if not 0 < self.upper < np.inf:  # nothing to separate, or W separates nothing
            return self.upper
        return max(1 - self.lower / self.upper, 0.0)


def _bounds_of(part: PartNorm, proof: Proof, solution: HeadsSolution) -> _Bounds:
    """Σ λ b / F*(Σ λ r) ≤ least norm ≤ F(W) / least margin, every sum with its rounding."""
    heads = list(part.heads)
    W, largest, gain, weight = solution.W[heads], 0.0, 0.0, 0.0
    short, negative, least, combined, blur = 0.0, 0.0, np.inf, [], 0.0
    for h in heads:
        rows = solution.rows[h]
        lam = solution.multipliers[h, rows.example, rows.token]
        largest = max(largest, float(np.abs(lam).max(initial=0.0)))
        negative = max(negative, float(-lam[~rows.tied].min(initial=0.0)))
        lam = np.where(rows.tied, lam, np.maximum(lam, 0.0))
        gain += float(lam @ rows.bounds)
        weight += float(np.abs(lam) @ rows.bounds)
        combined.append(rows.combine(lam))
        blur += (len(lam) + 8) * EPSILON * float(np.abs(lam) @ rows.length)
        doubt = (sum(W.shape[1:]) + 8) * EPSILON * rows.length * float(np.linalg.norm(solution.W[h]))
        attained, top = rows.margins(solution.W[h]), float(solution.required.max())
        least = min(least, float(((attained - doubt) / _or_one(rows.bounds))[~rows.tied].min(initial=np.inf)))
        short = max(short, float((1 - attained / _or_one(rows.bounds))[~rows.tied].max(initial=0.0)))
        short = max(short, float(np.abs(attained)[rows.tied].max(initial=0.0)) / top)
    gain -= (sum(len(solution.rows[h].bounds) for h in heads) + 8) * EPSILON * weight
    steep = part.at_least_dual(np.stack(combined), proof, blur)
    lower = max(gain, 0.0) / steep if steep > 0 else 0.0
    upper = part.at_least_value(W, proof) / least if least > 0 else np.inf
    return _Bounds(max(short, 0.0), negative / largest if largest > 0 else 0.0, lower, float(upper))


def _or_one(bounds: Float) -> Float:
    return np.where(bounds > 0, bounds, 1.0)


# ---------------------------------------------------------------------- the program


def max_margin_of_heads(
    tokens: Tokens, selected: ArrayLike, norm: HeadsNorm, *, required: ArrayLike = 1.0
) -> HeadsSolution:
    """The smallest heads W_1 … W_H that separate the selected tokens of each, in one norm of all of them.

        min F(W_1, …, W_H)  subject to  (x_s − x_t)ᵀ W_h z ≥ required,  s selected by head h, t not

    tokens: keys (n, T, d), queries (n, e), no runs axis; selected: bool (H, n, T) or indices (H, n).
    required: as of `max_margin`, above zero. Raises NotSeparable with the head that cannot be separated.
    """
    selected = _selected_of_heads(tokens, selected, norm.heads)
    margins = as_required(tokens, required)
    if not (margins > 0).all():
        raise ValueError("required has a margin of 0. Several heads in one norm need positive margins.")
    rows = [Rows.of(tokens, of_head, margins) for of_head in selected]
    W = np.zeros((norm.heads, tokens.d, tokens.e))
    multipliers, proofs = np.zeros(selected.shape), []
    for part in norm.parts:
        heads = list(part.heads)
        candidate = _solve_part(tokens, selected, part, rows, margins)
        W[heads], multipliers[heads] = candidate.W, candidate.multipliers
        proofs.append(candidate.proof)
    solution = HeadsSolution(tokens, selected, norm, W, multipliers, margins, tuple(proofs))
    certificate = solution.certificate
    if certificate.worst > TOLERANCE:
        warnings.warn(
            NotCertified(
                f"the heads are not certified: violations or relative gap {certificate.worst:.1e}, and 1e-8 "
                f"is allowed. They attain the margin {solution.margin:.6g}; the best one is at most "
                f"{solution.margin_bound:.6g}. Tokens of similar scale are easier to prove."
            ),
            stacklevel=2,
        )
    return solution


class _PartSolution(NamedTuple):
    W: Float
    multipliers: Float
    proof: Proof


def _solve_part(
    tokens: Tokens, selected: Bool, part: PartNorm, rows: list[Rows], required: Float
) -> _PartSolution:
    if part.closed is None:
        for h in part.heads:  # raises NotSeparable, with a proof
            _of_one_head(tokens, selected[h], frobenius, required, h)
        return _semidefinite(part, [rows[h] for h in part.heads], required, selected.shape[1:])
    if part.blocks == "diagonal":
        return _of_block_diagonal(tokens, selected, part, required)
    return _of_block_tokens(tokens, selected, part, required)


def _of_one_head(tokens: Tokens, selected: Bool, norm: Norm, required: Float, head: int) -> Solution:
    try:
        return max_margin(tokens, selected, norm, required=required)
    except NotSeparable as proof:
        proof.add_note(f"This is head {head}.")
        raise


def _of_block_diagonal(tokens: Tokens, selected: Bool, part: PartNorm, required: Float) -> _PartSolution:
    """Every head solves its own program; in the norm (Σ F_h^r)^(1/r) λ_h counts (F_h/F)^(r−1)."""
    norm = part.closed
    assert norm is not None
    solutions = [_of_one_head(tokens, selected[h], norm, required, h) for h in part.heads]
    W = np.stack([solution.W for solution in solutions])
    if len(solutions) == 1:
        return _PartSolution(W, solutions[0].token_multipliers[None], Proof())
    sizes = np.array([float(norm.value(w)) for w in W])
    weights = sizes / sizes.max()
    if np.isinf(norm.p):
        weights = (weights == 1.0) / np.count_nonzero(weights == 1.0)
    else:
        weights = weights ** (norm.p - 1)
        q = np.inf if norm.p == 1 else norm.p / (norm.p - 1)
        weights = weights / np.linalg.norm(weights, q)
    lam = [w * solution.token_multipliers for w, solution in zip(weights, solutions, strict=True)]
    return _PartSolution(W, np.stack(lam), Proof())


def _of_block_tokens(tokens: Tokens, selected: Bool, part: PartNorm, required: Float) -> _PartSolution:
    """The program of one matrix: head h reads keys or queries that are zero outside of block h."""
    count, (n, T, d), e = len(part.heads), np.shape(tokens.keys), tokens.e
    keys, queries = np.asarray(tokens.keys), np.asarray(tokens.queries)
    if part.blocks == "side by side":
        wide = np.zeros((count, n, count, e))
        wide[np.arange(count), :, np.arange(count)] = queries
        keys, queries = np.tile(keys, (count, 1, 1)), wide.reshape(count * n, count * e)
    else:
        tall = np.zeros((count, n, T, count, d))
        tall[np.arange(count), :, :, np.arange(count)] = keys
        keys, queries = tall.reshape(count * n, T, count * d), np.tile(queries, (count, 1))
    blocks = Tokens(keys, queries, mask=np.tile(tokens.mask, (count, 1)))
    chosen = selected[list(part.heads)].reshape(count * n, T)
    assert part.closed is not None
    solution = _of_one_head(blocks, chosen, part.closed, np.tile(required, count), part.heads[0])
    return _PartSolution(
        part.unblock(solution.W, d, e), solution.token_multipliers.reshape(count, n, T), Proof()
    )


def _semidefinite(part: PartNorm, rows: list[Rows], required: Float, shape: tuple[int, ...]) -> _PartSolution:
    """The semidefinite program in the spans of the differences and of the queries, its rows at length one."""
    assert part.structure is not None
    if not any(head.bounds.any() for head in rows):
        return _zero(part, rows, shape)
    U, V = part.spans(*(_unit(head.delta)[:, :, None] * _unit(head.queries)[:, None] for head in rows))
    unit = [(_unit(head.delta) @ U)[:, :, None] * (_unit(head.queries) @ V)[:, None] for head in rows]
    length = [np.where(head.length > 0, head.length, 1.0) for head in rows]
    bounds = [head.bounds / size for head, size in zip(rows, length, strict=True)]
    scale = max(float(b.max()) for b in bounds)
    with single_thread():
        joint = solve_joint(part.structure, unit, [b / scale for b in bounds], [head.tied for head in rows])
    W, proof = part.expanded(joint, U, V, scale)
    steep = part.structure.dual_value(proof.X)
    multipliers = np.zeros((len(rows), *shape))
    for h, (head, size) in enumerate(zip(rows, length, strict=True)):
        multipliers[h, head.example, head.token] = joint.multipliers[h] / size / steep
    return _PartSolution(W, multipliers, Proof(tuple(x / steep for x in proof.X), proof.grams))


def _zero(part: PartNorm, rows: list[Rows], shape: tuple[int, ...]) -> _PartSolution:
    """W = 0, where no token loses."""
    assert part.structure is not None
    W = np.zeros((len(rows), rows[0].delta.shape[1], rows[0].queries.shape[1]))
    X, grams = part.structure.zeros(*W.shape[1:])
    return _PartSolution(W, np.zeros((len(rows), *shape)), Proof(X, grams))


def _unit(A: Float) -> Float:
    length = np.linalg.norm(A, axis=1, keepdims=True)
    return A / np.where(length > 0, length, 1.0)


def _selected_of_heads(tokens: Tokens, selected: ArrayLike, heads: int) -> Bool:
    from attsvm.data.selection import as_selected

    if tokens.runs is not None or isinstance(tokens.keys, Stored):
        raise ValueError("several heads in one norm need tokens (n, T, d) in memory, without a runs axis.")
    array = np.asarray(selected)
    if array.ndim < 2 or len(array) != heads:
        raise ValueError(
            f"selected has shape {array.shape} and the norm {heads} heads. Pass one selection per head: bool "
            f"({heads}, n, T) or indices ({heads}, n), such as run.selected."
        )
    return np.stack([as_selected(tokens, of_head) for of_head in array])
