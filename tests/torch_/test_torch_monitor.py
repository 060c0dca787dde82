"""MarginMonitor: what it reads is what the model attends to, in plain loops and under the Trainer."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

from attsvm.torch import AttentionPooling, MarginMonitor, QueryKey  # noqa: E402
from attsvm.torch.hf_attention_inputs import hf_attention_inputs  # noqa: E402
from attsvm.torch.readers import scale_of  # noqa: E402

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 20, "initializer_range": 0.5, "attn_implementation": "eager"}
LENGTHS = (7, 4, 2)
GROUPED = ("Llama", "Qwen3", "Olmo2", "Gemma3Text")
SINGLE = 1e-5
"""The models compute in single precision."""


def transformers():
    return pytest.importorskip("transformers", reason="needs attsvm[hf]")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padded(n=3, T=7):
    ids = torch.randint(3, 40, (n, T), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": (torch.arange(T) < torch.tensor(LENGTHS)[:, None]).long()}


def model_of(family, **more):
    torch.manual_seed(0)
    library = transformers()
    extra = {"num_key_value_heads": 2, "pad_token_id": 0} if family in GROUPED else {}
    return getattr(library, f"{family}Model")(
        getattr(library, f"{family}Config")(**SIZES | extra | more)
    ).eval()


def mass_and_entropy(attention, counts):
    """Mean top mass and entropy of maps (n, heads, queries, T) over the queries that count (n, queries)."""
    rows = attention.transpose(1, 2)[counts]
    return rows.amax(-1).mean(0), -torch.special.xlogy(rows, rows).sum(-1).mean(0)


def agrees(records, attention, counts):
    mass, entropy = mass_and_entropy(attention.detach(), counts)
    read = torch.tensor([[r.top_mass, r.entropy] for r in records])
    return torch.allclose(read, torch.stack([mass, entropy], 1), atol=SINGLE)


@pytest.mark.parametrize("family", ["Bert", "Llama", "Qwen3", "GPT2"])
def test_the_monitor_reads_the_models_own_attention(family):
    model, batch = model_of(family), padded()
    with MarginMonitor(model) as monitor:
        maps = model(**batch, output_attentions=True).attentions
        records, counts = monitor.record(0), batch["attention_mask"].bool()
    assert len(records) == 8 and [r.head for r in records] == [0, 1, 2, 3] * 2
    assert agrees(records[4:], maps[1], counts)
    assert not agrees(records[:4], maps[1], counts)
    assert not agrees(records[4:], maps[1], torch.ones_like(counts))  # padding must not count


def test_the_norm_of_a_model_that_scales_its_queries_itself_has_that_scale():
    model, monitor = (
        (m := model_of("Esm", pad_token_id=0, position_embedding_type="absolute")),
        MarginMonitor(m),
    )
    model(**padded())
    layer = model.encoder.layer[0].attention.self
    Q, K = (x.weight[:4] for x in (layer.query, layer.key))
    assert monitor.record(0)[0].norm == pytest.approx((K.T @ Q / 2).norm().item(), rel=SINGLE)


class Handing(torch.nn.Module):
    """Hands its states to the attention of transformers, with something beside them."""

    def __init__(self, name, value):
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation_internal="eager")
        self.beside = {name: value}

    def forward(self, hidden_states):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation_internal]
        return attention(self, hidden_states, hidden_states, hidden_states, None, **self.beside)


def test_numbers_that_change_logits_in_an_unknown_way_are_refused_and_the_attention_stays_chosen():
    transformers()
    x, ids, sinks = random(1, 1, 3, 2), torch.arange(3), random(3)
    for known in (Handing("position_ids", ids), Handing("position_bias", random(1, 1, 3, 3))):
        assert torch.equal(hf_attention_inputs(known, {"hidden_states": x}).attention.query, x)
    odd = Handing("s_aux", sinks)
    with pytest.raises(NotImplementedError, match="s_aux"):
        hf_attention_inputs(odd, {"hidden_states": x})
    with pytest.raises(NotImplementedError, match="inputs alone"):
        hf_attention_inputs(odd, {"states": x})
    assert odd.config._attn_implementation_internal == "eager"


def test_without_a_mask_a_causal_model_is_read_causally():
    model, batch = model_of("Llama"), {"input_ids": padded()["input_ids"]}
    monitor, everything = MarginMonitor(model), torch.ones(3, 7, dtype=torch.bool)
    eager = model(**batch, output_attentions=True).attentions[0]
    model.set_attn_implementation("sdpa")
    model(**batch)
    assert agrees(monitor.record(0)[:4], eager, everything)
    model.layers[0].self_attn.is_causal = False
    assert not agrees(monitor.record(1)[:4], eager, everything)


def test_a_pass_that_goes_on_from_a_cache_is_refused():
    model, ids = model_of("Llama"), padded()["input_ids"]
    model.set_attn_implementation("sdpa")  # which makes no mask for one query
    with MarginMonitor(model) as monitor:
        cache = model(input_ids=ids, use_cache=True).past_key_values
        assert monitor.record(0)
        model(input_ids=ids[:, :1], past_key_values=cache)
        with pytest.raises(ValueError, match="7 keys of a cache"):
            monitor.record(1)


def test_soft_caps_and_sliding_windows_are_read_where_there_is_no_mask():
    shape = {"head_dim": 4, "num_key_value_heads": 2, "pad_token_id": 0, "query_pre_attn_scalar": 4}
    model = model_of("Gemma2", attn_logit_softcapping=1.5, sliding_window=3, **shape)
    batch, counts = {"input_ids": padded()["input_ids"]}, torch.ones(3, 7, dtype=torch.bool)
    with MarginMonitor(model) as monitor:
        maps = model(**batch, output_attentions=True).attentions
        for (call,) in monitor._hooks.calls.values():
            call.inputs["attention_mask"] = None  # as flash attention gets it
        records = monitor.record(0)
        assert agrees(records[:4], maps[0], counts) and agrees(records[4:], maps[1], counts)
        model.layers[0].self_attn.attn_logit_softcapping = None
        assert not agrees(monitor.record(1)[:4], maps[0], counts)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_multihead_attention_is_read(batch_first, causal):
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first), random(3, 7, 8)
    module.in_proj_weight.data *= 3
    ignored = torch.arange(7) >= torch.tensor(LENGTHS)[:, None]
    mask = torch.ones(7, 7).triu(1).bool() if causal else None
    x = x if batch_first else x.transpose(0, 1)
    monitor = MarginMonitor(module)
    _, maps = module(x, x, x, key_padding_mask=ignored, attn_mask=mask, average_attn_weights=False)
    assert agrees(monitor.record(0), maps, ~ignored)


def test_the_norm_and_the_margin_are_those_of_the_definition():
    pooling, tokens = AttentionPooling(4, heads=2, query_width=3).double(), random(5, 6, 4).double()
    queries, monitor = random(5, 3, seed=1).double(), MarginMonitor(pooling)
    pooling(tokens, queries)
    for head, (record, W) in enumerate(zip(monitor.record(3), pooling.weights, strict=True)):
        top = pooling.logits(tokens, queries)[:, head].sort(-1).values
        gaps = (top[:, -1] - top[:, -2]) / W.norm()
        assert (record.step, record.module, record.head) == (3, "model", head)
        assert record.norm == pytest.approx(W.norm().item())
        assert (record.margin, record.median_margin) == pytest.approx(
            (gaps.min().item(), gaps.median().item())
        )


def test_the_norm_of_a_head_whose_projections_are_one_layer_is_that_of_its_part():
    model, monitor = (m := model_of("GPT2")), MarginMonitor(m)
    model(**padded())
    weight = model.h[0].attn.c_attn.weight
    Q, K, V = (weight[:, k * 16 + 12 : k * 16 + 16].T for k in range(3))
    norm = monitor.record(0)[3].norm
    assert norm == pytest.approx((K.T @ Q / 2).norm().item(), rel=SINGLE)
    assert norm != pytest.approx((V.T @ Q / 2).norm().item(), rel=SINGLE)


@pytest.mark.parametrize("said", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}])
def test_the_scale_of_gpt_2_is_read_where_it_is_two_switches_too(said):
    layer = model_of("GPT2", **said).h[1].attn
    own = vars(layer).pop("scaling", None)  # which transformers 4 had not
    assert scale_of(layer, 4) == (own or scale_of(layer, 4)) != 4**-0.5


class Own(torch.nn.Module):
    """Attention of somebody's own: four heads of width 3, two of the keys, from layers of plain names."""

    def __init__(self, fused):
        super().__init__()
        torch.manual_seed(0)
        self.fused = fused
        self.q, self.k = torch.nn.Linear(8, 12), torch.nn.Linear(8, 6)
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x, keep=None):
        q, k = self.qkv(x).split([12, 6, 6], -1)[:2] if self.fused else (self.q(x), self.k(x))
        q, k = q.unflatten(-1, (4, 3)).transpose(1, 2), k.unflatten(-1, (2, 3)).transpose(1, 2)
        logits = q @ k.repeat_interleave(2, 1).mT / 3**0.5
        seen = torch.ones(x.shape[1], x.shape[1]).tril().bool() & keep[:, None, None]
        return logits.masked_fill(~seen, -math.inf).softmax(-1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_module_of_the_users_own_is_read_by_the_names_of_its_layers(fused):
    module, x = Own(fused), 3 * random(3, 7, 8)
    keep = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    names = ("qkv", "qkv") if fused else ("q", "k")
    told = QueryKey(*names, heads=4, width=3, groups=2, causal=True, mask="keep")
    with MarginMonitor(torch.nn.Sequential(module), {Own: told}) as monitor:
        maps = module(x, keep)
        assert agrees(monitor.record(0), maps, keep)
    for wrong in ({"causal": False}, {"scale": 1.0}, {"mask": None}):
        with MarginMonitor(module, {Own: replace(told, **wrong)}) as monitor:
            module(x, keep)
            with pytest.raises(ValueError, match="mean entropy"):
                monitor.record(0)


class Causal(torch.nn.Module):
    """Attention of two heads by torch's function, which hides its mask."""

    def __init__(self, heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.heads = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), heads

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(x), self.k(x), x))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_description_without_the_causality_of_its_module_is_refused_at_the_first_record():
    module, x = Causal(), random(3, 12, 8)
    how = QueryKey("q", "k", heads=2)
    with MarginMonitor(module, {Causal: how}) as monitor:
        module(x)
        with pytest.raises(ValueError, match=r"mean entropy of 1.*causal=True where query i sees"):
            monitor.record(0)
    with MarginMonitor(module, {Causal: replace(how, causal=True)}) as monitor:
        module(x)
        assert monitor.record(0)[0].entropy < 2
    with MarginMonitor(module, {Causal: replace(how, heads=4, causal=True)}) as monitor:
        module(x)
        with pytest.raises(ValueError, match="with 2 heads, its QueryKey has 4"):
            monitor.record(0)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (QueryKey("query", "k", heads=4), "Own has no layer 'query' with a matrix. It has q, k, qkv"),
        (QueryKey("q", "k", heads=4), "4 heads and 4 of the keys, 3 wide, do not fit Own"),
        (QueryKey("qkv", "qkv", heads=4, width=12), "do not fit Own"),
        (QueryKey("qkv", "qkv", heads=3), "3 heads and 3 of the keys, 2 wide, do not fit Own"),
        (QueryKey("qkv", "qkv", heads=5, width=2), "do not fit Own"),
        (QueryKey("q", "k", heads=4, groups=3, width=2), "do not fit Own"),
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_its_module_is_refused(told, said):
    with pytest.raises(ValueError, match=said):
        MarginMonitor(Own(False), {Own: told})


def test_the_norm_of_a_transformers_head_is_that_of_its_key_query_product():
    model, monitor = (m := model_of("Llama")), MarginMonitor(m)
    model(**padded())
    layer = model.layers[0].self_attn
    Q, K = layer.q_proj.weight.view(4, 4, 16)[3], layer.k_proj.weight.view(2, 4, 16)[1]
    assert monitor.record(0)[3].norm == pytest.approx((K.T @ Q / 2).norm().item(), rel=SINGLE)


def test_a_query_with_one_token_has_no_margin_and_zero_weights_have_margin_zero():
    pooling, alone = AttentionPooling(4), AttentionPooling(4)
    pooling.weights[0].data.zero_()
    monitors = MarginMonitor(pooling), MarginMonitor(alone)
    pooling(random(2, 3, 4)), alone(random(2, 1, 4))
    assert [m.record(0)[0].margin for m in monitors] == [0, math.inf]
    assert monitors[0].records[0].entropy == pytest.approx(math.log(3))


def test_a_batch_that_is_padding_throughout_has_no_entropy_and_one_such_row_does_not_count():
    model, batch = model_of("Llama"), padded()
    with MarginMonitor(model) as monitor:
        model(input_ids=batch["input_ids"][:1])
        alone = monitor.record(0)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        batch["attention_mask"][1:] = 0
        model(**batch)
        read = monitor.record(1)
        batch["attention_mask"][:] = 0
        model(**batch)
        nothing = monitor.record(2)
    assert [r.entropy for r in read] == pytest.approx([r.entropy for r in alone], abs=SINGLE)
    assert all(math.isnan(r.entropy) and math.isnan(r.top_mass) for r in nothing)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return x + self.attention(x, x, x)[0]


class Encoder(torch.nn.Module):
    def __init__(self, around=lambda block: block):
        super().__init__()
        self.block = around(Block())

    def forward(self, x):
        return self.block(x).mean(1)


def compiled_in_place(**how):
    model = Encoder()
    model.compile(**how)
    return model, model


COMPILED = {
    "wrapper": lambda **how: 2 * (torch.compile(Encoder(), **how),),
    "original": lambda **how: (torch.compile(model := Encoder(), **how), model),
    "in place": compiled_in_place,
    "one block": lambda **how: 2 * (Encoder(lambda block: torch.compile(block, **how)),),
}
"""What runs, and what is watched."""


@pytest.mark.parametrize(("how", "fullgraph"), [("wrapper", False), *((how, True) for how in COMPILED)])
def test_a_model_that_was_compiled_and_has_run_is_read_as_before(how, fullgraph):
    model, x = Encoder(), random(3, 5, 8)
    with MarginMonitor(model) as monitor:
        model(x)
        expected = monitor.record(0)
    runs, watched = COMPILED[how](backend="eager", fullgraph=fullgraph)
    runs(x)
    with MarginMonitor(watched) as monitor:
        with pytest.raises(RuntimeError, match="after a forward pass"):
            monitor.record(0)
        runs(x)
        read = monitor.record(0)
    assert [(r.module, r.head) for r in read] == [(r.module, r.head) for r in expected]
    assert [r.median_margin for r in read] == pytest.approx([r.median_margin for r in expected], rel=SINGLE)
    torch.compiler.reset()


def test_hooks_leave_with_the_monitor_and_the_model_computes_the_same():
    pooling, tokens = AttentionPooling(4), random(2, 3, 4)
    before = pooling(tokens)
    with MarginMonitor(pooling) as monitor:
        assert torch.equal(pooling(tokens), before)
        monitor.record(0)
    assert not pooling._forward_pre_hooks and len(monitor.records) == 1
    with pytest.raises(RuntimeError, match="after a forward pass"):
        monitor.record(1)


def test_the_records_become_a_table_and_a_figure(tmp_path):
    pooling = AttentionPooling(4, heads=2)
    monitor = MarginMonitor(pooling)
    with pytest.raises(ValueError, match="nothing has been recorded"):
        monitor.plot()
    for step in range(3):
        pooling(random(2, 3, 4, seed=step))
        monitor.record(step)
    monitor.to_csv(tmp_path / "heads.csv")
    rows = list(csv.DictReader((tmp_path / "heads.csv").open()))
    assert len(rows) == 6 and float(rows[-1]["norm"]) == monitor.records[-1].norm
    assert len(monitor.plot().axes) == 4


def test_a_model_without_readable_attention_is_refused():
    with pytest.raises(ValueError, match="no attention module"):
        MarginMonitor(torch.nn.Linear(3, 2))
    odd = torch.nn.MultiheadAttention(8, 2, add_zero_attn=True)
    monitor, x = MarginMonitor(odd), random(3, 2, 8)
    odd(x, x, x)
    with pytest.raises(NotImplementedError, match="add_zero_attn"):
        monitor.record(0)


def test_the_trainer_records_every_second_step(tmp_path):
    library = transformers()
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    model = library.BertForSequenceClassification(library.BertConfig(**SIZES, num_labels=2))
    batch = padded()
    data = [{"labels": k % 2, **{name: x[k] for name, x in batch.items()}} for k in range(3)] * 4
    monitor = MarginMonitor(model)
    options = {"max_steps": 5, "learning_rate": 0.1, "per_device_train_batch_size": 3, "report_to": []}
    settings = library.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **options)
    callback = monitor.callback(every=2)
    library.Trainer(model=model, args=settings, train_dataset=data, callbacks=[callback]).train()
    assert sorted({r.step for r in monitor.records}) == [0, 2, 4] and len(monitor.records) == 3 * 8
    assert monitor.records[0].norm != monitor.records[-8].norm


def test_states_in_half_precision_are_read_with_weights_in_single():
    torch.manual_seed(0)
    model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    with MarginMonitor(model) as monitor:
        model(x, x, x)
        (single, _) = monitor.record(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = x.bfloat16()
            model(half, half, half)
        (read, _) = monitor.record(1)
        model(-x.flip(1), x, x)
        (other, _) = monitor.record(2)
    assert read.entropy == pytest.approx(single.entropy, rel=0.01)  # bfloat16 has three digits
    assert other.entropy != pytest.approx(single.entropy, rel=0.01)
