"""Adam in log scale: optax's where that works, mpmath's where softmax is saturated; numbers per run."""

import mpmath as mp
import numpy as np
import optax
import pytest

from attsvm import frobenius, linf
from attsvm.training import engine
from attsvm.training.optimizers import adam, polyak, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery

STEPS = 8
CLOSE = 1e-9  # a few steps in float64 against other orders of the same sums


def run(problem, rule, steps=STEPS, **options):
    tokens, v = problem
    return train(tokens, Linear(v), optimizer=rule, steps=steps, record=[steps], **options)


@pytest.mark.parametrize(
    ("weight", "ours", "theirs"),
    [
        (FullWeight(), adam(0.1), optax.adam(0.1)),
        (KeyQuery(), adam(0.1, 0.8, 0.9, 1e-3), optax.adam(0.1, 0.8, 0.9, 1e-3)),
        (FullWeight(), adam(0.1, decay=0.3), optax.adamw(0.1, weight_decay=0.3)),
        (FullWeight(), adam(0.1, 0.0, 0.9), optax.adam(0.1, 0.0, 0.9)),
    ],
    ids=["default", "numbers", "decay", "no momentum"],
)
def test_at_a_moderate_scale_it_is_the_adam_of_optax(weight, ours, theirs, problem):
    found = run(problem, ours, weight=weight).final
    np.testing.assert_allclose(found, run(problem, theirs, weight=weight).final, atol=CLOSE)
    assert np.abs(found - run(problem, adam(0.1, 0.5, 0.5), weight=weight).final).max() > 1e-3


def test_past_saturation_it_is_the_adam_of_mpmath(problem, exact_gradient):
    """Twin: optax with eps = 0 divides zero by zero there."""
    b1, b2, lr = 0.9, 0.99, 0.5
    W = start = 1_500 * np.random.default_rng(1).standard_normal((5, 5))  # gradients of e^(−460)
    with mp.workdps(50):
        M, V = np.full((5, 5), mp.mpf(0)), np.full((5, 5), mp.mpf(0))
        for t in range(1, 4):
            unit, log_size = exact_gradient(*problem, W)
            G = unit * mp.exp(log_size)
            M, V = b1 * M + (1 - b1) * G, b2 * V + (1 - b2) * G**2
            step = [m / (1 - b1**t) / mp.sqrt(v / (1 - b2**t)) for m, v in zip(M.flat, V.flat, strict=True)]
            W = W - lr * np.array(step, float).reshape(5, 5)
    found = run(problem, adam(lr, b1, b2, 0.0), 3, init=start)
    np.testing.assert_allclose(found.final - start, W - start, atol=CLOSE)
    assert run(problem, optax.adam(lr, b1, b2, 0.0), 3, init=start).stopped == "diverged"
    assert run(problem, adam(lr, b1, b2, 1e-8), 3, init=start).stopped == "saturated"


@pytest.mark.parametrize("runs", [3, 9], ids=["mapped", "in lanes"])
def test_numbers_may_be_one_per_run(runs, problem):
    lr, momentum = np.linspace(0.01, 0.1, runs), [0.0, *[0.5] * (runs - 2), 0.9]
    found = run(problem, steepest(frobenius, lr, momentum)).final
    for j in (0, 1, runs - 1):
        alone = run(problem, steepest(frobenius, lr[j], momentum[j])).final
        np.testing.assert_allclose(found[j], alone, atol=CLOSE)
    of_adam = run(problem, adam(0.1, b1=momentum, eps=[1e-8, *[0.0] * (runs - 1)], decay=lr)).final
    alone = run(problem, adam(0.1, b1=momentum[1], eps=0.0, decay=lr[1])).final
    np.testing.assert_allclose(of_adam[1], alone, atol=CLOSE)
    assert np.abs(found[0] - found[1]).max() > 1e-3 and np.abs(of_adam[0] - of_adam[-1]).max() > 1e-3


def test_numbers_per_run_go_on_to_the_same_bits_and_agree_on_the_runs(problem):
    rule = adam([0.1, 0.05, 0.02], decay=[0.0, 0.1, 0.2])
    half = run(problem, rule)
    np.testing.assert_array_equal(run(problem, rule, 20, resume=half).final, run(problem, rule, 20).final)
    with pytest.raises(ValueError, match="runs axes differ"):
        run(problem, adam([0.1, 0.2], decay=[0.1, 0.2, 0.3]))
    assert run(problem, polyak([0.1, 0.2, 0.3])).runs == 3


def test_all_its_numbers_are_data(problem):
    def program(rule):
        run(problem, rule)
        return next(reversed(engine.advance._held))

    first = program(adam(0.1))
    assert program(adam(0.2, 0.8, 0.9, 1e-3)) == first
    assert program(adam(0.2, 0.8, 0.9, 0.0)) != first  # zero changes what is computed


@pytest.mark.parametrize(
    "wrong",
    [
        {"b1": 1.0},
        {"b2": -0.1},
        {"eps": -1.0},
        {"eps": "small"},
        {"decay": 20.0},
        {"lr": [0.1, 0.0]},
        {"lr": []},
    ],
    ids=str,
)
def test_numbers_that_are_none_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))} .*Pass"):
        adam(**{"lr": 0.1} | wrong)


def test_signum_is_steepest_descent_in_the_max_norm_with_momentum(problem, exact_gradient):
    W, M = np.zeros((5, 5)), 0
    for _ in range(STEPS):
        unit, log_size = exact_gradient(*problem, W)
        M = 0.9 * M + 0.1 * np.exp(log_size) * unit
        W = W - 0.1 * np.sign(M)
    np.testing.assert_allclose(run(problem, steepest(linf, 0.1, 0.9)).final, W, atol=CLOSE)
    assert np.abs(run(problem, steepest(linf, 0.1)).final - W).max() > 1e-2
