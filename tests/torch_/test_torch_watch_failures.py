"""watch: what a failure in the middle leaves behind, and two watches, or two generations, at once."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm.torch import running, watch  # noqa: E402
from tests.torch_.test_torch_watch import END, PAD, SINGLE, decoder, probe, prompts  # noqa: E402

HOW = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}


class Short(torch.nn.Module):
    """Features that are the tokens, while there is memory for them."""

    memory = True

    def forward(self, tokens):
        if not Short.memory:
            raise torch.OutOfMemoryError("none left")
        return tokens


def close(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=SINGLE, atol=SINGLE)


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
def test_no_text_and_no_token_are_refused_in_words_and_the_watch_goes_on(shape):
    model, batch = decoder(), prompts()
    with watch(model, {1: probe()}) as watching:
        model.generate(**batch, **HOW)
        told = watching.history[1]
        for run in (model, lambda ids: model.generate(ids, **HOW)):
            with pytest.raises(ValueError, match="given {} texts of {} tokens".format(*shape)):
                run(torch.zeros(shape, dtype=torch.long))
        model.generate(**batch, **HOW)
        assert torch.equal(watching.history[1], told)


def test_a_text_that_is_padding_throughout_is_refused_and_one_of_one_token_is_not():
    model, batch = decoder(), prompts()
    with watch(model, {1: probe()}) as watching:
        batch["attention_mask"][1, :-1] = 0
        model(**batch)
        assert watching.scores[1].isfinite().all()
        batch["attention_mask"][1] = 0
        with pytest.raises(ValueError, match=r"no token of text 1.*bos_token"):
            model(**batch)


@pytest.mark.parametrize(("at", "known"), [(1, 0), (2, 1), (5, 4)])
def test_a_model_that_fails_leaves_the_scores_of_what_it_read_and_may_generate_again(at, known, monkeypatch):
    model, batch, passes = decoder(), prompts(), []

    def failing(*args, **how):
        passes.append(1)
        if len(passes) == at:
            raise ArithmeticError("in the middle")
        return usual(*args, **how)

    with watch(model, {1: probe(), 3: probe(1)}) as watching:
        model.generate(**batch, **HOW)
        whole, usual = watching.history, model.model.layers[1].forward
        monkeypatch.setattr(model.model.layers[1], "forward", failing)  # between the two probes
        with pytest.raises(ArithmeticError, match="in the middle"):
            model.generate(**batch, **HOW)
        if known:
            assert all(close(watching.history[k], whole[k][:, :known]) for k in (1, 3))
            assert not close(watching.history[1], whole[1][:, 1 : known + 1])
        else:
            with pytest.raises(RuntimeError, match="has not run"):
                watching.scores  # noqa: B018
        model.generate(**batch, **HOW)
        assert all(close(watching.history[k], whole[k]) for k in (1, 3))


def test_a_probe_without_memory_says_so_and_reads_on_when_there_is_some(monkeypatch):
    monkeypatch.setattr(running, "MAX_PENDING", 3)
    model, batch, one = decoder(), prompts(), probe()
    with watch(model, {1: one}) as watching:
        said, mask = model.generate(**batch, **HOW), batch["attention_mask"]
        whole = watching.history[1]
    one.maps.append(Short())
    with watch(model, {1: one}) as watching, torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
        for t in range(6, 13):
            mask = torch.cat([mask, mask[:, -1:]], 1)
            Short.memory = t != 9
            if t == 9:  # the three tokens held have to be read before this pass
                with pytest.raises(torch.OutOfMemoryError, match="none left"):
                    model(said[:, t : t + 1], attention_mask=mask, past_key_values=cache)
                with pytest.raises(torch.OutOfMemoryError, match="none left"):
                    watching.scores  # noqa: B018
                Short.memory = True
            model(said[:, t : t + 1], attention_mask=mask, past_key_values=cache)
        assert close(watching.history[1], whole) and not close(watching.history[1], whole.roll(1, 1))


@pytest.mark.parametrize("at", [0, 4])
def test_a_state_that_is_no_number_shows_in_its_sequence_and_in_no_other(at):
    model, batch, passes = decoder(), prompts(), []

    def spoil(module, args):
        passes.append(1)
        if len(passes) == at + 1:
            args[0][1, -1, 3] = torch.nan

    with watch(model, {2: probe()}) as watching:
        model.generate(**batch, **HOW)
        whole = watching.history[2]
        spoiling = model.model.layers[2].register_forward_pre_hook(spoil, prepend=True)
        model.generate(**batch, **HOW)
        spoiling.remove()
    assert close(watching.history[2][0], whole[0]) and close(watching.history[2][1, :at], whole[1, :at])
    assert watching.history[2][1, at:].isnan().all()


def test_going_on_after_a_pass_that_broke_off_is_refused(monkeypatch):
    model, batch = decoder(), prompts()
    with watch(model, {1: probe(), 3: probe()}), torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
        mask, usual = (
            torch.cat([batch["attention_mask"]] + 2 * [torch.ones(2, 1).long()], 1),
            model.model.layers[2],
        )
        monkeypatch.setattr(usual, "forward", None)
        with pytest.raises(TypeError):
            model(batch["input_ids"][:, :1], attention_mask=mask[:, :7], past_key_values=cache)
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match="after 7 tokens of 2 sequences, the watch has seen 6 of 2"):
            model(batch["input_ids"][:, :1], attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("first", [0, 1])
def test_two_watches_at_once_have_their_own_scores_and_may_end_in_any_order(first):
    model, batch = decoder(), prompts()
    both = [watch(model, {1: probe(1)}), watch(model, {2: probe(2), 1: probe(3)})]
    model.generate(**batch, **HOW)
    shared = [both[0].history[1], both[1].history[2]]
    both[first].close()
    with pytest.raises(ValueError, match="mix sequences"):
        model.generate(**batch, num_beams=2)
    model.generate(**batch, **HOW)
    both[1 - first].close()
    assert "generate" not in vars(model)
    for k, (layer, one) in enumerate([(1, probe(1)), (2, probe(2))]):
        with watch(model, {layer: one}) as alone:
            model.generate(**batch, **HOW)
        assert torch.equal(alone.history[layer], shared[k])
    assert not close(*shared)


def test_a_second_generation_before_the_first_has_ended_is_refused_and_the_first_goes_on():
    model, batch, refused = decoder(), prompts(), []

    def again(*_):
        with pytest.raises(RuntimeError, match="generating already"):
            model.generate(**batch, **HOW)
        refused.append(True)

    def elsewhere(*_):
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()

    with watch(model, {1: probe()}) as watching:
        plain = model.generate(**batch, **HOW)
        for call in (again, elsewhere):
            told = watching.stop_at(-1e9, stop=False, call=call)
            assert torch.equal(model.generate(**batch, **HOW, stopping_criteria=told), plain)
    assert refused == 4 * [True]  # two sequences, twice


def test_the_score_of_a_sequence_that_was_stopped_stays():
    model, batch = decoder(), prompts()
    how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": END, "pad_token_id": PAD}
    with watch(model, {1: probe(3)}) as watching:
        model.generate(**batch, **how)
        free = watching.history[1]
        row = int(free[:, 0].argmax())
        limit = float(free[row, 0] + free[1 - row].max()) / 2
        assert free[1 - row].max() < limit < free[row, 0]  # the other one goes on to the end
        model.generate(**batch, **how, stopping_criteria=watching.stop_at(limit))
        stopped = watching.history[1]
    assert torch.equal(stopped[row], free[row, :1].expand(8)) and not torch.equal(free[row], stopped[row])
    assert torch.equal(stopped[1 - row], free[1 - row])


def test_a_layer_named_twice_is_said():
    with pytest.raises(ValueError, match="twice"):
        watch(decoder(), {3: probe(), -1: probe()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_scores_are_those_of_the_states_there(kind):
    model, batch = decoder().to("cuda", kind), {name: x.cuda() for name, x in prompts().items()}
    one, states = probe(), []
    with watch(model, {2: {"a": one, "b": probe(1)}, 1: probe(2)}) as watching, torch.no_grad():
        keep = model.model.layers[2].register_forward_pre_hook(
            lambda module, args: states.append(args[0][:1])
        )
        told = watching.stop_at(1e9, call=lambda *_: None)
        model.generate(**batch, **HOW, stopping_criteria=told)
        keep.remove()
        expected = one(torch.cat(states, 1)[:, 1:].float().cpu())
    found = watching.scores[2]
    assert found["a"].is_cuda and close(found["a"][:1].cpu(), expected)
    assert not close(found["b"][:1].cpu(), expected)
