"""Compositional: steps of W_Q and W_K are steps of their product."""

from copy import deepcopy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

import jax  # noqa: E402

from attsvm import frobenius, spectral  # noqa: E402
from attsvm.torch import Compositional, SteepestDescent  # noqa: E402
from attsvm.training import rules as training  # noqa: E402

SAME = 1e-9
"""Two float64 programs with eigenvalues and singular values of 6 × 6 in each of thirty steps."""


def pair(heads=1, groups=1, width=3, d=6, size=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = (heads * width, d), (groups * width, d)
    return [
        torch.nn.Parameter(size * torch.randn(s, generator=draw, dtype=torch.float64)) for s in shapes
    ], torch.randn(heads, d, d, generator=draw, dtype=torch.float64)


def products(query, key, heads, groups=None):
    """W of every head (heads, d, d)."""
    q, k = query.unflatten(0, (heads, -1)), key.unflatten(0, (groups or heads, -1))
    return k.repeat_interleave(heads // (groups or heads), 0).mT @ q


def stepped(make, params, target, heads, groups=None, steps=1):
    """The change of every head's W by steps on ½‖W − target‖²."""
    before = products(*params, heads, groups).detach()
    optimizer = make()
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * (products(*params, heads, groups) - target).square().sum()).backward()
        optimizer.step()
    return products(*params, heads, groups).detach() - before


@pytest.mark.parametrize("norm", [spectral, frobenius], ids=str)
def test_it_takes_the_steps_of_the_other_road(norm):
    (query, key), target = pair()
    with jax.enable_x64(True):
        rule = training.Compositional(norm, 0.05, 0.01, 0.1)
        theirs = {"K": key.detach().numpy().T.copy(), "Q": query.detach().numpy().T.copy()}
        state, update = rule.init(theirs), jax.jit(rule.update)
        for _ in range(30):
            error = theirs["K"] @ theirs["Q"].T - target[0].numpy()
            grads = {"K": error @ theirs["Q"], "Q": error.T @ theirs["K"]}
            moved, state = update(grads, state, theirs)
            theirs = {name: theirs[name] + np.asarray(moved[name]) for name in theirs}
    stepped(
        lambda: Compositional([(query, key)], 0.05, norm, weight_decay=0.1), (query, key), target, 1, 1, 30
    )
    assert np.abs(key.detach().numpy().T - theirs["K"]).max() < SAME * np.abs(theirs["K"]).max()
    assert np.abs(query.detach().numpy().T - theirs["Q"]).max() < SAME * np.abs(theirs["Q"]).max()
    (other, more), _ = pair()
    stepped(lambda: Compositional([(other, more)], 0.05, norm, ridge=0.1), (other, more), target, 1, 1, 30)
    assert np.abs(other.detach().numpy().T - theirs["Q"]).max() > 1e-3


@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2)])
def test_every_head_moves_by_at_most_the_step_however_long_its_factors_are(heads, groups):
    lengths = {}
    for size in (0.3, 1.0, 30.0):
        for name in ("compositional", "muon"):
            params, target = pair(heads, groups, size=size)
            rules = {
                "compositional": lambda p=params: Compositional([p], 1e-4, heads=heads, groups=groups),
                "muon": lambda p=params: SteepestDescent(p, 1e-4, spectral),
            }
            change = stepped(rules[name], params, 1e3 * target, heads, groups)
            lengths[name, size] = float(torch.linalg.matrix_norm(change, 2).max()) / 1e-4
    assert all(0.1 < lengths["compositional", size] < 1 + 1e-2 for size in (0.3, 1.0, 30.0))
    assert lengths["muon", 30.0] > 10


def test_heads_side_by_side_take_the_steps_that_they_take_alone():
    params, target = pair(2, 2)
    alone = [torch.nn.Parameter(w.detach().clone()) for w in params]
    together = stepped(
        lambda: Compositional([params], 0.1, heads=2, momentum=0.5), params, target, 2, steps=3
    )
    for head in range(2):
        own = [torch.nn.Parameter(w.detach().chunk(2)[head].clone()) for w in alone]
        make = lambda own=own: Compositional([own], 0.1, momentum=0.5)  # noqa: E731
        change = stepped(make, own, target[head : head + 1], 1, steps=3)
        assert torch.allclose(change[0], together[head], rtol=SAME, atol=SAME)
    whole = [torch.nn.Parameter(w.detach().clone()) for w in alone]
    joined = stepped(lambda: Compositional([whole], 0.1, momentum=0.5), whole, target, 2, steps=3)
    assert not torch.allclose(joined, together, rtol=1e-2)


def test_a_checkpoint_goes_on_and_a_frozen_key_stays():
    params, target = pair(2, 1)
    make = lambda: Compositional([params], 0.1, heads=2, groups=1, momentum=0.9)  # noqa: E731
    optimizer = make()

    def step(one):
        one.zero_grad()
        (products(*params, 2, 1) - target).square().sum().backward()
        one.step()

    step(optimizer)
    kept, weights = deepcopy(optimizer.state_dict()), [w.detach().clone() for w in params]
    step(optimizer)
    ended = [w.detach().clone() for w in params]
    for w, before in zip(params, weights, strict=True):
        w.data.copy_(before)
    again = make()
    again.load_state_dict(kept)
    step(again)
    assert all(torch.equal(w, end) for w, end in zip(params, ended, strict=True))
    params[1].requires_grad_(False)
    step(again)
    assert torch.equal(params[1], ended[1]) and not torch.equal(params[0], ended[0])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"ridge": 0.0}, "ridge is 0.0"),
        ({"heads": 3, "groups": 2}, "divisor"),
        ({"heads": 2, "groups": 1}, "groups · width"),
        ({"heads": 5}, "heads · width"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(how, said):
    params, _ = pair(2, 2)
    with pytest.raises(ValueError, match=said):
        Compositional([params], 0.1, **how)
    with pytest.raises(ValueError, match="1 parameters"):
        Compositional([params[:1]], 0.1)


def test_a_gradient_with_a_nan_is_seen_in_its_head_and_in_no_other():
    torch.manual_seed(0)
    pair = [torch.nn.Parameter(torch.randn(4, 5, dtype=torch.float64)) for _ in range(2)]
    optimizer = Compositional([pair], lr=0.1, heads=2)
    for step in range(2):  # the second with weights that are NaN
        for w in pair:
            w.grad = torch.ones_like(w)
        if not step:
            pair[0].grad[0, 0] = torch.nan
        optimizer.step()
    query, key = pair
    assert query[:2].isnan().all() and key[:2].isnan().all()
    assert not query[2:].isnan().any() and not key[2:].isnan().any()
