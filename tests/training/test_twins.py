"""Optimizers of optax and torch: the twin takes the same steps, or its difference is named."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attsvm import datasets
from attsvm.comparison.theory import NoTheorem, limit_norm
from attsvm.norms import Entrywise, LongestRow, frobenius, linf, spectral
from attsvm.training.optimizers import adam, compositional, gd, mirror, scale_free, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.rules import Optimizer
from attsvm.training.train import train
from attsvm.training.twins import twin_of, written
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery

RATE = optax.exponential_decay(0.1, 3, 0.5)
SAME = {
    "sgd": (optax.sgd(0.1), gd(0.1)),
    "sgd in chains": (optax.chain(optax.identity(), optax.chain(optax.sgd(0.1))), gd(0.1)),
    "scheduled sgd": (optax.sgd(RATE), gd(RATE)),
    "sign": (optax.sign_sgd(0.1), steepest(linf, 0.1)),
    "signum": (optax.signum(0.1, 0.8), steepest(linf, 0.1, 0.8)),
    "sign of a trace": (
        optax.chain(optax.trace(0.8), optax.scale_by_sign(), optax.scale(-0.1)),
        steepest(linf, 0.1, 0.8),
    ),
    "sign with decay": (
        optax.chain(optax.scale_by_sign(), optax.add_decayed_weights(0.3), optax.scale(-0.1)),
        steepest(linf, 0.1, decay=0.3),
    ),
    "adam": (optax.adam(0.1, 0.8, 0.95, 1e-3), adam(0.1, 0.8, 0.95, 1e-3)),
    "scheduled adam": (optax.adam(RATE), adam(RATE)),
    "adamw": (optax.adamw(0.1, weight_decay=0.2), adam(0.1, decay=0.2)),
    "unit length": (
        optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.scale(-0.1)),
        steepest(frobenius, 0.1),
    ),
    "sign, scale-free": (scale_free(optax.sign_sgd(0.1)), steepest(linf, 0.1)),
    "ours, scale-free": (scale_free(steepest(spectral, 0.1)), steepest(spectral, 0.1)),
}
NEAR = {
    "momentum": (optax.sgd(0.1, 0.9), "sums gradients", "gd(lr=0.1) → Frobenius"),
    "muon": (optax.contrib.muon(0.1), "Newton–Schulz", "momentum=0.95) → spectral"),
    "muon with decay": (
        optax.contrib.muon(0.1, weight_decay=0.1),
        "Newton–Schulz",
        "without decay → spectral",
    ),
    "lion": (optax.lion(0.1, weight_decay=0.0), "two averages", "momentum=0.99) → l∞"),
    "nadam": (optax.nadam(0.1, eps=0.0), "nesterov", "adam(lr=0.1, eps=0.0) → l∞"),
    "amsgrad": (optax.amsgrad(0.1, eps=0.0), "largest second", "adam(lr=0.1, eps=0.0) → l∞"),
    "rmsprop": (optax.rmsprop(0.1, eps=0.0), "first averages", "→ l∞"),
    "L2": (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)), "ridge", "gd(lr=0.1) → Frobenius"),
    "clipped": (optax.chain(optax.clip(1.0), optax.sgd(0.1)), "clip, scale: a part", "→ Frobenius"),
    "lengths": (scale_free(optax.sgd(0.1)), "mantissas", "steepest(norm=frobenius, lr=0.1) → Frobenius"),
    "averages": (scale_free(optax.adam(0.1, eps=0.0)), "mantissas", "→ l∞"),
    "nothing": (optax.identity(), "a part that is not known", "→ Frobenius"),
    "of one's own": (
        optax.GradientTransformation(lambda w: (), lambda g, s, w=None: (g, s)),
        "a part that is not known",
        "→ Frobenius",
    ),
}


def steps(optimizer, count=5):
    """The parameters after each of some steps along random gradients."""
    rng = np.random.default_rng(0)
    draw = lambda: {"K": jnp.array(rng.standard_normal((3, 2))), "Q": jnp.array(rng.standard_normal((2, 2)))}  # noqa: E731
    params, visited = draw(), []
    state = optimizer.init(params)
    for _ in range(count):
        updates, state = optimizer.update(draw(), state, params)
        params = optax.apply_updates(params, updates)
        visited.append(params)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(visited)])


@pytest.mark.parametrize("name", SAME)
def test_an_optax_rule_that_is_recognised_takes_the_steps_of_its_twin(name):
    theirs, ours = SAME[name]
    twin = twin_of(theirs)
    assert not twin.difference
    assert callable(twin.rule.lr) or twin.rule == ours.rule
    np.testing.assert_allclose(steps(Optimizer(twin.rule)), steps(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SAME)
def test_what_takes_the_same_steps_has_the_same_limit(name):
    for weight in (FullWeight(), KeyQuery(), Diagonal()):
        answers = []
        for rule in SAME[name]:
            try:
                answers.append(limit_norm(weight, rule))
            except NoTheorem as reason:
                answers.append(str(reason).partition("Nearest")[2].replace("<lambda>", "schedule"))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_ours_says_what_differs_and_names_its_twin(name):
    rule, difference, nearest = NEAR[name]
    with pytest.raises(NoTheorem, match="no limit known") as reason:
        limit_norm(FullWeight(), rule)
    before, _, after = str(reason.value).partition("Nearest: ")
    assert difference in before and nearest in after


@pytest.mark.parametrize("name", ["momentum", "muon", "lion", "nadam", "amsgrad", "L2"])
def test_what_is_nearly_ours_does_take_other_steps(name):
    rule = NEAR[name][0]
    assert np.abs(steps(rule) - steps(Optimizer(twin_of(rule).rule))).max() > 1e-3


# ---------------------------------------------------------------------- torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs attsvm[torch]")


def of_torch(torch):
    import attsvm.torch as att_torch

    optim = torch.optim
    muon = {"Muon": (lambda w: optim.Muon(w, 0.1), steepest(spectral, 0.1, 0.95, 0.1), "Newton–Schulz")}
    return (muon if hasattr(optim, "Muon") else {}) | {
        "SGD": (lambda w: optim.SGD(w, 0.1), gd(0.1), ""),
        "momentum": (lambda w: optim.SGD(w, 0.1, momentum=0.9), gd(0.1), "sums gradients"),
        "ridge": (lambda w: optim.SGD(w, 0.1, weight_decay=0.1), gd(0.1), "ridge"),
        "ascent": (lambda w: optim.SGD(w, 0.1, maximize=True), gd(0.1), "ascent"),
        "Adam": (lambda w: optim.Adam(w, 0.1), adam(0.1), ""),
        "AMSGrad": (lambda w: optim.Adam(w, 0.1, amsgrad=True), adam(0.1), "amsgrad"),
        "AdamW": (lambda w: optim.AdamW(w, 0.1, weight_decay=0.2), adam(0.1, decay=0.2), ""),
        "steepest": (
            lambda w: att_torch.SteepestDescent(w, 0.1, linf, momentum=0.8, weight_decay=0.1),
            steepest(linf, 0.1, 0.8, 0.1),
            "",
        ),
        "rows": (lambda w: att_torch.SteepestDescent(w, 0.1, LongestRow()), steepest(LongestRow(), 0.1), ""),
        "five steps": (
            lambda w: att_torch.SteepestDescent(w, 0.1, spectral, polar="newton-schulz"),
            steepest(spectral, 0.1),
            "Newton–Schulz",
        ),
        "heads": (
            lambda w: att_torch.SteepestDescent(w, 0.1, spectral, heads=2),
            steepest(spectral, 0.1),
            "2 heads",
        ),
        "mirror": (lambda w: att_torch.LpMirrorDescent(w, 0.1, 3.0), mirror(3, 0.1, normalised=False), ""),
        "compositional": (lambda w: att_torch.Compositional([w], 0.1), compositional(0.1), ""),
        "groups": (
            lambda w: optim.SGD([{"params": w[:1]}, {"params": w[1:], "lr": 1.0}], 0.1),
            gd(0.1),
            "groups with different settings",
        ),
    }


def test_a_torch_optimizer_is_read_from_its_type_and_groups(torch):
    for name, (make, ours, difference) in of_torch(torch).items():
        twin = twin_of(make([torch.zeros(4, 3, requires_grad=True), torch.zeros(4, 2, requires_grad=True)]))
        assert twin.rule == ours.rule, name
        assert difference in twin.difference and bool(difference) == bool(twin.difference), name


def test_a_torch_optimizer_that_is_recognised_takes_the_steps_of_its_twin(torch):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((4, 3)), rng.standard_normal((4, 4, 3))
    for name, (make, ours, difference) in of_torch(torch).items():
        if difference or name == "compositional":  # which needs two matrices
            continue
        w, params, state = (
            torch.tensor(start, requires_grad=True),
            jnp.array(start),
            ours.init(jnp.array(start)),
        )
        optimizer = make([w])
        for gradient in gradients:
            w.grad = torch.tensor(gradient)
            optimizer.step()
            updates, state = ours.update(jnp.array(gradient), state, params)
            params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(w.detach().numpy(), params, rtol=1e-3, atol=1e-4, err_msg=name)


def test_torch_optimizers_have_the_limits_of_their_twins(torch):
    import attsvm.torch as att_torch

    class Uphill(torch.optim.SGD):
        """Somebody's own."""

    w = [torch.zeros(3, 3, requires_grad=True)]
    assert limit_norm(FullWeight(), torch.optim.SGD(w, 0.1)).standing == "theorem"
    assert limit_norm(KeyQuery(), att_torch.SteepestDescent(w, 0.1, spectral)).norm == spectral
    assert limit_norm(FullWeight(), att_torch.LpMirrorDescent(w, 0.1, 3.0)).norm == Entrywise(3)
    with pytest.raises(NoTheorem, match=r"Newton–Schulz.* → spectral"):
        limit_norm(FullWeight(), att_torch.SteepestDescent(w, 0.1, spectral, polar="newton-schulz"))
    for unknown in (Uphill(w, 0.1), torch.optim.Rprop(w, 0.1)):
        with pytest.raises(NoTheorem, match=r"a rule that is not known\. Nearest"):
            limit_norm(FullWeight(), unknown)


def test_a_scheduler_of_torch_is_a_hypothesis(torch):
    optimizer = torch.optim.SGD([torch.zeros(3, 3, requires_grad=True)], 0.1)
    assert "sum to a finite number" not in limit_norm(FullWeight(), optimizer).hypotheses
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    assert "sum to a finite number" in limit_norm(FullWeight(), optimizer).hypotheses


def test_training_with_a_torch_optimizer_says_in_one_line_what_to_do(torch):
    tokens, v = datasets.sphere(2, 3, 3, seed=0)
    w = [torch.zeros(3, 3, requires_grad=True)]
    for optimizer, words in [
        (torch.optim.SGD(w, 0.1), r"SGD is an optimizer of torch.*pass gd\(lr=0.1\), or .*Path\.of"),
        (torch.optim.Rprop(w, 0.1), r"Rprop is an optimizer of torch.*JAX: train with torch.*Path\.of"),
    ]:
        with pytest.raises(TypeError, match=words) as error:
            train(tokens, Linear(v), optimizer=optimizer, steps=1)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "optimizer",
    [gd(0.1), adam(0.1, eps=0.0), mirror(3, 0.1), compositional(0.1), steepest(linf, 0.1, 0.9)],
    ids=str,
)
def test_a_rule_is_written_as_the_call_that_makes_it(optimizer):
    names = {"gd": gd, "adam": adam, "mirror": mirror, "compositional": compositional, "steepest": steepest}
    assert eval(written(optimizer.rule), names | {"linf": linf, "spectral": spectral}) == optimizer
