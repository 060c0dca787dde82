"""watch: running scores while a decoder generates equal the probe's scores of the states it had."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm.torch import running, watch  # noqa: E402
from attsvm.torch.probe import Kernel, Probe  # noqa: E402
from attsvm.torch.running import Panel, RunningScores  # noqa: E402

SINGLE = 1e-4
"""A batch with padding and one text alone differ by rounding of float32, which attention can stretch."""

PAD, END = 0, 1
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 20, "initializer_range": 0.3, "pad_token_id": PAD, "eos_token_id": END}
MAP = {"landmarks": (21, 16), "mean": 16, "root": (21, 21)}
NAMES = {
    "GPT2": {
        "n_embd": 16,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 40,
        "pad_token_id": PAD,
        "eos_token_id": END,
    }
}


def decoder(family="Llama"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**NAMES.get(family, SIZES))
    kind = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    return getattr(transformers, kind)(config).eval()


def probe(seed=0, heads=1, classes=1):
    rng = np.random.default_rng(seed)
    shapes = (16, heads), (16, heads, classes), (classes,), (16,)
    prompts, *rest = (rng.standard_normal(shape) for shape in shapes)
    return Probe(0.1 * prompts, *rest)  # every token takes part


def mapped():
    """A probe on features of the tokens."""
    rng = np.random.default_rng(9)
    arrays = {name: rng.standard_normal(s) for name, s in MAP.items()}
    features = Kernel([0.03], [0.5], scale=np.ones(16), **arrays)
    return Probe(*(0.3 * rng.standard_normal(s) for s in ((21, 1), (21, 1, 1), (1,), (21,))), maps=[features])


def prompts():
    """Two prompts of 6 and 3 tokens, padded on the left."""
    ids = torch.randint(2, 40, (2, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(2, 6, dtype=torch.long)
    ids[1, :3], mask[1, :3] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def scored(model, one, layer, text, skip=1):
    """The probe's score of a whole text, read in one pass without padding."""
    with torch.no_grad():
        states = model(torch.as_tensor(text)[None], output_hidden_states=True).hidden_states[layer]
        return float(one(states[:, skip:].float()))


def texts(generated, batch):
    """What the model has read of each sequence: no padding, nothing from its end on, not the last choice."""
    out = []
    for row, mask in zip(generated.tolist(), batch["attention_mask"].tolist(), strict=True):
        begun, new = row[: len(mask)], row[len(mask) : -1]
        new = new[: new.index(END)] if END in new else new
        out.append([t for t, kept in zip(begun, mask, strict=True) if kept] + new)
    return out


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
@pytest.mark.parametrize("layer", [0, 2, -1])
def test_running_scores_are_those_of_one_pass_over_each_text(family, layer):
    model, batch, one = decoder(family), prompts(), probe()
    with watch(model, {layer: one}) as watching:
        out = model.generate(**batch, max_new_tokens=7, do_sample=False)
    expected = [scored(model, one, layer, text) for text in texts(out, batch)]
    assert watching.scores[layer].tolist() == pytest.approx(expected, rel=SINGLE, abs=SINGLE)
    assert watching.history[layer].shape == (2, 7)  # the prompt, and six of seven tokens
    whole = [scored(model, one, layer, text, skip=0) for text in texts(out, batch)]
    assert watching.scores[layer].tolist() != pytest.approx(whole, rel=100 * SINGLE)
    before = [
        scored(model, one, layer, text[: sum(m)])
        for text, m in zip(texts(out, batch), [[6], [3]], strict=True)
    ]
    assert watching.history[layer][:, 0].tolist() == pytest.approx(before, rel=SINGLE, abs=SINGLE)


@pytest.mark.parametrize("held", [1, 3, 64])
def test_every_column_of_the_history_is_the_score_of_its_part_of_the_text(held, monkeypatch):
    monkeypatch.setattr(running, "MAX_PENDING", held)
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {2: one}) as watching:
        out = model.generate(**batch, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert watching._texts.pending_limit == held
    parts = [out[0, : 6 + k].tolist() for k in range(8)]
    expected = [scored(model, one, 2, part) for part in parts]
    assert watching.history[2][0].tolist() == pytest.approx(expected, rel=SINGLE, abs=SINGLE)
    assert watching.history[2][0].tolist() != pytest.approx(expected[1:] + expected[:1], rel=100 * SINGLE)


@pytest.mark.parametrize("numbers", [1, 70, 2**22])
def test_a_prompt_is_read_in_parts_that_fit(numbers, monkeypatch):
    monkeypatch.setattr(running, "MAX_ENTRIES", numbers)
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {2: one}) as watching, torch.no_grad():
        model(**batch)
        states = model(**batch, output_hidden_states=True).hidden_states[2]
    expected = [float(one(states[:1, 1:])), float(one(states[1:, 4:]))]
    assert watching.scores[2].tolist() == pytest.approx(expected, rel=SINGLE, abs=SINGLE)
    assert watching.scores[2].tolist() != pytest.approx(expected[::-1], rel=100 * SINGLE)


@pytest.mark.parametrize("way", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_passes_with_and_without_gradients_may_follow_each_other(way):
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {2: one}) as watching:
        said = model.generate(**batch, max_new_tokens=4, do_sample=False, eos_token_id=None)
        whole, ids = watching.history[2], said[:1, :6]
        with way():
            cache = model(ids, use_cache=True).past_key_values
            model(said[:1, 6:7], past_key_values=cache)
        with torch.no_grad():
            model(said[:1, 7:8], past_key_values=cache)
        asked = watching.history[2]
    assert not asked.requires_grad and torch.allclose(asked, whole[:1, :3], rtol=SINGLE, atol=SINGLE)
    assert not torch.allclose(asked, whole[:1, 1:], rtol=100 * SINGLE)


def test_asking_between_two_tokens_changes_no_score_and_a_broken_pass_does_not_count():
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {1: one, 3: one}) as watching, torch.no_grad():
        said = model.generate(**batch, max_new_tokens=6, do_sample=False, eos_token_id=None)
        whole = watching.history
        cache, asked = model(**batch, use_cache=True).past_key_values, []
        for t in range(6, 11):
            asked.append(watching.scores[3])
            mask = torch.cat([batch["attention_mask"], torch.ones(2, t - 5, dtype=torch.long)], 1)
            model(said[:, t : t + 1], attention_mask=mask, past_key_values=cache)
        assert torch.allclose(torch.stack(asked, 1), whole[3][:, :5], rtol=SINGLE, atol=SINGLE)
        model.model.layers[2].forward = None  # the next pass ends between the two probes
        with pytest.raises(TypeError):
            mask = torch.cat([mask, mask[:, :1]], 1)
            model(said[:, :1], attention_mask=mask, past_key_values=cache)
    assert watching.history[1].shape == watching.history[3].shape == (2, 6)
    assert torch.allclose(watching.history[1], whole[1], rtol=SINGLE, atol=SINGLE)


@pytest.mark.parametrize("parts", [[9], [2, 7], [1, 1, 3, 4], 9 * [1]])
def test_reading_in_any_parts_has_the_scores_of_one_step_after_the_other_at_any_size_of_logits(parts):
    rng = torch.Generator().manual_seed(0)
    tokens, mask = torch.randn(3, 9, 16, generator=rng), torch.rand(3, 9, generator=rng) < 0.7
    tokens[:, ::3] *= 1e3  # logits of hundreds, late ones far above early ones
    mask[0, :2] = False
    tokens[0, :2] = torch.nan  # what does not count may be anything
    reads_last = probe(heads=2)
    reads_last.prompts.data[:, 1], reads_last.slopes[1] = 0, 1000
    for one in (probe(heads=2), probe(classes=3), reads_last):
        panel = Panel([one])
        sums = RunningScores(panel.member, panel.intercept, 3, tokens.device, panel.slopes)
        with torch.no_grad():
            for some, counts in zip(tokens.split(parts, 1), mask.split(parts, 1), strict=True):
                sums.read(panel(some), counts, True)
            state, steps = one.start(3), []
            for t in range(9):
                state, after = one.step(state, tokens[:, t], mask[:, t : t + 1])
                steps.append(after.view(3, 1, -1))
        steps = torch.cat(steps, 1)
        assert torch.allclose(sums.recent(None), steps, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(sums.recent(None).roll(1, 1), steps, rtol=1e-2, atol=1e-2)


def test_autocast_does_not_reach_the_probes():
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {0: one}) as watching, torch.no_grad():
        model(**batch)
        alone = watching.scores[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(**batch)
            halved = one(model.model.embed_tokens(batch["input_ids"][:1, 1:]))
    assert torch.equal(watching.scores[0], alone)
    assert float(halved) != pytest.approx(float(alone[0]), rel=SINGLE)


def test_nothing_counts_after_the_end_of_a_sequence():
    model, batch, one = decoder(), prompts(), probe()
    free = model.generate(**batch, max_new_tokens=8, do_sample=False)
    model.generation_config.eos_token_id = int(free[1, 8])  # what the second one says third
    with watch(model, {1: one}) as watching:
        out = model.generate(**batch, max_new_tokens=8, do_sample=False)
    row = out[1, 6:].tolist()
    assert row.index(int(free[1, 8])) <= 2 and row[-1] == PAD
    stopped = watching.history[1][1]
    assert torch.equal(stopped[3:], stopped[2].expand(len(stopped) - 3))
    assert not torch.equal(watching.history[1][0][3:], watching.history[1][0][2].expand(len(stopped) - 3))


def test_several_probes_of_a_layer_are_one_product_and_keep_their_names():
    model, batch = decoder(), prompts()
    named = {"m": mapped(), "a": probe(1), "b": probe(2, heads=3), "c": probe(3, classes=4)}
    with watch(model, {2: named, 1: probe(4)}) as watching, torch.no_grad():
        model(**batch)
        states = model(**batch, output_hidden_states=True).hidden_states
    mask = batch["attention_mask"].bool()
    mask[0, 0] = mask[1, 3] = False  # the first token of each
    for name, one in named.items():
        assert torch.allclose(watching.scores[2][name], one(states[2], mask), rtol=SINGLE, atol=SINGLE)
    assert not torch.allclose(watching.scores[2]["a"], named["b"](states[2], mask), rtol=0.01)
    assert watching.scores[2]["c"].shape == (2, 4) and [*watching.scores[2]] == [*named]


def test_a_panel_gives_each_probes_own_scores():
    probes, tokens = [probe(k, heads=k + 1, classes=3 - k) for k in range(3)], torch.randn(5, 4, 16)
    with torch.no_grad():
        panel = Panel(probes)
        sums = RunningScores(panel.member, panel.intercept, 5, tokens.device)
        sums.read(panel(tokens), torch.ones(5, 4, dtype=torch.bool), False)
        alone = torch.cat([one(tokens).view(5, -1) for one in probes], 1)
    together = sums.recent(1)[:, 0]
    assert torch.allclose(together, alone, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(together, alone.roll(1, 1), rtol=1e-2)


def test_a_sequence_stops_when_its_score_passes_the_threshold():
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {1: one}) as watching:
        model.generate(**batch, max_new_tokens=8, do_sample=False)
        history = watching.history[1]
        limit = float(history[0].max())
        first = int((history[0] >= limit).nonzero()[0])
        calls = []
        told = watching.stop_at({1: limit}, call=lambda *what: calls.append(what))
        out = model.generate(**batch, max_new_tokens=8, do_sample=False, stopping_criteria=told)
        assert (0, first) == (calls[0][1], int((out[0, 6:] != PAD).sum()) - 1)
        assert calls[0][2] == pytest.approx(limit)
        never = watching.stop_at(float("inf"))
        assert (
            model.generate(**batch, max_new_tokens=8, do_sample=False, stopping_criteria=never).shape[1] == 14
        )


def test_a_look_at_every_third_token_sees_those_between():
    model, ids, calls = decoder(), prompts()["input_ids"][:1], []
    how = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    with watch(model, {1: probe(3)}) as watching:
        model.generate(ids, **how)
        first, second, third = watching.history[1][0, :3].tolist()
        limit = (first + second) / 2
        assert first < limit < second and third < limit  # passed between two looks
        told = watching.stop_at(limit, every=3, call=lambda *what: calls.append(what))
        for _ in range(2):  # a second generation is told anew
            assert model.generate(ids, **how, stopping_criteria=told).shape[1] == 6 + 3
        assert calls == 2 * [(1, 0, pytest.approx(second, rel=SINGLE))]
        never = watching.stop_at(float(watching.history[1].max()) + 1, every=3)
        assert model.generate(ids, **how, stopping_criteria=never).shape[1] == 6 + 9


@pytest.mark.parametrize(
    ("how", "error"), [({"threshold": {7: 0.0}}, "layer 7"), ({"threshold": 0.0, "every": 0}, "every is 0")]
)
def test_a_stop_that_cannot_be_is_said(how, error):
    watching = watch(decoder(), {1: probe()})
    with pytest.raises(ValueError, match=error):
        watching.stop_at(**how)
    with pytest.raises(ValueError, match="several classes"):
        watch(decoder(), {1: probe(classes=3)}).stop_at(0.0)


def test_a_threshold_with_an_interval_is_taken_at_its_upper_end_when_sure():
    from attsvm.torch.watch import threshold_number

    at = type("Threshold", (), {"threshold": 0.5, "high": 0.9})()
    assert [threshold_number(at, sure) for sure in (False, True)] == [0.5, 0.9]
    assert threshold_number(2, True) == 2.0
    with pytest.raises(TypeError, match="threshold_at_fpr"):
        threshold_number("high", False)


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 2}])
def test_ways_that_move_sequences_are_refused_and_leaving_gives_the_model_back(how):
    model, batch = decoder(), prompts()
    with watch(model, {1: probe()}), pytest.raises(ValueError, match="mix sequences"):
        model.generate(**batch, max_new_tokens=3, **how)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert sum(hooks) == 0 and "generate" not in vars(model)
    model.generate(**batch, max_new_tokens=2, num_beams=2)


def test_a_cache_that_the_watch_has_not_seen_grow_is_refused():
    model, batch = decoder(), prompts()
    with torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
        longer = torch.ones(2, 7, dtype=torch.long)
        with watch(model, {1: probe()}), pytest.raises(RuntimeError, match="Begin before the first pass"):
            model(batch["input_ids"][:, :1], attention_mask=longer, past_key_values=cache)


@pytest.mark.parametrize(
    ("probes", "error"),
    [
        ({}, ValueError),
        ({9: probe()}, ValueError),
        ({"layers.2": probe()}, ValueError),
        ({2.5: probe()}, ValueError),
        ({True: probe()}, ValueError),
        ({1: {"a": probe(), "b": Probe(*map(np.zeros, ((9, 1), (9, 1, 1), 1, 9)))}}, ValueError),
        ({1: Probe}, TypeError),
        ({1: {}}, ValueError),
        ({1: torch.nn.Linear(2, 2)}, TypeError),
    ],
)
def test_what_cannot_be_watched_is_said(probes, error):
    with pytest.raises(error, match="Pass"):
        watch(decoder(), probes)
    with pytest.raises(ValueError, match="Pass a decoder"):
        watch(torch.nn.Linear(2, 2), {0: probe()})
    with pytest.raises(ValueError, match="skip is -1"):
        watch(decoder(), {0: probe()}, skip=-1)
    watch(decoder(), {np.int64(2): probe()}, skip=0).close()


def hooks(model):
    """How many hooks the modules of a model have."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
@pytest.mark.parametrize("layer", [0, 1, 3, -1])
def test_a_probe_of_another_width_than_the_states_is_refused_at_once_and_the_layer_named(family, layer):
    model, narrow = decoder(family), Probe(*map(np.zeros, ((9, 1), (9, 1, 1), 1, 9)))
    said = f"layer {layer} has states of 16 features, its probe was fitted on 9"
    for probes in ({2: probe(), layer: narrow}, {layer: {"a": narrow}}):
        with pytest.raises(ValueError, match=said):
            watch(model, probes)
    assert hooks(model) == 0 and "generate" not in vars(model)
    model(**prompts())


def test_a_watch_that_is_deleted_takes_its_hooks_along():
    model, batch = decoder(), prompts()
    watching = repr(watch(model, {1: probe(), 3: probe()}))  # nobody holds it
    assert watching == "Watch(LlamaForCausalLM, probes on layers 1, 3: 0 sequences of 0 tokens read)"
    assert hooks(model) == 0 and "generate" not in vars(model)
    one, two = watch(model, {1: probe()}), watch(model, {0: probe(1), 3: probe()})
    del one
    assert hooks(model) == 3
    model.generate(**batch, max_new_tokens=2)
    assert two.scores[3].shape == (2,)
    stopping = two.stop_at(1e9)
    del two
    assert hooks(model) == 3  # the criteria need it
    model.generate(**batch, max_new_tokens=2, stopping_criteria=stopping)
    del stopping
    gc.collect()  # their class refers to itself
    assert hooks(model) == 0 and "generate" not in vars(model)
    model.generate(**batch, max_new_tokens=2)


def test_a_probe_on_features_is_as_wide_as_the_tokens_that_it_reads():
    model, batch = decoder(), prompts()
    narrow = Probe(*map(np.zeros, ((9, 1), (9, 1, 1), 1, 9)))
    with watch(model, {1: mapped()}) as watching:  # reads 16, maps to 21
        model(**batch)
    assert watching.scores[1].shape == (2,)
    for wrong in (torch.zeros(2, 3, 16), torch.zeros(3, 9)):
        with pytest.raises(ValueError, match=r"Pass \(n, T, 9\)"):
            narrow(wrong)


@pytest.mark.parametrize(("state", "length"), [(torch.nan, 7), (torch.inf, 7), (0.0, 14)])
def test_what_cannot_be_scored_passes_every_threshold(state, length):
    model, ids, calls = decoder(), prompts()["input_ids"][:1], []
    model.model.embed_tokens.weight.data[ids[0, 3]] = state
    with watch(model, {0: probe(1), 1: probe()}) as watching:
        told = watching.stop_at({1: 1e9}, call=lambda *what: calls.append(what))
        how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "stopping_criteria": told}
        assert model.generate(ids, **how).shape[1] == length
    assert (len(calls) > 0) == (length == 7) == bool(watching.scores[1].isnan())


@pytest.mark.parametrize(("threshold", "length"), [({0: 1e9}, 14), (1e9, 7)])
def test_a_layer_without_a_threshold_stops_nothing_even_if_it_cannot_be_scored(threshold, length):
    model, ids, broken = decoder(), prompts()["input_ids"][:1], probe()
    broken.intercept.data[:] = torch.nan
    with watch(model, {0: probe(1), 1: broken}) as watching:
        how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        assert model.generate(ids, stopping_criteria=watching.stop_at(threshold), **how).shape[1] == length


def test_a_stream_is_exported_with_its_state_in_and_out():
    one, tokens = probe(heads=2), torch.randn(3, 4, 16)
    example = (*one.start(3), tokens[:, 0])
    step = torch.export.export(one.streaming(), example).module()
    state = list(one.start(3))
    for t in range(4):
        *state, scores = step(*state, tokens[:, t])
    assert torch.allclose(scores, one(tokens), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(scores, one(tokens[:, :3]), rtol=1e-3)
