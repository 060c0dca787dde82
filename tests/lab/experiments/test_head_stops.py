"""Where a head of a trained net stands: constructed stops, limits and heads on their way."""

import numpy as np
import pytest
import torch

import attsvm
from data import Images
from head_kkt import ascent, extended, pairs, standing
from head_stop_table import stops
from head_stops import HeadLook, starting
from optimizers import optimizer
from run import DIGITS
from tasks import Vision

from .test_training import TINY, Sentiment, reviews


def head(power=2.0, beyond=2.0, turned=0.0):
    """K, Q (6, 4) of rank 2, M = U Dʳ⁻¹ Vᵀ + M_⊥: a KKT point of Schatten(power) steps, r half of it.

    turned: no longer, by a part of M that turns the used directions.
    """
    rng = np.random.default_rng(0)
    U, V, R = (np.linalg.qr(rng.normal(size=shape))[0] for shape in ((6, 6), (6, 6), (4, 2)))
    D = np.array([2.0, 1.0])
    K, Q = (X[:, :2] * D**0.5 @ R.T for X in (U, V))
    M = U[:, :2] * D ** (power / 2 - 1) @ V[:, :2].T + beyond * U[:, 4:] * [1.0, 0.5] @ V[:, 4:].T
    M = M + turned * U[:, :2] @ np.array([[0.0, 1], [-1, 0]]) @ V[:, :2].T
    return (torch.from_numpy(X) for X in (K, Q, M))


@pytest.mark.parametrize("pull", [1.1, 2.0, 7.0])
def test_a_constructed_stop_is_found_with_its_pull(pull):
    found = standing(*head(beyond=pull), attsvm.frobenius)
    assert found["alignment"] == pytest.approx(1, abs=1e-12) and found["balance"] < 1e-12
    assert found["rank"] == 2 and found["beyond"] / found["inside"] == pytest.approx(pull)
    assert stops([found], width=4) == 1


@pytest.mark.parametrize("changed", [{"beyond": 0.9}, {"turned": 0.5}, {"turned": 3.0}], ids=str)
def test_a_limit_and_heads_on_their_way_are_no_stops(changed):
    found = standing(*head(**changed), attsvm.frobenius)
    assert stops([found], width=4) == 0
    assert (found["alignment"] > 0.99) == ("beyond" in changed)


def test_a_gradient_that_shrinks_the_head_is_no_stop_and_a_full_rank_leaves_nothing_spare():
    K, Q, M = head()
    shrinking = standing(K, Q, -M, attsvm.frobenius)
    assert shrinking["inside"] < 0 and stops([shrinking], width=4) == 0
    assert stops([standing(K, Q, M, attsvm.frobenius)], width=2) == 0


def test_alignment_is_of_the_norm_of_the_steps():
    for power, norm in ((2.0, attsvm.frobenius), (4.0, attsvm.Schatten(4))):
        found = {p: standing(*head(power), attsvm.Schatten(p))["alignment"] for p in (2, 4)}
        assert found[power] == pytest.approx(1, abs=1e-9) and min(found.values()) < 0.99, norm


def test_it_agrees_with_the_verdict_on_a_trained_pair():
    tokens, v = attsvm.datasets.sphere(4, 4, 8, seed=410)
    rule = attsvm.steepest(attsvm.frobenius, 0.01)
    run = attsvm.train(tokens, attsvm.Linear(v), weight=attsvm.KeyQuery(), optimizer=rule, steps=300)
    point = attsvm.kkt_point(run, v)
    coefficients = -point.multipliers
    coefficients[np.arange(tokens.n), run.selected.argmax(-1)] += point.multipliers.sum(-1)
    M = np.einsum("nt,ntd,ne->de", coefficients, tokens.keys, tokens.queries)
    K, Q, M = (torch.from_numpy(np.array(X, float)) for X in (run.K[-1], run.Q[-1], M))
    found = standing(K, Q, M, attsvm.frobenius, used=0.01)
    assert found["alignment"] == pytest.approx(point.alignment, rel=1e-9)
    assert found["balance"] == pytest.approx(point.balance, rel=1e-9) and found["rank"] == point.rank
    assert standing(K, -Q, M, attsvm.frobenius)["alignment"] < 0


def small(kind):
    if kind == "texts":
        return Sentiment((reviews(6, 0),) * 2, 2, "cpu", **TINY)
    drawn = Images(torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8), torch.arange(5))
    return Vision((drawn,) * 2, "cpu", **DIGITS)


@pytest.mark.parametrize("kind", ["pictures", "texts"])
def test_the_gradient_in_w_is_that_of_the_factors_by_the_chain_rule(kind):
    torch.manual_seed(0)
    task = small(kind)
    model = task.make().eval()
    first = next(task.batches(0, 1))
    heads, (K, Q) = model.blocks[0].attention.heads, pairs(model)
    layers = [block.attention for block in model.blocks]
    of_K, of_Q = (
        -torch.cat(
            [g.unflatten(0, (heads, -1)) for g in torch.autograd.grad(mean_loss(task, model, first), x)]
        )
        for x in ([layer.key.weight for layer in layers], [layer.query.weight for layer in layers])
    )
    M, z = ascent(task, model, [first])
    scale = K.shape[-1] ** -0.25
    for chained, expected in ((M @ Q * scale, of_K.mT), (M.mT @ K * scale, of_Q.mT)):
        assert torch.allclose(chained, expected.double(), rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert torch.allclose(z.norm(dim=-1), torch.ones(len(z), dtype=z.dtype))
    doubled = ascent(task, model, [first, first])[0]
    assert torch.allclose(doubled, M)  # a mean, not a sum


def mean_loss(task, model, batch):
    return task.loss(model, batch)[0] / (len(batch[-1]) if task.summed else 1)


def test_a_term_in_the_logits_changes_the_loss_and_is_gone_afterwards():
    torch.manual_seed(0)
    task = small("pictures")
    model, batch = task.make().eval(), next(task.batches(0, 1))
    plain = task.loss(model, batch)[0].item()
    with extended(model) as terms:
        assert task.loss(model, batch)[0].item() == pytest.approx(plain, rel=1e-5)
        terms[0].data += torch.randn(terms[0].shape)
        assert task.loss(model, batch)[0].item() != pytest.approx(plain, rel=1e-5)
    assert task.loss(model, batch)[0].item() == plain


@pytest.mark.parametrize(("rule", "same"), [("adam+gd-heads", True), ("adam+muon-heads", False)])
def test_gradient_descent_adds_the_sum_of_its_gradients_and_muon_does_not(rule, same, tmp_path):
    torch.manual_seed(0)
    task = small("pictures")
    model, batch = task.make(), next(task.batches(0, 1))
    look, steps = HeadLook(task, attsvm.frobenius, [batch]), optimizer(rule, model, 1e-3)
    look(model.eval(), 0, tmp_path)
    task.loss(model, batch)[0].backward()
    steps.step()
    heads = look(model, 1, tmp_path)["standing"]
    assert all((head["alike"] > 0.999) == same for head in heads)
    assert all((head["added"] == pytest.approx(head["gradients"], rel=1e-2)) == same for head in heads)
    assert all(0 < head["grown"] < 0.1 and head["factors"] < 0.1 for head in heads)


def test_a_smaller_start_shrinks_queries_and_keys_alone():
    task = small("pictures")
    torch.manual_seed(0)
    plain = task.make()
    torch.manual_seed(0)
    smaller = starting(task.make, 0.1, centred=False)()
    for name, weight in smaller.named_parameters():
        factor = 0.1 if "query" in name or "key" in name else 1.0
        assert torch.allclose(weight, factor * dict(plain.named_parameters())[name]), name
