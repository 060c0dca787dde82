"""Why there is no W: a short Farkas proof, and a message that explains it."""

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
from attsvm.program.solution import Contradiction

NEGLIGIBLE = 1e-10
"""Multipliers (of unit rows) below this share of the largest one are dropped from a proof."""

SAME = 1e-12
"""Unit rows that differ by less than this are the same row."""

DENSE = 20_000_000
"""Numbers in the largest dense matrix of conflicting rows."""

SHOWN = 8
"""Pairs named in a message."""


class Proof(NamedTuple):
    """Rows at length one of a contradiction, Σ λ_j A_j = 0 while Σ λ_j b_j > 0, and λ (s,) as their weight.

    A weight is negative only on equalities.
    """

    rows: Rows
    weight: Float

    def only(self, index: NDArray[np.intp] | Bool) -> Proof:
        """Some of the rows."""
        return Proof(self.rows.some(index), self.weight[index])


def explain(program: Constraints, norm: Norm, multipliers: Float) -> Contradiction:
    """A short proof that the rows contradict each other, and its message.

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
    return Contradiction(_message(program, rows, weight), packed, conflict, residual)


# ---------------------------------------------------------------------- fewer rows


def _zero_row(proof: Proof) -> Proof | None:
    """One zero row that requires a margin."""
    zero = np.flatnonzero(~proof.rows.delta.any(1) & (proof.rows.bound > 0))
    return Proof(proof.rows.some(zero[:1]), np.ones(1)) if zero.size else None


def _without_noise(proof: Proof) -> Proof:
    """The rows whose multipliers are not negligible."""
    size = np.abs(proof.weight) * proof.rows.delta.any(1)
    return proof.only(size > NEGLIGIBLE * size.max(initial=0.0))


def _crossed(program: Constraints, proof: Proof) -> Proof | None:
    """Two examples that want opposite orders of the same two tokens, one of them in the proof.

    Such a pair explains better than the rows of the proof: an example with the wrong selection spoils many.
    Equal keys have equal projections on one direction; the first entry alone rules out most examples.
    """
    near = np.unique(proof.rows.example)
    competing = program.separating[near]
    first = program.keys[np.arange(program.n), program.anchor, 0]
    if not _among(first, program.keys[near, :, 0][competing]).any():
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
    far = np.flatnonzero(_among(all_anchors, tokens[competing]))
    far = far[: max(1, DENSE // (program.T * program.d))]
    if not far.size:
        return None
    far_tokens, far_anchors, far_queries = codes(far)
    near_rows, far_rows = np.nonzero(competing), np.nonzero(program.separating[far])
    near_codes = _rounded(tokens + 3 * anchors + queries)[near_rows]
    far_codes = _rounded(far_anchors + 3 * far_tokens + far_queries)[far_rows]
    _, first, second = np.intersect1d(near_codes, far_codes, return_indices=True)
    for j, k in zip(first[:SHOWN], second[:SHOWN], strict=True):
        pair = np.zeros(program.active.shape, bool)
        pair[near[near_rows[0][j]], near_rows[1][j]] = pair[far[far_rows[0][k]], far_rows[1][k]] = True
        shorter = _opposite(Rows.of(program, pair))
        if shorter is not None:
            return shorter
    return None


def _among(numbers: Float, candidates: Float) -> Bool:
    """Which of the numbers equal one of the candidates, up to rounding."""
    values, numbers = np.sort(_rounded(candidates), axis=None), _rounded(numbers)
    place = np.minimum(np.searchsorted(values, numbers), len(values) - 1)
    return np.asarray(values[place] == numbers)


def _rounded(numbers: Float) -> Float:
    # The projections of two equal keys may differ in their last bits.
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
    triangle = dgeqrf(unit.T)[0]  # SciPy's checks and copies would double the time
    diagonal = np.abs(np.diagonal(triangle))[: len(rows) - 1]
    if len(diagonal) == len(rows) - 1 and (diagonal > DEPENDENT).all():
        return proof
    pair = _opposite(rows)
    if pair is not None:
        return pair
    point = solve_rows(unit, rows.bound, rows.tied)
    if point.separable:  # rounding: the rows of this proof do not quite contradict each other
        return proof
    return Proof(rows, point.multipliers).only(point.multipliers != 0)


def _opposite(rows: Rows) -> Proof | None:
    """Two rows that are opposite (or, with a tie, parallel), one of which requires a margin."""
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


# ---------------------------------------------------------------------- messages


def _message(program: Constraints, rows: Rows, weight: Float) -> str:
    """Which examples and tokens contradict each other, and why."""
    if len(rows) == 1:
        return _message_of_one(program, rows)
    if len(rows) == 2:
        return _message_of_two(program, rows)
    examples = np.unique(rows.example)
    anchors = program.anchor[examples]
    if len(examples) == 1 and not rows.tied.any():
        return (
            f"no W ranks token {anchors[0]} highest in example {examples[0]}: "
            f"its key is an average of the keys of {_listed('token', rows.token)}."
        )
    pairs = [f"({i}, {t})" for i, t in zip(rows.example[:SHOWN], rows.token[:SHOWN], strict=True)]
    weights = [f"{w:.3g}" for w in weight[:SHOWN]]
    dots = ", …" if len(rows) > SHOWN else ""
    return (
        f"the constraints of {len(rows)} tokens in {_listed('example', examples)} contradict each other: "
        f"(example, token) pairs {', '.join(pairs)}{dots} with multipliers {', '.join(weights)}{dots}."
    )


def _message_of_one(program: Constraints, rows: Rows) -> str:
    i, t = rows.example[0], rows.token[0]
    reason = "the difference of the keys vanishes next to the other tokens"
    if not rows.delta.any():
        reason = (
            "the query is zero" if program.differences(rows.example, rows.token).any() else "identical keys"
        )
    return f"no W ranks token {program.anchor[i]} above token {t} in example {i} ({reason})."


def _message_of_two(program: Constraints, rows: Rows) -> str:
    (i, k), (t, u) = rows.example, rows.token
    a, c = program.anchor[i], program.anchor[k]
    if rows.tied.any():
        tie, free = (0, 1) if rows.tied[0] else (1, 0)
        j, x = rows.example[tie], rows.token[tie]
        order = f"token {program.anchor[rows.example[free]]} above token {rows.token[free]}"
        place = f"in example {rows.example[free]}"
        return f"no W ranks {order} {place} while tokens {program.anchor[j]} and {x} of example {j} are tied."
    if i == k:
        return (
            f"no W ranks token {a} highest in example {i}: its key lies between those of tokens {t} and {u}."
        )
    same_keys = np.array_equal(program.keys[i, a], program.keys[k, u]) and np.array_equal(
        program.keys[i, t], program.keys[k, c]
    )
    pair = "the same two tokens" if same_keys else "two tokens along the same direction"
    return (
        f"examples {i} and {k} want opposite orders of {pair}: "
        f"token {a} above token {t} in example {i}, token {c} above token {u} in example {k}."
    )


def _listed(noun: str, numbers: Iterable[np.intp]) -> str:
    shown = [str(x) for x in numbers]
    if len(shown) == 1:
        return f"{noun} {shown[0]}"
    if len(shown) > SHOWN:
        return f"{len(shown)} {noun}s"
    return f"{noun}s {', '.join(shown[:-1])} and {shown[-1]}"
