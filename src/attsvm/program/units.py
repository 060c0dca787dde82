"""Units: the powers of two between the tokens and the rows of a program.

They are changed in two places: `Constraints.of` scales the rows, with which engines and certificates work;
`Units.restored` gives W and the multipliers in the units of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.data.token_checks import UNSCALED_EXPONENT
from attsvm.numbers import Bool, Float

FAR, LEAST = 10_000, 2.0**-900
"""More than any binary exponent; the least margin that a row requires, where the largest is near one."""

RANGE = 200
"""Binary exponent of C, in the units of the rows, above which no example falls short if none must."""

SMALLEST = 1e-140
"""Multipliers of a proof below this are zero."""


@dataclass(frozen=True, eq=False)
class Units:
    """Margins and prices in the units of the tokens, and the powers of two that scale rows and weights.

    required (…, n): the margins; 0 for an example without a losing token.
    slack (…, n): the price C of falling short; ∞: no example may.
    exponent (…, n): a row of the program is 2^−exponent times the row of the tokens.
    unit (…): the weight of the program is 2^−unit times the weight of the tokens.
    raised (…): in addition C, W and λ are 2^raised times as large; see `proportional`.
    """

    required: Float
    slack: Float
    exponent: NDArray[np.int_]
    unit: NDArray[np.int_]
    raised: NDArray[np.int_]

    def __getitem__(self, run: int | slice | NDArray[np.intp] | None) -> Units:
        """The units of one run, of several runs, or of a batch of one."""
        return Units(*(getattr(self, name)[run] for name in _FIELDS))

    def examples(self, index: NDArray[np.intp]) -> Units:
        """The units of some examples of one run."""
        arrays = {name: getattr(self, name)[index] for name in ("required", "slack", "exponent")}
        return replace(self, **arrays)

    @cached_property
    def soft(self) -> bool:
        """Whether examples may fall short, at a price."""
        return bool(np.isfinite(self.slack).any())

    # ------------------------------------------------------------------ to the rows of the program

    @property
    def powers(self) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """W is 2^−power times that of the tokens (…,), and a multiplier 2^−power times (…, n).

        A hard margin has N*(Σ λ_j A_j) = 1; a soft one W = Σ λ_j A_j, and there λ grows with W.
        """
        weight = self.unit - self.raised
        return weight, (weight[..., None] if self.soft else 0) - self.exponent

    def scaled(self, W: Float, multipliers: Float) -> tuple[Float, Float, NDArray[np.int_]]:
        """The inverse of `restored`: W, and λ = multipliers · 2^size; see `normalised`."""
        weight, power = self.powers
        return np.ldexp(W, -weight[..., None, None]), *normalised(multipliers, -power)

    @cached_property
    def price(self) -> Float:
        """The price per unit of falling short (…, n); ∞: the example must not.

        Beyond 2^RANGE no example falls short if none must.
        """
        if not self.soft:
            return self.slack
        mantissa, power = self.price_parts
        return np.minimum(np.ldexp(mantissa, np.clip(power, -2000, 2000)), 2.0**RANGE)

    @property
    def price_parts(self) -> tuple[Float, NDArray[np.int_]]:
        """The price without a limit, mantissa · 2^power (…, n)."""
        mantissa, power = np.frexp(self.slack)
        return mantissa, power - self.powers[1]

    def largest_required(self, example: NDArray[np.intp], power: NDArray[np.int_]) -> Float:
        """The largest required margin (k,), for rows that are 2^−power times those of their examples."""
        power = power + self.exponent[example] + self.unit
        return np.ldexp(float(self.required.max()), np.clip(-power, -2000, 2000))

    # ------------------------------------------------------------------ back to the tokens

    def restored(
        self, W: Float, multipliers: Float, separable: Bool | bool = True
    ) -> tuple[Float, Float, Bool]:
        """W and λ (…, n, T) in the units of the tokens, and whether float64 had to round them (…,).

        separable (…,): elsewhere λ proves that there is no W, and stays as it is.
        """
        weight, power = self.powers
        rounded = np.zeros(self.unit.shape, bool)
        if weight.any():
            scaled, W = W, in_range("W", W, weight[..., None, None])
            rounded = (np.ldexp(W, -weight[..., None, None]) != scaled).any((-2, -1))
        if power.any():
            proof = ~np.asarray(separable)[..., None, None]
            power, scaled = power[..., None], np.where(proof, 0.0, multipliers)
            restored = in_range("multipliers", scaled, power)
            rounded = rounded | (np.ldexp(restored, -power) != scaled).any((-2, -1))
            multipliers = np.where(proof, multipliers, restored)
        return W, multipliers, rounded

    def restored_norm(self, norm: Any) -> Any:
        """The norm of a weight."""
        with np.errstate(over="ignore", under="ignore"):
            return np.ldexp(norm, self.unit)

    def restored_proof(
        self, multipliers: Float, example: NDArray[np.intp], residual: float
    ) -> tuple[Float, float]:
        """Multipliers (k,) of a contradiction, the largest one, and its residual N*(Σ λ_j A_j) / Σ λ_j b_j.

        example (k,): the examples of the rows.
        """
        power = -self.exponent[example]
        multipliers = np.ldexp(multipliers, power - (np.frexp(multipliers)[1] + power).max(initial=-FAR))
        multipliers = multipliers / np.abs(multipliers).max(initial=SMALLEST)
        return multipliers, float(np.ldexp(residual, -self.unit))

    def in_logits(self, margins: Float) -> Float:
        """Margins (…, n, T) relative to the largest required one, both as logits of the tokens.

        The units of two examples may differ by many powers of two.
        """
        required = self.required.max(-1, initial=0.0)[..., None, None]
        power = np.clip(self.exponent + self.unit[..., None], -4000, 4000)[..., None]
        return np.ldexp(margins, power) / np.where(required > 0, required, 1.0)


_FIELDS = tuple(field.name for field in fields(Units))


def normalised(multipliers: Float, power: Any = 0) -> tuple[Float, NDArray[np.int_]]:
    """λ · 2^power (…, n, T), power (…, n), as x · 2^size with the largest |x| near one: x and size (…,)."""
    power = np.asarray(power)[..., None]
    size = np.where(multipliers != 0, np.frexp(multipliers)[1] + power, -FAR).max((-2, -1))
    size = np.where(size > -FAR, size, 0)
    return np.ldexp(multipliers, power - size[..., None, None]), size


def in_range(name: str, array: Float, exponent: NDArray[np.int_]) -> Float:
    """array · 2^exponent, which must be a number of float64, with all its digits where it is largest."""
    with np.errstate(over="ignore", under="ignore"):
        out = np.ldexp(array, exponent)
    power = np.where(array != 0, np.frexp(array)[1] + exponent, 0)
    top = power.max((-2, -1), initial=-FAR, where=array != 0)
    wrong = (top > 1023) | ((top < -1000) & (top > -FAR))
    if wrong.any():
        size = round(0.30103 * int(np.asarray(top)[wrong].ravel()[0]))
        raise ValueError(
            f"the solution has {name} of size 1e{size}, and float64 holds 1e-300 to 1e308. Rescale the "
            "tokens: keys or queries k times as large make W 1/k times as large."
        )
    return np.asarray(out)


def near_one(required: Float, exponent: NDArray[np.int_]) -> tuple[Float, NDArray[np.int_]]:
    """The required margins of the scaled rows, the largest of each run near one, and the unit of W.

    A positive margin that would vanish next to the largest one stays positive.
    """
    largest = required.max(-1)
    near = (largest <= 2.0**UNSCALED_EXPONENT) & (largest >= 2.0**-UNSCALED_EXPONENT)
    if not exponent.any() and near.all():
        return required, np.zeros(largest.shape, int)
    size = np.where(required > 0, np.frexp(required)[1] - 1 - exponent, -FAR)
    unit = size.max(-1)
    unit = np.where(unit > -FAR, unit, 0)
    shift = -exponent - unit[..., None]
    return np.where(required > 0, np.maximum(np.ldexp(required, shift), LEAST), 0.0), unit


def proportional(units: Units, required: Float, longest: Float) -> Units:
    """The units of a soft margin whose C is so small that W and λ are proportional to it, with C raised.

    ‖W‖ ≤ Σ_i C_i |A_i| for rows no longer than |A_i|: as long as no margin reaches half of what is required,
    every example that requires one falls short. With a small C, ‖W‖² is below the rounding of Σ C_i b_i.
    required, longest (…, n): the margins, and |A_i|, of the scaled rows.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        power = units.exponent - units.unit[..., None]
        length = (np.log2(units.slack) + power + np.log2(longest)).max(-1) + np.log2(longest.shape[-1])
        least = np.log2(required).min(-1, initial=np.inf, where=required > 0)
        room = least - 1 - np.log2(longest.max(-1)) - length
    return replace(units, raised=np.where(np.isfinite(room), np.maximum(room, 0), 0).astype(int))
