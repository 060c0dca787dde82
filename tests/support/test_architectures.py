"""The one place that knows how attention modules keep the projections of queries and keys."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm._support.architectures import FUSED, PAIRS, query_key_layers

SINGLE = 1e-5
"""The models compute in single precision; about 1e-6 is reached."""


def module(*names, axes=2):
    return SimpleNamespace(**{name: SimpleNamespace(weight=np.ones((2,) * axes)) for name in names})


@pytest.mark.parametrize("names", PAIRS, ids="/".join)
def test_both_layers_are_found_by_their_names_and_one_alone_is_not(names):
    whole = module(*names)
    (pair,) = query_key_layers(whole)
    assert [part.layer for part in pair] == [getattr(whole, name) for name in names]
    assert query_key_layers(module(names[0])) == query_key_layers(module(*names, axes=1)) == ()


def rows_of(told):
    """Which rows of a projection are queries and which are keys; None where nobody can tell."""
    weight = np.arange(12.0)[:, None] * np.ones(4)
    layers = {name: SimpleNamespace(weight=weight) for name in FUSED if name in told}
    found = query_key_layers(SimpleNamespace(**{"is_causal": True, "head_dim": 1} | told | layers))
    return [part.weight[:, 0].tolist() for part in found[0]] if found else None


@pytest.mark.parametrize("name", FUSED[:3])
@pytest.mark.parametrize(("shared", "queries"), [(1, 4), (2, 6)])
def test_one_layer_is_split_by_how_many_heads_share_their_keys(name, shared, queries):
    told = {name: None, "num_key_value_groups": shared}
    keys = list(range(queries, queries + queries // shared))
    assert rows_of(told) == [list(range(queries)), keys]
    assert rows_of(told | {"is_cross_attention": True}) is None
    module = SimpleNamespace(**{name: SimpleNamespace(weight=np.ones((12, 4)))})
    assert query_key_layers(module) == ()  # its forward pass hides what it does


@pytest.mark.parametrize("told", [{"query_key_value": None}, {"c_attn": None, "multi_query": False}])
def test_one_layer_is_split_block_by_block_where_keys_follow_their_queries(told):
    def config(heads):
        return {"config": SimpleNamespace(num_attention_heads=heads)}

    assert rows_of(told | config(4)) == [[0, 3, 6, 9], [1, 4, 7, 10]]  # a key and a value for each query
    assert rows_of(told | config(8)) == [[0, 1, 2, 3, 6, 7, 8, 9], [4, 10]]  # for four
    assert rows_of(told | config(10)) == [list(range(10)), [10]]  # for all


SIZES = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "initializer_range": 0.5, "pad_token_id": 0}
KINDS = {
    "Albert": {},
    "Bert": {},
    "DistilBert": {"hidden_dim": 20},
    "GPT2": {},
    "GPTNeoX": {},
    "GPTBigCode": {"multi_query": True},
    "Lfm2": {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 2},
    "Llama": {"num_key_value_heads": 2},
    "ModernBert": {},
    "NanoChat": {"num_key_value_heads": 2},
    "OPT": {"ffn_dim": 20, "word_embed_proj_dim": 24},
    "Phi3": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 1},
}
NORMED, ROTARY = ("Lfm2", "NanoChat"), ("GPTNeoX", "Llama", "ModernBert", "Phi3", "Qwen2")


def built(kind, **more):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **KINDS.get(kind, more))
    return torch, getattr(transformers, f"{kind}Model")(config).eval()


def run(kind, rotated=True):
    """A random model with a monitor's hooks, its hidden states, and the scaled queries and keys that meet.

    rotated=False: every token is at position zero, where a rotation is none.
    """
    torch, model = built(kind)
    from attsvm.heads.attention import attention_replaced, eager_function, hidden_states
    from attsvm.torch.attention_hooks import AttentionHooks

    met = []

    def attend(module, query, key, value, mask, **options):
        met.append((module, query * (options.get("scaling") or query.shape[-1] ** -0.5), key))
        return eager_function(module)(module, query, key, value, None, **options)

    more = {} if rotated else {"position_ids": torch.zeros(1, 7, dtype=torch.long)}
    watched = AttentionHooks(model)
    with torch.no_grad(), attention_replaced(model, attend), hidden_states(model) as states:
        model(input_ids=torch.arange(3, 10)[None], **more)
    return watched, states, met


def far(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("kind", KINDS)
def test_the_monitor_reads_the_queries_and_keys_that_meet_in_the_model(kind):
    watched, _, met = run(kind)
    looks = [look.logits for _, look in watched.readings()]
    (_, query, key), logits = met[-1], looks[-1]
    assert len(looks) == 2
    assert max(far(logits.scale * logits.query, query), far(logits.key, key)) < SINGLE
    assert far(logits.scale * logits.query, met[0][1]) > SINGLE  # of the other layer


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NORMED])
def test_the_audit_reads_the_projections_to_them(kind):
    _, states, met = run(kind, rotated=kind not in ROTARY)
    import torch

    from attsvm.heads.attention import projections

    own, query, key = met[-1]
    maps = projections(own, query.shape[-1])
    hidden = torch.cat([states[id(own)], torch.ones(1, 7, 1)], -1).double()
    projected = (torch.einsum("ntd,hkd->nhtk", hidden, torch.as_tensor(x)) for x in (maps.query, maps.key))
    (q, k), scale = projected, query.shape[-1] ** -0.5
    assert max(far(scale * q, query), far(k, key)) < SINGLE
    assert far(scale * q.roll(1, 1), query) > SINGLE  # of another head
