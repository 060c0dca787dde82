"""Blocks of heads: which head each belongs to, steps on them, layouts, and what is refused."""

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
transformers = pytest.importorskip("transformers", reason="needs attsvm[hf]")

from attsvm import HeadLayout, frobenius, spectral  # noqa: E402
from attsvm.torch import QueryKey, SteepestDescent, split  # noqa: E402
from tests.torch_ import test_torch_families as families  # noqa: E402
from tests.torch_.test_torch_families import SIZES, batch_of, looked, model_of  # noqa: E402
from tests.torch_.test_torch_single_files import loaded  # noqa: E402

MORE = {"Phi3": {"num_key_value_heads": 2}, "Llama": {"num_key_value_heads": 2}}
SPLIT = ("Llama", "Phi3", "GPT2, by layer", "GPTNeoX", "Falcon", "Falcon, groups", "Falcon, alibi")
SPLIT += ("DeepseekV2", "DeepseekV3", "T5", "Qwen3_5Text", "Persimmon", "GPTJ", "Albert")
LARGE = 1e-3
"""A block whose first row is doubled moves its heads' logits by 0.01 and more, and no other's at all."""

FUSED_GROUPS = HeadLayout(((("Q0", "Q1", "Q2", "Q3", "Q4", "Q5", "K0", "K1"),),), (0, 0, 0, 1, 1, 1))
"""Phi-3's, with two key heads."""


@pytest.fixture(autouse=True)
def further_families(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES | MORE)


def logits(model):
    """Of the first attention."""
    look = looked(model)[0][1].logits
    return look.block(slice(0, look.shape[-2]), slice(0, look.shape[-1])).nan_to_num(neginf=0.0)


def changed_heads(model, block, before):
    """The heads of the first attention whose logits are not those before when a block is doubled."""
    with torch.no_grad():
        block[0].mul_(2)
        change = (logits(model) - before).abs().amax((0, 2, 3))
        block[0].div_(2)  # to the same bits
    assert bool(((change == 0) | (change > LARGE)).all())
    return set(torch.nonzero(change)[:, 0].tolist())


@pytest.mark.parametrize("family", SPLIT)
def test_a_block_moves_the_logits_of_its_heads_and_no_others(family):
    model = model_of(family)
    parts = split(model)
    heads, first, blocks = parts.layouts[0].heads, parts.layouts[0].module, iter(parts.blocks)
    before = logits(model)
    for matrix in parts.matrices:
        keys = sum(block.kind == "K" for block in matrix.blocks)
        for block in matrix.blocks:
            readers = {h for h in range(heads) if keys and h * keys // heads == block.head}
            latents = set(range(heads)) if "kv_a" in matrix.name else set()
            parameter = next(blocks)
            if matrix.name.startswith(first):
                expected = {"Q": {block.head}, "K": readers, "V": latents}[block.kind]
                assert changed_heads(model, parameter, before) == expected
        assert [b.stop for b in matrix.blocks[:-1]] == [b.start for b in matrix.blocks[1:]]


def trained(model, make, steps=3):
    """The model after some steps of the optimizer that `make` gives for it, gradients clipped."""
    optimizer = make(model)
    for _ in range(steps):
        optimizer.zero_grad()
        states = model(**batch_of(model))[0]
        (states * torch.linspace(-1, 1, states.numel()).view_as(states).sin()).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {name: w.detach().clone() for name, w in model.named_parameters()}


def difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("family", ["Llama", "GPT2, by layer", "DeepseekV3"])
def test_torchs_muon_on_blocks_steps_as_on_copies_of_them(family):
    model, options = model_of(family), {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    parts = split(model)
    trained(model, lambda m: SteepestDescent(m.parameters(), 0.0, frobenius), steps=1)  # leaves gradients
    copies = [torch.nn.Parameter(block.detach().clone()) for block in parts.blocks]
    wholes = [torch.nn.Parameter(m.weight.detach().clone()) for m in parts.matrices]
    for copy, block in zip(copies, parts.blocks, strict=True):
        copy.grad = block.grad.clone()
    for whole, matrix in zip(wholes, parts.matrices, strict=True):
        whole.grad = matrix.weight.grad.clone()
    for parameters in (parts.blocks, copies, wholes):
        torch.optim.Muon(parameters, **options).step()
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(parts.blocks, copies, strict=True))
    far = [float((w - m.weight).detach().abs().max()) for w, m in zip(wholes, parts.matrices, strict=True)]
    assert max(far) > 1e-3


def test_steps_on_blocks_are_those_of_an_optimizer_that_cuts_the_matrices():
    def exact(model):
        return SteepestDescent(split(model).blocks, 0.1, spectral, momentum=0.5)

    def cutting(model):
        how = {"momentum": 0.5, "nesterov": False, "weight_decay": 0.0, "method": "svd"}
        return loaded("per_head_muon").PerHeadMuon(split(model).groups("heads"), 0.1, **how)

    one, cut = trained(model_of("Phi3"), exact), trained(model_of("Phi3"), cutting)
    assert difference(one, cut) < 1e-6
    whole = [m.weight for m in split(model_of("Phi3")).matrices]
    assert len(whole) == 2 and len(split(model_of("Phi3")).blocks) == 20
    together = trained(
        model_of("Phi3"),
        lambda m: SteepestDescent([x.weight for x in split(m).matrices], 0.1, spectral, momentum=0.5),
    )
    assert difference(one, together) > 1e-3


def test_blocks_share_memory_and_gradients_with_the_model():
    model = model_of("Llama")
    parts = split(model)
    block, matrix = parts.blocks[0], parts.matrices[0].weight
    assert block.grad is None
    model(**batch_of(model))[0].square().mean().backward()
    assert torch.equal(block.grad, matrix.grad[:8])
    block.grad = torch.ones_like(block)
    assert bool((matrix.grad[:8] == 1).all())
    SteepestDescent(parts.blocks, 0.1, frobenius).zero_grad()
    assert matrix.grad is None
    trained = {id(w) for w in parts.others} | {id(m.weight) for m in parts.matrices}
    assert trained == {id(w) for w in model.parameters()}


def test_counts_and_tags_are_those_that_dion_and_deepspeed_cut_by():
    parts = split(model_of("Llama"))
    groups = {group["num_heads"]: group["params"] for group in parts.groups()}
    assert {heads: len(weights) for heads, weights in groups.items()} == {6: 2, 2: 4}
    for weight, block in ((groups[6][0], parts.blocks[1]), (groups[2][0], parts.blocks[7])):
        heads = 6 if weight is groups[6][0] else 2
        assert torch.equal(weight.view(heads, 8, 48)[1], block)
    latent = split(model_of("DeepseekV3")).matrices[1]
    assert "kv_b" in latent.name and latent.count == 6 and len(latent.blocks) == 12
    parts.tag()
    assert groups[2][0].muon_num_heads == 2 and groups[2][0].muon_head_dim == 8
    with pytest.raises(NotImplementedError, match="columns"):
        split(model_of("GPT2, by layer")).tag()


def test_layouts_are_named_with_what_the_theory_says():
    of = {family: split(model_of(family)).layouts[0] for family in ("Llama", "Phi3", "Albert", "DeepseekV3")}
    assert of["Albert"].whole == HeadLayout.fused(6) and of["Albert"].apart == HeadLayout.apart(6)
    assert of["Llama"].whole == HeadLayout.grouped_queries(2, 3) and of["Llama"].filled == 1
    assert of["Phi3"].whole == FUSED_GROUPS and "values" in of["Phi3"].note
    assert of["DeepseekV3"].whole is None and "norm is open" in of["DeepseekV3"].note
    text = str(split(model_of("Phi3")))
    assert "1 more" in text and "heads · width / d is 1.67" in text and "starves in" in text
    assert "normalised" in split(model_of("Qwen3_5Text")).layouts[0].note


class Own(torch.nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def test_modules_of_ones_own_and_of_torch_are_split():
    own = {Own: QueryKey("qkv", "qkv", heads=2, width=4)}
    kinds = [(b.kind, b.head) for b in split(Own(), own).matrices[0].blocks]
    assert kinds == [(kind, h) for kind in "QKV" for h in (0, 1)]
    assert len(split(torch.nn.TransformerEncoderLayer(8, 2)).blocks) == 6
    wide = split(torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4))
    assert [tuple(b.shape) for b in wide.blocks[::2]] == [(4, 8), (4, 6), (4, 4)]


def test_what_cannot_be_split_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="Linear has no attention module"):
        split(torch.nn.Linear(2, 2))
    crossed = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, add_cross_attention=True)
    assert list(split(transformers.GPT2Model(crossed)).refused) == ["h.0.crossattention"]
    config = transformers.CodeGenConfig(n_embd=8, n_layer=1, n_head=2, vocab_size=9, rotary_dim=2)
    with pytest.raises(ValueError, match="nothing tells which outputs"):
        split(transformers.CodeGenModel(config))
    with torch.device("meta"):
        parts = split(transformers.LlamaModel(transformers.LlamaConfig(**SIZES)))
    assert parts.groups()[0]["num_heads"] == 6
    with pytest.raises(NotImplementedError, match="no memory yet"):
        parts.blocks  # noqa: B018
    model = torch.nn.MultiheadAttention(8, 2)
    blocks = split(model).blocks
    model.double()
    with pytest.raises(RuntimeError, match="have moved"):
        blocks[0].grad  # noqa: B018


def test_what_is_frozen_is_left_out():
    model = model_of("Llama")
    for name, w in model.named_parameters():
        w.requires_grad_("q_proj" not in name)
    parts = split(model)
    assert not any("q_proj" in m.name for m in parts.matrices) and "frozen" in parts.layouts[0].note
    assert len(parts.matrices) == 4
