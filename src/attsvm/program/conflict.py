"""Why there is no W: a Farkas proof made short, and said in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgeqrf

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program.constraints import FAR, Constraints
from attsvm.program.frobenius.active_set import DEPENDENT, solve_rows
from attsvm.program.passes import TINY
from attsvm.program.solution import Explanation, pack

NEGLIGIBLE = 1e-10
"""Multipliers (of unit rows) below this part of the largest one are left out of a proof."""

SAME = 1e-12
"""Unit rows that differ by less than this are the same row."""

DENSE = 20_000_000
"""Numbers in the largest matrix of conflicting rows that is written out."""

SHOWN = 8
"""Pairs named in a message."""


@dataclass(frozen=True)
class Proof:
    """Rows of a contradiction: Σ λ_j δ_j z_jᵀ = 0 while Σ λ_j b_j > 0.

    example, token (s,): their names. delta (s, d), query (s, e), bound (s,): the rows.
    weight (s,): λ, negative only on equalities (tied).
    """

    example: NDArray[np.intp]
    token: NDArray[np.intp]
    delta: Float
    query: Float
    bound: Float
    tied: Bool
    weight: Float

    @classmethod
    def of(cls, program: Constraints, multipliers: Float) -> Proof:
        """The rows with a multiplier (n, T) that may have one."""
        example, token = np.divmod(np.flatnonzero(multipliers != 0), program.T)
        weight = multipliers[example, token]
        legal = program.active[example, token] & ((weight > 0) | program.tied[example, token])
        at = example, token = example[legal], token[legal]
        delta, query = program.differences(example, token), program.queries[example]
        return cls(example, token, delta, query, program.bound[at], program.tied[at], multipliers[at])

    def __len__(self) -> int:
        return len(self.weight)

    def only(self, which: NDArray[np.intp] | Bool) -> Proof:
        """Some of the rows."""
        if which.dtype == bool and which.all():
            return self
        return Proof(*(getattr(self, field.name)[which] for field in fields(self)))

    @cached_property
    def length(self) -> Float:
        """Length of each row (s,)."""
        return np.linalg.norm(self.delta, axis=1) * np.linalg.norm(self.query, axis=1)

    @property
    def dense(self) -> Float:
        """The rows written out, at length one (s, d·e)."""
        unit = self.delta / self.length[:, None]
        return (unit[:, :, None] * self.query[:, None, :]).reshape(len(self), -1)

    @property
    def error(self) -> Float:
        """Σ λ_j δ_j z_jᵀ (d, e)."""
        return (self.weight[:, None] * self.delta).T @ self.query


def explain(program: Constraints, norm: Norm, multipliers: Float) -> Explanation:
    """The shortest proof at hand that the rows contradict each other, in words.

    multipliers (n, T): a Farkas proof, Σ λ_j A_j = 0 up to rounding and Σ λ_j b_j > 0.
    """
    with single_thread():
        proof = Proof.of(program, multipliers)
        proof = _zero_row(proof) or _without_noise(proof)
        if len(proof) > 2:
            proof = _crossed(program, proof) or _shorten(proof)
    gain, error = float(proof.weight @ proof.bound), float(norm.dual.value(proof.error))
    residual = float(np.ldexp(error / gain, -program.unit)) if gain > 0 else np.inf
    # In the units of the tokens, the largest multiplier one.
    power = -program.exponent[proof.example]
    weight = np.ldexp(proof.weight, power - (np.frexp(proof.weight)[1] + power).max(initial=-FAR))
    proof = replace(proof, weight=weight / np.abs(weight).max(initial=TINY))
    packed = np.zeros(program.active.shape)
    packed[proof.example, proof.token] = proof.weight
    conflict = list(zip(proof.example.tolist(), proof.token.tolist(), strict=True))
    return Explanation(_words(program, proof), pack(program, packed), conflict, residual)


# ---------------------------------------------------------------------- fewer rows


def _zero_row(proof: Proof) -> Proof | None:
    """One zero row that asks for a margin."""
    zero = np.flatnonzero((proof.length <= TINY) & (proof.bound > 0))
    return replace(proof.only(zero[:1]), weight=np.ones(1)) if zero.size else None


def _without_noise(proof: Proof) -> Proof:
    """The rows that matter."""
    size = np.abs(proof.weight) * proof.length
    return proof.only(size > NEGLIGIBLE * size.max(initial=0.0))


def _crossed(program: Constraints, proof: Proof) -> Proof | None:
    """Two examples that want opposite orders of the same two tokens, one of them in the proof.

    Such a pair is the better explanation even if the proof found other rows: an example with the
    wrong selection spoils many. Equal keys are found by their projections on one direction, and most
    examples are ruled out by the first entry alone.
    """
    near = np.unique(proof.example)
    passed_over = program.separating[near]
    first = program.keys[np.arange(program.n), program.anchor, 0]
    if not _among(first, program.keys[near, :, 0][passed_over]).any():
        return None
    direction = np.random.default_rng(0).standard_normal(program.d + program.e)

    def codes(examples: NDArray[np.intp]) -> tuple[Float, Float, Float]:
        """Projections of the keys (s, T), the anchors (s, 1) and the queries (s, 1)."""
        keys, z = program.keys[examples] @ direction[: program.d], program.queries[examples]
        unit = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), TINY)
        anchors = np.take_along_axis(keys, program.anchor[examples, None], 1)
        return keys, anchors, 5 * (unit @ direction[program.d :])[:, None]

    tokens, anchors, queries = codes(near)
    all_anchors = program.keys[np.arange(program.n), program.anchor] @ direction[: program.d]
    far = np.flatnonzero(_among(all_anchors, tokens[passed_over]))
    far = far[: max(1, DENSE // (program.T * program.d))]
    if not far.size:
        return None
    their_tokens, their_anchors, their_queries = codes(far)
    here, there = np.nonzero(passed_over), np.nonzero(program.separating[far])
    ours = _rounded(tokens + 3 * anchors + queries)[here]
    theirs = _rounded(their_anchors + 3 * their_tokens + their_queries)[there]
    _, first, second = np.intersect1d(ours, theirs, return_indices=True)
    for j, k in zip(first[:SHOWN], second[:SHOWN], strict=True):
        pair = np.zeros(program.active.shape)
        pair[near[here[0][j]], here[1][j]] = pair[far[there[0][k]], there[1][k]] = 1.0
        crossed = Proof.of(program, pair)
        found = _opposite(crossed) if crossed.length.min() > TINY else None
        if found is not None:
            return found
    return None


def _among(numbers: Float, others: Float) -> Bool:
    """Which of the numbers equal one of the others, up to rounding."""
    wanted, numbers = np.sort(_rounded(others), axis=None), _rounded(numbers)
    place = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.asarray(wanted[place] == numbers)


def _rounded(numbers: Float) -> Float:
    # A projection of the same key may differ in its last bits from place to place.
    return np.round(numbers, 10)


def _shorten(proof: Proof) -> Proof:
    """The proof itself if no row of it can be left out, else two opposite rows, else such a proof.

    Rows that are independent but for the one contradiction have unique multipliers (up to a factor),
    so no smaller part of them is a proof.
    """
    if len(proof) * max(len(proof), proof.error.size) > DENSE:
        return proof
    unit = proof.dense
    triangle = dgeqrf(unit.T)[0]  # the bare call: checks and copies would cost as much again
    diagonal = np.abs(np.diagonal(triangle))[: len(proof) - 1]
    if len(diagonal) == len(proof) - 1 and (diagonal > DEPENDENT).all():
        return proof
    pair = _opposite(proof)
    if pair is not None:
        return pair
    point = solve_rows(unit, proof.bound / proof.length, proof.tied)
    if point.separable:  # the given proof is too rough to be made shorter
        return proof
    kept = point.multipliers != 0
    return replace(proof.only(kept), weight=(point.multipliers / proof.length)[kept])


def _opposite(proof: Proof) -> Proof | None:
    """Two rows that are opposite (or, with a tie, parallel), one of which asks for a margin."""
    unit = proof.dense
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, 0.0)
    for j, k in np.argwhere(np.triu(1 - np.abs(cosine) < SAME)):
        sign = -np.sign(cosine[j, k])  # the weight of k when j has weight one
        pair = proof.only(np.array([j, k]))
        weight = np.array([1.0, sign]) / pair.length
        if pair.tied[0] and weight[1] < 0:
            weight = -weight
        if ((weight > 0) | pair.tied).all() and weight @ pair.bound > 0:
            return replace(pair, weight=weight)
    return None


# ---------------------------------------------------------------------- words


def _words(program: Constraints, proof: Proof) -> str:
    """The contradiction in words: who, and why."""
    if len(proof) == 1:
        return _one(program, proof)
    if len(proof) == 2:
        return _two(program, proof)
    examples = np.unique(proof.example)
    anchors = program.anchor[examples]
    if len(examples) == 1 and not proof.tied.any():
        return (
            f"no W ranks token {anchors[0]} highest in example {examples[0]}: "
            f"its key is an average of the keys of {_listed('token', proof.token)}."
        )
    pairs = [f"({i}, {t})" for i, t in zip(proof.example[:SHOWN], proof.token[:SHOWN], strict=True)]
    weights = [f"{w:.3g}" for w in proof.weight[:SHOWN]]
    more = ", …" if len(proof) > SHOWN else ""
    return (
        f"the constraints of {len(proof)} tokens in {_listed('example', examples)} contradict each other: "
        f"(example, token) pairs {', '.join(pairs)}{more} with multipliers {', '.join(weights)}{more}."
    )


def _one(program: Constraints, proof: Proof) -> str:
    i, t = proof.example[0], proof.token[0]
    why = "identical keys" if not proof.delta.any() else "the query is zero"
    if proof.length[0] > TINY:
        why = "the difference of the keys vanishes next to the other tokens"
    return f"no W ranks token {program.anchor[i]} above token {t} in example {i} ({why})."


def _two(program: Constraints, proof: Proof) -> str:
    (i, k), (t, u) = proof.example, proof.token
    a, c = program.anchor[i], program.anchor[k]
    if proof.tied.any():
        tie, free = (0, 1) if proof.tied[0] else (1, 0)
        j, x = proof.example[tie], proof.token[tie]
        order = f"token {program.anchor[proof.example[free]]} above token {proof.token[free]}"
        where = f"in example {proof.example[free]}"
        return f"no W ranks {order} {where} while tokens {program.anchor[j]} and {x} of example {j} are tied."
    if i == k:
        return (
            f"no W ranks token {a} highest in example {i}: its key lies between those of tokens {t} and {u}."
        )
    same = np.array_equal(program.keys[i, a], program.keys[k, u]) and np.array_equal(
        program.keys[i, t], program.keys[k, c]
    )
    what = "the same two tokens" if same else "two tokens along the same direction"
    return (
        f"examples {i} and {k} want opposite orders of {what}: "
        f"token {a} above token {t} in example {i}, token {c} above token {u} in example {k}."
    )


def _listed(noun: str, numbers: Iterable[np.intp]) -> str:
    shown = [str(x) for x in numbers]
    if len(shown) == 1:
        return f"{noun} {shown[0]}"
    if len(shown) > SHOWN:
        return f"{len(shown)} {noun}s"
    return f"{noun}s {', '.join(shown[:-1])} and {shown[-1]}"
