"""Decoupled weight decay, W ← (1 − lr λ) W − lr · direction: of every weight, and past saturation."""

import jax
import numpy as np
import pytest

from attsvm import Schatten, frobenius, linf, spectral
from attsvm.training.optimizers import adam, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery

LR, DECAY, STEPS = 0.1, 0.3, 6
CLOSE = 1e-9  # a few steps in float64 against mpmath's gradients; a tenth of the decay would show at 1e-2
NORMS = [frobenius, linf, Schatten(4)]


def run(problem, rule, steps=STEPS, **options):
    tokens, v = problem
    return train(tokens, Linear(v), optimizer=rule, steps=steps, record=[steps], **options)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_step_shrinks_the_weight_and_goes_along_the_exact_gradient(norm, problem, exact_gradient):
    W = start = 0.5 * np.random.default_rng(0).standard_normal((5, 5))
    for _ in range(STEPS):
        unit, _ = exact_gradient(*problem, W)
        W = (1 - LR * DECAY) * W - LR * norm.steepest(unit)
    found = run(problem, steepest(norm, LR, decay=DECAY), init=start).final
    np.testing.assert_allclose(found, W, atol=CLOSE)
    assert np.abs(run(problem, steepest(norm, LR), init=start).final - W).max() > 1e-2


@pytest.mark.parametrize("separate", [False, True])
def test_key_and_query_are_shrunk_each(separate, problem, exact_gradient):
    rng = np.random.default_rng(1)
    K, Q = begin = tuple(rng.standard_normal((2, 5, 5)))
    for _ in range(STEPS):
        unit, _ = exact_gradient(*problem, K @ Q.T)
        steps = unit @ Q, unit.T @ K
        sizes = [np.linalg.norm(step) for step in steps]
        sizes = sizes if separate else [np.hypot(*sizes)] * 2
        K, Q = ((1 - LR * DECAY) * A - LR * S / s for A, S, s in zip((K, Q), steps, sizes, strict=True))
    rule = steepest(frobenius, LR, decay=DECAY)
    found = run(problem, rule, weight=KeyQuery(separate=separate), init=begin)
    np.testing.assert_allclose(found.final, K @ Q.T, atol=CLOSE)


@pytest.mark.parametrize("separate", [False, True])
def test_diagonals_are_shrunk_each(separate, problem, exact_gradient):
    k, q = begin = tuple(np.random.default_rng(2).standard_normal((2, 5)))
    for _ in range(STEPS):
        g = np.diag(exact_gradient(*problem, np.diag(k * q))[0])
        steps = g * q, g * k
        sizes = [np.linalg.norm(step) for step in steps]
        sizes = sizes if separate else [np.hypot(*sizes)] * 2
        k, q = ((1 - LR * DECAY) * a - LR * s / size for a, s, size in zip((k, q), steps, sizes, strict=True))
    rule = steepest(frobenius, LR, decay=DECAY)
    found = run(problem, rule, weight=Diagonal(2, separate=separate), init=begin)
    np.testing.assert_allclose(found.final, np.diag(k * q), atol=CLOSE)


@pytest.mark.parametrize(
    ("weight", "momentum"), [(FullWeight(), 0.9), (KeyQuery(separate=True), 0.9), (Diagonal(), 0.0)], ids=str
)
def test_a_run_with_decay_goes_on_to_the_same_bits(weight, momentum, problem):
    rule = steepest(linf, LR, momentum, DECAY)
    whole = run(problem, rule, 200, weight=weight)
    half = run(problem, rule, 77, weight=weight)
    on = run(problem, rule, 200, weight=weight, resume=half)
    np.testing.assert_array_equal(on.final, whole.final)


@pytest.mark.parametrize("norm", [linf, spectral], ids=str)
def test_decay_bounds_the_weight_also_past_saturation(norm, problem):
    small = 1e-3
    found = run(problem, steepest(norm, 0.1, decay=small), 40_000)
    length = norm.value(found.final)
    assert 0.8 / small < length <= (1 + 1e-9) / small  # softmax saturates at a twentieth of that
    assert found.stopped == "steps"


@pytest.mark.parametrize("decay", [-0.1, float("nan"), float("inf"), "some", True])
def test_a_decay_that_is_no_number_from_zero_on_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay is .*≥ 0"):
        steepest(frobenius, 0.1, decay=decay)


def test_a_decay_that_turns_the_weight_round_is_refused():
    with pytest.raises(ValueError, match="decay ≤ 1/lr = 10"):
        steepest(frobenius, 0.1, decay=11.0)
    assert steepest(frobenius, 0.1, decay=10.0) != steepest(frobenius, 0.1)


def test_a_decay_is_held_against_the_rate_of_its_own_run():
    adam([1.0, 0.01], decay=[0.5, 50.0])
    with pytest.raises(ValueError, match=r"lr · decay is 50.*1/lr = 1"):
        adam([0.01, 1.0], decay=[0.5, 50.0])


def test_decay_asks_for_the_parameters():
    with jax.enable_x64(True), pytest.raises(ValueError, match="decay needs the parameters"):
        rule = steepest(frobenius, 0.1, decay=0.1)
        rule.update({"W": np.ones((2, 2))}, rule.init({"W": np.ones((2, 2))}))
