"""Optimizers of optax and torch are known by the steps that they take, and never by a theorem."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attsvm import datasets
from attsvm.comparison.likeness import likeness
from attsvm.comparison.theory import NoTheorem, limit_norm
from attsvm.norms import Schatten, frobenius, linf, nuclear, spectral
from attsvm.training.optimizers import gd, mirror, scale_free, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery, MultiHead

pytestmark = pytest.mark.quick

SAME = {
    "sgd": (optax.sgd(0.1), "gd(lr)", frobenius),
    "sgd in chains": (optax.chain(optax.identity(), optax.chain(optax.sgd(0.1))), "gd(lr)", frobenius),
    "momentum": (optax.sgd(0.1, 0.9), "steepest('frobenius', lr, momentum=0.9)", frobenius),
    "unit length": (
        optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.scale(-0.1)),
        "steepest('frobenius', lr)",
        frobenius,
    ),
    "sign": (optax.sign_sgd(0.1), "steepest('linf', lr)", linf),
    "signum": (optax.signum(0.1, 0.8), "steepest('linf', lr, momentum=0.8)", linf),
    "signum of 0.87": (optax.signum(0.1, 0.87), "steepest('linf', lr, momentum=0.87)", linf),
    "adam without eps": (optax.adam(0.1, 0.8, 0.95, 0.0), "adam(lr, b1=0.8, b2=0.95, eps=0.0)", linf),
    "sign, scale-free": (scale_free(optax.sign_sgd(0.1)), "steepest('linf', lr)", linf),
    "a schedule": (optax.sign_sgd(optax.exponential_decay(0.1, 3, 0.5)), "steepest('linf', lr)", linf),
}
OTHER = {
    "muon": (optax.contrib.muon(0.1), "moves like spectral steps .cosine 0.9", "→ spectral"),
    "lion": (optax.lion(0.1, weight_decay=0.0), "moves like linf steps .cosine 0.7", "→ l∞"),
    "adam": (
        optax.adam(0.1),
        "momentum 0.9, other steps at gradients of 1e-12, as with eps",
        "eps=0.0. → l∞",
    ),
    "adamw": (optax.adamw(0.1, eps=0.0), "its steps depend on the weight, as with decay", "→ l∞"),
    "rmsprop": (optax.rmsprop(0.1, eps=0.0), "that are not Adam's, as in RMSprop", "→ l∞"),
    "adagrad": (optax.adagrad(0.1, 0.0, 0.0), "as in RMSprop and AdaGrad", "→ l∞"),
    "ridge": (
        optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
        "depend on the weight",
        "Frobenius",
    ),
    "clipped": (optax.chain(optax.clip(1.0), optax.sgd(0.1)), "cosine 0.9", "→ Frobenius"),
    "several steps": (optax.MultiSteps(optax.sgd(0.1), 4), "cosine 0.9", "→ Frobenius"),
    "ascent": (optax.identity(), "moves unlike all steps that are known", "FullWeight with gd"),
    "no step": (optax.set_to_zero(), "it takes no steps", "FullWeight with gd"),
    "more than a gradient": (optax.polyak_sgd(), "it raises TypeError", "FullWeight with gd"),
}


@pytest.mark.parametrize("name", SAME)
def test_an_optimizer_that_takes_our_steps_has_our_limit_as_a_conjecture(name):
    optimizer, call, norm = SAME[name]
    assert likeness(optimizer).same and likeness(optimizer).call == call
    limit = limit_norm(FullWeight(), optimizer)
    assert (limit.norm, limit.standing) == (norm, "conjecture")
    assert "(cosine 1.000)" in limit.reference and f"twin: {call}" in limit.reference
    assert any("however small" in hypothesis.statement for hypothesis in limit.hypotheses)


@pytest.mark.parametrize("name", OTHER)
def test_an_optimizer_that_takes_other_steps_has_no_limit_but_a_nearest(name):
    optimizer, words, nearest = OTHER[name]
    with pytest.raises(NoTheorem, match="no limit known") as reason:
        limit_norm(FullWeight(), optimizer)
    before, _, after = str(reason.value).partition("Nearest: ")
    assert re.search(words, before) and re.search(nearest, after)


@pytest.mark.parametrize("word", ["frobenius", "linf", "spectral", "l1", "nuclear", "longest-row"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.93])
def test_our_own_steps_are_measured_as_what_they_are(word, momentum):
    measured = likeness(steepest(word, 0.1, momentum))
    assert measured.same and measured.steps == word
    assert measured.momentum == pytest.approx(momentum, abs=0.011)
    assert not likeness(steepest(word, 0.1, momentum, decay=0.3)).same
    assert not likeness(mirror(3, 0.1)).same


def test_the_steps_of_a_twin_are_those_that_were_measured():
    """The same parameters after steps along other gradients than the measured ones."""
    rng = np.random.default_rng(7)
    start, gradients = rng.standard_normal((4, 3)), rng.standard_normal((6, 4, 3))

    def end(optimizer):
        params, state = jnp.array(start), optimizer.init(jnp.array(start))
        for gradient in gradients:
            updates, state = optimizer.update(jnp.array(gradient), state, params)
            params = optax.apply_updates(params, updates)
        return np.asarray(params)

    for theirs, ours in [(optax.signum(0.1, 0.8), steepest(linf, 0.1, 0.8)), (optax.sgd(0.1), gd(0.1))]:
        np.testing.assert_allclose(end(theirs), end(ours), rtol=1e-5)
    assert np.abs(end(optax.contrib.muon(0.1)) - end(steepest(spectral, 0.1, 0.95))).max() > 1e-3


def test_what_is_measured_counts_on_factors_and_heads_too():
    assert limit_norm(KeyQuery(), optax.sgd(0.1)).norm == nuclear
    assert limit_norm(MultiHead(2, norm="apart"), optax.sign_sgd(0.1)).norm == linf
    with pytest.raises(NoTheorem, match="Grothendieck"):
        limit_norm(KeyQuery(), optax.sign_sgd(0.1))


# ---------------------------------------------------------------------- torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs attsvm[torch]")


def test_an_optimizer_of_torch_is_measured_on_a_copy(torch):
    import attsvm.torch as att_torch

    w = torch.zeros(4, 3, requires_grad=True)
    momentum = torch.optim.SGD([w], 0.1, momentum=0.9)
    for optimizer, call in [
        (torch.optim.SGD([w], 0.1), "gd(lr)"),
        (momentum, "steepest('frobenius', lr, momentum=0.9)"),
        (torch.optim.Adam([w], 0.1, eps=0.0), "adam(lr, b1=0.9, b2=0.999, eps=0.0)"),
        (att_torch.SteepestDescent([w], 0.1, linf, momentum=0.8), "steepest('linf', lr, momentum=0.8)"),
        (att_torch.SteepestDescent([w], 0.1, spectral), "steepest('spectral', lr)"),
    ]:
        measured = likeness(optimizer)
        assert measured.same and measured.call == call
    assert not w.any() and w.grad is None and not momentum.state  # its own is as it was
    for optimizer in (
        att_torch.SteepestDescent([w], 0.1, spectral, polar="newton-schulz"),
        att_torch.SteepestDescent([w], 0.1, Schatten(4)),
        torch.optim.AdamW([w], 0.1, eps=0.0),
        torch.optim.SGD([w], 0.1, maximize=True),
        torch.optim.Rprop([w], 0.1),
        torch.optim.LBFGS([w]),
    ):
        with pytest.raises(NoTheorem, match="no limit known"):
            limit_norm(FullWeight(), optimizer)


def test_a_scheduler_of_torch_does_not_count_the_measured_steps(torch):
    optimizer = torch.optim.SGD([torch.zeros(3, 3, requires_grad=True)], 0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    limit = limit_norm(FullWeight(), optimizer)
    assert limit.norm == frobenius and "sum to a finite number" in str(limit.hypotheses)
    assert scheduler.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 0.1


def test_training_with_a_torch_optimizer_says_in_one_line_what_to_do(torch):
    tokens, v = datasets.sphere(2, 3, 3, seed=0)
    optimizer = torch.optim.SGD([torch.zeros(3, 3, requires_grad=True)], 0.1)
    with pytest.raises(TypeError, match=r"SGD is an optimizer of torch.*JAX.*Path\.of") as error:
        train(tokens, Linear(v), optimizer=optimizer, steps=1)
    assert "\n" not in str(error.value)
