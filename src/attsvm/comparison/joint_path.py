"""The public regularisation_path(): where it trains the head too, one start is the pair of joint_margin()."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from attsvm.data.path import Path
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.numbers import Float
from attsvm.program.selections import joint_margin
from attsvm.training import regularise

P = ParamSpec("P")

PROGRAMS = 500
"""Most programs that the search for a pair solves: enough for the best pair of few examples."""


def _with_pair(path: Callable[P, Path]) -> Callable[P, Path]:
    """The same function with one more start, the pair of joint_margin, where the head is trained."""

    @wraps(path)
    def seeded(*arguments: P.args, **options: P.kwargs) -> Path:
        tokens = arguments[0] if arguments else options.get("tokens")
        if options.get("head_radii") is not None and options.get("pair") is None:
            options["pair"] = _pair(as_tokens(tokens))
        return path(*arguments, **options)

    return seeded


regularisation_path = _with_pair(regularise.regularisation_path)


def _pair(tokens: Tokens) -> tuple[Float, Float] | None:
    """The head and the weight of joint_margin for every run; NaN where no selection has a positive margin."""
    runs = [tokens] if tokens.runs is None else [tokens.run(k) for k in range(tokens.runs)]
    v, W = (np.stack(arrays) for arrays in zip(*map(_pair_of_run, runs), strict=True))
    if np.isnan(v).any(-1).all():
        return None
    return (v[0], W[0]) if tokens.runs is None else (v, W)


def _pair_of_run(tokens: Tokens) -> tuple[Any, Any]:
    no_pair = np.full(tokens.values.shape[-1], np.nan), np.full((tokens.d, tokens.e), np.nan)
    try:
        best = joint_margin(tokens, most=PROGRAMS)
    except ValueError:  # no selection has a positive margin
        return no_pair
    return no_pair if best.prompt is None else (best.head.W[:, 0], best.prompt.W)
