"""The program of Adam in mini-batches: a margin in a norm that its own multipliers set.

    W = P(λ)⁻¹ ∘ Σ_i G_i,     G_i = Σ_t λ_it (x_s − x_t) zᵀ,     λ > 0 only on rows of least margin
    P(λ)² = ((n − b) Σ_i G_i² + (b − 1) (Σ_i G_i)²) / (n − 1),   entry by entry

P² is the mean square of the gradients of batches of b examples drawn without replacement, up to a factor:
what Adam divides by, if it remembers an epoch and W moves little meanwhile. For a fixed P this is the
optimality of  min Σ P_jk W_jk²  with margins ≥ 1; P at its own multipliers is a fixed point. With b = n it
is sign descent.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from attsvm._support.validation import describe, is_integer
from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.numbers import Bool, Float
from attsvm.program.certificate import TOLERANCE
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotCertified

MOST_NUMBERS = 1 << 22
"""Entries of the rows written out, at most: 32 MB."""

ROUNDS, SHRINK, LAST = 60, 0.5, 1e-15
"""Points of the path at most, the factor of μ between two, and the last μ relative to the margins."""

STEPS, HALVINGS, FAILURES = 30, 12, 8
"""Newton steps at one μ, halvings of a step, and points that were not reached, at most."""

CENTRED, INSIDE = 0.1, 0.9
"""Error relative to μ at which a point counts as reached, and share of the way to λ = 0 of a step at most."""

SMOOTHEST, TINY = 1e-11, 1e-200
"""Relative smoothing of P at the end of the path, and a number that only prevents 0/0."""

POLISH, GOAL = 20, 1e-15
"""Newton steps on the rows of the path, and the spread of their margins at which they end."""

LEAST_SHARE = 1e-7
"""Multipliers below this share of the largest are taken for zero there."""


@dataclass(frozen=True, eq=False, repr=False)
class AdamMargin:
    """A fixed point: W (d, e) with a least margin of one, and the multipliers λ (n, T) with Σ λ = 1.

    batch: examples per step.
    """

    tokens: Tokens
    selected: Bool
    batch: int
    W: Float
    multipliers: Float

    @cached_property
    def _fixed_point(self) -> _FixedPoint:
        return _FixedPoint(self.tokens, self.selected, self.batch)

    @property
    def scale(self) -> Float:
        """P (d, e), with the largest entry one: the norm is N(W)² = Σ P_jk W_jk²."""
        P = self._fixed_point.scale(self._lam)
        return (P / P.max()).reshape(self.W.shape)

    @property
    def gap(self) -> float:
        """How far from a fixed point, recomputed; zero at one alone.

        The largest of 1 − least margin / Σ λ · margin, and of |P ∘ W − Σ G_i| over the largest of P, where W
        is scaled to fit best. Where P is 0, |W| ≤ √(n / batch), the largest |Σ G_i| / P there is.
        """
        return self._fixed_point.gap(self.W.ravel(), self._lam)

    @property
    def certified(self) -> bool:
        """Whether the gap is at most 1e-8."""
        return bool(self.gap <= TOLERANCE)

    @property
    def _lam(self) -> Float:
        return self.multipliers[self._fixed_point.place]

    def value(self, W: ArrayLike) -> float:
        """N(W) = (Σ P_jk W_jk²)^½ of a weight (d, e)."""
        return float(np.sqrt((self.scale * np.asarray(W, float) ** 2).sum()))

    def share(self, W: ArrayLike) -> float:
        """The least margin of W / N(W) over that of the fixed point: at most one, if P has no zero."""
        weight = np.asarray(W, float)
        if weight.shape != self.W.shape:
            raise ValueError(f"W has shape {weight.shape} but the tokens ask for {self.W.shape}.")
        least = self._fixed_point.least_margin(weight.ravel())
        return least / self.value(weight) * self.value(self.W) if weight.any() else 0.0

    def __repr__(self) -> str:
        proof = "certified" if self.certified else "NOT certified"
        return f"AdamMargin(batches of {self.batch}: {proof}, gap {self.gap:.1e})"


def adam_margin(tokens: Tokens, selected: ArrayLike, *, batch: int = 1) -> AdamMargin:
    """What Adam in batches tends to on W, if it remembers about an epoch and its steps shrink.

        min Σ P_jk W_jk²  subject to  (x_s − x_t)ᵀ W z ≥ 1,  P the root of the mean square of batch gradients

    P depends on the multipliers of the solution: a fixed point, found on a path of smoothed conditions and
    certified by one number, `gap`. It need not be unique. That Adam tends to it is proven for linear models
    and a proxy of b2 → 1 only.

    tokens: keys (n, T, d), queries (n, e), no runs axis; selected: one token per example.
    batch: examples per step, from 1 to n − 1. With all examples it is `max_margin` in the norm `linf`.
    Raises NotSeparable; warns NotCertified where the gap is above 1e-8.
    Reference: Baek, Song and Yun 2026, "Implicit Bias of Per-sample Adam on Separable Data": one row per
    example and batch = 1.
    """
    tokens = as_tokens(tokens)
    if tokens.runs is not None:
        raise ValueError(f"the tokens have {tokens.runs} runs. Pass those of one: tokens.run(0).")
    selection = np.asarray(as_selected(tokens.in_memory(), selected))
    if (selection.sum(-1) != 1).any():
        raise ValueError("selected picks several tokens in an example. Pass one token per example.")
    if not (is_integer(batch) and 1 <= int(batch) < max(tokens.n, 2)):
        raise ValueError(
            f"batch is {describe(batch)}. Pass 1 to n − 1 = {tokens.n - 1}; of all {tokens.n} examples the "
            "limit is that of max_margin(tokens, selected, att.linf)."
        )
    fixed_point = _FixedPoint(tokens.in_memory(), selection, int(batch))
    max_margin(tokens, selection)  # raises NotSeparable with its proof
    with np.errstate(all="ignore"):
        W, lam = fixed_point.solved()
    multipliers = np.zeros(tokens.mask.shape)
    multipliers[fixed_point.place] = lam
    W = W.reshape(tokens.d, tokens.e) / fixed_point.least_margin(W)
    solution = AdamMargin(tokens, selection, int(batch), W, multipliers)
    if not solution.certified:
        warnings.warn(
            f"the fixed point of Adam is not certified: gap {solution.gap:.1e}, and 1e-8 is allowed.",
            NotCertified,
            stacklevel=2,
        )
    return solution


class _FixedPoint:
    """The rows written out, A (m, D) with the largest entry one, and the example of each."""

    def __init__(self, tokens: Tokens, selected: Bool, batch: int) -> None:
        rows = Constraints.of(tokens, selected)
        example, token = np.nonzero(rows.separating)
        if not len(example):
            raise ValueError("no example has a losing token. Pass at least one example of two tokens.")
        if len(example) * tokens.d * tokens.e > MOST_NUMBERS:
            raise ValueError(
                f"{len(example):,} rows of {tokens.d} × {tokens.e} entries are more than {MOST_NUMBERS:,} "
                "numbers. Pass fewer examples or narrower tokens."
            )
        keys = np.asarray(tokens.keys, np.float64)
        delta = keys[example, rows.anchor[example]] - keys[example, token]
        queries = np.asarray(tokens.queries, np.float64)[example]
        A = (delta[:, :, None] * queries[:, None, :]).reshape(len(example), -1)
        self.unit = float(np.abs(A).max()) or 1.0
        self.A, self.place = A / self.unit, (example, token)
        self.examples, self.owner = np.unique(example, return_inverse=True)
        n = max(tokens.n, 2)
        self.single, self.whole = (n - batch) / (n - 1), (batch - 1) / (n - 1)
        self.largest = float(np.sqrt(n / batch))

    def least_margin(self, W: Float) -> float:
        """In the units of the tokens."""
        return float((self.A @ W).min()) * self.unit

    def of_examples(self, lam: Float) -> Float:
        """G_i (k, D)."""
        G = np.zeros((len(self.examples), self.A.shape[1]))
        np.add.at(G, self.owner, lam[:, None] * self.A)
        return G

    def scale(self, lam: Float, smooth: float = 0.0) -> Float:
        """P(λ) (D,); smooth: added in squares."""
        G = self.of_examples(lam)
        return np.asarray(np.sqrt(self.single * (G * G).sum(0) + self.whole * G.sum(0) ** 2 + smooth**2))

    def gap(self, W: Float, lam: Float) -> float:
        """See `AdamMargin.gap`: W of any scale, Σ λ = 1."""
        margins, P, M = self.A @ W, self.scale(lam), lam @ self.A
        mean = float(lam @ margins)
        if not (mean > 0 and np.isfinite(W).all() and (lam >= 0).all()):
            return np.inf
        W = W * float((P * W) @ M) / float((P * W) @ (P * W))
        away = float(np.abs(P * W - M).max()) / float(P.max())
        excess = float(np.abs(W).max()) / self.largest - 1
        return max(1 - float(margins.min()) / mean, away, excess, 0.0)

    # ------------------------------------------------------------------ the path

    def solved(self) -> tuple[Float, Float]:
        """W and λ of the smallest gap on the path λ_j (margin_j − γ) = μ, μ → 0, and near its end."""
        path = _Path(self)
        for _ in range(ROUNDS):
            path.next()
            if path.failures > FAILURES or path.mu < LAST * path.size:
                break
        lam = path.lam / path.lam.sum()
        candidates = [(self.A.T @ lam / self.scale(lam, path.smooth), lam)]
        polished = self.polished(lam)
        candidates.append((self.A.T @ polished / self.scale(polished, TINY), polished))
        return min(candidates, key=lambda pair: self.gap(*pair))

    def polished(self, lam: Float) -> Float:
        """Newton's method for equal margins on the rows of the path that have a multiplier."""
        lam = np.where(lam > LEAST_SHARE * lam.max(), lam, 0.0)
        for _ in range(POLISH):
            rows = np.flatnonzero(lam > 0)
            A, k = self.A[rows], len(rows)
            jacobian, margins = self.slopes(lam, TINY)
            system = np.block(
                [[jacobian[np.ix_(rows, rows)], -np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]]
            )
            right = np.append(margins[rows].mean() - margins[rows], 0.0)
            moved = lam.copy()
            moved[rows] += np.linalg.lstsq(system, right, rcond=1e-13)[0][:k]
            lam = np.maximum(moved, 0.0)
            lam = lam / lam.sum()
            if np.ptp(self.A[rows] @ (lam @ self.A / self.scale(lam, TINY))) < GOAL * len(A):
                break
        return lam

    def slopes(self, lam: Float, smooth: float) -> tuple[Float, Float]:
        """The derivative of the margins of P⁻¹ Σ G_i by λ (m, m), and the margins (m,)."""
        A, G, M, P = self.A, self.of_examples(lam), lam @ self.A, self.scale(lam, smooth)
        of_scale = (self.single * G[self.owner] + self.whole * M) * A / P
        return (A / P) @ A.T - (A * (M / P**2)) @ of_scale.T, A @ (M / P)


class _Path:
    """The point (λ, γ) at μ, in the interior λ > 0; P is smoothed in step with μ."""

    def __init__(self, fixed_point: _FixedPoint) -> None:
        m = len(fixed_point.A)
        self.of, self.lam, self.failures = fixed_point, np.full(m, 1 / m), 0
        self.unit = float(fixed_point.scale(self.lam).max())
        margins = fixed_point.slopes(self.lam, self.unit)[1]
        self.size = float(np.abs(margins).max())
        self.gamma, self.mu = float(margins.min()) - self.size, self.size / m / SHRINK

    @property
    def smooth(self) -> float:
        return self.unit * max(min(1.0, (self.mu / self.size * len(self.lam)) ** 0.75), SMOOTHEST)

    def next(self) -> None:
        """Newton's method at the next μ."""
        self.mu *= SHRINK
        for _ in range(STEPS):
            wrong = self._wrong(self.lam, self.gamma)
            if np.abs(wrong).max() < CENTRED * self.mu:
                break
            self._step(wrong)
        else:
            self.failures += 1

    def _wrong(self, lam: Float, gamma: float) -> Float:
        """λ_j (margin_j − γ) − μ (m,), and Σ λ − 1."""
        margins = self.of.A @ (lam @ self.of.A / self.of.scale(lam, self.smooth))
        return np.append(lam * (margins - gamma) - self.mu, lam.sum() - 1)

    def _step(self, wrong: Float) -> None:
        m = len(self.lam)
        slopes, margins = self.of.slopes(self.lam, self.smooth)
        slopes = self.lam[:, None] * slopes
        slopes[np.arange(m), np.arange(m)] += margins - self.gamma
        system = np.block([[slopes, -self.lam[:, None]], [np.ones((1, m)), np.zeros((1, 1))]])
        step = np.linalg.lstsq(system, -wrong, rcond=1e-16)[0]
        falling, before = step[:m] < 0, float(np.abs(wrong).sum())
        share = min(1.0, float((-INSIDE * self.lam[falling] / step[:m][falling]).min(initial=1.0)))
        for _ in range(HALVINGS):
            lam, gamma = self.lam + share * step[:m], self.gamma + share * float(step[m])
            if np.abs(self._wrong(lam, gamma)).sum() < before:
                break
            share /= 2
        self.lam, self.gamma = lam, gamma
