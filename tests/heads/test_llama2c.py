"""Weights of llama2.c: the model is the one that llama2.c runs, and its tokenizer is SentencePiece's."""

import os
import struct

import numpy as np
import pytest

from attsvm.heads import extract, llama2c, load

SINGLE = 1e-4
"""Logits of size ten in single precision, by two orders of sums."""
PIECES = [
    "<unk>",
    "\n<s>\n",
    "\n</s>\n",
    *(f"<0x{i:02X}>" for i in range(256)),
    *" abcd",
    " a",
    "ab",
    "bc",
    " ab",
    "abc",
]
SCORES = {" a": -3.0, "ab": -1.0, "bc": -2.0, " ab": -0.5, "abc": -4.0}
HEADER = {"width": 16, "hidden": 24, "layers": 2, "heads": 4, "groups": 2}
HEADER |= {"vocabulary": len(PIECES), "positions": 12}


def written(folder, shared=True, tokenizer=True, **changed):
    """A file of random weights, and its arrays by name."""
    sizes = llama2c.Sizes(**(HEADER | changed), shared=shared)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype("<f4") / 4 for name, shape in llama2c._arrays(sizes)}
    sign = 1 if shared else -1
    header = struct.pack("<7i", *(HEADER | changed | {"vocabulary": sign * sizes.vocabulary}).values())
    pieces = b"".join(
        struct.pack("<fi", SCORES.get(piece, -1e6), len(piece.encode())) + piece.encode() for piece in PIECES
    )
    tokens = struct.pack("<i", 8) + pieces if tokenizer else b""
    path = folder / "tiny.data"
    path.write_bytes(header + b"".join(a.tobytes() for a in arrays.values()) + tokens)
    return path, arrays


def by_hand(a, ids, heads=4, groups=2):
    """Logits (T, V) as run.c computes them: rotary pairs side by side."""

    def norm(x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain

    def rotated(x):  # (T, heads, width)
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    x, T = a["embed_tokens"][ids].astype(float), len(ids)
    for layer in range(len(a["self_attn.q_proj"])):
        of = {
            name: array[layer].astype(float)
            for name, array in a.items()
            if array.ndim > 1 and len(array) == 2
        }
        state = norm(x, of["input_layernorm"])
        q, k, v = (
            (state @ of[f"self_attn.{name}_proj"].T).reshape(T, count, -1)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = rotated(q), np.repeat(rotated(k), heads // groups, 1)
        logits = np.einsum("ihw,jhw->hij", q, k) / np.sqrt(q.shape[-1])
        logits = np.where(np.tri(T, dtype=bool), logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhw->ihw", weights, np.repeat(v, heads // groups, 1)).reshape(T, -1)
        x = x + mixed @ of["self_attn.o_proj"].T
        state = norm(x, of["post_attention_layernorm"])
        gate = state @ of["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (state @ of["mlp.up_proj"].T)) @ of["mlp.down_proj"].T
    return norm(x, a["norm"]) @ a.get("lm_head", a["embed_tokens"]).T


def logits_of(reader, ids):
    import torch

    with torch.inference_mode():
        return reader.model(input_ids=torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("shared", [True, False])
def test_the_model_has_the_logits_of_llama2c_and_of_no_other_order_of_rotary_pairs(
    tmp_path, monkeypatch, shared
):
    path, arrays = written(tmp_path, shared=shared)
    ids = [1, 260, 5, 265, 7, 266]
    expected = by_hand(arrays, ids)
    assert np.abs(logits_of(load(path), ids) - expected).max() <= SINGLE
    monkeypatch.setattr(llama2c, "_halved", lambda weight, *_: weight)
    assert np.abs(logits_of(load(path), ids) - expected).max() > 100 * SINGLE


def test_pieces_are_joined_by_score_and_strangers_are_bytes(tmp_path):
    tokenizer = load(written(tmp_path)[0]).tokenizer

    def pieces(text):
        return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    assert pieces("ab bc") == ["<s>", "▁ab", "▁", "bc"]
    assert pieces("abc") == ["<s>", "▁ab", "c"]  # " ab" has a better score than "abc"
    assert pieces("é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer("ab é bc")["input_ids"], skip_special_tokens=True) == "ab é bc"


def test_its_heads_are_read_as_those_of_any_decoder(tmp_path):
    heads = list(extract(load(written(tmp_path)[0]), ["ab bc ab", "bc a"]))
    assert len(heads) == 8 and max(head.error for head in heads) <= 1e-5


def test_a_tokenizer_is_passed_or_lies_beside_the_weights(tmp_path):
    whole = load(written(tmp_path)[0])
    path, _ = written(tmp_path, tokenizer=False)
    with pytest.raises(ValueError, match=r"no tokenizer\.bin beside it"):
        load(path)
    assert load(path, whole.tokenizer).tokenizer is whole.tokenizer
    end = llama2c.Sizes.of(path).end
    (tmp_path / "tokenizer.bin").write_bytes(written(tmp_path)[0].read_bytes()[end:])
    written(tmp_path, tokenizer=False)
    assert load(path).tokenizer("ab")["input_ids"] == whole.tokenizer("ab")["input_ids"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (b"\x80\x02}q\x00" * 20, "no sizes of a model"),
        (struct.pack("<7i", 0, 1, 1, 1, 1, 1, 1), "no sizes of a model"),
        (struct.pack("<7i", 8, 1, 1, 3, 1, 1, 1), "no sizes of a model"),
        (struct.pack("<7i", 8, 8, 2, 2, 2, 9, 4), "its header asks for"),
    ],
)
def test_another_file_is_refused_before_it_is_read(tmp_path, content, message):
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_tokenizer_of_fewer_pieces_is_refused(tmp_path):
    path, _ = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="pieces, its model"):
        load(path)


@pytest.mark.skipif("ATTSVM_STORIES15M" not in os.environ, reason="set ATTSVM_STORIES15M to llama2.data")
def test_stories15m_tells_a_story():
    import torch

    reader = load(os.environ["ATTSVM_STORIES15M"])
    tokens = reader.tokenizer("Once upon a time", return_tensors="pt")
    with torch.inference_mode():
        story = reader.model.generate(**tokens, max_new_tokens=20, do_sample=False)
    assert "there was a little girl named Lily" in reader.tokenizer.decode(story[0])
