"""Dual active set: the point of least length in a polyhedron, resumable when rows are appended.

    min ½‖p‖²  subject to  a_jᵀ p ≥ b_j  (or = b_j)

The method keeps the optimum over the rows it has met (Goldfarb and Idnani 1983, identity Hessian)
and lets violated rows enter one at a time. Appending a row keeps the state valid: the point stays
optimal for the earlier rows, so the next `advance` is a warm start and ‖p‖ only grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner
from attsvm.program.constraints import DEPENDENT
from attsvm.program.rows import Candidate, Rows
from attsvm.program.working_set import Stage, nearest

SOLVED, CONTRADICTORY, STALLED = 0, 1, 2

COUNT, ACTIVE, FIXED, SHORT, ENTERING = range(5)
"""Places in `DualState.sizes`: rows in the pool; active rows, and equalities among them; rows in the short
list; the row whose entering exposed a contradiction."""

CLEAR = 1e-16
"""|outside|² of a row of length one that is surely not zero."""

SATISFIED = 1e-13
"""Shortfall of a row, relative to its bound, that counts as rounding."""

REORTHOGONALISE = 0.5
"""Share of |a|² that must remain after a projection; otherwise the projection is repeated. Rounding in the
remainder grows by 1/√share, so that with a small share the basis loses its orthogonality at every exchange.
Reference: Daniel, Gragg, Kaufman, Stewart 1976, "Reorthogonalization and stable algorithms"."""


class DualState(NamedTuple):
    """Pool and factors; plain arrays, so that compiled code can take them.

    rows (c, k), bound (c,): unit rows and their bounds, `sizes[COUNT]` of them in use.
    equality (c,), inside (c,): rows that are equalities; rows that are active.
    Q (k, k), R (k, k): factors of the active rows, see below.
    active (k,), weight (k + 1,): active rows and their multipliers, equalities first. After a
        contradiction weight is the Farkas proof, its last entry that of the row `sizes[ENTERING]`.
    reach (c,): row j holds while p has travelled (`travel[0]`) no further than reach_j, because the
        slack of a unit row changes by no more than p moves.
    short: the rows nearest to violation when the pool was last read. work: scratch.
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
    reach: Float
    travel: Float
    short: NDArray[np.int64]
    work: Float
    sizes: NDArray[np.int64]


EACH = ("bound", "equality", "inside", "reach")
"""The arrays with one entry per row, besides the rows."""


def empty(capacity: int, k: int) -> DualState:
    """A state with no rows and p = 0."""
    return DualState(
        np.empty((capacity, k)),
        np.empty(capacity),
        np.zeros(capacity, bool),
        np.zeros(capacity, bool),
        np.zeros(k),
        np.empty((k, k)),
        np.zeros((k, k)),
        np.zeros(k, np.int64),
        np.zeros(k + 1),
        np.full(capacity, -1.0),
        np.zeros(1),
        np.empty(max(16, k // 2), np.int64),
        np.empty((3, max(16, k))),
        np.zeros(5, np.int64),
    )


@inner
def restart(s: DualState) -> None:
    """Forget rows and point, keep the memory."""
    s.travel[0] = 0.0
    for i in range(s.sizes.size):
        s.sizes[i] = 0
    s.p[:] = 0.0


@compiled
def advance(s: DualState) -> int:
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
        # In exact arithmetic each step lengthens p; many steps that do not are a cycle of rounding.
        length = dot(s.p, s.p)
        stalls = stalls + 1 if length <= best else 0
        best = max(best, length)
        if stalls > k + 20:
            break
    _polish(s)
    return STALLED


@inner
def _most_violated(s: DualState) -> int:
    """A row of the pool with a large violation, or −1.

    A short list of the rows nearest to violation serves until all of it holds; then the pool is
    read again, except the rows that are known to hold.
    """
    # Rounding of the slack: a row violated by less is satisfied.
    floor = 4e-16 * np.sqrt(dot(s.p, s.p))
    best, least = -1, 0.0
    for place in range(s.sizes[SHORT]):
        j = s.short[place]
        if not s.inside[j]:
            slack = dot(s.rows[j], s.p) - s.bound[j]
            if slack < least and slack < -SATISFIED * abs(s.bound[j]) - floor:
                best, least = j, slack
    if best < 0:
        _list_nearest(s)
        for place in range(s.sizes[SHORT]):
            j = s.short[place]
            if s.work[0, place] < -SATISFIED * abs(s.bound[j]) - floor:
                return j
    return best


@inner
def _list_nearest(s: DualState) -> None:
    """Make the short list: the rows of least slack, in order, slacks in `work[0]`."""
    count, slacks, travel = 0, s.work[0], s.travel[0]
    for j in range(s.sizes[COUNT]):
        if travel < s.reach[j] or s.inside[j] or s.equality[j]:
            continue
        slack = dot(s.rows[j], s.p) - s.bound[j]
        s.reach[j] = travel + slack
        if count == s.short.size:
            if slack >= slacks[count - 1]:
                continue
            count -= 1
        place = count
        while place > 0 and slacks[place - 1] > slack:
            slacks[place], s.short[place] = slacks[place - 1], s.short[place - 1]
            place -= 1
        slacks[place], s.short[place] = slack, j
        count += 1
    s.sizes[SHORT] = count


@inner
def _enter(s: DualState, j: int) -> int:
    """Move until row j holds with equality, dropping rows whose multiplier reaches zero."""
    k, a, p, tied = s.p.size, s.rows[j], s.p, s.equality[j]
    v, r, outside = s.work[0, :k], s.work[1, :k], s.work[2, :k]
    square = split(s.Q, a, s.sizes[ACTIVE], v, outside, DEPENDENT * DEPENDENT)
    entered = 0.0
    while True:
        q = s.sizes[ACTIVE]
        slack = dot(a, p) - s.bound[j]
        # k orthonormal rows span the space: what rounding leaves outside is no direction.
        dependent = q == k or square <= DEPENDENT * DEPENDENT
        if tied and dependent and abs(slack) <= DEPENDENT * (1 + abs(s.bound[j])):
            return SOLVED
        solve_upper(s.R, v, q, r)
        leaving, limit = -1, np.inf
        if not tied:
            leaving, limit = _first_to_vanish(s.weight, r, s.sizes[FIXED], q, dependent)
        if dependent and leaving < 0:
            return _prove(s, j, r, slack)
        full = np.inf if dependent else -slack / square
        length = min(full, limit)
        entered += length
        for i in range(q):
            s.weight[i] -= length * r[i]
        if not dependent:
            add(p, length, outside)
            s.travel[0] += abs(length) * np.sqrt(square)
        if full <= limit:
            break
        drop(s.Q, s.R, v, q, leaving)
        s.inside[s.active[leaving]] = False
        for i in range(leaving, q - 1):
            s.active[i], s.weight[i] = s.active[i + 1], s.weight[i + 1]
        s.sizes[ACTIVE] = q - 1
        add(outside, v[q - 1], s.Q[q - 1])
        square = dot(outside, outside)
        # The rounding of one projection is large beside a short remainder: project again.
        if CLEAR < square < REORTHOGONALISE:
            square = split(s.Q, a, q - 1, v, outside, DEPENDENT * DEPENDENT)
    extend(s.Q, s.R, v, q, outside, np.sqrt(square))
    s.active[q], s.weight[q], s.inside[j] = j, entered, True
    s.sizes[ACTIVE] = q + 1
    s.sizes[FIXED] += tied
    return SOLVED


@inner
def _first_to_vanish(weight: Float, r: Float, fixed: int, q: int, dependent: bool) -> tuple[int, float]:
    """Which multiplier of an inequality reaches zero first along −r, and how far away."""
    # Without a bound on the step, noise in r would send the multipliers to infinity.
    least = 0.0
    if dependent:
        least = DEPENDENT
        for i in range(q):
            least = max(least, DEPENDENT * abs(r[i]))
    leaving, limit = -1, np.inf
    for i in range(fixed, q):
        if r[i] > least and max(weight[i], 0.0) < limit * r[i]:
            leaving, limit = i, max(weight[i], 0.0) / r[i]
    return leaving, limit


@inner
def _prove(s: DualState, j: int, r: Float, slack: float) -> int:
    """Farkas: a_j − Σ r_i a_i = 0 while b_j − Σ r_i b_i > 0."""
    q, largest = s.sizes[ACTIVE], 1.0
    sign = -1.0 if slack > 0 else 1.0
    for i in range(q):
        largest = max(largest, abs(r[i]))
    for i in range(q):
        # The active rows are independent, so the true proof is unique and the rest is noise.
        real = abs(r[i]) > DEPENDENT * largest and (i < s.sizes[FIXED] or r[i] < 0)
        s.weight[i] = -sign * r[i] if real else 0.0
    s.weight[q] = sign
    s.sizes[ENTERING] = j
    return CONTRADICTORY


@inner
def _polish(s: DualState) -> None:
    """Recompute point and multipliers from the active rows, then refine once against the rows."""
    q, y, x = s.sizes[ACTIVE], s.work[0], s.work[1]
    for i in range(s.p.size):
        s.p[i] = s.weight[i] = 0.0
    for _ in range(2):
        for i in range(q):
            y[i] = s.bound[s.active[i]] - dot(s.rows[s.active[i]], s.p)
        solve_lower(s.R, q, y)
        solve_upper(s.R, y, q, x)
        for i in range(q):
            add(s.p, y[i], s.Q[i])
            s.weight[i] += x[i]
    for i in range(s.sizes[FIXED], q):
        s.weight[i] = max(s.weight[i], 0.0)


# ---------------------------------------------------------------------- rows that come and go


def append(s: DualState, bound: Float, equality: Bool) -> None:
    """The next rows of the pool, of length one and in its memory already, with their bounds (m,)."""
    start = int(s.sizes[COUNT])
    stop = start + len(bound)
    s.bound[start:stop] = bound
    s.equality[start:stop] = equality
    s.inside[start:stop] = False
    s.reach[start:stop] = -1.0
    s.sizes[COUNT] = stop


def keep(s: DualState, places: NDArray[np.intp]) -> None:
    """Drop all rows of the pool but those at these places, in this order; active rows must be among them.

    The owner of the memory of the rows moves them.
    """
    count, q = int(s.sizes[COUNT]), int(s.sizes[ACTIVE])
    for array in (getattr(s, name) for name in EACH):
        array[: len(places)] = array[places]
    place = np.zeros(count, np.int64)
    place[places] = np.arange(len(places))
    s.active[:q] = place[s.active[:q]]
    s.sizes[COUNT] = len(places)


def carriers(s: DualState, contradictory: bool) -> tuple[NDArray[np.int64], Float]:
    """Places in the pool and multipliers of the active rows; of a contradiction, with the row that enters."""
    q = int(s.sizes[ACTIVE])
    if contradictory:
        return np.append(s.active[:q], s.sizes[ENTERING]), s.weight[: q + 1].copy()
    return s.active[:q].copy(), s.weight[:q].copy()


# ---------------------------------------------------------------------- the engine


class ActiveSet:
    """The dual active set over dense rows: new rows are appended, the others keep their place in its factor.

    A pool that grows too large is halved. Rows of vectors are read from the pool's memory; rows of matrices
    are copied here as vectors.
    """

    def __init__(self, unknowns: int) -> None:
        self.state = empty(0, unknowns)
        self.pool: Rows | None = None
        self.order = np.zeros(0, np.intp)

    def __call__(self, rows: Rows) -> Stage:
        """rows: the previous pool, less the rows it dropped, and new rows."""
        self._append(rows)
        contradictory, multipliers = advance(self.state) == CONTRADICTORY, np.zeros(len(rows))
        index, weight = carriers(self.state, contradictory)
        multipliers[self.order[index]] = weight
        if contradictory:
            return Stage(Candidate(np.zeros((rows.d, rows.e)), multipliers, 0.0, separable=False))
        W = self.state.p.reshape(rows.d, rows.e).copy()
        needed = rows.tied.copy()
        needed[self.order] |= self.state.inside[: len(rows)]
        retained = nearest(rows, W, needed, dense=True)
        if retained is not None:
            self._keep(retained, shared=rows.e == 1)
            rows = rows.some(retained)
        self.pool = rows
        return Stage(Candidate(W, multipliers, 0.0), retained=retained)

    def _append(self, rows: Rows) -> None:
        """Append the new rows; `order` (count,): the place among these rows of each row of the state."""
        new = np.ones(len(rows), bool)
        if self.pool is not None:
            places = rows.places(self.pool)
            new[places], self.order = False, places[self.order]
        added = np.flatnonzero(new)
        self.order = np.concatenate([self.order, added])
        self._grow(len(rows), shared=rows.e == 1)
        if rows.e == 1:
            self.state = self.state._replace(rows=rows.delta)
        else:
            self.state.rows[len(rows) - len(added) : len(rows)] = rows.some(added).dense
        append(self.state, rows.bound[added], rows.tied[added])

    def _keep(self, retained: Bool, shared: bool) -> None:
        """Drop the other rows; shared: the owner of the memory of the rows moves them."""
        stay = np.flatnonzero(retained[self.order])
        keep(self.state, stay)
        if not shared:
            self.state.rows[: len(stay)] = self.state.rows[stay]
        self.order = (np.cumsum(retained) - 1)[self.order[stay]]

    def _grow(self, count: int, shared: bool) -> None:
        """Room for so many rows; shared: the rows themselves have memory of the pool."""
        s, stored = self.state, int(self.state.sizes[COUNT])
        if count > len(s.bound):
            names = EACH if shared else (*EACH, "rows")
            arrays = {}
            for name in names:
                old = getattr(s, name)
                arrays[name] = np.empty((2 * count, *old.shape[1:]), old.dtype)
                arrays[name][:stored] = old[:stored]
            self.state = s._replace(**arrays)


# ---------------------------------------------------------------------- factors of the active rows

# A_S = Rᵀ Q[:q], Q orthonormal, R upper triangular. Q (k, k) holds a basis of the span of the active rows in
# its first q rows, so that every loop runs along memory; q, the number of active rows, is often far below k.
# Functions take only the arrays they need, because a call copies the header of every array. Inner loops run
# over whole rows in functions of their own, where the compiler sees that the rows do not overlap.


@inner
def dot(a: Float, b: Float) -> float:
    """aᵀb."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@inner
def add(out: Float, factor: float, a: Float) -> None:
    """out += factor · a."""
    for i in range(out.size):
        out[i] += factor * a[i]


@inner
def rotate(a: Float, b: Float, c: float, t: float) -> None:
    """a, b = c a + t b, c b − t a."""
    for i in range(a.size):
        a[i], b[i] = c * a[i] + t * b[i], c * b[i] - t * a[i]


@inner
def subtract_projections(Q: Float, q: int, v: Float, outside: Float) -> None:
    """outside −= Σ c_i Q_i, v_i += c_i over i < q; four rows at a time, which are read while in the cache."""
    i, k = 0, outside.size
    while i + 4 <= q:
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for l in range(k):
            x = outside[l]
            a += Q[i, l] * x
            b += Q[i + 1, l] * x
            c += Q[i + 2, l] * x
            d += Q[i + 3, l] * x
        v[i] += a
        v[i + 1] += b
        v[i + 2] += c
        v[i + 3] += d
        for l in range(k):
            outside[l] -= (a * Q[i, l] + b * Q[i + 1, l]) + (c * Q[i + 2, l] + d * Q[i + 3, l])
        i += 4
    for j in range(i, q):
        a = dot(Q[j], outside)
        v[j] += a
        add(outside, -a, Q[j])


@inner
def split(Q: Float, a: Float, q: int, v: Float, outside: Float, floor: float) -> float:
    """a = Σ_{i < q} v_i Q_i + outside, and |outside|²: Gram–Schmidt, repeated while |outside| shrinks much.

    floor: |outside|² that counts as zero.
    """
    for i in range(len(a)):  # as a whole it would compile for seconds
        outside[i] = a[i]
    v[:q] = 0.0
    square = dot(a, a)
    while True:
        subtract_projections(Q, q, v, outside)
        remainder = dot(outside, outside)
        if remainder > REORTHOGONALISE * square or remainder <= floor:
            return remainder
        square = remainder


@inner
def solve_upper(R: Float, v: Float, q: int, out: Float) -> None:
    """out[:q] with R[:q, :q] out = v[:q]."""
    for i in range(q - 1, -1, -1):
        out[i] = (v[i] - dot(R[i, i + 1 : q], out[i + 1 : q])) / R[i, i]


@inner
def solve_lower(R: Float, q: int, y: Float) -> None:
    """In place, y[:q] with R[:q, :q]ᵀ y = y."""
    for i in range(q):
        y[i] /= R[i, i]
        add(y[i + 1 : q], -y[i], R[i, i + 1 : q])


@inner
def extend(Q: Float, R: Float, v: Float, q: int, outside: Float, size: float) -> None:
    """Let the row a = Σ v_i Q_i + outside become active; size = |outside|."""
    for i in range(outside.size):
        Q[q, i] = outside[i] / size
    for i in range(q):
        R[i, q] = v[i]
    R[q, q] = size


@inner
def drop(Q: Float, R: Float, v: Float, q: int, place: int) -> None:
    """Let one active row become inactive, by rotations; v = Q a is carried along.

    Q[q − 1] leaves the basis: the part v[q − 1] Q[q − 1] of a lies outside then.
    """
    for i in range(q):
        for l in range(max(place, i - 1), q - 1):
            R[i, l] = R[i, l + 1]
    for i in range(place, q - 1):
        size = np.sqrt(R[i, i] * R[i, i] + R[i + 1, i] * R[i + 1, i])
        c, t = R[i, i] / size, R[i + 1, i] / size
        rotate(R[i, i : q - 1], R[i + 1, i : q - 1], c, t)
        rotate(Q[i], Q[i + 1], c, t)
        v[i], v[i + 1] = c * v[i] + t * v[i + 1], c * v[i + 1] - t * v[i]
