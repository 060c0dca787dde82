"""Families of transformers: softmax of the logits that are read is the model's own map, to float64."""

from functools import wraps
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from attsvm.torch import MarginMonitor, clip_logits  # noqa: E402
from attsvm.torch.attention_hooks import AttentionHooks  # noqa: E402
from attsvm.torch.clip import _largest  # noqa: E402

DOUBLE = 1e-10
"""The models compute in float64; about 1e-15 is reached."""

SIZES = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 20, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 6, "initializer_range": 0.3, "pad_token_id": 0}
T5 = {"d_model": 48, "d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 6}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "head_dim": 4}
LATENT |= {"num_key_value_heads": 6, "first_k_dense_replace": 2, "n_routed_experts": 2, "n_group": 1}
LATENT |= {"num_experts_per_tok": 1, "topk_group": 1, "moe_intermediate_size": 8}
FAMILIES = {
    "CLIPText": {},  # told to be causal by an argument
    "Esm": {"position_embedding_type": "absolute"},  # scales queries itself
    "Gemma2": {"attn_logit_softcapping": 1.5, "sliding_window": 3, "num_key_value_heads": 2, "head_dim": 8},
    "GPT2, by layer": {"scale_attn_by_inverse_layer_idx": True},
    "GPT2, unscaled": {"scale_attn_weights": False},
    "HunYuanDenseV1": {"num_key_value_heads": 2, "head_dim": 8},  # normalises what it has rotated
    "Olmo": {"clip_qkv": 0.5},
    "Phi": {},  # rotates half of each head
    "GPTNeoX": {},  # one projection head by head, a quarter of each head rotated
    "Albert": {"embedding_size": 16},  # one layer for all
    "Falcon": {},  # one group of keys, an attention of its own
    "Falcon, groups": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "Falcon, alibi": {"alibi": True, "multi_query": False, "attention_dropout": 0.1},
    "T5": T5,  # adds a bias of positions
    "DebertaV2": RELATIVE,  # positions meet queries and keys
    "DebertaV2, shared": RELATIVE | {"share_att_key": True},
    "DeepseekV2": LATENT | {"q_lora_rank": None},
    "DeepseekV3": LATENT | {"q_lora_rank": 12},
    "GPTJ": {"rotary_dim": 4},  # rotates inside itself
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_heads": 6, "num_layers": 2},
    "Lilt": {"channel_shrink_ratio": 2},  # adds products of the layout
    "Persimmon": {},  # normalises
    "Qwen3_5Text": {"num_key_value_heads": 2, "head_dim": 8, "layer_types": ["full_attention"] * 2},  # gates
}
EAGER = ("DebertaV2", "DebertaV2, shared", "Gemma2", "GPTJ", "GPTNeo", "Lilt", "Falcon, alibi")
"""Without torch's attention; Falcon's eager one adds alibi twice, so that its map is not the other's."""

SINGLE = {"GPTJ": 1e-5, "GPTNeo": 1e-5}
"""They cast queries and keys to float32 themselves."""


@pytest.fixture(autouse=True)
def double(monkeypatch):
    """Some models ask for a softmax in float32: they get one in the type of their numbers."""
    softmax = functional.softmax

    @wraps(softmax)
    def kept(x, dim=None, **_):
        return softmax(x, dim=dim)

    monkeypatch.setattr(functional, "softmax", kept)


def model_of(family, attention="eager"):
    name = family.partition(",")[0]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | FAMILIES[family], attn_implementation=attention)
    return getattr(transformers, f"{name}Model")(config).eval().double()


def batch_of(model):
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    decoder = {"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **decoder}


def maps_of(model):
    """The maps that an eager model gives, in the order of its modules."""
    with torch.no_grad():
        out = model(**batch_of(model), output_attentions=True)
    if not model.config.is_encoder_decoder:
        return list(out.attentions)
    both = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    return [*out.encoder_attentions, *(one for pair in both for one in pair)]


def looked(model):
    hooks = AttentionHooks(model)
    with torch.no_grad():
        model(**batch_of(model))
        looks = list(hooks.readings())
    hooks.close()
    return looks


def apart(look, attention):
    """The largest difference of a look's softmax to a map, over the queries that count."""
    *_, t, s = look.logits.shape
    read = look.logits.block(slice(0, t), slice(0, s)).softmax(-1)
    counts = torch.as_tensor(look.query_counts())
    return torch.where(counts, (read - attention).abs().amax(-1), 0).max().item()


WAYS = [(one, way) for one in FAMILIES for way in ("eager", "sdpa") if way == "eager" or one not in EAGER]


@pytest.mark.parametrize(("family", "attention"), WAYS)
def test_the_logits_that_are_read_are_those_of_the_models_own_map(family, attention):
    maps, looks = maps_of(model_of(family)), looked(model_of(family, attention))
    bound = SINGLE.get(family, DOUBLE)
    assert len(looks) == len(maps) and len({name for name, _ in looks}) == len(maps)
    for (_, look), attended in zip(looks, maps, strict=True):
        assert apart(look, attended) < bound < apart(look, attended.roll(1, 1))  # of another head
        assert look.norms.shape == look.logits.shape[1:2] and bool((look.norms > 0).all())


def test_each_call_of_a_shared_module_is_read_and_named():
    model = model_of("Albert")
    (name,) = {name.partition("#")[0] for name, _ in looked(model)}
    with MarginMonitor(model) as monitor, torch.no_grad():
        for _ in range(2):  # calls of an earlier pass are forgotten
            model(**batch_of(model))
        records = monitor.record(0)
        model.encoder.albert_layer_groups[0](torch.randn(1, 4, 48).double())  # a part alone: no new pass
        assert [r.module for r in monitor.record(1)] == [r.module for r in records]
    assert [(r.module, r.head) for r in records] == [(f"{name}#{k}", h) for k in (0, 1) for h in range(6)]
    assert records[0].norm == records[6].norm and records[0].entropy != records[6].entropy


class Twice(torch.nn.Module):
    """One attention, called twice under a checkpoint."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(lambda y: self.attention(y, y, y)[0], x, use_reentrant=False)
        return x


def test_a_checkpoint_that_is_computed_again_is_no_further_call():
    model, counted = Twice(), []
    model.attention.register_forward_pre_hook(lambda *_: counted.append(1))
    with MarginMonitor(model) as monitor:
        out = model(torch.randn(2, 3, 8, requires_grad=True))
        before = monitor.record(0)
        out.square().sum().backward()
        after = monitor.record(0)
    assert len(counted) == 4 and before == after and len(before) == 4


def parts(model, family):
    """Independently of the package: Q, K (heads, width, in) of the first layer, and a wrong split of it."""
    if family == "GPTNeoX":
        weight = model.layers[0].attention.query_key_value.weight
        Q, K, _ = weight.view(6, 3, 8, 48).unbind(1)
        return Q, K, weight.view(3, 6, 8, 48)[:2]  # side by side, as GPT-2 has them
    weight = model.h[0].self_attention.query_key_value.weight
    whole = weight.view(2, 5, 8, 48)  # two groups of three queries, a key and a value
    Q, K = whole[:, :3].reshape(6, 8, 48), whole[:, 3].repeat_interleave(3, 0)
    return Q, K, (weight[:48].view(6, 8, 48), weight[48:64].view(2, 8, 48).repeat_interleave(3, 0))


@pytest.mark.parametrize("family", ["GPTNeoX", "Falcon, groups"])
def test_the_norms_are_those_of_each_heads_own_rows_of_one_projection(family):
    model = model_of(family)
    Q, K, (wrong_Q, wrong_K) = parts(model, family)
    norms = looked(model)[0][1].norms
    assert torch.allclose((K.mT @ Q / 8**0.5).flatten(1).norm(dim=1), norms)
    assert not torch.allclose((wrong_K.mT @ wrong_Q / 8**0.5).flatten(1).norm(dim=1), norms, rtol=0.01)


def test_the_norm_of_latent_attention_is_that_of_the_map_from_its_latents():
    model = model_of("DeepseekV3")
    layer = model.layers[0].self_attn
    Q, K = layer.q_b_proj.weight.view(6, 10, 12), layer.kv_b_proj.weight.view(6, 11, 16)[:, :6]
    rotary = layer.kv_a_proj_with_mqa.weight[16:]
    W = torch.cat([K.mT @ Q[:, :6], rotary.T @ Q[:, 6:]], 1) * layer.scaling
    found = looked(model)[0][1].norms
    assert torch.allclose(W.flatten(1).norm(dim=1), found)
    assert not torch.allclose((K.mT @ Q[:, :6] * layer.scaling).flatten(1).norm(dim=1), found, rtol=0.01)


CLIPPED = {  # the layer, its parts, and those that may not move: values, and keys that heads share
    "GPTNeoX": ("query_key_value", (6, 3, 8), lambda x: x[:, 2]),
    "Falcon, groups": ("query_key_value", (2, 5, 8), lambda x: x[:, 3:]),
    "DeepseekV3": ("kv_b_proj", (6, 11), lambda x: x[:, 6:]),
    "T5": ("q", (6, 8), lambda x: x[:0]),
    "DebertaV2": ("query_proj", (6, 8), lambda x: x[:0]),
}


@pytest.mark.parametrize("family", CLIPPED)
def test_heads_above_the_limit_come_down_to_it_and_nothing_else_moves(family):
    name, shape, kept = CLIPPED[family]
    model = model_of(family)
    layer = next(one for full, one in model.named_modules() if full.endswith(name))
    before = layer.weight.detach().clone().unflatten(0, shape)
    with clip_logits(model, 1.0) as clip, torch.no_grad():
        model(**batch_of(model))
        first = [_largest(look) for _, look in clip._hooks.readings()]
        clip.limit = limit = float(torch.cat(first).median())
        told, after = clip.step(), [_largest(look) for _, look in clip._hooks.readings()]
    for old, new in zip(first, after, strict=True):
        assert torch.allclose(new, old.clamp(max=limit), rtol=1e-4) and bool((new <= limit).all())
    assert 0 < len(told) < len(torch.cat(first))
    now = layer.weight.detach().unflatten(0, shape)
    assert torch.equal(kept(now), kept(before)) and not torch.equal(now, before)


def test_rows_of_another_layout_are_seen_and_not_clipped(monkeypatch):
    from attsvm._support import architectures as query_key

    model = model_of("GPTNeoX")
    wrong = lambda _, layer: tuple(query_key.LayerSlice(layer, k * 48, (k + 1) * 48) for k in (0, 1))  # noqa: E731
    monkeypatch.setattr(query_key, "_fused", wrong)
    with clip_logits(model, 1e-2) as clip, torch.no_grad():
        model(**batch_of(model))
        with pytest.raises(NotImplementedError, match="not proportional"):
            clip.step()


def test_the_bias_of_t5_counts_in_its_logits_and_not_for_the_limit():
    model = model_of("T5")
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    maps, found = [], []
    for factor in (1, 30):
        with torch.no_grad():
            bias.mul_(factor)
            look = looked(model)[0][1]
            maps.append(look.logits.block(slice(0, 9), slice(0, 9)).softmax(-1))
            found.append(_largest(look))
    assert torch.equal(*found) and not torch.allclose(*maps, atol=0.1)


@pytest.mark.parametrize("family", ["DebertaV2", "Falcon, alibi"])
def test_reading_a_module_with_dropout_draws_no_random_numbers(family):
    model = model_of(family).train()
    hooks = AttentionHooks(model)
    model(**batch_of(model))
    before = torch.get_rng_state()
    list(hooks.readings())
    assert torch.equal(torch.get_rng_state(), before)
    model(**batch_of(model))
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_module_without_a_softmax_of_products_is_refused():
    class Linear(torch.nn.Module):
        head_dim, config = 4, SimpleNamespace()

        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, hidden_states):
            return self.q_proj(hidden_states) @ self.k_proj(hidden_states).mT

    model = Linear()
    with MarginMonitor(model) as monitor:
        model(torch.randn(1, 3, 8))
        with pytest.raises(NotImplementedError, match="no softmax of products"):
            monitor.record(0)
