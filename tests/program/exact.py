"""Answers of the programs checked in exact arithmetic: whole numbers, and 80 digits where roots are taken.

Every float64 is a whole number times a power of two, so keys, queries, W and multipliers become Python
integers, and margins and Σ λ_j A_j are exact. Nothing of `attsvm.program` computes here; it is only asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mpmath
import numpy as np

from attsvm.norms import Entrywise, Norm
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import TOLERANCE, NotSeparable, Solution
from attsvm.tokens import Tokens
from tests.program.hostile import Case

Array = np.ndarray
mp = mpmath.mp.clone()
mp.dps = 80

HELD = 1e-11
"""Best margin, of rows and weights of length one, below which no float64 weight holds the rows apart."""

FALSE, WRONG = "FALSE certificate", "WRONG verdict"
CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE = (
    "certified",
    "not certified",
    "not separable",
    "out of range",
)


def solved(case: Case) -> Solution:
    tokens = Tokens(case.keys, case.queries, mask=case.mask)  # type: ignore[arg-type]
    return max_margin(tokens, case.selected, case.norm, required=case.required, slack=case.slack)


def outcome(case: Case) -> str:
    """What `max_margin` answers, judged in exact arithmetic: one of the words above."""
    try:
        solution = solved(case)
    except NotSeparable as error:
        return NOT_SEPARABLE if hopeless(case, error.multipliers) else WRONG
    except ValueError as error:
        if "float64 holds" not in str(error):
            raise
        return OUT_OF_RANGE if out_of_range(case) else WRONG
    if not solution.certified:
        return NOT_CERTIFIED
    return CERTIFIED if violation(case, solution.W, solution.multipliers) <= TOLERANCE else FALSE


def out_of_range(case: Case) -> bool:
    """Whether a weight or multiplier of the same program in tame units has no float64 in these units."""
    lifted = int(np.frexp(np.abs(case.keys).max())[1])
    tame = solved(replace(case, keys=np.ldexp(case.keys, -lifted), slack=None))
    sizes = np.frexp([np.abs(tame.W).max(), np.abs(tame.multipliers).max()])[1] - lifted
    return bool(tame.certified and ((sizes > 1020) | (sizes < -990)).any())


@dataclass(frozen=True)
class Whole:
    """Numbers n · 2^exponent: n an array of Python integers."""

    n: Array
    exponent: int

    @classmethod
    def of(cls, x: Array) -> Whole:
        mantissa, exponent = np.frexp(np.asarray(x, np.float64))
        n, exponent = np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(int) - 53
        low = int(exponent[n != 0].min(initial=2000)) if n.any() else 0
        flat = [
            int(a) << (int(k) - low) if a else 0 for a, k in zip(n.ravel(), exponent.ravel(), strict=True)
        ]
        out = np.empty(n.size, object)
        out[:] = flat
        return cls(out.reshape(n.shape), low)

    def __matmul__(self, other: Whole) -> Whole:
        return Whole(self.n @ other.n, self.exponent + other.exponent)

    def numbers(self) -> Array:
        """As numbers of 80 digits."""
        return np.vectorize(lambda n: mp.ldexp(mp.mpf(n), self.exponent), otypes=[object])(self.n)


@dataclass(frozen=True)
class Rows:
    """Rows A_j (m, d·e), margins asked for b (m,), ties (m,), examples (m,) and the shape of W."""

    A: Whole
    b: Array
    tied: Array
    example: Array
    shape: tuple[int, int]

    @classmethod
    def of(cls, case: Case) -> Rows:
        n, T, d = case.keys.shape
        z = Whole.of(np.ones((n, 1)) if case.queries is None else case.queries)
        keys, asked = Whole.of(case.keys), np.broadcast_to(np.asarray(case.required, float), n)
        mask = np.ones((n, T), bool) if case.mask is None else case.mask
        first = case.selected.argmax(1)
        active = mask & (np.arange(T) != first[:, None])
        example, token = np.nonzero(active)
        delta = keys.n[example, first[example]] - keys.n[example, token]
        A = (delta[:, :, None] * z.n[example][:, None, :]).reshape(len(example), d * z.n.shape[1])
        tied = case.selected[example, token]
        b = np.where(tied, 0.0, asked[example])
        return cls(Whole(A, keys.exponent + z.exponent), b, tied, example, (d, z.n.shape[1]))


def violation(case: Case, W: Array, multipliers: Array) -> float:
    """The largest of primal violation, dual violation and relative gap, as `Certificate` defines them."""
    if not (np.isfinite(W).all() and np.isfinite(multipliers).all()):
        return math.inf
    rows = Rows.of(case)
    margins = (rows.A @ Whole.of(W.ravel())).numbers()
    b = np.array([mp.mpf(x) for x in rows.b], object)
    largest = max(b, default=mp.mpf(0)) or mp.mpf(1)
    lam = np.where(rows.tied, multipliers, np.maximum(multipliers, 0.0))
    size = float(np.abs(multipliers).max(initial=0.0))
    negative = float(-multipliers[~rows.tied].min(initial=0.0)) / (size or 1.0)
    M = (Whole.of(lam) @ rows.A).numbers().reshape(rows.shape)
    gained = mp.fsum(mp.mpf(x) * y for x, y in zip(lam, b, strict=True))
    unequal = max([abs(m) / largest for m in margins[rows.tied]], default=0)
    if case.slack is not None:
        return float(max(unequal, negative, *_soft(case, rows, W, margins, lam, M, gained)))
    short = [(x - m) / (x or largest) for m, x in zip(margins[~rows.tied], b[~rows.tied], strict=True)]
    primal = max([unequal, *short], default=0)
    steepness, value = _value(case.norm.dual, M), _value(case.norm, Whole.of(W).numbers())
    dual = max(negative, steepness - 1 if size else 0)
    least = min([m / x for m, x in zip(margins, b, strict=True) if x > 0], default=None)
    if least is None:
        gap = mp.mpf(0) if value == 0 else mp.mpf(1)
    elif least <= 0 or steepness == 0:
        gap = mp.mpf(1)
    else:
        gap = 1 - gained / steepness / (value / min(least, 1))
    return float(max(primal, dual, gap))


def _soft(case, rows, W, margins, lam, M, gained):
    """Excess of Σ_t λ_it over C_i, and the relative gap."""
    price = np.broadcast_to(np.asarray(case.slack, float), len(case.keys))
    asked = np.broadcast_to(np.asarray(case.required, float), len(case.keys))
    paid, excess = mp.mpf(0), mp.mpf(0)
    for i, (C, b) in enumerate(zip(price, asked, strict=True)):
        mine = (rows.example == i) & ~rows.tied
        if mine.any():
            total = mp.fsum(mp.mpf(x) for x in lam[mine])
            excess = max(excess, total / C - 1 if C else total)
            paid += mp.mpf(C) * max(0, mp.mpf(b) - min(margins[mine]))
    w = Whole.of(W).numbers().ravel()
    upper = mp.fsum(x * x for x in w) / 2 + paid
    lower = gained - mp.fsum(x * x for x in M.ravel()) / 2
    return excess, 1 - lower / upper if upper else 0


def _value(norm: Norm, W: Array) -> mpmath.mpf:
    """A norm in 80 digits."""
    x = [abs(a) for a in W.ravel()]
    if not isinstance(norm, Entrywise) and norm.p != 2:
        x = _singular_values(W)
    if math.isinf(norm.p):
        return max(x)
    largest = max(x)
    if largest == 0 or norm.p == 1:
        return mp.fsum(x)
    p = mp.mpf(norm.p)
    return largest * mp.power(mp.fsum(mp.power(a / largest, p) for a in x if a), 1 / p)


def _singular_values(W: Array) -> list[mpmath.mpf]:
    tall = W if W.shape[0] >= W.shape[1] else W.T
    top = max(abs(a) for a in tall.ravel())
    if top == 0:
        return [mp.mpf(0)]
    tall = tall / top
    return [
        top * mp.sqrt(max(x, 0)) for x in mp.eigsy(mp.matrix((tall.T @ tall).tolist()), eigvals_only=True)
    ]


def hopeless(case: Case, multipliers: Array) -> bool:
    """Whether no W satisfies the rows, or only one whose margins are lost in the rounding of its entries.

    The second where multipliers λ ≥ 0 show that the best margin, of rows of length one, is below HELD:
    |Σ λ_j A_j| ≤ HELD · Σ_{b_j > 0} λ_j |A_j|.
    """
    rows = Rows.of(case)
    lam = np.where(rows.tied, multipliers, np.maximum(multipliers, 0.0))
    M = (Whole.of(lam) @ rows.A).numbers()
    lengths = [mp.sqrt(mp.fsum(x * x for x in row)) for row in rows.A.numbers()]
    total = mp.fsum(mp.mpf(x) * l for x, l, b in zip(lam, lengths, rows.b, strict=True) if b > 0)
    if total > 0 and mp.sqrt(mp.fsum(x * x for x in M)) <= HELD * total:
        return True
    return not separable(case)


def separable(case: Case) -> bool:
    """Whether some W satisfies the rows: a simplex method in whole numbers looks for the contradiction.

        λ ≥ 0 (free on ties),   Σ λ_j A_j = 0,   Σ_{b_j > 0} λ_j = 1

    By Farkas' lemma there is either such a λ or a W. Bland's rule, so that it ends.
    """
    rows = Rows.of(case)
    A = np.concatenate([rows.A.n, -rows.A.n[rows.tied]])
    asks = np.concatenate([rows.b > 0, np.zeros(int(rows.tied.sum()), bool)])
    A = np.array([_shortened(a) for a in A], object).reshape(A.shape)
    D, m = A.shape[1], len(A)
    table = np.zeros((D + 2, m + 1), object)
    table[:D, :m], table[D, :m], table[D, m] = A.T, asks.astype(int), 1
    table[D + 1] = -table[: D + 1].sum(0)  # what the artificial variables cost
    basis, before = list(range(m, m + D + 1)), 1
    while True:
        entering = next((j for j in range(m) if table[D + 1, j] < 0), None)
        if entering is None:
            return bool(table[D + 1, m] != 0)
        column, right = table[: D + 1, entering], table[: D + 1, m]
        leaving = None
        for i in np.flatnonzero(column > 0):
            if leaving is None:
                leaving = i
                continue
            ahead = right[i] * column[leaving] - right[leaving] * column[i]
            if ahead < 0 or (ahead == 0 and basis[i] < basis[leaving]):
                leaving = i
        assert leaving is not None, "phase one is bounded"
        pivot = table[leaving, entering]
        kept = table[leaving].copy()
        table = (table * pivot - np.multiply.outer(table[:, entering], kept)) // before
        table[leaving] = kept
        basis[leaving], before = entering, pivot


def _shortened(row: Array) -> list[int]:
    common = math.gcd(*row) or 1
    return [a // common for a in row]
