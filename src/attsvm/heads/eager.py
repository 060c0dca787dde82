"""Models with an attention of their own (Falcon, GPT-J, RoFormer): read from what enters its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from attsvm.heads.blocks import SUPPORTED, measured, visible
from attsvm.heads.model import UnsupportedModel
from attsvm.heads.projections import hidden_states
from attsvm.numbers import Bool


def seen_in_eager(model: Any, ids: Any, mask: Any, drains: Bool) -> list[dict[str, Any]]:
    """What every attention module received and selected in a pass of these texts, an entry per layer.

    The whole maps of the texts are held at once, as the model itself holds them.
    """
    import torch

    from attsvm.torch.watched import Watched

    try:
        watched = Watched(model)
    except ValueError:
        told = f"{type(model).__name__} does not let its attention be read. It has one of its own, in modules"
        raise UnsupportedModel(f"{told} that do not say where queries and keys are. {SUPPORTED}") from None
    entries = []
    with torch.no_grad(), _eager(model), hidden_states(model) as states:
        maps = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
        try:
            for (module, look), attention in zip(watched.modules(), maps, strict=True):
                entries.append(_entry(look.logits, attention, mask.numpy().astype(bool), drains))
                entries[-1] |= {"module": module, "hidden": states.get(id(module))}
        except NotImplementedError as error:
            raise UnsupportedModel(str(error)) from error
        finally:
            watched.close()
    return entries


def _entry(logits: Any, attention: Any, mask: Bool, drains: Bool) -> dict[str, Any]:
    queries, keys = (x.float().cpu().numpy() for x in (logits.query, logits.key))
    across = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1).swapaxes(-1, -2).astype(float)
    products = logits.scale * np.matmul(queries.astype(float), across)
    seen = visible(mask, slice(0, mask.shape[1]), logits.allowed)
    selections = measured(attention.float().cpu().numpy(), products, seen, drains)
    return {"queries": queries, "keys": keys, "scaling": logits.scale, "selections": selections}


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Inside, the model's own attention is the eager one, which gives maps."""
    config = model.config
    before, config._attn_implementation_internal = config._attn_implementation_internal, "eager"
    try:
        yield
    finally:
        config._attn_implementation_internal = before
