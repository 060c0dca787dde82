"""Road one on a fitted probe: the certified max-margin prompt of the tokens it selects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import KEPT
from attsvm.probe.data.standard import Standard
from attsvm.probe.data.store import TokenStore
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Certificate, NotSeparable, Solution, pack
from attsvm.tokens import Tokens
from attsvm.verdict import cosine

PART = 1 << 21
"""Numbers that are read at once."""

ADDED, ROUNDS = 3, 60
"""Rows per sequence that join the working set in one round, and how often at most."""

MET = 1 - 1e-11
"""Margins above this, where one is required, are met."""


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


class Standardised:
    """The tokens of a store as an array (n, T, d) that is read in parts: standardised, zero for padding.

    The program keeps the few rows it works on in memory, and reads the rest again when it asks for them.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, store: TokenStore, standard: Standard) -> None:
        self.store, self.standard = store, standard
        self.shape = (*store.mask.shape, store.width)

    def __getitem__(self, span: slice) -> Float:
        mask = self.store.mask[span]
        out = np.zeros((len(mask), *self.shape[1:]))
        out[mask] = self._centred(span) / self.standard.scale
        return out

    def margins(self, W: Float, selected: NDArray[np.intp]) -> Float:
        """(x_s − x_t) · W of every token (n, T), ∞ for the selected and where there is none: one read."""
        inner = W[:, 0] / self.standard.scale
        products = np.concatenate([self._centred(span) @ inner for span in self.store.spans(PART)])
        padded = self.store.padded(products)
        at = np.arange(len(selected)), selected
        margins = np.where(self.store.mask, padded[at][:, None] - padded, np.inf)
        margins[at] = np.inf
        return margins

    def few(self, kept: Bool, selected: NDArray[np.intp]) -> tuple[NDArray[np.intp], Tokens]:
        """The selected token of every sequence first, then the kept ones: places (n, t), and these Tokens."""
        wanted = kept.copy()
        wanted[np.arange(len(selected)), selected] = False
        order = np.argsort(~wanted, axis=1, kind="stable")[:, : int(wanted.sum(1).max(initial=1))]
        mask = np.take_along_axis(wanted, order, axis=1)
        order = np.concatenate([selected[:, None], order], axis=1)
        mask = np.concatenate([np.ones((len(selected), 1), bool), mask], axis=1)
        keys = np.zeros((*order.shape, self.shape[2]))
        for span in self.store.spans(PART):
            keys[span] = np.take_along_axis(self[span], order[span, :, None], axis=1)
        return order, Tokens(keys, mask=mask)

    def _centred(self, span: slice) -> Float:
        """Tokens of neighbouring sequences below one another, less their mean (m, d)."""
        return np.asarray(self.store.rows.numpy(self.store.read(span)), np.float64) - self.standard.mean


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
    keys = Standardised(store, standard)
    few = math.prod(keys.shape) <= KEPT
    array: Any = keys[:] if few else keys
    tokens = Tokens(array, mask=store.mask)
    try:
        solution = max_margin(tokens, selected) if few else _on_working_rows(tokens, keys, selected, prompts)
    except NotSeparable as proof:
        return Separation(reason=f"not separable: {proof}")
    example, token = np.nonzero(solution.support)
    support = np.column_stack([numbers[example], token])
    alignment = float(cosine(prompts[None], solution.W)[0])
    return Separation(float(solution.margin), support, solution.certificate, alignment, reason="")


def _on_working_rows(
    tokens: Tokens, keys: Standardised, selected: NDArray[np.intp], prompts: Float
) -> Solution:
    """The program over all rows, from a few of each sequence: those the probe's own prompt separates least.

    Each round solves over the kept rows, reads all tokens once, and keeps the violated rows too. The solution
    is the whole program's, and its certificate is taken over all rows.
    """
    program = Constraints.of(tokens, selected)
    kept = _lowest(keys.margins(prompts, selected), ADDED)
    for _ in range(ROUNDS):
        order, small = keys.few(kept, selected)
        try:
            found = max_margin(small, np.zeros(len(small.keys), int))
        except NotSeparable:
            return max_margin(tokens, selected)  # says which tokens, by their places
        margin = keys.margins(found.W, selected)
        if margin.min() >= MET:
            multipliers = np.zeros(kept.shape)
            np.put_along_axis(multipliers, order, np.where(small.mask, found.token_multipliers, 0.0), axis=1)
            W = found.W / min(1.0, float(margin.min()))
            return Solution(
                tokens,
                program.selected,
                found.norm,
                W,
                pack(program, multipliers),
                program.asked,
                np.asarray(True),
            )
        kept |= _lowest(np.where(margin < MET, margin, np.inf), ADDED)
    return max_margin(tokens, selected)


def _lowest(margin: Float, count: int) -> Bool:
    """The `count` finite numbers of each row that are smallest."""
    order = np.argsort(margin, axis=1)[:, :count]
    out = np.zeros(margin.shape, bool)
    np.put_along_axis(out, order, True, axis=1)
    return out & np.isfinite(margin)
