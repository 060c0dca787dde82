"""What an attention head selects: kinds of tokens, and the patterns that heads are known for.

The patterns are induction, duplicate tokens, attention sinks and successors (Monday → Tuesday, two → three).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm._support.architectures import BLOCKS, NORMS, first_attribute
from attsvm.heads.attention import attention_replaced, eager_attention, exchangeable
from attsvm.heads.head import Place
from attsvm.heads.model import Reader
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.texts import Texts

KINDS = ("first or separator", "itself", "previous", "next", "same word", "content")
"""In the order in which they are tried: a token of several kinds counts as the first of them.

same word: another piece of the query's word, or the same piece elsewhere in the text.
content: all other tokens.
"""

REPEATS, HALF = 8, 32
"""Random sequences of HALF tokens, each read twice in a row."""

ORDERS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Monday",
    "January February March April May June July August September October November December January",
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
)
"""Words in their order; the next word is the successor."""

OUTPUTS = ("o_proj", "c_proj", "dense", "out_proj")
"""Names of the map from values to states."""

Scores = dict[str, float]


def kinds(
    texts: Texts, text: NDArray[np.intp], position: NDArray[np.intp], token: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Index into KINDS of the token that each query (text, position) selects; all arrays (k,)."""
    sink = (token == 0) | texts.special[text, token]
    token_word, query_word = texts.word[text, token], texts.word[text, position]
    same_word = (token_word == query_word) & (query_word >= 0)
    same_piece = texts.ids[text, token] == texts.ids[text, position]
    cases = [sink & (token != position), token == position, token == position - 1]
    cases += [token == position + 1, same_word | same_piece]
    return np.asarray(np.select(cases, range(5), default=5))


def shares(kind_of_query: NDArray[np.intp]) -> dict[str, float]:
    """How often each kind occurs, as shares of one."""
    counts = np.bincount(kind_of_query, minlength=len(KINDS)) / max(len(kind_of_query), 1)
    return {name: float(share) for name, share in zip(KINDS, counts, strict=True)}


def on_repeats(reader: Reader, layers: Iterable[int], seed: int = 0) -> dict[Place, Scores]:
    """Attention of every head on random tokens u_1 … u_L u_1 … u_L, mean over the second half.

        induction: from u_j to the token after the earlier u_j
        duplicate token: from u_j to the earlier u_j

    Tokens are random, so that no meaning helps. Chance is about one over the tokens that a query sees.
    Reference: Olsson et al. 2022, "In-context learning and induction heads".
    """
    texts, start = repeats(reader, seed)
    scores = {}
    for layer in record(reader, texts, layers):
        text, j = np.divmod(np.arange(REPEATS * HALF), HALF)
        earlier = start + j
        for head in range(layer.heads):
            to = layer.attention(head, np.array([text, earlier + HALF]))
            induction, duplicate = (float(to[np.arange(len(to)), earlier + k].mean()) for k in (1, 0))
            scores[layer.layer, head] = {"induction": induction, "duplicate token": duplicate}
    return scores


def repeats(reader: Reader, seed: int) -> tuple[Texts, int]:
    """The random texts, framed by the model's special tokens, and the position of the first random token."""
    frame = list(reader.tokenizer(["a"])["input_ids"][0])
    special = np.isin(frame, reader.tokenizer.all_special_ids)
    inner = np.flatnonzero(~special)
    prefix, suffix = (frame[: inner[0]], frame[inner[-1] + 1 :]) if inner.size else (frame, [])
    ordinary = np.setdiff1d(np.arange(reader.model.config.vocab_size), reader.tokenizer.all_special_ids)
    sequences = np.random.default_rng(seed).choice(ordinary, (REPEATS, HALF))
    sides = [np.tile(np.array(side, int), (REPEATS, 1)) for side in (prefix, suffix)]
    ids = np.concatenate([sides[0], sequences, sequences, sides[1]], axis=1)
    mask, lengths = np.ones(ids.shape, bool), np.full(REPEATS, ids.shape[1])
    return Texts(ids, mask, np.full(ids.shape, -1), ~mask, [], lengths), len(prefix)


def sink(layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp]) -> float:
    """Mean attention on the first token and on special tokens, of queries at (2, k) that are neither.

    Reference: Xiao et al. 2023, "Efficient streaming language models with attention sinks".
    """
    ordinary = at[:, ~texts.sinks[at[0], at[1]]]
    return float(layer.selected(head, ordinary).sink.mean()) if ordinary.size else float("nan")


def successor(reader: Reader) -> dict[Place, float]:
    """For every head the share of words whose successor its values predict; empty for other models.

        argmax over the words w of  E_w · norm(W_O W_V x) = successor of the word of x

    x: the state after the first block for this word alone (for heads of the first block: its embedding).
    The argmax is over all ORDERS' words that are one token; chance is one over their number.
    Reference: Gould et al. 2023, "Successor heads: recurring, interpretable attention heads in the wild".
    """
    import torch

    body, model = reader.body, reader.model
    blocks, norm = first_attribute(body, BLOCKS), first_attribute(body, NORMS)
    pairs = _successor_pairs(reader)
    readable = blocks is not None and norm is not None and exchangeable(model)
    if not (reader.generates and readable and pairs):
        return {}
    ids = torch.tensor(sorted({i for pair in pairs for i in pair}), device=model.device)
    index = {int(i): k for k, i in enumerate(ids)}
    tokens, successors = (torch.tensor([index[pair[k]] for pair in pairs]) for k in (0, 1))
    scores: dict[Place, float] = {}
    with torch.inference_mode(), _word_values(reader, blocks) as values:
        body(input_ids=ids[:, None], attention_mask=torch.ones_like(ids)[:, None])
        embeddings = model.lm_head.weight[ids]
        for layer, (module, value) in enumerate(values):
            out = first_attribute(module, OUTPUTS)
            if out is None:
                return {}
            for head in range(value.shape[1]):
                head_value = torch.zeros_like(value)
                head_value[:, head] = value[:, head]
                state = out(head_value.flatten(1)) - (0 if getattr(out, "bias", None) is None else out.bias)
                predicted = (norm(state) @ embeddings.T).argmax(-1).cpu()
                scores[layer, head] = float((predicted[tokens] == successors).double().mean())
    return scores


# ---------------------------------------------------------------------- details


def _successor_pairs(reader: Reader) -> list[tuple[int, int]]:
    """Pairs of a token and its successor, of words that are one token."""
    pairs = list[tuple[int, int]]()
    for order in ORDERS:
        tokens = [_token(reader, spelling) for spelling in order.split()]
        pairs += [(a, b) for a, b in pairwise(tokens) if a is not None and b is not None]
    return pairs


def _token(reader: Reader, spelling: str) -> int | None:
    """The token of a word after a space, or of the word alone; None where the word is several tokens."""
    for text in (f" {spelling}", spelling):
        ids = reader.tokenizer([text], add_special_tokens=False)["input_ids"][0]
        ids = [i for i in ids if i not in reader.tokenizer.all_special_ids]
        if len(ids) == 1:
            return int(ids[0])
    return None


@contextmanager
def _word_values(reader: Reader, blocks: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Inside, every block but the first reads what the first wrote; yields modules, values (n, heads, d)."""
    values: list[tuple[Any, Any]] = []
    first_state: list[Any] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        groups = query.shape[1] // value.shape[1]
        values.append((module, value.repeat_interleave(groups, dim=1)[:, :, 0]))
        return eager_attention(module, query, key, value, mask, **options), None

    def keep(_: Any, __: Any, output: Any) -> None:
        first_state[:] = [output[0] if isinstance(output, tuple) else output]

    def with_first_state(_: Any, args: Any, kwargs: Any) -> Any:
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": first_state[0]}
        return (first_state[0], *args[1:]), kwargs

    with ExitStack() as hooks, attention_replaced(reader.model, attend):
        hooks.enter_context(blocks[0].register_forward_hook(keep))
        for block in blocks[1:]:
            hooks.enter_context(block.register_forward_pre_hook(with_first_state, with_kwargs=True))
        yield values
