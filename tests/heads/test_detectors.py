"""Detectors find the heads that were built to be found, and only those."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm.heads import detectors
from attsvm.heads.attention import measured
from attsvm.heads.detectors import HALF, REPEATS, on_repeats, repeats, sink
from attsvm.heads.record import record
from attsvm.heads.surgery import ablation, output, silenced
from tests.heads.conftest import TEXTS


def test_a_head_that_looks_after_the_copy_is_an_induction_head_and_one_at_the_copy_is_not(llama, monkeypatch):
    texts, first = repeats(llama, 0)
    layer = next(iter(record(llama, texts, [0])))
    T, second = texts.ids.shape[1], first + HALF + np.arange(HALF)
    keys = np.broadcast_to(np.eye(T), (REPEATS, 1, T, T))
    queries = np.zeros((REPEATS, 3, T, T))
    for head, shift in ((0, 1), (1, 0)):
        queries[:, head, second] = 1e3 * np.eye(T)[second - HALF + shift]
    built = replace(layer, queries=queries, keys=keys, scaling=1.0)
    monkeypatch.setattr(detectors, "record", lambda *_: [built])
    found = on_repeats(llama, [0])
    assert found[0, 0] == {"induction": 1, "duplicate token": 0}
    assert found[0, 1] == {"induction": 0, "duplicate token": 1}
    assert found[0, 2]["induction"] == pytest.approx(np.mean(1 / (second + 1)))  # all that it sees alike


def test_the_second_half_repeats_the_first_and_no_special_token_is_among_them(llama):
    texts, first = repeats(llama, 3)
    inner = texts.ids[:, first:]
    assert first == 1 and np.array_equal(inner[:, :HALF], inner[:, HALF:])
    assert not np.isin(inner, llama.tokenizer.all_special_ids).any()
    assert not np.array_equal(inner, repeats(llama, 4)[0].ids[:, first:])


def test_a_sink_is_the_first_token_or_a_special_one(bert):
    texts = bert.tokenise(TEXTS)
    layer = next(iter(record(bert, texts, [0])))
    at, (n, T) = layer.at(0), texts.ids.shape
    for token, score in ((0, 1.0), (2, 0.0)):
        attention = np.broadcast_to(np.eye(T)[token], (n, 1, T, T))
        selections = measured(attention, 1e3 * attention, np.ones((n, T, T), bool), texts.sinks)
        assert sink(replace(layer, selections=selections), 0, texts, at) == score


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_ablation_of_a_head_moves_the_output_and_that_of_a_dead_head_does_not(name, request):
    import torch

    reader = request.getfixturevalue(name)
    texts = reader.tokenise(TEXTS)
    attention = (
        reader.model.model.layers[1].self_attn if name == "llama" else reader.model.encoder.layer[1].attention
    )
    out = attention.o_proj if name == "llama" else attention.output.dense
    kept = out.weight.detach().clone()
    try:
        with torch.no_grad():
            out.weight[:, 8:16] = 0  # what head 1 of the second layer says is not heard
        moved = ablation(reader, texts, [(1, 0), (1, 1)])
    finally:
        out.weight.data = kept
    rounding = 10 * torch.finfo(torch.float32).eps  # a cosine in single precision: PyTorch 2.15 leaves one
    assert moved[1, 0] > 1e3 * rounding and abs(moved[1, 1]) < rounding


def test_without_silenced_heads_the_model_is_itself(llama):
    texts = llama.tokenise(TEXTS)
    said = output(llama, texts)
    with silenced(llama, []):
        assert np.allclose(output(llama, texts), said, atol=1e-4)  # eager attention
    with silenced(llama, [(0, 0), (1, 3)]):
        assert not np.allclose(output(llama, texts), said)
    assert np.array_equal(output(llama, texts), said)
