"""Successor heads: those whose values turn Monday into Tuesday and two into three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from attsvm.heads.blocks import attended, attending, exchangeable
from attsvm.heads.head import Place
from attsvm.heads.model import Reader
from attsvm.query_key import BLOCKS, NORMS, named

ORDERS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Monday",
    "January February March April May June July August September October November December January",
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
)
"""Words in their order; what follows a word is its successor."""

OUTPUTS = ("o_proj", "c_proj", "dense", "out_proj")
"""Names of the map from values to states."""


def successor(reader: Reader) -> dict[Place, float]:
    """For every head the share of words whose successor its values predict; nothing for other models.

        argmax over the words w of  E_w · norm(W_O W_V x) = successor of the word of x

    x: the state after the first block for this word alone (for heads of the first block: its embedding).
    The argmax is over all ORDERS' words that are one token; chance is one over their number.
    Reference: Gould et al. 2023, "Successor heads: recurring, interpretable attention heads in the wild".
    """
    import torch

    body, model = reader.model.base_model, reader.model
    blocks, norm = named(body, BLOCKS), named(body, NORMS)
    follows = _pairs(reader)
    known = blocks is not None and norm is not None and exchangeable(model)
    if not (reader.generates and known and follows):
        return {}
    ids = torch.tensor(sorted({i for pair in follows for i in pair}), device=model.device)
    place = {int(i): k for k, i in enumerate(ids)}
    asked, wanted = (torch.tensor([place[pair[k]] for pair in follows]) for k in (0, 1))
    found: dict[Place, float] = {}
    with torch.inference_mode(), _values(reader, blocks) as seen:
        body(input_ids=ids[:, None], attention_mask=torch.ones_like(ids)[:, None])
        rows = model.lm_head.weight[ids]
        for layer, (module, value) in enumerate(seen):
            out = named(module, OUTPUTS)
            if out is None:
                return {}
            for head in range(value.shape[1]):
                alone = torch.zeros_like(value)
                alone[:, head] = value[:, head]
                state = out(alone.flatten(1)) - (0 if getattr(out, "bias", None) is None else out.bias)
                said = (norm(state) @ rows.T).argmax(-1).cpu()
                found[layer, head] = float((said[asked] == wanted).double().mean())
    return found


# ---------------------------------------------------------------------- details


def _pairs(reader: Reader) -> list[tuple[int, int]]:
    """Pairs of a token and its successor, of words that are one token."""
    pairs = list[tuple[int, int]]()
    for order in ORDERS:
        words = [_token(reader, word) for word in order.split()]
        pairs += [(a, b) for a, b in pairwise(words) if a is not None and b is not None]
    return pairs


def _token(reader: Reader, word: str) -> int | None:
    """The token of a word after a space, or the word without it; None where it is several."""
    for text in (f" {word}", word):
        ids = reader.tokenizer([text], add_special_tokens=False)["input_ids"][0]
        ids = [i for i in ids if i not in reader.tokenizer.all_special_ids]
        if len(ids) == 1:
            return int(ids[0])
    return None


@contextmanager
def _values(reader: Reader, blocks: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Inside, every block but the first reads what the first wrote; yields modules, values (n, heads, d)."""
    seen: list[tuple[Any, Any]] = []
    first: list[Any] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        groups = query.shape[1] // value.shape[1]
        seen.append((module, value.repeat_interleave(groups, dim=1)[:, :, 0]))
        return attended(module, query, key, value, mask, **options), None

    def keep(_: Any, __: Any, output: Any) -> None:
        first[:] = [output[0] if isinstance(output, tuple) else output]

    def instead(_: Any, given: Any, named: Any) -> Any:
        if "hidden_states" in named:
            return given, {**named, "hidden_states": first[0]}
        return (first[0], *given[1:]), named

    hooks = [blocks[0].register_forward_hook(keep)]
    hooks += [block.register_forward_pre_hook(instead, with_kwargs=True) for block in blocks[1:]]
    try:
        with attending(reader.model, attend):
            yield seen
    finally:
        for hook in hooks:
            hook.remove()
