"""Sinks of two kinds: what a head writes is what the model's attention module puts out."""

import numpy as np
import pytest
import torch

from attsvm.heads.record import record
from sink_kinds import LARGE, SINK, SMALL, heads_of, interval, kind, values_of, written
from tests.heads.conftest import TEXTS, tiny

ROUNDED = 1e-5
"""Sums of float32 products in another order."""


@pytest.fixture(scope="module")
def llama():
    return tiny("LlamaForCausalLM", num_key_value_heads=2)


def test_heads_together_write_what_the_module_puts_out(llama):
    texts, puts = llama.tokenise(TEXTS, 64), []
    for layer in llama.model.model.layers:
        layer.self_attn.register_forward_hook(lambda *call: puts.append(call[-1][0].numpy()))
    with torch.no_grad(), values_of(llama.model) as values:
        llama.model(
            input_ids=torch.as_tensor(texts.ids), attention_mask=torch.as_tensor(texts.mask.astype(int))
        )
    for layer, of_layer, put in zip(record(llama, texts), values, puts, strict=False):
        out = llama.model.model.layers[layer.layer].self_attn.o_proj.weight.detach().numpy()
        at, total = layer.at(0), 0.0
        for head in range(layer.heads):
            moved = written(layer, head, of_layer, out)[at[0]]
            total = total + np.einsum("kt,ktd->kd", layer.attention(head, at), moved)
        assert np.abs(total - put[at[0], at[1]]).max() <= ROUNDED * np.abs(put).max()
        swapped = written(layer, 0, of_layer[..., ::-1], out)
        assert np.abs(swapped - written(layer, 0, of_layer, out)).max() > 100 * ROUNDED


def test_every_head_has_a_row(llama):
    rows = list(heads_of(llama, llama.tokenise(TEXTS, 64)))
    assert [(row["layer"], row["head"]) for row in rows] == [(i, j) for i in range(2) for j in range(6)]
    assert all(0 <= row["sink"] <= 1 and 0 < row["part"] < 1 and row["value"] > 0 for row in rows)


def test_kinds_are_told_apart_by_the_value():
    rows = [{"sink": 2 * SINK, "value": x} for x in (SMALL / 2, 0.6, 2 * LARGE)] + [{"sink": 0.0, "value": 9}]
    assert [kind(row) for row in rows] == ["nop", "between", "broadcast", "no sink"]
    assert interval([1.0, 1.0, 1.0]) == "1 [1, 1]" and interval([]) == "–"
