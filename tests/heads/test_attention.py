"""Attention read in blocks of queries is the model's whole map, and a long text's map is never held."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attsvm.heads import UnsupportedModel
from attsvm.heads.attention import Projections, measured
from attsvm.heads.audit import AuditSettings, audit
from attsvm.heads.record import record
from tests.heads.conftest import TEXTS, tiny

SAME = 1e-5
"""Maps in float32 add up differently in blocks: 1e-7 was seen, 1e-6 with another release of transformers."""

MODELS = {
    "BertModel": {},
    "GPT2Model": {},
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "MistralForCausalLM": {"num_key_value_heads": 2, "sliding_window": 4},
}


def whole(reader, texts):
    """The maps (layers, n, heads, T, T) as transformers gives them out."""
    before = reader.model.config._attn_implementation
    reader.model.set_attn_implementation("eager")
    with torch.no_grad():
        given = torch.as_tensor(texts.ids), torch.as_tensor(texts.mask.astype(int))
        maps = reader.model(*given[:1], attention_mask=given[1], output_attentions=True).attentions
    reader.model.set_attn_implementation(before)
    return torch.stack(maps).double().numpy()


@pytest.mark.parametrize("kind", MODELS)
def test_selections_in_blocks_are_those_of_the_whole_map(kind, monkeypatch):
    monkeypatch.setattr("attsvm.heads.attention.BLOCK", 300)  # two queries at a time
    reader = tiny(kind, **MODELS[kind])
    texts = reader.tokenise(TEXTS)
    for maps, layer in zip(whole(reader, texts), record(reader, texts), strict=True):
        text, position = at = layer.at(5)
        s, found = maps[text, 5, position], layer.selected(5, at)
        assert np.array_equal(found.token, s.argmax(-1)) and np.abs(found.mass - s.max(-1)).max() < SAME
        assert np.abs(found.entropy + (s * np.log(np.maximum(s, 1e-300))).sum(-1)).max() < 10 * SAME
        assert np.abs(found.soft_sparsity * (s**2).sum(-1) - 1).max() < 10 * SAME
        assert np.abs(found.sink - (s * texts.sinks[text]).sum(-1)).max() < SAME
        assert np.abs(layer.attention(5, at) - s).max() < SAME
        assert np.abs(layer.attention(4, at) - s).max() > 1e3 * SAME  # another head is another map


def test_an_audit_in_blocks_says_what_one_at_once_says(llama, monkeypatch):
    settings = AuditSettings(margins=False, ablation=1)
    at_once = audit(llama, TEXTS, settings, layers=[1])
    monkeypatch.setattr("attsvm.heads.attention.BLOCK", 300)
    in_blocks = audit(llama, TEXTS, settings, layers=[1])
    for a, b in zip(at_once.heads, in_blocks.heads, strict=True):
        assert a.shares == b.shares and a.examples == b.examples
        for name in ("mass", "entropy", "soft_sparsity", "ablation"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=SAME)
        assert a.scores == pytest.approx(b.scores, abs=SAME)


class Largest(TorchDispatchMode):
    """Numbers of the largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and not one._is_view():
                self.numbers = max(self.numbers, one.numel())
        return made


def largest(T, block, monkeypatch):
    """The largest tensor, and the peak of NumPy's bytes, while a head reads T tokens."""
    monkeypatch.setattr("attsvm.heads.attention.BLOCK", block)
    one = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    reader = tiny("LlamaForCausalLM", max_position_embeddings=T, **one)
    texts = reader.tokenise([" ".join("abcdefgh"[i % 8] * (1 + i % 5) for i in range(T - 1))], T)
    tracemalloc.start()
    with Largest() as made:
        layer = next(iter(record(reader, texts, [0])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert layer.selections.mass.shape == (1, 1, T)
    return made.numbers, peak


def test_four_thousand_tokens_are_read_far_below_the_size_of_their_maps(monkeypatch):
    T = 4096
    numbers, peak = largest(T, 2**18, monkeypatch)
    assert numbers <= T * T / 64 and peak < T * T
    T = 1024  # the negative control: all queries at once
    numbers, peak = largest(T, T * T, monkeypatch)
    assert numbers == T * T and peak > 16 * T * T


def test_a_query_that_sees_tokens_with_gaps_is_refused():
    visible = np.ones((1, 3, 3), bool)
    even = np.full((1, 1, 3, 3), 1 / 3)
    assert measured(even, even, visible, np.eye(3)[:1] > 0).sink.max() == pytest.approx(1 / 3)
    visible[0, 2, 1] = False
    with pytest.raises(UnsupportedModel, match="gaps"):
        measured(even, even, visible, np.eye(3)[:1] > 0)


def test_the_entropy_of_a_saturated_query_keeps_its_digits():
    logits, visible, gap = np.zeros((1, 1, 1, 3)), np.ones((1, 1, 3), bool), 60.0
    logits[..., 1] = gap
    attention = np.exp(logits - gap) / np.exp(logits - gap).sum()
    assert attention[..., 1] == 1  # its own logarithm would be 0
    entropy = measured(attention, logits, visible, np.eye(3)[:1] > 0).entropy[0, 0, 0]
    assert entropy == pytest.approx(2 * (gap + 1) * np.exp(-gap), rel=1e-12)


def test_the_spectrum_of_a_head_is_that_of_the_whole_matrix_without_its_bias():
    rng = np.random.default_rng(0)
    projections = Projections(
        rng.standard_normal((4, 3, 8)), rng.standard_normal((2, 3, 8))
    )  # d = 7, grouped keys
    for head, group in ((1, 0), (2, 1)):
        W = 0.5 * projections.key[group, :, :-1].T @ projections.query[head, :, :-1]
        values, sigma = np.linalg.eigvals(W), np.linalg.svd(W, compute_uv=False)
        textbook = values.mean().real, (values**2).mean().real - values.mean().real ** 2
        found = projections.spectrum(head, 0.5)
        assert np.allclose(found, (*textbook, (sigma**2).sum() / sigma[0] ** 2), rtol=1e-10)
        with_bias = np.linalg.eigvals(projections.weight(head, 0.5))
        nonzero = values[
            np.argsort(-np.abs(values))[:3]
        ]  # of rank three: the mean is over d, not over d_head
        for wrong in (with_bias.mean().real, nonzero.mean().real):
            assert not np.isclose(found.mean, wrong, rtol=1e-3)
