"""Dual active set: the point of least length in a polyhedron, resumable when rows are appended.

    min ½‖p‖²  subject to  a_jᵀ p ≥ b_j  (or = b_j)

The method keeps the optimum over the rows it has met (Goldfarb and Idnani 1983, identity Hessian)
and lets violated rows enter one at a time. An appended row never spoils the state: the point stays
optimal for the rows before, so the next `advance` is a warm start and ‖p‖ only grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from attsvm.tokens import Bool, Float

SOLVED, CONTRADICTORY, STALLED = 0, 1, 2

COUNT, ACTIVE, SHORT, ENTERING = 0, 1, 2, 3
"""Places in `State.sizes`: rows in the pool, active rows, rows in the short list, the last to enter."""

DEPENDENT = 1e-12
"""A unit row this close to the span of the active rows depends on them."""

SATISFIED = 1e-13
"""Shortfall of a row, relative to its bound, that counts as rounding."""

TINY = 1e-150
"""Rows shorter than this are zero: their squares underflow."""

# Sums may be reordered so that they vectorise; infinities keep their meaning.
compiled = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})


class State(NamedTuple):
    """Pool and factors; plain arrays, so that compiled code can take them.

    rows (c, k), bound (c,): unit rows and their bounds, `sizes[COUNT]` of them in use.
    equality (c,), inside (c,): rows that are equalities; rows that are active.
    Q (k, k), R (k, k): active rows = (Q[:q]ᵀ R[:q, :q])ᵀ, Q orthogonal, R upper triangular.
    active (k,), weight (k + 1,): active rows and their multipliers, equalities first. After a
        contradiction weight is the Farkas proof, its last entry that of the row `sizes[ENTERING]`.
    short: candidates to enter, most violated first. work: scratch.
    """

    rows: Float
    bound: Float
    equality: Bool
    inside: Bool
    p: Float
    Q: Float
    R: Float
    active: NDArray[np.int64]
    weight: Float
    short: NDArray[np.int64]
    work: Float
    sizes: NDArray[np.int64]


def empty(capacity: int, k: int) -> State:
    """A state with no rows and p = 0."""
    return State(
        np.empty((capacity, k)),
        np.empty(capacity),
        np.zeros(capacity, bool),
        np.zeros(capacity, bool),
        np.zeros(k),
        np.eye(k),
        np.zeros((k, k)),
        np.zeros(k, np.int64),
        np.zeros(k + 1),
        np.empty(max(16, k // 2), np.int64),
        np.empty((3, max(16, k))),
        np.zeros(4, np.int64),
    )


@compiled
def restart(s: State) -> None:
    """Forget rows and point, keep the memory."""
    s.sizes[:] = 0
    s.inside[:] = False
    s.p[:] = 0.0
    s.Q[:] = 0.0
    for i in range(s.p.size):
        s.Q[i, i] = 1.0


@compiled
def advance(s: State) -> int:
    """Move to the optimum over all rows of the pool: SOLVED, CONTRADICTORY or STALLED.

    Equalities must be in the pool at the first call; they enter first and never leave.
    STALLED: double precision makes no more progress; the point is the best one reached.
    """
    k, count = s.p.size, s.sizes[COUNT]
    s.sizes[SHORT] = 0
    if s.sizes[ACTIVE] == 0:
        for j in range(count):
            if s.equality[j] and _enter(s, j) == CONTRADICTORY:
                return CONTRADICTORY
    best, stalls = -1.0, 0
    for _ in range(1000 + 50 * (k + count)):
        j = _most_violated(s)
        if j < 0:
            _polish(s)
            return SOLVED
        if _enter(s, j) == CONTRADICTORY:
            return CONTRADICTORY
        # Each step lengthens p in exact arithmetic; many that do not are rounding going in circles.
        length = _dot(s.p, s.p)
        stalls = stalls + 1 if length <= best else 0
        best = max(best, length)
        if stalls > k + 20:
            break
    _polish(s)
    return STALLED


@compiled
def _most_violated(s: State) -> int:
    """The row of the pool with the largest violation, or −1.

    A short list of the most violated rows serves until it is empty; then the pool is read again.
    """
    floor = 4e-16 * np.sqrt(_dot(s.p, s.p))
    j = _pick(s, floor)
    if j >= 0:
        return j
    found, slacks = 0, s.work[0]
    for i in range(s.sizes[COUNT]):
        if s.inside[i] or s.equality[i]:
            continue
        slack = _dot(s.rows[i], s.p) - s.bound[i]
        if slack >= -SATISFIED * abs(s.bound[i]) - floor:
            continue
        if found == s.short.size:
            if slack >= slacks[found - 1]:
                continue
            found -= 1
        place = found
        while place > 0 and slacks[place - 1] > slack:
            slacks[place], s.short[place] = slacks[place - 1], s.short[place - 1]
            place -= 1
        slacks[place], s.short[place] = slack, i
        found += 1
    s.sizes[SHORT] = found
    return s.short[0] if found > 0 else -1


@compiled
def _pick(s: State, floor: float) -> int:
    """The most violated row of the short list; rows that are satisfied leave the list."""
    best, least, kept = -1, 0.0, 0
    for place in range(s.sizes[SHORT]):
        i = s.short[place]
        if s.inside[i]:
            continue
        slack = _dot(s.rows[i], s.p) - s.bound[i]
        if slack >= -SATISFIED * abs(s.bound[i]) - floor:
            continue
        s.short[kept] = i
        kept += 1
        if slack < least:
            best, least = i, slack
    s.sizes[SHORT] = kept
    return best


@compiled
def _enter(s: State, j: int) -> int:
    """Move until row j holds with equality, dropping rows whose multiplier reaches zero."""
    k = s.p.size
    v, r, step = s.work[0, :k], s.work[1, :k], s.work[2, :k]
    a = s.rows[j]
    for i in range(k):
        v[i] = _dot(s.Q[i], a)
    entered = 0.0
    while True:
        q = s.sizes[ACTIVE]
        slack = _dot(a, s.p) - s.bound[j]
        square = _dot(v[q:], v[q:])
        dependent = square <= DEPENDENT * DEPENDENT
        _solve_upper(s.R, v, q, r)
        if s.equality[j] and dependent and abs(slack) <= DEPENDENT * (1 + abs(s.bound[j])):
            return SOLVED
        leaving, limit = -1, np.inf
        if not s.equality[j]:
            leaving, limit = _first_to_vanish(s, r, dependent)
        if dependent and leaving < 0:
            return _prove(s, j, r, slack)
        full = np.inf if dependent else -slack / square
        length = min(full, limit)
        entered += length
        for i in range(q):
            s.weight[i] -= length * r[i]
        if not dependent:
            step[:] = 0.0
            for i in range(q, v.size):
                _add(step, v[i], s.Q[i])
            _add(s.p, length, step)
        if full <= limit:
            s.weight[q] = entered
            _extend(s, j, v, step, np.sqrt(square))
            return SOLVED
        _drop(s, leaving, v)


@compiled
def _first_to_vanish(s: State, r: Float, dependent: bool) -> tuple[int, float]:
    """Which active multiplier reaches zero first along −r, and how far away."""
    q = s.sizes[ACTIVE]
    # Without a bound on the step, noise in r would send the multipliers to infinity.
    least = 0.0
    if dependent:
        for i in range(q):
            least = max(least, DEPENDENT * abs(r[i]))
        least = max(least, DEPENDENT)
    leaving, limit = -1, np.inf
    for i in range(q):
        if r[i] > least and not s.equality[s.active[i]]:
            ratio = max(s.weight[i], 0.0) / r[i]
            if ratio < limit:
                leaving, limit = i, ratio
    return leaving, limit


@compiled
def _prove(s: State, j: int, r: Float, slack: float) -> int:
    """Farkas: a_j − Σ r_i a_i = 0 while b_j − Σ r_i b_i > 0."""
    q = s.sizes[ACTIVE]
    sign = -1.0 if slack > 0 else 1.0
    largest = 1.0
    for i in range(q):
        largest = max(largest, abs(r[i]))
    for i in range(q):
        # The active rows are independent, so the true proof is unique and the rest is noise.
        part = abs(r[i]) > DEPENDENT * largest and (s.equality[s.active[i]] or r[i] < 0)
        s.weight[i] = -sign * r[i] if part else 0.0
    s.weight[q] = sign
    s.sizes[ENTERING] = j
    return CONTRADICTORY


@compiled
def _extend(s: State, j: int, v: Float, step: Float, size: float) -> None:
    """Append row j to the factors with one reflection; `step` is Σ v_i Q_i over the free rows of Q."""
    q = s.sizes[ACTIVE]
    head = size if v[q] >= 0 else -size
    v[q] += head
    _add(step, head, s.Q[q])
    scale = 1.0 / (size * abs(v[q]))
    for i in range(q, v.size):
        _add(s.Q[i], -scale * v[i], step)
    for i in range(q):
        s.R[i, q] = v[i]
    s.R[q, q] = -head
    s.active[q] = j
    s.inside[j] = True
    s.sizes[ACTIVE] = q + 1


@compiled
def _drop(s: State, place: int, v: Float) -> None:
    """Remove one active row from the factors by rotations; v = Q a is carried along."""
    q = s.sizes[ACTIVE]
    s.inside[s.active[place]] = False
    for i in range(place, q - 1):
        s.active[i] = s.active[i + 1]
        s.weight[i] = s.weight[i + 1]
    for i in range(q):
        for l in range(max(place, i - 1), q - 1):
            s.R[i, l] = s.R[i, l + 1]
    for i in range(place, q - 1):
        h = np.hypot(s.R[i, i], s.R[i + 1, i])
        c, t = s.R[i, i] / h, s.R[i + 1, i] / h
        _rotate(s.R[i, i : q - 1], s.R[i + 1, i : q - 1], c, t)
        _rotate(s.Q[i], s.Q[i + 1], c, t)
        _rotate(v[i : i + 1], v[i + 1 : i + 2], c, t)
    s.sizes[ACTIVE] = q - 1


@compiled
def _polish(s: State) -> None:
    """Recompute point and multipliers from the active rows, then refine once against the rows."""
    q = s.sizes[ACTIVE]
    y, x = s.work[0], s.work[1]
    s.p[:] = 0.0
    s.weight[:q] = 0.0
    for _ in range(2):
        for i in range(q):
            y[i] = s.bound[s.active[i]] - _dot(s.rows[s.active[i]], s.p)
        for i in range(q):
            y[i] /= s.R[i, i]
            _add(y[i + 1 : q], -y[i], s.R[i, i + 1 : q])
        _solve_upper(s.R, y, q, x)
        for i in range(q):
            _add(s.p, y[i], s.Q[i])
            s.weight[i] += x[i]
    for i in range(q):
        if not s.equality[s.active[i]]:
            s.weight[i] = max(s.weight[i], 0.0)


@compiled
def _solve_upper(R: Float, v: Float, q: int, out: Float) -> None:
    for i in range(q - 1, -1, -1):
        out[i] = (v[i] - _dot(R[i, i + 1 : q], out[i + 1 : q])) / R[i, i]


@compiled
def _dot(a: Float, b: Float) -> float:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@compiled
def _add(out: Float, factor: float, a: Float) -> None:
    for i in range(out.size):
        out[i] += factor * a[i]


@compiled
def _rotate(a: Float, b: Float, c: float, t: float) -> None:
    for i in range(a.size):
        a[i], b[i] = c * a[i] + t * b[i], c * b[i] - t * a[i]


# ---------------------------------------------------------------------- dense rows


class Point(NamedTuple):
    """w (k,), multipliers (m,) with w = Aᵀλ; or, not separable, w = 0 and a Farkas proof."""

    w: Float
    multipliers: Float
    separable: bool


def solve_rows(A: Float, b: Float, equality: Bool | None = None) -> Point:
    """The shortest w with A w ≥ b, and equality where asked.

        min ½‖w‖²  subject to  a_jᵀ w ≥ b_j  (= b_j)

    A (m, k), b (m,), equality (m,). If there is none: λ ≥ 0 (free on equalities) with Aᵀλ = 0 and
    bᵀλ > 0, on at most k + 1 rows.
    """
    m, k = A.shape
    tied = np.zeros(m, bool) if equality is None else np.asarray(equality, bool)
    multipliers = np.zeros(m)
    length = lengths(A)
    zero = length <= TINY
    impossible = np.flatnonzero(zero & np.where(tied, b != 0, b > 0))
    if impossible.size:
        multipliers[impossible[0]] = np.sign(b[impossible[0]])
        return Point(np.zeros(k), multipliers, False)
    # Equalities first; zero rows that ask for nothing are left out.
    order = np.argsort(~tied, kind="stable")
    order = order[~zero[order]]
    state = empty(order.size, k)
    fill(state, A[order], b[order], tied[order], length[order])
    status = advance(state)
    index, weight = proof(state) if status == CONTRADICTORY else active(state)
    index = order[index]
    multipliers[index] = weight / length[index]
    separable = status != CONTRADICTORY
    return Point(state.p.copy() if separable else np.zeros(k), multipliers, separable)


def lengths(A: Float) -> Float:
    """Length of each row (m, k) → (m,), without overflow."""
    return np.sqrt(np.einsum("ij,ij->i", A, A))


def fill(s: State, A: Float, b: Float, equality: Bool, length: Float) -> None:
    """Append rows (m, k) with their bounds to the pool; the length of each is given."""
    start = int(s.sizes[COUNT])
    stop = start + len(b)
    s.rows[start:stop] = A / length[:, None]
    s.bound[start:stop] = b / length
    s.equality[start:stop] = equality
    s.inside[start:stop] = False
    s.sizes[COUNT] = stop


def active(s: State) -> tuple[NDArray[np.int64], Float]:
    """Places in the pool and multipliers of the active rows."""
    q = int(s.sizes[ACTIVE])
    return s.active[:q].copy(), s.weight[:q].copy()


def proof(s: State) -> tuple[NDArray[np.int64], Float]:
    """Places in the pool and multipliers of a contradiction."""
    q = int(s.sizes[ACTIVE])
    return np.append(s.active[:q], s.sizes[ENTERING]), s.weight[: q + 1].copy()
