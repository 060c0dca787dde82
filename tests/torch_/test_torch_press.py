"""eviction_press: in the loop of kvpress, the keys that stay are those that evict keeps."""

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm.torch import evict, eviction_press, key_leads, output_costs  # noqa: E402

PROMPT = 40


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 30, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=60, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, **sizes
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def prefilled(model, press=None):
    """The cache after a prompt; positions are named, since transformers no longer does."""
    cache, ids = transformers.DynamicCache(), torch.arange(PROMPT)[None] + 3
    if press is None:
        model(ids, past_key_values=cache)
    else:
        with press(model):
            model(ids, past_key_values=cache, cache_position=torch.arange(PROMPT))
    return cache


@pytest.mark.parametrize("ranking", [key_leads, output_costs])
@pytest.mark.parametrize("ends", [0, 0.2])
def test_the_cache_keeps_the_keys_that_evict_keeps(model, ranking, ends):
    pytest.importorskip("kvpress", reason="needs the package kvpress")
    captured = {}

    def spied(query, key, value, *, scale):
        captured["query"], captured["value"] = query, value
        return ranking(query, key, value, scale=scale)

    full = prefilled(model).layers[1]
    found = prefilled(model, eviction_press(0.5, ranking=spied, queries=8, ends=ends)).layers[1]
    assert found.keys.shape == (1, 2, PROMPT // 2, 8)
    scores, count = ranking(captured["query"], full.keys, full.values), int(ends * PROMPT // 2)
    kept = evict(full.keys, PROMPT // 2, scores=scores, first=count, recent=count).kept
    expected = full.keys.gather(2, kept[..., None].expand(-1, -1, -1, 8))
    order = found.keys[..., :1].sort(2).indices.expand_as(found.keys), expected[..., :1].sort(2).indices
    assert torch.allclose(found.keys.gather(2, order[0]), expected.gather(2, order[1].expand_as(expected)))
    assert ends == 0 or not torch.equal(kept, evict(full.keys, PROMPT // 2, scores=scores).kept)


def test_the_queries_are_those_of_the_model(model):
    pytest.importorskip("kvpress", reason="needs the package kvpress")
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    captured = {"press": [], "model": []}
    usual = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def spy(module, query, *args, **how):
        captured["model"].append(query[:, :, -8:])
        return usual(module, query, *args, **how)

    def ranking(query, key, value, *, scale):
        captured["press"].append(query)
        return key_leads(query, key, scale=scale)

    ALL_ATTENTION_FUNCTIONS.register("press_spy", spy)
    model.set_attn_implementation("press_spy")
    prefilled(model, eviction_press(0.5, ranking=ranking, queries=8))
    for of_press, of_model in zip(captured["press"], captured["model"], strict=True):
        assert torch.allclose(of_press, of_model, atol=1e-5)
        assert not torch.allclose(of_press.flip(2), of_model, atol=1e-2)


def test_ends_that_are_no_share_and_a_missing_package_are_said(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(ImportError, match="pip install kvpress"):
        eviction_press(0.5)
    for wrong in ({"ends": 0.6}, {"ends": "a tenth"}, {"queries": 0}, {"queries": 2.5}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} is {wrong[name]!r}"):
            eviction_press(0.5, **wrong)
