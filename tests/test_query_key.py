"""The one place that knows how attention modules keep the projections of queries and keys."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.query_key import FUSED, PAIRS, query_key_layers

SINGLE = 1e-5
"""The models compute in single precision; about 1e-6 is reached."""


def module(*names, axes=2):
    return SimpleNamespace(**{name: SimpleNamespace(weight=np.ones((2,) * axes)) for name in names})


@pytest.mark.parametrize("names", PAIRS, ids="/".join)
def test_both_layers_are_found_by_their_names_and_one_alone_is_not(names):
    whole = module(*names)
    assert [part.layer for part in query_key_layers(whole)] == [getattr(whole, name) for name in names]
    assert query_key_layers(module(names[0])) == query_key_layers(module(*names, axes=1)) == ()


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("shared", "parts"), [(1, [(0, 4), (4, 8)]), (2, [(0, 6), (6, 9)])])
def test_one_layer_is_split_by_how_many_heads_share_their_keys(name, shared, parts):
    layer = SimpleNamespace(weight=np.ones((12, 4)))
    told = {name: layer, "is_causal": True, "num_key_value_groups": shared}
    assert [(part.start, part.stop) for part in query_key_layers(SimpleNamespace(**told))] == parts
    for other in ({"is_cross_attention": True}, {"multi_query": False}):
        assert query_key_layers(SimpleNamespace(**told, **other)) == ()
    del told["is_causal"]
    assert query_key_layers(SimpleNamespace(**told)) == ()


SIZES = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "initializer_range": 0.5, "pad_token_id": 0}
KINDS = {
    "Albert": {},
    "Bert": {},
    "DistilBert": {"hidden_dim": 20},
    "GPT2": {},
    "GPTBigCode": {"multi_query": True},
    "Lfm2": {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 2},
    "Llama": {"num_key_value_heads": 2},
    "ModernBert": {},
    "NanoChat": {"num_key_value_heads": 2},
    "OPT": {"ffn_dim": 20, "word_embed_proj_dim": 24},
    "Phi3": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 1},
}
NORMED, ROTARY = ("Lfm2", "NanoChat"), ("Llama", "ModernBert", "Phi3", "Qwen2")


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
    from attsvm.heads.blocks import attending, eager_function
    from attsvm.heads.record import hidden_states
    from attsvm.torch.watched import Watched

    met = []

    def attend(module, query, key, value, mask, **options):
        met.append((module, query * (options.get("scaling") or query.shape[-1] ** -0.5), key))
        return eager_function(module)(module, query, key, value, None, **options)

    more = {} if rotated else {"position_ids": torch.zeros(1, 7, dtype=torch.long)}
    watched = Watched(model)
    with torch.no_grad(), attending(model, attend), hidden_states(model) as states:
        model(input_ids=torch.arange(3, 10)[None], **more)
    return watched, states, met


def far(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("kind", KINDS)
def test_the_monitor_reads_the_queries_and_keys_that_meet_in_the_model(kind):
    watched, _, met = run(kind)
    looks = [look.logits for _, look in watched.looks()]
    (_, query, key), logits = met[-1], looks[-1]
    assert len(looks) == (1 if kind == "Albert" else 2)  # whose layers are one module
    assert max(far(logits.scale * logits.query, query), far(logits.key, key)) < SINGLE
    assert far(logits.scale * logits.query, met[0][1]) > SINGLE  # of the other layer


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NORMED])
def test_the_audit_reads_the_projections_to_them(kind):
    _, states, met = run(kind, rotated=kind not in ROTARY)
    import torch

    from attsvm.heads.projections import projections

    own, query, key = met[-1]
    maps = projections(own, query.shape[-1])
    hidden = torch.cat([states[id(own)], torch.ones(1, 7, 1)], -1).double()
    projected = (torch.einsum("ntd,hkd->nhtk", hidden, torch.as_tensor(x)) for x in (maps.query, maps.key))
    (q, k), scale = projected, query.shape[-1] ** -0.5
    assert max(far(scale * q, query), far(k, key)) < SINGLE
    assert far(scale * q.roll(1, 1), query) > SINGLE  # of another head


@pytest.mark.parametrize(
    ("kind", "part", "more"),
    [("RoFormer", "sinusoidal_pos", {}), ("Lilt", "layout_query", {"channel_shrink_ratio": 2})],
)
def test_a_module_that_adds_to_its_logits_is_refused_by_the_name_of_what_it_adds(kind, part, more):
    torch, model = built(kind, **more)
    from attsvm.torch import MarginMonitor

    with MarginMonitor(model) as monitor:
        model(input_ids=torch.arange(3, 10)[None])
        with pytest.raises(NotImplementedError, match=part):
            monitor.record(0)
