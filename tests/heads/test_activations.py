"""Hidden states on disk: the model's own, in the given precision, whatever interrupted the writing."""

import json

import numpy as np
import pytest

from attsvm.heads import Activations, CutTexts, activations, activations as function, load
from attsvm.heads.activations import NotANumber
from tests.heads.conftest import TEXTS

MANY = [*TEXTS, "a film", "the plot is dull .", "one two three two one", "never again , never", "fine ."]
HALF = 2.0**-10
"""Relative spacing of float16; half of it is the rounding, the rest is left for padded batches."""


@pytest.fixture
def module():
    import sys

    return sys.modules["attsvm.heads.activations"]


def arrays(read, layer):
    from safetensors.numpy import load_file

    return load_file(read.files[layer])


def own(reader, text):
    """What the model itself says, one text at a time, without padding."""
    import torch

    ids = torch.tensor(reader.tokenizer([text])["input_ids"])
    with torch.no_grad():
        states = reader.model.base_model(input_ids=ids, output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in states]


@pytest.mark.parametrize("name", ["llama", "bert", "convbert", "nystromformer"])
def test_every_file_holds_the_models_own_states(name, request, tmp_path):
    reader = request.getfixturevalue(name)
    read = activations(reader, MANY, [0, 1, -1], tmp_path, batch=20)
    assert list(read.files) == [0, 1, 2] and len(read) == len(MANY)
    for layer in read.files:
        held = arrays(read, layer)
        assert held["tokens"].dtype == np.float16 and held["offsets"].dtype == np.int64
        for i, text in enumerate(MANY):
            mine = held["tokens"][held["offsets"][i] : held["offsets"][i + 1]]
            states = [state[int(name == "llama") :] for state in own(reader, text)]  # a sink is left out
            assert mine.shape == states[layer].shape
            assert np.allclose(mine, states[layer], rtol=HALF, atol=1e-4)
            assert not np.allclose(mine, states[(layer + 1) % 3], rtol=HALF, atol=1e-4)


def test_an_interrupted_call_ends_in_the_bits_of_one_that_was_not(llama, tmp_path, monkeypatch, module):
    whole = activations(llama, MANY, [1, 2], tmp_path / "whole", batch=10)
    calls, one = [], module._write_batch

    def stops(*given):
        calls.append(given[2])
        if len(calls) == 4:
            raise KeyboardInterrupt
        one(*given)

    monkeypatch.setattr(module, "SAVED_EVERY", -1.0)
    monkeypatch.setattr(module, "_write_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        activations(llama, MANY, [1, 2], tmp_path / "cut", batch=10)
    assert (
        not list((tmp_path / "cut").rglob("*.safetensors"))
        and not (tmp_path / "cut/activations.json").exists()
    )
    resumed = activations(llama, MANY, [1, 2], tmp_path / "cut", batch=10)
    tried = [tuple(texts) for texts in calls]
    assert (
        tried.count(tried[3]) == 2 and len(tried) == len(set(tried)) + 1
    )  # only the failed batch came twice
    for layer in (1, 2):
        assert whole.files[layer].read_bytes() == resumed.files[layer].read_bytes()
    assert {f.name for f in resumed.folder.iterdir()} == {f.name for f in whole.folder.iterdir()}


def test_what_was_not_noted_is_written_again(llama, tmp_path, monkeypatch, module):
    whole = activations(llama, MANY, [1], tmp_path / "whole", batch=10)
    one, left = module._write_batch, iter([True] * 3)

    def killed(*given):
        if not next(left, False):
            raise SystemExit
        one(*given)

    monkeypatch.setattr(module, "_write_batch", killed)
    with pytest.raises(SystemExit):
        activations(llama, MANY, [1], tmp_path / "cut", batch=10)
    assert not (tmp_path / "cut/progress.json").exists()  # less than two seconds: nothing was noted
    monkeypatch.setattr(module, "_write_batch", one)
    again = activations(llama, MANY, [1], tmp_path / "cut", batch=10)
    assert whole.files[1].read_bytes() == again.files[1].read_bytes()


def test_a_finished_folder_is_not_computed_again_and_another_call_is_refused(
    llama, bert, tmp_path, monkeypatch, module
):
    first = activations(llama, MANY, [1], tmp_path)
    monkeypatch.setattr(module, "_write_batch", lambda *_: pytest.fail("computed again"))
    assert activations(llama, MANY, [1], tmp_path).files == first.files
    for call, what in (
        (lambda: activations(llama, MANY[:3], [1], tmp_path), "texts"),
        (lambda: activations(llama, MANY, [2], tmp_path), "layers"),
        (lambda: activations(bert, MANY, [1], tmp_path), "model, weights, skip"),
    ):
        with pytest.raises(ValueError, match=f"another call \\(its {what}\\)"):
            call()


def test_models_of_one_name_are_told_apart_by_their_weights(llama, tmp_path):
    from copy import deepcopy

    activations(llama, MANY, [1], tmp_path)
    other = load(deepcopy(llama.model), llama.tokenizer)
    other.model.lm_head.weight.data *= 2
    with pytest.raises(ValueError, match="its weights"):
        activations(other, MANY, [1], tmp_path)


def test_a_state_beyond_float16_is_an_error_and_bfloat16_holds_it(llama, tmp_path):
    from copy import deepcopy

    import torch
    from safetensors.torch import load_file

    large = load(deepcopy(llama.model), llama.tokenizer)
    large.model.model.embed_tokens.weight.data *= 1e6
    with pytest.raises(NotANumber, match=r"layer 0: a state of .* is not a finite float16.*bfloat16"):
        activations(large, MANY, [0], tmp_path / "half")
    read = activations(large, MANY, [0], tmp_path / "brain", dtype="bfloat16")
    tokens = load_file(read.files[0])["tokens"]
    assert tokens.dtype == torch.bfloat16 and tokens.isfinite().all()
    assert np.allclose(tokens[:5].float(), own(large, MANY[0])[0][1:6], rtol=2**-7)


def test_texts_that_are_cut_are_named_and_pieces_are_those_that_were_read(llama, tmp_path):
    with pytest.warns(CutTexts, match="text 0, 1, 3"):
        activations(llama, MANY, [1], tmp_path, length=4)
    read = Activations.open(tmp_path)
    assert [cut.text for cut in read.cut][:3] == [0, 1, 3]
    ids = llama.tokenizer([MANY[2]])["input_ids"][0]
    assert read.pieces(2) == [llama.tokenizer.decode([i]) for i in ids[1:]]
    assert "layers 1" in repr(read) and len(read.pieces(0)) == 3


def test_first_tokens_are_kept_on_request_and_the_last_one_always(llama, bert, tmp_path):
    whole = activations(llama, MANY, [2], tmp_path / "whole", skip=0)
    some = activations(llama, MANY, [2], tmp_path / "some", skip=4)
    for i, text in enumerate(MANY):
        state = own(llama, text)[2]
        for read, skip in ((whole, 0), (some, min(4, len(state) - 1))):
            held = arrays(read, 2)
            mine = held["tokens"][held["offsets"][i] : held["offsets"][i + 1]]
            assert len(mine) == len(state) - skip and np.allclose(mine, state[skip:], rtol=HALF, atol=1e-4)
    assert len(some.pieces(2)) == 1  # it has three tokens
    assert activations(bert, MANY, [2], tmp_path / "encoder").tokens == whole.tokens


def test_wrong_calls_say_what_to_pass(llama, tmp_path):
    for call, said in (
        (
            lambda: function(llama, MANY, [3], tmp_path),
            r"layers are \[3\]. Pass numbers from 0 \(embeddings\) to 2",
        ),
        (lambda: function(llama, MANY, [1], tmp_path, dtype="int8"), "float16, bfloat16, float32"),
        (lambda: function(llama, "one text", [1], tmp_path), "one string"),
        (lambda: function(llama, ["a", " "], [1], tmp_path), "text 1 is ' '"),
        (lambda: Activations.open(tmp_path), "no finished activations"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            call()
    assert not list(tmp_path.iterdir())


def test_tokens_begin_at_a_multiple_of_64_bytes(llama, tmp_path):
    read = activations(llama, MANY, [1], tmp_path)
    with read.files[1].open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    assert (8 + length) % 64 == 0 and header["tokens"]["data_offsets"][0] == 0
    assert header["__metadata__"]["layer"] == "1"


def test_a_probe_is_fitted_on_the_files_and_reads_their_pieces(llama, tmp_path):
    pytest.importorskip("sklearn", reason="the probe needs the extra sklearn")
    from attsvm.probe import AttentionProbe, TokenStore

    read = activations(llama, MANY, [1, 2], tmp_path)
    store = TokenStore.open(read.files[2])
    assert len(store) == len(MANY) and np.array_equal(store[3], TokenStore.open(tmp_path / "layer-02")[3])
    labels = np.arange(len(MANY)) % 2
    probe = AttentionProbe(head_ridge=0.1, prompt_ridge=0.1).fit(store, labels)
    told = probe.explain(store, read, labels)
    assert told.pieces[4] == tuple(read.pieces(4)) and len(told.contributions[4]) == len(read.pieces(4))
