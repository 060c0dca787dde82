"""Steps of one length in several geometries, and what training added to a head."""

import numpy as np
import pytest
import torch

import attsvm
from added import Added, measures
from geometry import FLOOR, EqualSteps, direction
from optimizers import optimizer

from .test_training import TINY, Sentiment, reviews

NORMS = [attsvm.frobenius, attsvm.Schatten(3), attsvm.Schatten(4), attsvm.spectral, attsvm.linf]


def gradients(largest=1.0, smallest=1e-4):
    """Three matrices (6, 9) whose singular values fall by a factor of ten thousand."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.normal(size=(3, size, 6)))[0] for size in (6, 9))
    sigma = np.geomspace(largest, smallest, 6)
    return torch.tensor(U * sigma @ V.transpose(0, 2, 1)), U, sigma, V


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_direction_is_the_steepest_one_of_its_norm(norm):
    """Against NumPy's singular value decomposition; singular values far above the floor."""
    G, *_ = gradients(1e-6, 1e-7)
    for g, found in zip(G.numpy(), direction(norm, G).numpy(), strict=True):
        best = {other: np.vdot(other.steepest(g), found) for other in NORMS}
        cosine = best[norm] / np.linalg.norm(norm.steepest(g)) / np.linalg.norm(found)
        assert cosine > 1 - 1e-4
        for other in NORMS:
            if other is not norm:  # the control: the direction of another norm is another one
                wrong = best[other] / np.linalg.norm(other.steepest(g)) / np.linalg.norm(found)
                assert wrong < 1 - 5e-3


@pytest.mark.parametrize(("norm", "root"), [(attsvm.spectral, 2), (attsvm.Schatten(4), 3)], ids=str)
def test_singular_values_below_the_floor_fade_out(norm, root):
    G, U, sigma, V = gradients()
    unit = sigma / np.linalg.norm(sigma)
    wanted = U * (unit / (unit**2 + FLOOR**2) ** (1 / root)) @ V.transpose(0, 2, 1)
    assert np.allclose(direction(norm, G).numpy(), wanted, atol=1e-9)
    assert np.allclose(direction(norm, G.float()).numpy(), wanted, atol=1e-2)


def test_a_zero_gradient_gives_no_direction_and_other_norms_are_refused():
    assert not direction(attsvm.spectral, torch.zeros(1, 3, 4)).any()
    for norm in (attsvm.nuclear, attsvm.Schatten(5), attsvm.l1):
        with pytest.raises(ValueError, match=r"Pass frobenius.*Schatten\(4\)"):
            direction(norm, torch.ones(1, 3, 4))


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_all_steps_have_one_length_and_heads_are_moved_apart_where_asked(norm, heads):
    torch.manual_seed(0)
    W = torch.nn.Parameter(torch.randn(4, 6, dtype=torch.float64))
    W.grad = torch.randn(4, 6, dtype=torch.float64) * torch.tensor([1.0, 1, 1e-3, 1e-3])[:, None]
    before, alone = W.detach().clone(), direction(norm, W.grad[None, 2:])[0]
    EqualSteps([W], 0.1, norm, heads=heads).step()
    step = before - W.detach()
    assert step.square().mean().sqrt() == pytest.approx(0.1)
    same = torch.nn.functional.cosine_similarity(step[2:].flatten(), alone.flatten(), dim=0)
    assert step[2:].square().mean().sqrt() == pytest.approx(0.1) if heads == 2 else True
    entrywise = norm in (attsvm.frobenius, attsvm.linf)
    assert (same > 1 - 1e-9) == (heads == 2 or entrywise)


def test_only_queries_and_keys_leave_adam():
    ends = {}
    for name in ("adam", "adam+sign", "adam+sign:1"):
        torch.manual_seed(0)
        model = Sentiment((reviews(4, 0),) * 2, 2, "cpu", **TINY).make()
        start = {name: w.detach().clone() for name, w in model.named_parameters()}
        rule = optimizer(name, model, 1e-3)
        sum(w.square().sum() for w in model.parameters()).backward()
        rule.step()
        ends[name] = {name: w.detach() - start[name] for name, w in model.named_parameters()}
    factors = [name for name in ends["adam"] if "query" in name or "key" in name]
    assert len(factors) == 4
    for name, step in ends["adam"].items():
        assert torch.equal(step, ends["adam+sign"][name]) == (name not in factors)
    for name in factors:
        assert torch.allclose(ends["adam+sign"][name].abs(), torch.tensor(2e-4), atol=1e-7)
        assert torch.allclose(ends["adam+sign:1"][name].abs(), torch.tensor(1e-3), atol=1e-7)


def test_what_was_added_to_a_head_is_measured():
    """One head gets a rank of one, the other two equal singular values; the start does not count."""
    model = Sentiment((reviews(4, 0),) * 2, 2, "cpu", **TINY).make()
    module = model.blocks[0].attention
    with torch.no_grad():
        module.key.weight.copy_(torch.eye(8))  # heads of width 4
        added = Added(model)
        module.query.weight[0, 0] += 6.0
        module.query.weight[4, 1] += 2.0
        module.query.weight[5, 2] += 2.0
    spectra = added.spectra(model)
    assert spectra.shape == (4, 8)
    found = measures(spectra[:2])  # W = W_K' W_Q / 2
    assert found[0] == pytest.approx([1, 1, 3], rel=1e-4)
    assert found[1] == pytest.approx([2, 2, np.sqrt(2)], rel=1e-4)
    assert spectra[2:].max() < 1e-12  # of weights of size one, in float64
