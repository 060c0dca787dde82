"""Many small soft margins at once, by their Gram matrices K = A Aᵀ: an active set on the dual program.

    min ½ λᵀ K λ − bᵀ λ,   λ_j ≥ 0,   Σ_t λ_it ≤ C_i   (λ_j free where the row is an equality)

What an example leaves of its C is one more multiplier, s_i = C_i − Σ_t λ_it ≥ 0, so that an exchange within
an example moves weight from the multiplier with the largest gradient to the one with the smallest. Sweeps of
exchanges find the multipliers that are positive; Newton steps, cut at the first limit, minimise over these.
Both lower the objective, so the method ends. The rows of an example without a remainder move with sum zero:
one of them, the pivot, is eliminated.
References: Platt 1998, "Sequential minimal optimization"; Nocedal and Wright 2006, section 16.7 (gradient
projection).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner, read_only
from attsvm.program.answer import Answer
from attsvm.program.certificate import EPSILON
from attsvm.program.constraints import TINY, Constraints
from attsvm.program.frobenius.gram import queries_of
from attsvm.program.units import RANGE

ROUNDS = 100
"""Rounds of sweeps and Newton steps."""

ROUNDING = 1e-15
"""Error of a gradient relative to Σ_j |λ_j| |A_j| times the length of its row, and to the required margin."""

STEPS = 50
"""Newton steps of a round."""

SWEEPS = 8
"""Sweeps before the Newton steps: examples take turns, as what one moves changes the gradients of all."""

DEPENDENT = 1e-10
"""Squared distance of a row from the span of others, per squared length, below which it depends on them."""

NEGLIGIBLE = 1e-6
"""Relative share of a row in a sum of rows that is rounding."""

CANCELLING, CORRECTIONS = 1e4, 2
"""(Σ_j |λ_j| |A_j|)² per ‖W‖² from which margins are corrected, and how often."""

PAID = 1e-12
"""Price of rounding, relative to ‖W‖², that is worth a longer W."""

LIMIT, UNDERFLOW = 2.0**RANGE, 1e-200
"""The price that stands for any larger one, and a cost whose parts may have lost digits: only the
certificate, which knows the powers of two, measures beyond them."""


def solve_soft_by_gram(program: Constraints) -> Answer:
    """The soft margins of all runs, and what their certificates say at most; ∞ where only these can say."""
    query, size, like = queries_of(program)
    arrays = (
        program.anchor,
        program.active,
        program.tied,
        program.required,
        program.units.price,
        program.reach,
    )
    problems = SoftProblems(read_only(program.keys), query, size, like, *map(read_only, arrays))
    runs = len(program.keys)
    W, multipliers = np.zeros((runs, program.d, program.e)), np.zeros(program.active.shape)
    gap = np.empty(runs)
    descend(problems, memory(program.n, program.T, program.d), W, multipliers.reshape(runs, -1), gap)
    return Answer(W, multipliers, np.ones(runs, bool), gap)


# ---------------------------------------------------------------------- compiled


class SoftProblems(NamedTuple):
    """Constraints of all runs as plain arrays, the runs axis first; see `Constraints` and `gram.Problems`.

    price (r, n): C; reach (r, n): no row is longer.
    """

    keys: Float
    query: Float
    size: Float
    like: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float
    price: Float
    reach: Float


class SoftMemory(NamedTuple):
    """Memory for one run of at most m rows of n examples; rows of length zero are omitted.

    delta (d, m): δ |z|; gram (m, m); name (m,): i T + t; example (m,): i; free (m,): equalities;
    lam (m,); gradient (m,): K λ − b. edges (n + 1,): the rows of each example; rest (n,): C less Σ λ, and
    rest_name (n,): the row of length zero that receives it, or −1; level (n,): the gradient of the rest.
    pivot (m,): the row that each variable of a Newton step moves against, or −1; variable (m,): their rows;
    factor (m, m): lower Cholesky factor; step (m,) and along (m,): of the variables; move (m,) and
    rest_move (n,): of all rows and rests. margin (m,), direction (d,): A_j W and W ẑ; least (n,), total (n,):
    the least margin of an example and the sum of its multipliers.
    """

    delta: Float
    gram: Float
    name: NDArray[np.int64]
    example: NDArray[np.int64]
    free: Bool
    length: Float
    lam: Float
    bound: Float
    gradient: Float
    edges: NDArray[np.int64]
    rest: Float
    rest_name: NDArray[np.int64]
    level: Float
    variable: NDArray[np.int64]
    pivot: NDArray[np.int64]
    factor: Float
    step: Float
    along: Float
    move: Float
    rest_move: Float
    margin: Float
    direction: Float
    least: Float
    total: Float


def memory(n: int, T: int, d: int) -> SoftMemory:
    m = n * max(T - 1, 1)
    name, example, variable, pivot = np.zeros((4, m), np.int64)
    length, lam, bound, gradient, step, along, move, margin = np.zeros((8, m))
    gram, factor = np.zeros((2, m, m))
    edges, rest_name = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    rest, level, rest_move, least, total = np.zeros((5, n))
    rows = np.zeros((d, m)), gram, name, example, np.zeros(m, bool), length, lam, bound, gradient
    moves = variable, pivot, factor, step, along, move, rest_move
    return SoftMemory(*rows, edges, rest, rest_name, level, *moves, margin, np.zeros(d), least, total)


@compiled
def descend(problems: SoftProblems, s: SoftMemory, W: Float, multipliers: Float, gap: Float) -> None:
    """W (r, d, e) and λ (r, n T), zero at first; gap (r,): see `_measured`."""
    n = problems.keys.shape[1]
    for run in range(len(W)):
        m = _rows(problems, run, s)
        size, k = 0.0, np.int64(-1)  # the literal −1 would compile what takes k twice
        for _ in range(ROUNDS):
            size = 0.0
            for j in range(m):
                size += abs(s.lam[j]) * s.length[j]
            if not _exchange(s, n, m, size, problems.required[run]):
                break
            for _ in range(STEPS):
                k = _newton(s, n, m)
                if k >= 0:
                    break
        for i in range(n):
            if s.rest_name[i] >= 0:
                multipliers[run, s.rest_name[i]] = s.rest[i]
        for j in range(m):
            multipliers[run, s.name[j]], s.move[j] = s.lam[j], s.lam[j]
        square = _combine(problems.query, s, run, m, n, k, size, W)
        gap[run] = _measured(problems, s, run, square, W)


@inner
def _combine(query, s, run, m, n, k, size, W):  # type: ignore[no-untyped-def]
    """W = Σ λ_j A_j, corrected where the sum cancels: the margins of the k variables are known; |Σ λ_j A_j|².

    Rows of an example without a rest share their shortfall; the others have margin b, or less by the level.
    k: the variables of the last Newton step, or −1 if it was cut; size: Σ_j |λ_j| |A_j|.
    """
    (d, e), uncorrected = W.shape[1:], 0.0
    for correction in range(CORRECTIONS + 1):
        square = 0.0
        for j in range(m):
            if s.move[j] != 0.0:
                for c in range(d):
                    entry = s.move[j] * s.delta[c, j]
                    for q in range(e):
                        W[run, c, q] += entry * query[run, s.example[j], q]
        for c in range(d):
            for q in range(e):
                square += W[run, c, q] * W[run, c, q]
        if correction == 0:
            uncorrected = square
        if k < 0 or correction == CORRECTIONS or size * size <= CANCELLING * square:
            break
        for j in range(m):
            margin = 0.0
            for c in range(d):
                entry = 0.0
                for q in range(e):
                    entry += W[run, c, q] * query[run, s.example[j], q]
                margin += entry * s.delta[c, j]
            s.gradient[j] = margin - s.bound[j]
        _direction(s, n, m, k, np.bool_(False))  # as for k
    return uncorrected


@inner
def _measured(problems, s, run, square, W):  # type: ignore[no-untyped-def]
    """Lift W, and measure as its certificate does, with rounding: the gap, and the excess of Σ_t λ_it over C.

    ∞ where rows are tied, the price has a limit, or the sums underflow. square: |Σ λ_j A_j|².
    """
    (n, d), e = (len(s.least), W.shape[1]), W.shape[2]
    size, weight, gained, count, tied = 0.0, 0.0, 0.0, 8, False
    for c in range(d):
        for q in range(e):
            size += W[run, c, q] * W[run, c, q]
    size = np.sqrt(size)
    for i in range(n):
        start, stop = s.edges[i], s.edges[i + 1]
        s.least[i], s.total[i] = np.inf, 0.0
        for c in range(d):
            s.direction[c] = 0.0
            for q in range(e):
                s.direction[c] += W[run, c, q] * problems.query[run, i, q]
        for j in range(start, stop):
            s.margin[j] = 0.0
        for c in range(d):
            entry = s.direction[c]
            for j in range(start, stop):
                s.margin[j] += s.delta[c, j] * entry
        for j in range(start, stop):
            gained += s.lam[j] * s.bound[j]
            weight += problems.reach[run, i] * abs(s.lam[j])
            count += s.lam[j] != 0.0
            if s.free[j]:
                tied = True
            else:
                s.total[i] += s.lam[j]
                s.least[i] = min(s.least[i], s.margin[j])
        if s.rest_name[i] >= 0:
            gained += s.rest[i] * problems.required[run, i]
            weight += problems.reach[run, i] * s.rest[i]
            count += 1
            s.total[i] += s.rest[i]
            s.least[i] = min(s.least[i], 0.0)
    longer = _lift(problems, s, run, size, weight, d + e)
    for c in range(d):
        for q in range(e):
            W[run, c, q] *= longer
    upper, worst = 0.5 * size * size * longer * longer, 0.0
    for i in range(n):
        price, required, reach = problems.price[run, i], problems.required[run, i], problems.reach[run, i]
        if s.least[i] < np.inf:
            doubt = (d + e + 4) * EPSILON * (reach * size * longer + required)
            upper += price * max(required - longer * s.least[i] + doubt, 0.0)
        excess = s.total[i] * (1.0 + 8.0 * EPSILON) - price
        if excess > 0.0:
            worst = max(worst, excess / price if price > 0.0 else np.inf)
        tied = tied or not price < LIMIT
    length = np.sqrt(square) + count * EPSILON * weight
    gap = 1.0 - (gained - 0.5 * length * length) / (upper * (1.0 + 4.0 * (n + count) * EPSILON))
    return max(gap, worst) if upper > UNDERFLOW and gap < np.inf and not tied else np.inf


@inner
def _lift(problems, s, run, size, weight, widths):  # type: ignore[no-untyped-def]
    """How much longer W must be, by rounding, to keep a large C from being paid for rounding; often 1.

    An example whose rows fall short by no more than rounding gets a margin that no rounding can hide.
    size: |W|; weight: Σ_j |λ_j| |A_j| at most.
    """
    paid, longer = 0.0, 1.0
    for i in range(len(s.least)):
        required, reach, least = problems.required[run, i], problems.reach[run, i], s.least[i]
        doubt = (widths + 8) * EPSILON * (reach * size + required)
        if required > 0.0 and 0.0 < least < np.inf and least >= required - ROUNDING * reach * weight - doubt:
            paid += problems.price[run, i] * (doubt + max(required - least, 0.0))
            longer = max(longer, (required + doubt) / least)
    return longer if paid > PAID * size * size else 1.0


@inner
def _rows(problems, run, s):  # type: ignore[no-untyped-def]
    """Write the rows, their Gram matrix and λ = 0; the number of rows."""
    n, T, d = problems.keys.shape[1:]
    m = 0
    for i in range(n):
        s.edges[i], s.rest[i], s.rest_name[i], s.level[i] = m, problems.price[run, i], -1, 0.0
        size, first = problems.size[run, i], problems.anchor[run, i]
        for t in range(T):
            if not problems.active[run, i, t]:
                continue
            square = 0.0
            for c in range(d):
                s.delta[c, m] = (problems.keys[run, i, first, c] - problems.keys[run, i, t, c]) * size
                square += s.delta[c, m] * s.delta[c, m]
            tied = problems.tied[run, i, t]
            if np.sqrt(square) > TINY:
                s.name[m], s.example[m], s.free[m] = i * T + t, i, tied
                s.bound[m] = 0.0 if tied else problems.required[run, i]
                s.length[m], s.lam[m], s.gradient[m] = np.sqrt(square), 0.0, -s.bound[m]
                m += 1
            elif not tied:
                s.rest_name[i], s.level[i] = i * T + t, -problems.required[run, i]
    s.edges[n] = m
    for a in range(m):
        for b in range(a + 1):
            s.gram[a, b] = 0.0
        for c in range(d):
            entry = s.delta[c, a]
            for b in range(a + 1):
                s.gram[a, b] += entry * s.delta[c, b]
        for b in range(a + 1):
            s.gram[a, b] *= problems.like[run, s.example[a], s.example[b]]
            s.gram[b, a] = s.gram[a, b]
    return m


@inner
def _exchange(s, n, m, size, required):  # type: ignore[no-untyped-def]
    """Sweeps: of each example in turn, move weight from its multiplier with the largest gradient to that with
    the smallest; whether any moved.

    Gradients that differ by no more than rounding are equal. size: Σ_j |λ_j| |A_j|; required (n,).
    All sweeps are one call, because a call copies the header of every array.
    """
    changed = False
    for sweep in range(SWEEPS * n):
        i = sweep % n
        if i == 0:
            moved = False
        least, most, up, down = s.level[i], -np.inf, -1, -1
        if s.rest[i] > 0.0:
            most = s.level[i]
        for j in range(s.edges[i], s.edges[i + 1]):
            if s.free[j]:
                continue
            if s.gradient[j] < least:
                least, up = s.gradient[j], j
            if s.lam[j] > 0.0 and s.gradient[j] > most:
                most, down = s.gradient[j], j
        curvature, square = 0.0, 0.0
        if up >= 0:
            curvature = s.gram[up, up]
            square = s.gram[up, up]
        if down >= 0:
            curvature += s.gram[down, down]
            square += s.gram[down, down]
            if up >= 0:
                curvature -= 2.0 * s.gram[up, down]
        if most - least > ROUNDING * (size * np.sqrt(square) + required[i]):
            whole = s.rest[i] if down < 0 else s.lam[down]
            step = whole
            if curvature > DEPENDENT * square:
                step = min((most - least) / curvature, whole)
            if up >= 0:
                s.lam[up] += step
                for k in range(m):
                    s.gradient[k] += step * s.gram[up, k]
            else:
                s.rest[i] += step
            if down >= 0:
                s.lam[down] = 0.0 if step == whole else s.lam[down] - step
                for k in range(m):
                    s.gradient[k] -= step * s.gram[down, k]
            else:
                s.rest[i] = 0.0 if step == whole else s.rest[i] - step
            moved, changed = True, True
        if i == n - 1 and not moved:
            break
    return changed


@inner
def _variables(s, n):  # type: ignore[no-untyped-def]
    """The rows that a Newton step may move, and what they move against; their number."""
    k = 0
    for i in range(n):
        pivot, largest = -1, 0.0
        if s.rest[i] <= 0.0:
            for j in range(s.edges[i], s.edges[i + 1]):
                if not s.free[j] and s.lam[j] > largest:
                    largest, pivot = s.lam[j], j
        for j in range(s.edges[i], s.edges[i + 1]):
            if s.free[j] or (s.lam[j] > 0.0 and j != pivot):
                s.variable[k], s.pivot[k] = j, -1 if s.free[j] else pivot
                k += 1
    return k


@inner
def _newton(s, n, m):  # type: ignore[no-untyped-def]
    """A step to the minimum over the variables, cut at the first limit; their number, or −1 if it was cut.

    Where a variable depends on those before it the objective is linear: the step goes to the limit.
    """
    L, k, straight = s.factor, _variables(s, n), False
    for a in range(k):
        j, p = s.variable[a], s.pivot[a]
        for b in range(a + 1):
            h, q = s.variable[b], s.pivot[b]
            total = s.gram[j, h]
            if p >= 0:
                total -= s.gram[p, h]
                if q >= 0:
                    total += s.gram[p, q]
            if q >= 0:
                total -= s.gram[j, q]
            L[a, b] = total
        square = s.gram[j, j]
        if p >= 0:
            square += s.gram[p, p]
        for b in range(a):
            total = L[a, b]
            for c in range(b):
                total -= L[a, c] * L[b, c]
            total /= L[b, b]
            L[a, b] = total
            L[a, a] -= total * total
        if L[a, a] > DEPENDENT * square:
            L[a, a] = np.sqrt(L[a, a])
        elif _limited(s, a):
            L[a, a], k, straight = 1.0, a + 1, True
            break
        else:  # equalities alone: they agree, and this one stays where it is
            L[a, a] = np.inf
    _direction(s, n, m, k, straight)
    return k if _move(s, n, m, np.inf if straight else 1.0) else -1


@inner
def _direction(s, n, m, k, straight):  # type: ignore[no-untyped-def]
    """The move of all rows and rests by the factor of k variables: to the minimum, or along the last one."""
    L, y, slope = s.factor, s.step, 0.0
    for a in range(k):
        j, p = s.variable[a], s.pivot[a]
        value = -s.gradient[j]
        if p >= 0:
            value += s.gradient[p]
        elif not s.free[j]:
            value += s.level[s.example[j]]
        if straight:
            y[a] = value
            continue
        for b in range(a):
            value -= L[a, b] * y[b]
        y[a] = value / L[a, a]
    for j in range(m):
        s.move[j] = 0.0
    for i in range(n):
        s.rest_move[i] = 0.0
    if straight:  # the sum of the values along the direction says which way is down
        for a in range(k):
            slope += y[a] * s.along[a]
            y[a] = s.along[a]
        for a in range(k):
            y[a] = -y[a] if slope < 0.0 else y[a]
    for a in range(k - 1, -1, -1):
        value = y[a]
        if not straight:
            value /= L[a, a]
            for c in range(a):
                y[c] -= value * L[a, c]
        j, p = s.variable[a], s.pivot[a]
        s.move[j] += value
        if p >= 0:
            s.move[p] -= value
        elif not s.free[j]:
            s.rest_move[s.example[j]] -= value


@inner
def _limited(s, a):  # type: ignore[no-untyped-def]
    """Write how variable a depends on those before it, and whether a limit ends a move along it.

    There is none where only equalities depend on each other.
    """
    L, along, largest, limited = s.factor, s.along, 1.0, 0.0
    if not s.free[s.variable[a]]:
        limited = 1.0
    along[a] = 1.0
    for b in range(a):
        along[b] = -L[a, b]
    for b in range(a - 1, -1, -1):
        along[b] /= L[b, b]
        for c in range(b):
            along[c] -= along[b] * L[b, c]
        row = s.variable[b]
        size = abs(along[b]) * s.length[row] / s.length[s.variable[a]]
        largest = max(largest, size)
        if not s.free[row]:
            limited = max(limited, size)
    return limited > NEGLIGIBLE * largest


@inner
def _move(s, n, m, most):  # type: ignore[no-untyped-def]
    """Add the move to the multipliers, at most so many times, to the first limit; whether it met none."""
    length, limit, rest = most, -1, False
    for j in range(m):
        if s.move[j] < 0.0 and not s.free[j] and s.lam[j] < -length * s.move[j]:
            length, limit, rest = s.lam[j] / -s.move[j], j, False
    for i in range(n):
        if s.rest_move[i] < 0.0 and s.rest[i] < -length * s.rest_move[i]:
            length, limit, rest = s.rest[i] / -s.rest_move[i], i, True
    if length == np.inf:
        return False
    for i in range(n):
        s.rest[i] = max(s.rest[i] + length * s.rest_move[i], 0.0)
    for j in range(m):
        if s.move[j] != 0.0:
            s.lam[j] += length * s.move[j]
            if s.lam[j] < 0.0 and not s.free[j]:
                s.lam[j] = 0.0
        s.gradient[j] = -s.bound[j]
    if limit >= 0:
        if rest:
            s.rest[limit] = 0.0
        else:
            s.lam[limit] = 0.0
    for j in range(m):
        if s.lam[j] != 0.0:
            weight = s.lam[j]
            for b in range(m):
                s.gradient[b] += weight * s.gram[j, b]
    return limit < 0
