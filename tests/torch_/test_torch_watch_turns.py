"""watch: a chat that goes on in the same cache is one text, whoever ended an answer."""

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm.torch import watch  # noqa: E402
from tests.torch_.test_torch_watch import PAD, SINGLE, decoder, probe, prompts, scored  # noqa: E402

MORE = torch.tensor([[5, 7, 11], [13, 3, 17]])
"""What the user says in the second turn."""


def near(expected):
    return pytest.approx(expected, rel=SINGLE, abs=SINGLE)


def chat(model, more=MORE, **how):
    """Two turns in one cache: where the first ended, both texts and their masks, and what was read of them.

    The second row ends its first answer early, so that padding follows in the middle of its text.
    """
    batch, cache = prompts(), transformers.DynamicCache()
    plain = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": PAD}
    free = model.generate(**batch, **plain, eos_token_id=None)
    plain |= {"past_key_values": cache, "eos_token_id": int(free[1, 8])} | how
    first = model.generate(**batch, **plain)
    end = [*first[1].tolist(), plain["eos_token_id"]].index(plain["eos_token_id"], 6)
    mask = torch.cat([batch["attention_mask"], torch.ones(2, first.shape[1] - 6).long()], 1)
    mask[1, end + 1 :] = 0
    ids, mask = torch.cat([first, more], 1), torch.cat([mask, torch.ones_like(more)], 1)
    plain |= {"eos_token_id": None}
    out = model.generate(ids, attention_mask=mask, **plain)
    mask = torch.cat([mask, torch.ones(2, out.shape[1] - mask.shape[1]).long()], 1)
    whole = [row[kept.bool()].tolist() for row, kept in zip(out[:, :-1], mask[:, :-1], strict=True)]
    return first, whole, mask


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_an_answer_that_had_ended_counts_on_in_the_next_turn(family):
    model, one = decoder(family), probe()
    with watch(model, {2: one}) as watching:
        first, whole, _ = chat(model)
    assert (first[1] == PAD).sum() > 4  # three on the left, and after its end
    expected = [scored(model, one, 2, text) for text in whole]
    assert watching.scores[2].tolist() == near(expected)
    ended = [scored(model, one, 2, whole[1][:k]) for k in (5, 6)]  # as it was before, and with its end
    assert all(watching.scores[2][1].item() != pytest.approx(old, rel=100 * SINGLE) for old in ended)


def test_a_generation_that_just_goes_on_counts_on_too():
    """Nothing is added: the pass that begins it reads one token, as those within an answer do."""
    model, one = decoder(), probe()
    with watch(model, {2: one}) as watching:
        _, whole, _ = chat(model, MORE[:, :0])
    history = watching.history[2]
    assert history.shape == (2, 12) and history[0, -1].item() == near(scored(model, one, 2, whole[0]))
    assert history[1, 5] == history[1, 4] and history[1, -1] != history[1, 5]  # ended, and going on


def test_each_row_of_a_batch_has_the_scores_of_its_chat_alone_after_every_token_of_the_second_turn():
    model, one = decoder(), probe()
    with watch(model, {2: one}) as watching:
        _, whole, _ = chat(model)
    late = watching.history[2][:, -6:]  # what was added, and five tokens
    for row, text in zip(late, whole, strict=True):
        expected = [scored(model, one, 2, text[: len(text) - 5 + k]) for k in range(6)]
        assert row.tolist() == near(expected)
        assert row.tolist() != pytest.approx(expected[1:] + expected[:1], rel=100 * SINGLE)


def test_padding_of_an_answer_that_the_mask_keeps_counts_as_the_model_read_it():
    model, one, states = decoder(), probe(), []
    with watch(model, {2: one}) as watching:
        hook = model.model.layers[2].register_forward_pre_hook(lambda _, args: states.append(args[0]))
        first = chat(model)[0]
        del states[:]  # of the chat without padding
        cache = transformers.DynamicCache()
        how = {"do_sample": False, "pad_token_id": PAD, "past_key_values": cache}
        end = int(first[1, first[1].tolist().index(PAD, 6) - 1])
        model.generate(**prompts(), **how, max_new_tokens=6, eos_token_id=end)
        ids = torch.cat([first, MORE], 1)
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        model.generate(ids, attention_mask=mask, **how, max_new_tokens=2, eos_token_id=None)
        hook.remove()
    seen = torch.cat(states, 1)
    with torch.no_grad():
        assert watching.scores[2].tolist() == near([float(one(seen[:1, 1:])), float(one(seen[1:, 4:]))])
        without = float(one(torch.cat([seen[1:, 4:9], seen[1:, 12:]], 1)))
    assert watching.scores[2][1].item() != pytest.approx(without, rel=100 * SINGLE)


def test_a_sequence_that_was_stopped_goes_on_and_is_told_again():
    model, one, told = decoder(), probe(3), []
    with watch(model, {1: one}) as watching:
        low = watching.stop_at(-1e9, call=lambda layer, row, score: told.append(row))
        first, whole, mask = chat(model, stopping_criteria=low)
    assert first.shape[1] == 7 and told == [0, 1, 0, 1]  # each turn ends after its first token
    assert watching.scores[1].tolist() == near([scored(model, one, 1, text) for text in whole])
    assert watching.history[1].shape == (2, 2) and mask.sum() == 6 + 3 + 2 * (1 + 3 + 1)


def test_a_generation_that_fails_before_it_reads_leaves_a_pass_of_one_token_what_it_was():
    model, batch = decoder(), prompts()
    with watch(model, {1: probe()}) as watching, torch.no_grad():
        cache, begun = model(**batch, use_cache=True).past_key_values, watching._texts.blocks_read
        with pytest.raises(ValueError, match="max_new_tokens"):
            model.generate(**batch, max_new_tokens=-1)
        longer = torch.cat([batch["attention_mask"], torch.ones(2, 1).long()], 1)
        model(batch["input_ids"][:, :1], attention_mask=longer, past_key_values=cache)
        assert watching._texts.blocks_read == begun and watching.history[1].shape == (2, 2)
