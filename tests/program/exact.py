"""Answers of the programs checked in exact arithmetic: whole numbers, and 80 digits where roots are taken.

Every float64 is a whole number times a power of two, so keys, queries, W and multipliers become Python
integers, and margins and Σ λ_j A_j are exact. Nothing of `attsvm.program` computes here; it is only asked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import wraps
from typing import Any

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm
from attsvm.program.certificate import TOLERANCE
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotCertified, NotSeparable, Solution
from tests.program.hostile import Case

Array = np.ndarray
DIGITS = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
NOTHING = Decimal("1e-60")
"""What is left beside the diagonal of a matrix of entries up to k, of 80 digits."""

HELD = 1e-11
"""Best margin, of rows and weights of length one, below which no float64 weight holds the rows apart."""

FALSE, WRONG, NOT_FINITE = "FALSE certificate", "WRONG verdict", "NON-FINITE numbers"
CERTIFIED, NOT_CERTIFIED, NOT_SEPARABLE, OUT_OF_RANGE = (
    "certified",
    "not certified",
    "not separable",
    "out of range",
)
WORST = [FALSE, WRONG, NOT_FINITE, NOT_CERTIFIED, CERTIFIED, NOT_SEPARABLE]
"""A batch is as bad as its worst run."""


def in_80_digits(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def inside(*arguments: Any) -> Any:
        with localcontext(DIGITS):
            return function(*arguments)

    return inside


def solved(case: Case) -> Solution:
    tokens = Tokens(case.keys, case.queries, mask=case.mask)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)  # counted by `outcome`
        return max_margin(tokens, case.selected, case.norm, required=case.required, slack=case.slack)


def outcome(case: Case) -> str:
    """What `max_margin` answers, judged in exact arithmetic: one of the words above."""
    try:
        solution = solved(case)
    except NotSeparable as error:
        return _judged_proof(case, error.multipliers)
    except ValueError as error:
        if "float64 holds" not in str(error):
            raise
        return OUT_OF_RANGE if out_of_range(case) else WRONG
    if case.runs is None:
        return _judged(case, solution)
    runs = [(case.run(k), solution.run(k)) for k in range(case.runs)]
    words = [_judged(*x) if x[1].separable else _judged_proof(x[0], x[1].multipliers) for x in runs]
    return min(words, key=WORST.index)


def _judged(case: Case, solution: Solution) -> str:
    if not (np.isfinite(solution.W).all() and np.isfinite(solution.multipliers).all()):
        return NOT_FINITE
    if not solution.certified:
        return NOT_CERTIFIED
    return CERTIFIED if violation(case, solution.W, solution.multipliers) <= TOLERANCE else FALSE


def _judged_proof(case: Case, multipliers: Array) -> str:
    if not np.isfinite(multipliers).all():
        return NOT_FINITE
    return NOT_SEPARABLE if hopeless(case, multipliers) else WRONG


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
        return cls(n.astype(object) << np.where(n != 0, exponent - low, 0).astype(object), low)

    def __matmul__(self, other: Whole) -> Whole:
        return Whole(self.n @ other.n, self.exponent + other.exponent)

    def numbers(self) -> Array:
        """As numbers of 80 digits."""
        unit, out = Decimal(2) ** self.exponent, np.empty(self.n.shape, object)
        out.ravel()[:] = [Decimal(n) * unit if n else Decimal(0) for n in self.n.ravel()]
        return out


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


@in_80_digits
def violation(case: Case, W: Array, multipliers: Array) -> float:
    """The largest of primal violation, dual violation and relative gap, as `Certificate` defines them."""
    if not (np.isfinite(W).all() and np.isfinite(multipliers).all()):
        return math.inf
    rows = Rows.of(case)
    margins = (rows.A @ Whole.of(W.ravel())).numbers()
    b = np.array([Decimal(x) for x in rows.b], object)
    largest = max(b, default=Decimal(0)) or Decimal(1)
    lam = np.where(rows.tied, multipliers, np.maximum(multipliers, 0.0))
    size = float(np.abs(multipliers).max(initial=0.0))
    negative = float(-multipliers[~rows.tied].min(initial=0.0)) / (size or 1.0)
    M = (Whole.of(lam) @ rows.A).numbers().reshape(rows.shape)
    gained = sum(Decimal(x) * y for x, y in zip(lam, b, strict=True))
    unequal = max([abs(m) / largest for m in margins[rows.tied]], default=0)
    if case.slack is not None:
        return float(max(unequal, negative, *_soft(case, rows, W, margins, lam, M, gained)))
    short = [(x - m) / (x or largest) for m, x in zip(margins[~rows.tied], b[~rows.tied], strict=True)]
    primal = max([unequal, *short], default=0)
    steepness, value = _value(case.norm.dual, M), _value(case.norm, Whole.of(W).numbers())
    dual = max(negative, abs(steepness - 1), abs(gained / value - 1) if value else 0) if size else 0
    least = min([m / x for m, x in zip(margins, b, strict=True) if x > 0], default=None)
    if least is None:
        gap = Decimal(0) if value == 0 else Decimal(1)
    elif least <= 0 or steepness == 0:
        gap = Decimal(1)
    else:
        gap = 1 - gained / steepness / (value / min(least, 1))
    return float(max(primal, dual, gap))


def _soft(case, rows, W, margins, lam, M, gained):
    """Excess of Σ_t λ_it over C_i, and the relative gap."""
    price = np.broadcast_to(np.asarray(case.slack, float), len(case.keys))
    asked = np.broadcast_to(np.asarray(case.required, float), len(case.keys))
    paid, excess = Decimal(0), Decimal(0)
    for i, (C, b) in enumerate(zip(price, asked, strict=True)):
        mine = (rows.example == i) & ~rows.tied
        if mine.any():
            total = sum(Decimal(x) for x in lam[mine])
            excess = max(excess, total / Decimal(C) - 1 if C else total)
            paid += Decimal(C) * max(0, Decimal(b) - min(margins[mine]))
    w = Whole.of(W).numbers().ravel()
    upper = sum(x * x for x in w) / 2 + paid
    lower = gained - sum(x * x for x in M.ravel()) / 2
    return excess, 1 - lower / upper if upper else 0


def _value(norm: Norm, W: Array) -> Decimal:
    """A norm in 80 digits; of one with a bracket the upper bound that it states."""
    if hasattr(norm, "bracket"):
        power = 0 if not W.any() else int(max(abs(a) for a in W.ravel()).adjusted())
        unit = Decimal(10) ** power
        return Decimal(norm.bracket(np.array(W / unit, float))[1]) * unit
    x = [abs(a) for a in W.ravel()]
    if not isinstance(norm, Entrywise) and norm.p != 2:
        x = _singular_values(W)
    if math.isinf(norm.p):
        return max(x)
    largest = max(x)
    if largest == 0 or norm.p == 1:
        return sum(x)
    p = Decimal(norm.p)
    return largest * sum((a / largest) ** p for a in x if a) ** (1 / p)


def _singular_values(W: Array) -> list[Decimal]:
    tall = W if W.shape[0] >= W.shape[1] else W.T
    top = max(abs(a) for a in tall.ravel())
    if top == 0:
        return [Decimal(0)]
    tall = tall / top
    return [top * _root(max(x, 0)) for x in _eigenvalues(tall.T @ tall)]


def _eigenvalues(S: Array) -> list[Decimal]:
    """Of a symmetric matrix (k, k), which Jacobi's rotations leave on its diagonal."""
    pairs = [(i, j) for j in range(len(S)) for i in range(j)]
    while any(abs(S[i, j]) > NOTHING for i, j in pairs):
        for i, j in pairs:
            if S[i, j] != 0:
                lean = (S[j, j] - S[i, i]) / (2 * S[i, j])
                tangent = (1 if lean >= 0 else -1) / (abs(lean) + _root(lean * lean + 1))
                cosine = 1 / _root(tangent * tangent + 1)
                for _ in range(2):  # rows, then columns
                    S[i], S[j] = cosine * (S[i] - tangent * S[j]), cosine * (tangent * S[i] + S[j])
                    S = S.T.copy()
    return list(np.diag(S))


def _root(x: Any) -> Decimal:
    return Decimal(x).sqrt()


@in_80_digits
def hopeless(case: Case, multipliers: Array) -> bool:
    """Whether no W satisfies the rows, or only one whose margins are lost in the rounding of its entries.

    The second where multipliers λ ≥ 0 show that the best margin, of rows of length one, is below HELD:
    |Σ λ_j A_j| ≤ HELD · Σ_{b_j > 0} λ_j |A_j|.
    """
    rows = Rows.of(case)
    lam = np.where(rows.tied, multipliers, np.maximum(multipliers, 0.0))
    M = (Whole.of(lam) @ rows.A).numbers()
    if not M.any() and (lam[rows.b > 0] > 0).any():
        return True  # Farkas' lemma; a zero row has no length
    squares = Whole((rows.A.n * rows.A.n).sum(1), 2 * rows.A.exponent)
    lengths = [_root(x) for x in squares.numbers()]
    total = sum(Decimal(x) * l for x, l, b in zip(lam, lengths, rows.b, strict=True) if b > 0)
    if total > 0 and _root(sum(x * x for x in M)) <= Decimal(HELD) * total:
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
