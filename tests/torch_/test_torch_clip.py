"""clip_logits: the largest logit of a head that passed the limit becomes the limit, and no other changes."""

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

from attsvm.torch import AttentionPooling, MarginMonitor, QueryKey, clip_logits  # noqa: E402
from attsvm.torch.attention_hooks import AttentionHooks  # noqa: E402
from attsvm.torch.clip import _largest  # noqa: E402
from attsvm.torch.statistics import statistics_of  # noqa: E402
from tests.torch_.test_torch_monitor import Own, model_of, padded, random  # noqa: E402

SINGLE = 1e-4
FAMILIES = ["Bert", "Llama", "GPT2"]  # biases; rotary positions and shared keys; one layer for all three


def largest(hooks, counts=slice(None)):
    """The largest logit of every head over the queries that count (n, T), by module."""
    with torch.no_grad():
        found = {name: statistics_of(look.logits).largest for name, look in hooks.readings()}
    return {name: x.transpose(1, 2)[counts].flatten(0, -2).amax(0) for name, x in found.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_above_the_limit_come_down_to_it_and_the_others_stay(family):
    model, batch = model_of(family), padded()
    hooks = AttentionHooks(model)
    with clip_logits(model, 1.0) as clip:
        model(**batch)
        before = largest(hooks, counts := batch["attention_mask"].bool())
        clip.limit = limit = float(torch.cat(list(before.values())).median())
        told = clip.step()
        after = largest(hooks, counts)
    for name in before:
        expected = before[name].clamp(max=limit)
        assert torch.allclose(after[name], expected, rtol=SINGLE)
        assert (
            family == "Bert"
            or not torch.allclose(before[name], expected, rtol=0.01)
            or not any(name == one.module for one in told)
        )
    assert {(one.module, one.head) for one in told} == {
        (name, head) for name, found in before.items() for head, x in enumerate(found) if x > limit
    }
    assert 0 < len(told) < 8


def test_shared_keys_do_not_move():
    model, batch = model_of("Llama"), padded()
    layer = model.layers[0].self_attn
    keys, queries = layer.k_proj.weight.clone(), layer.q_proj.weight.clone()
    with clip_logits(model, 0.01) as clip:
        model(**batch)
        assert clip.step()
    assert torch.equal(layer.k_proj.weight, keys) and not torch.equal(layer.q_proj.weight, queries)


def test_pooling_multihead_and_modules_of_ones_own_are_clipped():
    pooling, attention, own = (
        AttentionPooling(4, 2),
        torch.nn.MultiheadAttention(8, 2, batch_first=True),
        Own(True),
    )
    x, keep = 9 * random(3, 7, 8), torch.ones(3, 7, dtype=torch.bool)
    told = QueryKey("qkv", "qkv", heads=4, width=3, groups=2, causal=True, mask="keep")
    runs = {
        pooling: lambda: pooling(50 * random(3, 5, 4)),
        attention: lambda: attention(x, x, x),
        own: lambda: own(x, keep),
    }
    for module, run in runs.items():
        with clip_logits(module, 0.1, {Own: told}) as clip:
            hooks = AttentionHooks(module, {Own: told})
            run()
            assert clip.step() and not clip.step()
            (found,) = largest(hooks).values()
            assert found.tolist() == pytest.approx([0.1] * len(found), rel=SINGLE)


def test_numbers_that_a_mask_adds_do_not_count_and_a_second_step_changes_nothing():
    torch.manual_seed(0)
    attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), 3 * torch.randn(2, 5, 8)
    with clip_logits(attention, 1.0) as clip:
        attention(x, x, x, attn_mask=torch.full((5, 5), 5.0))
        assert clip.step() and not clip.step()
        attention(x, x, x)
        assert not clip.step()
        clip.limit = 0.9  # the largest product is at the limit of one
        assert clip.step()


def test_queries_of_padding_tokens_do_not_count():
    torch.manual_seed(0)
    attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 5, 8)
    x[:, 4] *= 100
    padding = torch.tensor([[False] * 4 + [True]])
    with clip_logits(attention, 10.0) as clip:
        attention(x, x, x, key_padding_mask=padding)
        assert not clip.step()
        attention(x, x, x)
        assert clip.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_clipped_head_does_not_pass_its_limit_by_rounding(dtype, monkeypatch):
    def passing():
        """How many heads are above the limit that they were just put to."""
        above = 0
        for seed in range(4):
            torch.manual_seed(seed)
            model = torch.nn.MultiheadAttention(64, 8, batch_first=True).to(dtype)
            x = 3 * torch.randn(2, 16, 64).to(dtype)
            with clip_logits(model, 0.5) as clip, torch.no_grad():
                model(x, x, x)
                assert len(clip.step()) == 8
                above += sum(int((_largest(look) > 0.5).sum()) for _, look in clip._hooks.readings())
        return above

    assert passing() == 0
    monkeypatch.setattr("attsvm.torch.clip._target", lambda limit, _: limit)
    assert passing() > 0


@pytest.mark.parametrize("family", ["Qwen3", "Olmo2", "Gemma3Text"])
def test_models_that_normalise_queries_and_keys_are_clipped_by_their_gains(family):
    """Heads of OLMo2 have gains of their own; those of Qwen3 and Gemma3 share them, and all heads shrink."""
    model, batch = model_of(family), padded()
    with torch.no_grad():  # gains as training leaves them, not all alike
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:
                parameter.add_(0.3 * random(*parameter.shape))
    queries = {name: x.clone() for name, x in model.named_parameters() if "q_proj" in name}
    hooks = AttentionHooks(model)
    with clip_logits(model, 1.0) as clip, MarginMonitor(model) as monitor:
        model(**batch)
        before = largest(hooks, counts := batch["attention_mask"].bool())
        norms = [record.norm for record in monitor.record(0)]
        clip.limit = limit = float(torch.cat(list(before.values())).median())
        told = clip.step()
        after = largest(hooks, counts)
        assert told and not clip.step()
        monitor.record(1)
    for name, x in before.items():
        alone = x.clamp(max=limit)
        together = x * min(1.0, limit / float(x.max()))
        assert torch.allclose(after[name], alone if family == "Olmo2" else together, rtol=SINGLE)
    shrunk = torch.cat([after[name] / before[name] for name in before]).tolist()
    assert [r.norm for r in monitor.records[8:]] == pytest.approx(
        [f * n for f, n in zip(shrunk, norms, strict=True)], rel=SINGLE
    )
    assert all(torch.equal(x, queries[name]) for name, x in model.named_parameters() if name in queries)


def test_the_length_of_w_q_is_no_norm_of_a_model_that_normalises_queries():
    model = model_of("Qwen3")
    with MarginMonitor(model) as monitor:
        for scale in (1.0, 7.0):
            with torch.no_grad():
                model.layers[0].self_attn.q_proj.weight.mul_(scale)
            model(**padded())
            monitor.record(int(scale))
    first, last = (monitor.records[k] for k in (0, 8))
    assert last.norm == pytest.approx(first.norm) and last.median_margin == pytest.approx(
        first.median_margin, rel=1e-3
    )
    model = model_of("Llama")  # whose norm is that of its weights
    with MarginMonitor(model) as monitor:
        for scale in (1.0, 7.0):
            with torch.no_grad():
                model.layers[0].self_attn.q_proj.weight.mul_(scale)
            model(**padded())
            monitor.record(int(scale))
    assert monitor.records[8].norm == pytest.approx(7 * monitor.records[0].norm)


def test_models_that_limit_queries_are_refused_and_limits_are_checked():
    model = model_of("Olmo", clip_qkv=0.5)  # its logits stay, however short its weights are
    with clip_logits(model, 1e-3) as clip, pytest.raises(NotImplementedError, match="not proportional"):
        model(**padded())
        clip.step()
    for limit in (0, float("inf"), "high"):
        with pytest.raises(ValueError, match="positive number"):
            clip_logits(model, limit)


class Scalars:
    """Keeps what it is given, under the name of one of the loggers' methods."""

    def __init__(self, method):
        self.kept = {}
        setattr(self, method, self._one if method == "add_scalar" else self._many)

    def _one(self, name, value, step):
        self.kept[name, step] = value

    def _many(self, scalars, step):
        for name, value in scalars.items():
            self._one(name, value, step)


@pytest.mark.parametrize("method", ["add_scalar", "log", "log_metrics"])
def test_records_are_written_to_a_logger(method):
    pooling, writer = AttentionPooling(4, 2), Scalars(method)
    with MarginMonitor(pooling).log_to(writer) as monitor:
        pooling(random(3, 5, 4))
        records = monitor.record(7)
        pooling(random(3, 1, 4))
        monitor.record(8)
    assert writer.kept["model/head 1/margin", 7] == records[1].margin
    assert ("model/head 1/margin", 8) not in writer.kept  # one token: the margin is infinite
    assert ("model/head 1/entropy", 8) in writer.kept
    with pytest.raises(TypeError, match="add_scalar"):
        monitor.log_to(object())


def test_tensorboard_reads_what_was_written(tmp_path):
    board = pytest.importorskip("torch.utils.tensorboard", reason="needs tensorboard")
    pooling = AttentionPooling(4)
    with board.SummaryWriter(str(tmp_path)) as writer, MarginMonitor(pooling).log_to(writer) as monitor:
        pooling(random(3, 5, 4))
        monitor.record(1)
    assert list(tmp_path.iterdir())
