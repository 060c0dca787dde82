"""The files that can be copied into a code base do what the package does, to rounding."""

import ast
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

import attsvm as att  # noqa: E402
from attsvm.torch import SteepestDescent, clip_logits  # noqa: E402
from attsvm.torch.split import Block, HeadBlock  # noqa: E402
from tests.torch_.test_torch_monitor import model_of, padded, random  # noqa: E402

FILES = Path(__file__).parents[2] / "docs" / "files"
DOUBLE = 1e-12
SINGLE = 1e-5


def loaded(name):
    spec = spec_from_file_location(name, FILES / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["per_head_muon", "qk_clip"])
def test_a_copied_file_imports_torch_alone(name):
    tree = ast.parse((FILES / f"{name}.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import torch"]


def test_a_polar_factor_is_that_of_each_matrix_of_any_stack():
    polar, G = loaded("per_head_muon").polar, random(2, 3, 6, 4).double()
    for method in ("svd", "newton-schulz", "polished"):
        each = torch.stack([torch.stack([polar(one, method) for one in some]) for some in G])
        assert (polar(G, method) - each).abs().max() <= DOUBLE
    assert (polar(G.flatten(0, 1).flatten(0, 1), "svd").unflatten(0, (2, 3, 6)) - each).abs().max() > 0.1


def trained(make, steps=4, shape=(12, 5)):
    """A matrix after some steps on a quadratic, whose gradients change with it."""
    w = torch.nn.Parameter(random(*shape).double())
    target, optimizer = random(*shape, seed=1).double(), make([w])
    for _ in range(steps):
        optimizer.zero_grad()
        ((w - target) ** 3).sum().backward()
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize("method", ["svd", "newton-schulz"])
@pytest.mark.parametrize(("heads", "axis", "nesterov"), [(1, 0, True), (4, 0, True), (5, 1, False)])
def test_per_head_muon_is_our_optimizer(method, heads, axis, nesterov):
    options = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.1}

    def on_blocks(parameters):
        (w,) = parameters
        cuts = pairwise(range(0, w.shape[axis] + 1, w.shape[axis] // heads))
        blocks = [HeadBlock(w, axis, Block("Q", h, *cut)) for h, cut in enumerate(cuts)]
        return SteepestDescent(blocks, 0.1, att.spectral, polar=method, **options)

    single = loaded("per_head_muon").PerHeadMuon
    ours = trained(on_blocks)
    copied = trained(lambda w: single(w, 0.1, heads=heads, axis=axis, method=method, **options))
    assert (copied - ours).abs().max() <= DOUBLE
    other = trained(lambda w: single(w, 0.1, axis=axis, method=method, **options | {"weight_decay": 0.0}))
    assert (other - ours).abs().max() > 1e-3


def test_polished_steps_are_orthogonal_and_five_steps_are_not():
    polar, G = loaded("per_head_muon").polar, random(3, 6, 9).double()

    def error(method):
        return (torch.linalg.svdvals(polar(G, method)) - 1).abs().max()

    assert error("svd") <= DOUBLE and error("polished") <= 0.01 and error("newton-schulz") > 0.05


def test_groups_by_head_hold_every_parameter_once():
    model, by_head = model_of("Llama"), loaded("per_head_muon").by_head
    groups, others = by_head(model, {"q_proj": 4, "k_proj": 2, "o_proj": 4}, axis={"o_proj": 1})
    assert {(g["heads"], g["axis"], len(g["params"])) for g in groups} == {(4, 0, 2), (2, 0, 2), (4, 1, 2)}
    everything = [w for g in groups for w in g["params"]] + others
    assert {id(w) for w in everything} == {id(w) for w in model.parameters()}
    assert len(everything) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="cannot be cut"):
        loaded("per_head_muon").PerHeadMuon(model.layers[0].self_attn.q_proj.parameters(), heads=3)


@pytest.mark.parametrize("groups", [1, 2])
def test_qk_clip_is_our_clip(groups):
    module, x = loaded("qk_clip"), 3 * random(2, 7, 8)

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4 * groups)

        def forward(self, states):
            return self.q(states)

    ours, copied = Attention(), Attention()
    described = att.torch.QueryKey("q", "k", heads=2, groups=groups, causal=True)
    with clip_logits(ours, 1.0, {Attention: described}) as clip:
        ours(x)
        assert clip.step()
    with torch.no_grad():
        q, k = copied.q(x).unflatten(-1, (2, 4)), copied.k(x).unflatten(-1, (groups, 4))
        largest = module.largest_logits(q.transpose(1, 2), k.transpose(1, 2), 0.5, causal=True, block=3)
        before = copied.q.weight.clone()
        module.clip_heads_(copied.q, copied.k, largest, 1.0, 2, groups)
    assert not torch.equal(before, copied.q.weight)
    for a, b in zip(ours.parameters(), copied.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=SINGLE)


def test_gains_are_clipped_as_ours_are():
    module, models = loaded("qk_clip"), [model_of("Qwen3", num_hidden_layers=1) for _ in range(2)]
    with clip_logits(models[0], 0.5) as clip:
        models[0](**padded())
        told = clip.step()
    attention = models[1].layers[0].self_attn
    largest = torch.tensor([one.largest for one in told])
    module.clip_gains_(attention.q_norm, attention.k_norm, largest, 0.5)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=SINGLE)
