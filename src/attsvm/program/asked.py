"""What a program asks of each example: its margin, and the price of falling short."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.numbers import Float
from attsvm.tokens import Tokens


def as_required(tokens: Tokens, required: ArrayLike) -> Float:
    """Check the margins asked for: one number, or one per example (n,); each ≥ 0 and finite."""
    asked = _per_example(tokens, "required", required)
    if not np.isfinite(asked).all() or (asked < 0).any():
        raise ValueError("required must be finite and ≥ 0: the margin each example asks for.")
    return asked


def as_slack(tokens: Tokens, slack: ArrayLike | None) -> Float | None:
    """Check the price C of falling short: one number, or one per example (n,); ∞ for all is None."""
    if slack is None:
        return None
    checked = _per_example(tokens, "slack", slack)
    if np.isnan(checked).any() or (checked < 0).any():
        raise ValueError("slack must be ≥ 0: the price C of one unit that an example falls short.")
    if np.isposinf(checked).all():
        return None
    if np.isposinf(checked).any():
        raise ValueError(
            "slack is infinite for some examples only. Pass a finite C for each, or slack=None "
            "for the program without slack."
        )
    return checked


def _per_example(tokens: Tokens, name: str, numbers: ArrayLike) -> Float:
    """One number, or one per example (n,), as one per example (…, n)."""
    given = np.asarray(numbers, dtype=np.float64)
    want = tokens.labels.shape
    if given.shape not in ((), want[-1:], want):
        raise ValueError(
            f"{name} has shape {given.shape} but tokens has n={tokens.n}. "
            f"Pass one number, or one per example ({tokens.n},)."
        )
    return np.broadcast_to(given, want)
