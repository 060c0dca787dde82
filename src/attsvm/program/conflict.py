"""Why there is no W: a Farkas proof made short, and said in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgeqrf

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program.constraints import DEPENDENT, TINY, Constraints
from attsvm.program.frobenius.dense import solve_rows
from attsvm.program.rows import Rows
from attsvm.program.solution import Explanation

NEGLIGIBLE = 1e-10
"""Multipliers (of unit rows) below this part of the largest one are left out of a proof."""

SAME = 1e-12
"""Unit rows that differ by less than this are the same row."""

DENSE = 20_000_000
"""Numbers in the largest matrix of conflicting rows that is written out."""

SHOWN = 8
"""Pairs named in a message."""


class Proof(NamedTuple):
    """Rows at length one of a contradiction, Σ λ_j A_j = 0 while Σ λ_j b_j > 0, and λ (s,) as their weight.

    A weight is negative only on equalities.
    """

    rows: Rows
    weight: Float

    def only(self, which: NDArray[np.intp] | Bool) -> Proof:
        """Some of the rows."""
        return Proof(self.rows.some(which), self.weight[which])


def explain(program: Constraints, norm: Norm, multipliers: Float) -> Explanation:
    """The shortest proof at hand that the rows contradict each other, in words.

    multipliers (n, T): a Farkas proof, Σ λ_j A_j = 0 up to rounding and Σ λ_j b_j > 0.
    """
    legal = program.active & ((multipliers > 0) | (program.tied & (multipliers != 0)))
    with single_thread():
        rows = Rows.of(program, legal, zeros=True)
        proof = Proof(rows, rows.pick(multipliers) * rows.length)
        proof = _zero_row(proof) or _without_noise(proof)
        if len(proof.rows) > 2:
            proof = _crossed(program, proof) or _shorten(proof)
    rows, weight = proof
    gain, error = float(weight @ rows.bound), float(norm.dual.value(rows.combine(weight)))
    residual = error / gain if gain > 0 else np.inf
    weight, residual = program.units.restored_proof(weight / rows.length, rows.example, residual)
    conflict = list(zip(rows.example.tolist(), rows.token.tolist(), strict=True))
    packed = program.pack(rows.spread(weight))
    return Explanation(_words(program, rows, weight), packed, conflict, residual)


# ---------------------------------------------------------------------- fewer rows


def _zero_row(proof: Proof) -> Proof | None:
    """One zero row that asks for a margin."""
    zero = np.flatnonzero(~proof.rows.delta.any(1) & (proof.rows.bound > 0))
    return Proof(proof.rows.some(zero[:1]), np.ones(1)) if zero.size else None


def _without_noise(proof: Proof) -> Proof:
    """The rows that matter."""
    size = np.abs(proof.weight) * proof.rows.delta.any(1)
    return proof.only(size > NEGLIGIBLE * size.max(initial=0.0))


def _crossed(program: Constraints, proof: Proof) -> Proof | None:
    """Two examples that want opposite orders of the same two tokens, one of them in the proof.

    Such a pair is the better explanation even if the proof found other rows: an example with the
    wrong selection spoils many. Equal keys are found by their projections on one direction, and most
    examples are ruled out by the first entry alone.
    """
    near = np.unique(proof.rows.example)
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
        pair = np.zeros(program.active.shape, bool)
        pair[near[here[0][j]], here[1][j]] = pair[far[there[0][k]], there[1][k]] = True
        found = _opposite(Rows.of(program, pair))
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
    rows = proof.rows
    if len(rows) * max(len(rows), rows.d * rows.e) > DENSE:
        return proof
    unit = rows.dense
    triangle = dgeqrf(unit.T)[0]  # the bare call: checks and copies would cost as much again
    diagonal = np.abs(np.diagonal(triangle))[: len(rows) - 1]
    if len(diagonal) == len(rows) - 1 and (diagonal > DEPENDENT).all():
        return proof
    pair = _opposite(rows)
    if pair is not None:
        return pair
    point = solve_rows(unit, rows.bound, rows.tied)
    if point.separable:  # the given proof is too rough to be made shorter
        return proof
    return Proof(rows, point.multipliers).only(point.multipliers != 0)


def _opposite(rows: Rows) -> Proof | None:
    """Two rows that are opposite (or, with a tie, parallel), one of which asks for a margin."""
    cosine = rows.gram
    np.fill_diagonal(cosine, 0.0)
    for j, k in np.argwhere(np.triu(1 - np.abs(cosine) < SAME)):
        sign = -np.sign(cosine[j, k])  # the weight of k when j has weight one
        pair, weight = rows.some(np.array([j, k])), np.array([1.0, sign])
        if pair.tied[0] and weight[1] < 0:
            weight = -weight
        if ((weight > 0) | pair.tied).all() and weight @ pair.bound > 0:
            return Proof(pair, weight)
    return None


# ---------------------------------------------------------------------- words


def _words(program: Constraints, rows: Rows, weight: Float) -> str:
    """The contradiction in words: who, and why."""
    if len(rows) == 1:
        return _one(program, rows)
    if len(rows) == 2:
        return _two(program, rows)
    examples = np.unique(rows.example)
    anchors = program.anchor[examples]
    if len(examples) == 1 and not rows.tied.any():
        return (
            f"no W ranks token {anchors[0]} highest in example {examples[0]}: "
            f"its key is an average of the keys of {_listed('token', rows.token)}."
        )
    pairs = [f"({i}, {t})" for i, t in zip(rows.example[:SHOWN], rows.token[:SHOWN], strict=True)]
    weights = [f"{w:.3g}" for w in weight[:SHOWN]]
    more = ", …" if len(rows) > SHOWN else ""
    return (
        f"the constraints of {len(rows)} tokens in {_listed('example', examples)} contradict each other: "
        f"(example, token) pairs {', '.join(pairs)}{more} with multipliers {', '.join(weights)}{more}."
    )


def _one(program: Constraints, rows: Rows) -> str:
    i, t = rows.example[0], rows.token[0]
    why = "the difference of the keys vanishes next to the other tokens"
    if not rows.delta.any():
        why = "the query is zero" if program.differences(rows.example, rows.token).any() else "identical keys"
    return f"no W ranks token {program.anchor[i]} above token {t} in example {i} ({why})."


def _two(program: Constraints, rows: Rows) -> str:
    (i, k), (t, u) = rows.example, rows.token
    a, c = program.anchor[i], program.anchor[k]
    if rows.tied.any():
        tie, free = (0, 1) if rows.tied[0] else (1, 0)
        j, x = rows.example[tie], rows.token[tie]
        order = f"token {program.anchor[rows.example[free]]} above token {rows.token[free]}"
        where = f"in example {rows.example[free]}"
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
