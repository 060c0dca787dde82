"""The regularisation path of head and weight together, with one start more: the pair of joint_margin()."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import attsvm as att
from attsvm.numbers import Float
from attsvm_lab.programs.joint_selection import joint_margin

PROGRAMS = 500
"""Most programs that the search for a pair solves: enough for the best pair of few examples."""


def joint_path(
    tokens: att.Tokens, head: att.Linear, *, radii: ArrayLike, head_radii: ArrayLike, **options: Any
) -> att.Path:
    """argmin L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, begun at the pair of `joint_margin`, too.

    options: those of att.regularisation_path. The pair is the limit of the largest radii, which random
    starts alone may miss.
    """
    pair = best_pair(tokens)
    return att.regularisation_path(tokens, head, radii=radii, head_radii=head_radii, pair=pair, **options)


def best_pair(tokens: att.Tokens) -> tuple[Float, Float] | None:
    """The head and the weight of joint_margin for every run; NaN where no selection has a positive margin."""
    runs = [tokens] if tokens.runs is None else [tokens.run(k) for k in range(tokens.runs)]
    v, W = (np.stack(arrays) for arrays in zip(*map(_pair_of_run, runs), strict=True))
    if np.isnan(v).any(-1).all():
        return None
    return (v[0], W[0]) if tokens.runs is None else (v, W)


def _pair_of_run(tokens: att.Tokens) -> tuple[Any, Any]:
    no_pair = np.full(tokens.values.shape[-1], np.nan), np.full((tokens.d, tokens.e), np.nan)
    try:
        best = joint_margin(tokens, most=PROGRAMS)
    except ValueError:  # no selection has a positive margin
        return no_pair
    return no_pair if best.prompt is None else (best.head.W[:, 0], best.prompt.W)
