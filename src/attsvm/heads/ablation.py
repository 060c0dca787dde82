"""Ablation: what a model says when one of its heads is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from attsvm.heads.blocks import attended, attending
from attsvm.heads.head import Place
from attsvm.heads.model import Reader
from attsvm.heads.surgery import difference, output
from attsvm.heads.texts import Texts


def ablation(
    reader: Reader, texts: Texts, places: Iterable[Place], done: Callable[[], None] = lambda: None
) -> dict[Place, float]:
    """How far the model's output moves when a head's own is set to zero, one head at a time.

    For a language model the mean KL of its predictions in nats, for an encoder 1 − mean cosine of its
    mean-pooled states. Costs one forward pass of the texts per head; `done` is called after each.
    """
    with silenced(reader, []):  # by the same attention function: other ones round otherwise
        said = output(reader, texts)
    moved = dict[Place, float]()
    for place in places:
        with silenced(reader, [place]):
            moved[place] = difference(reader, said, output(reader, texts))
        done()
    return moved


@contextmanager
def silenced(reader: Reader, places: Iterable[Place]) -> Iterator[None]:
    """Inside, these heads of the model give zero."""
    calls, silent = [0], set(places)

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        layer = calls[0] % reader.model.config.num_hidden_layers
        calls[0] += 1
        out = attended(module, query, key, value, mask, **options)
        mine = [head for at, head in silent if at == layer]
        out[:, :, mine] = 0
        return out, None

    with attending(reader.model, attend):
        yield
