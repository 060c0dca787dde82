"""`evict` as a press of kvpress, which shortens the cache of a model of transformers after its prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attsvm._support.validation import is_finite, is_integer
from attsvm.torch.evict import key_leads

Ranking: TypeAlias = Callable[..., Tensor]
"""(query, key, value, *, scale) → scores (batch, groups, s): `key_leads`, `output_costs`, or yours."""


def eviction_press(
    compression_ratio: float, *, ranking: Ranking = key_leads, queries: int = 32, ends: float = 0.1
) -> Any:
    """A press of the package kvpress that keeps the keys which `evict` would keep.

        with eviction_press(0.5, ranking=output_costs)(model):
            model(**prompt, past_key_values=cache)          # the cache then has half of its keys

    compression_ratio: the share of keys that goes. queries: so many last queries of the prompt rank them.
    ends: the share of the budget that stays at each end of the prompt in any case.
    A `ScorerPress`, which kvpress's wrappers take, such as `AdaKVPress(eviction_press(0.5))`. It reads the
    models that kvpress reads.
    """
    if not (is_finite(ends) and 0 <= ends <= 0.5):
        raise ValueError(f"ends is {ends!r}. Pass a share of the budget from 0 to 0.5.")
    if not (is_integer(queries) and queries >= 1):
        raise ValueError(f"queries is {queries!r}. Pass how many last queries rank the keys, 1 or more.")
    try:
        from kvpress import ScorerPress
        from kvpress.utils import compute_n_kept, get_prerope_query_states
    except ImportError as error:
        raise ImportError("eviction_press needs kvpress: pip install kvpress.") from error

    class EvictionPress(ScorerPress):
        """The ranking's scores, with those of both ends above all others."""

        def score(
            self, module: Any, hidden_states: Tensor, keys: Tensor, values: Tensor, _: Any, kwargs: Any
        ) -> Tensor:
            query = get_prerope_query_states(module, hidden_states[:, -queries:])
            query = _rotated(query, *(x[:, None, -queries:] for x in kwargs["position_embeddings"]))
            scores = ranking(query, keys, values, scale=getattr(module, "scaling", None))
            budget = compute_n_kept(keys.shape[2], self.compression_ratio)
            return _with_ends(scores, int(ends * budget))

    return EvictionPress(compression_ratio)


def _rotated(query: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Queries at their rotary positions, as models of transformers rotate them: halves, not pairs."""
    first, second = query.chunk(2, -1)
    return query * cosine + torch.cat([-second, first], -1) * sine


def _with_ends(scores: Tensor, count: int) -> Tensor:
    """Finite scores (batch, groups, s), of which `count` at both ends are the largest."""
    finite = scores.masked_fill(scores.isinf(), 0)
    low, high = float(finite.amin()) - 1, float(finite.amax()) + 1
    scores = scores.nan_to_num(low, high, low)
    scores[..., :count] = scores[..., scores.shape[-1] - count :] = high + 1
    return scores
