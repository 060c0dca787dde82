"""The best margin a head could have on its own selections, certified, beside the margin it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm, frobenius
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable, Solution
from attsvm.tokens import Bool, Float, Tokens, as_selected
from attsvm.verdict import cosine

MET = 1 - 1e-9
"""Margins above this, where one is required, are met: a tenth of what a certificate allows."""

ADDED = 2
"""Rows per query that join the working set in one round."""

ROUNDS = 60
"""Rounds of the working set; the largest seen on real heads is 12."""


@dataclass(frozen=True)
class Margins:
    """A weight beside the best one of a norm, on the same selections.

    own, best: least margin of W / N(W) and of the solution; ratio = own / best, at most 1.
    cosine: between W and the solution; rank: of the solution.
    conflict: why no W makes these selections, in words; then best, ratio, cosine are those of the
        soft-margin program if a slack was given, else NaN.
    """

    own: float
    best: float
    ratio: float
    cosine: float
    rank: int
    certified: bool
    conflict: str = ""


def margins(
    tokens: Tokens, selected: NDArray[Any], W: Float, norm: Norm = frobenius, slack: float | None = None
) -> Margins:
    """The margin of W on the selected tokens beside the best possible one, in the given norm.

    tokens: keys (n, T, d), queries (n, e); selected: one token index per query (n,).
    slack: the price C of the soft-margin program, which is solved where no W makes all selections.
    """
    small = reduce(tokens, selected)
    inner = small.left.T @ W @ small.right
    own = float(_least(small.tokens, selected, inner) / norm.value(W))
    try:
        solution, conflict = best(small.tokens, selected, norm), ""
    except NotSeparable as error:
        conflict = str(error)
        if slack is None:
            return Margins(own, np.nan, np.nan, np.nan, 0, False, conflict)
        solution = max_margin(small.tokens, selected, norm, slack=slack)
    # W may be longer than its part in the spans; the solution is not.
    angle = float(cosine(inner[None], solution.W)[0]) * np.linalg.norm(inner) / np.linalg.norm(W)
    margin = float(solution.margin)
    return Margins(own, margin, own / margin, float(angle), solution.rank, solution.certified, conflict)


@dataclass(frozen=True, eq=False)
class Reduced:
    """Tokens in the span of key differences and of queries: W = left W' rightᵀ.

    Exact for every unitarily invariant norm: projecting W on these spans changes no margin, and it
    makes no singular value larger.
    """

    tokens: Tokens
    left: Float
    right: Float


def reduce(tokens: Tokens, selected: NDArray[Any]) -> Reduced:
    """The same problem in orthonormal bases of its spans; keys are taken relative to the selected one."""
    chosen = as_selected(tokens, selected)
    difference = _differences(tokens, chosen)
    left, right = _basis(difference[tokens.mask & ~chosen]), _basis(tokens.queries)
    keys = difference if len(left) == left.shape[1] else difference @ left
    return Reduced(Tokens(keys, tokens.queries @ right, mask=tokens.mask), left, right)


def best(tokens: Tokens, selected: NDArray[Any], norm: Norm) -> Solution:
    """`max_margin`, by a working set where the norm's Newton matrices grow with the width of the tokens.

    Each round solves over few rows, in the span of these rows alone, keeps the rows with a multiplier
    and adds the violated ones. The optimum over kept rows grows from round to round, so none repeats.
    The answer is the whole program's: its certificate is computed over all rows.
    """
    whole = max_margin(tokens, selected, frobenius)
    if norm.p == 2:
        return whole
    chosen, rows = as_selected(tokens, selected), whole.constraints.active
    kept = _lowest(_margins(tokens, chosen, whole.W), rows, 1)
    for _ in range(ROUNDS):
        W, multipliers = _over(tokens, chosen, kept, norm)
        margin = np.where(rows, _margins(tokens, chosen, W), np.inf)
        if margin.min() >= MET:
            W = W / min(1.0, float(margin.min()))
            found = replace(whole, norm=norm, W=W, multipliers=multipliers[rows])
            if found.certified:
                return found
            # Nearly parallel rows cost the interior point digits; all rows at once may do better.
            return min(found, max_margin(tokens, selected, norm), key=lambda s: s.certificate.worst)
        kept = (multipliers > 1e-9 * multipliers.max()) | _lowest(margin, margin < MET, ADDED)
    return max_margin(tokens, selected, norm)


# ---------------------------------------------------------------------- details


def _over(tokens: Tokens, chosen: Bool, kept: Bool, norm: Norm) -> tuple[Float, Float]:
    """Weight and multipliers (n, T) of the program over the kept rows, solved in their own span."""
    examples = np.flatnonzero(kept.any(-1))[:, None]
    wanted = (kept | chosen)[examples[:, 0]]
    # The kept tokens of each query first, the rest cut off: few of many are kept.
    order = np.argsort(~wanted, axis=-1, kind="stable")[:, : wanted.sum(-1).max()]
    mask = np.take_along_axis(wanted, order, axis=-1)
    part = Tokens(tokens.keys[examples, order], tokens.queries[examples[:, 0]], mask=mask)
    selected = chosen[examples, order]
    small = reduce(part, selected)
    solution = max_margin(small.tokens, selected, norm)
    multipliers = np.zeros(kept.shape)
    multipliers[examples, order] = solution.token_multipliers
    return small.left @ solution.W @ small.right.T, multipliers


def _differences(tokens: Tokens, chosen: Bool) -> Float:
    keys = np.asarray(tokens.keys)  # they may be stored
    return np.asarray(keys - np.take_along_axis(keys, np.argmax(chosen, -1)[:, None, None], axis=1))


def _margins(tokens: Tokens, chosen: Bool, W: Float) -> Float:
    """(x_s − x_t)ᵀ W z for every token (n, T)."""
    return np.asarray(-np.matmul(_differences(tokens, chosen), (tokens.queries @ W.T)[..., None])[..., 0])


def _least(tokens: Tokens, selected: NDArray[Any], W: Float) -> float:
    chosen = as_selected(tokens, selected)
    return float(_margins(tokens, chosen, W)[tokens.mask & ~chosen].min())


def _lowest(margin: Float, among: Bool, count: int) -> Bool:
    """The `count` rows of each query with the smallest margin, among the given ones."""
    order = np.argsort(np.where(among, margin, np.inf), axis=-1)[:, :count]
    out = np.zeros(among.shape, bool)
    np.put_along_axis(out, order, True, axis=-1)
    return out & among


def _basis(vectors: Float) -> Float:
    """Orthonormal columns (d, r) whose span holds all vectors (k, d); the identity where k ≥ d."""
    count, d = vectors.shape
    return np.eye(d) if count >= d else np.asarray(np.linalg.qr(vectors.T)[0])
