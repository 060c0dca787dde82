"""Road one on a fitted probe: the certified max-margin prompt of the tokens it selects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.probe.standard import Standard
from attsvm.probe.store import TokenStore
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Certificate, NotSeparable
from attsvm.tokens import Float, Tokens
from attsvm.verdict import cosine


@dataclass(frozen=True)
class Separation:
    """The best margin with which one prompt picks the tokens that the probe picks.

    margin: 1/‖p^mm‖ on standardised tokens; support (s, 2): (example, token) of the active constraints;
    alignment: cosine between the probe's prompt and p^mm. All None, with a reason, when there is none.
    """

    margin: float | None = None
    support: NDArray[np.intp] | None = None
    certificate: Certificate | None = None
    alignment: float | None = None
    reason: str = "not asked for: fit with certify=True"


def separate_selected(
    store: TokenStore, standard: Standard, prompts: Float, attention: Float, numbers: NDArray[np.intp]
) -> Separation:
    """Solve the program on the most attended token of every sequence, on standardised tokens.

        min ‖p‖  subject to  (x_s − x_t) · p ≥ 1,  s selected, t not

    The probe's own prompt is feasible up to scale, so only ties (equal tokens) have no solution.
    prompts (d, h), attention (N, h); numbers (n,): the name of each sequence in the support.
    """
    if prompts.shape[1] > 1:
        return Separation(reason="several heads select several tokens; the program is for n_heads=1")
    if (store.lengths == 1).all():
        return Separation(reason="every sequence has one token: there is nothing to separate")
    selected = store.padded(attention)[..., 0].argmax(-1)
    flat = np.concatenate([np.asarray(tokens, np.float64) for tokens in store])
    tokens = Tokens(store.padded((flat - standard.mean) / standard.scale), mask=store.mask)
    try:
        solution = max_margin(tokens, selected)
    except NotSeparable as proof:
        return Separation(reason=f"not separable: {proof}")
    example, token = np.nonzero(solution.support)
    support = np.column_stack([numbers[example], token])
    alignment = float(cosine(prompts[None], solution.W)[0])
    return Separation(float(solution.margin), support, solution.certificate, alignment, reason="")
