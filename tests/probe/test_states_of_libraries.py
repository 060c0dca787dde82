"""States that TransformerLens, nnsight and nnterp hand over are those of transformers, layer by layer."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the probe needs the extra sklearn")
torch = pytest.importorskip("torch", reason="needs attsvm[hf]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm.probe import AttentionProbe  # noqa: E402

SAME = 1e-5
"""Of float32 states of size one that another library's attention has computed."""

LAYER = 2


@pytest.fixture
def model():
    """Of each test its own: a bridge of TransformerLens replaces the modules of the model it is given."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 20, "intermediate_size": 30, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=30, **sizes)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 30, (1, int(T)), generator=draw) for T in torch.randint(3, 9, (12,))]


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(30)}, unk_token="w0"))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", bos_token="w2")
    made.save_pretrained(tmp_path)
    return transformers.AutoTokenizer.from_pretrained(tmp_path)


def of_transformer_lens(model, ids, tokenizer):
    pytest.importorskip("transformer_lens", reason="needs the package transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge

    lens = TransformerBridge.boot_transformers("tiny", hf_model=model, tokenizer=tokenizer)
    place = f"blocks.{LAYER - 1}.hook_out"
    return [lens.run_with_cache(x, names_filter=place)[1][place][0, 1:] for x in ids]


def of_nnsight(model, ids, tokenizer):
    pytest.importorskip("nnsight", reason="needs the package nnsight")
    from nnsight import NNsight

    lens, states = NNsight(model), []
    for x in ids:
        with lens.trace(x):
            state = lens.model.layers[LAYER - 1].output.save()
        states.append(state[0, 1:])
    return states


def of_nnterp(model, ids, tokenizer):
    pytest.importorskip("nnterp", reason="needs nnterp beside a version of nnsight that it knows")
    from nnterp import StandardizedTransformer

    lens, states = StandardizedTransformer(model, tokenizer=tokenizer, check_renaming=False), []
    for x in ids:
        with lens.trace(x):
            state = lens.layers_output[LAYER - 1].save()
        states.append(state[0, 1:])
    return states


@pytest.mark.parametrize("read", [of_transformer_lens, of_nnsight, of_nnterp])
def test_the_states_of_a_library_are_those_that_the_probe_was_fitted_on(model, ids, tokenizer, read):
    layers = [model(x, output_hidden_states=True).hidden_states for x in ids]
    expected = [of_text[LAYER][0, 1:] for of_text in layers]
    states = read(model, ids, tokenizer)
    following = [of_text[LAYER + 1][0, 1:] for of_text in layers]
    assert max(float((a - b).abs().max()) for a, b in zip(states, expected, strict=True)) < SAME
    assert min(float((a - b).abs().max()) for a, b in zip(states, following, strict=True)) > 1e-3
    probe = AttentionProbe(head_ridge=0.1, prompt_ridge=0.1).fit(expected, np.arange(len(ids)) % 2)
    scores = [probe.decision_function(x) for x in (states, expected)]
    assert np.abs(scores[0] - scores[1]).max() < 100 * SAME
