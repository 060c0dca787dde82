"""The max-margin program of a fitted probe: the certified max-margin prompt of the tokens it selects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.comparison.verdict import cosine
from attsvm.data.tokens import Tokens
from attsvm.numbers import Array, Float, Index
from attsvm.numbers.stored import COPY_LIMIT, Stored
from attsvm.numbers.threads import in_threads
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import ProbeOutput
from attsvm.probe.fitting.objective import Standard
from attsvm.program.certificate import Certificate
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable

BLOCK = 1 << 17
"""Numbers that are compared at once: they fit in the cache of a core."""


@dataclass(frozen=True)
class Separation:
    """The best margin with which one prompt picks the tokens that the probe picks.

    margin: 1/‖p^mm‖ on standardised tokens; support (s, 2): (example, token) of the active constraints;
    alignment: cosine between the probe's prompt and p^mm. All None, with a reason, where there is no program.
    """

    margin: float | None = None
    support: NDArray[np.intp] | None = None
    certificate: Certificate | None = None
    alignment: float | None = None
    reason: str = ""


class Standardised(Stored):
    """The tokens of a store as the keys (n, T, d) of a program: standardised, zero for padding.

    They stay in the store, unpadded: the program holds only the rows of its pool, and gets the margins of the
    others from the store. row (n, T): the row of each token in the store.
    """

    def __init__(self, store: TokenStore, standard: Standard, exponent: Index | None = None) -> None:
        self.store, self.standard, self.exponent = store, standard, exponent
        self.array, self.name, self.passes, self._stamp = store, "X", 0.0, None
        self.shape = (*store.mask.shape, store.width)
        self.row = store.starts[:, None] + np.cumsum(store.mask, 1) - 1

    def scaled(self, exponent: Index) -> Stored:
        return Standardised(self.store, self.standard, exponent) if exponent.any() else self

    def raw(self, examples: slice | Index) -> Float:
        return self._padded(examples, self._standardised(self.store[examples]))

    def largest(self) -> Float:
        blocks = (self.store[span] for span in self.store.spans(BLOCK))
        return self._padded(slice(None), np.concatenate([abs(self._standardised(x)).max(1) for x in blocks]))

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64. The mean cancels in the difference, which is computed first."""
        store, vector = self.store[examples], W[:, 0] / self.standard.scale
        place = self.row[examples, anchor] - store.starts

        def work(span: slice) -> Float:
            x, lengths = store.numpy(span).astype(np.float64), store.lengths[span]
            differences = np.repeat(x[np.cumsum(lengths) - lengths + place[span]], lengths, axis=0)
            differences -= x
            return (differences @ vector) * np.repeat(queries[span, 0], lengths)

        return self._padded(examples, np.concatenate(in_threads(work, store.spans(BLOCK))))

    def _rows(self, example: Index, token: Index) -> Float:
        tokens = TokenStore(self.store.rows, self.row[example, token], np.ones_like(example))
        return self._units(self._standardised(tokens), example)

    def _standardised(self, store: TokenStore) -> Float:
        x: Float = store.numpy(slice(0, len(store))) - self.standard.mean
        x /= self.standard.scale
        return x

    def _padded(self, examples: slice | Index, of_tokens: Float) -> Float:
        """Numbers of the tokens of some examples (m, …) laid out as (k, T, …)."""
        mask = self.store.mask[examples]
        out = np.zeros((*mask.shape, *of_tokens.shape[1:]))
        out[mask] = of_tokens
        return out


def separate_selected(output: ProbeOutput, standard: Standard, prompts: Float) -> Separation:
    """Solve the program on the most attended token of every sequence, on standardised tokens.

        min ‖p‖  subject to  (x_s − x_t) · p ≥ 1,  s selected, t not

    The probe's prompt is feasible up to scale, so only ties (equal tokens) have no solution.
    prompts (d, h).
    """
    store = output.features
    if prompts.shape[1] > 1:
        return Separation(reason="several heads select several tokens; the program is for one")
    if (store.lengths == 1).all():
        return Separation(reason="every sequence has one token: there is nothing to separate")
    selected = store.padded(output.attention)[..., 0].argmax(-1)
    keys: Array = Standardised(store, standard)
    tokens = Tokens(np.asarray(keys) if keys.size <= COPY_LIMIT else keys, mask=store.mask)
    try:
        solution = max_margin(tokens, selected)
    except NotSeparable as proof:
        return Separation(reason=f"not separable: {proof}")
    support = np.argwhere(solution.support)
    alignment = float(cosine(prompts[None], solution.W)[0])
    return Separation(float(solution.margin), support, solution.certificate, alignment)
