"""A head's margin on its own selections, and the certified largest margin that any weight has on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.comparison.verdict import cosine
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.numbers import Float
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable

LIMIT = (
    "The best margin is the limit of training that moves queries and keys alone. Most models also train "
    "values and outputs, which changes the target: a low ratio is no sign of undertraining."
)
"""What the share of the best margin means for a model whose values and outputs were trained."""


@dataclass(frozen=True)
class Margins:
    """The margin of a weight and the largest margin of a norm, on the same selections.

    own: the least margin of W / N(W), 0 for W = 0; best: the margin of the solution; ratio = own / best ≤ 1.
        Where every query sees one token, own and best are infinite and the ratio is NaN.
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
    tokens: Tokens,
    selected: NDArray[Any],
    W: Float,
    norm: Norm = frobenius,
    slack: float | None = None,
) -> Margins:
    """The margin of W on the selected tokens, and the largest possible one, in the given norm.

    tokens: keys (n, T, d), queries (n, e); selected: one token index per query (n,).
    slack: the price C of the soft-margin program, which is solved where no W makes all selections.
    """
    program = Constraints.of(tokens, selected)
    least, size = program.token_margins(W)[program.separating].min(initial=np.inf), norm.value(W)
    margin_of_W = float(least / size) if size > 0 else 0.0
    try:
        solution, conflict = max_margin(tokens, selected, norm), ""
    except NotSeparable as error:
        conflict = str(error)
        if slack is None:
            return Margins(margin_of_W, np.nan, np.nan, np.nan, 0, False, conflict)
        solution = max_margin(tokens, selected, norm, slack=slack)
    best = float(solution.margin)
    return Margins(
        own=margin_of_W,
        best=best,
        ratio=margin_of_W / best,
        cosine=float(cosine(W[None], solution.W)[0]),
        rank=solution.rank,
        certified=solution.certified,
        conflict=conflict,
    )
