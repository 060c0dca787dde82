"""Rates as data: one program for all of them, and for all schedules of one kind."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attsvm import frobenius
from attsvm.datasets import sphere
from attsvm.training.optimizers import adam, gd, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.rules import LAST
from attsvm.training.schedules import written_out
from attsvm.training.train import train
from attsvm.training.weights import KeyQuery

NGD = steepest(frobenius, 0.1)
COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)


def run(tokens, v, **options):
    return train(tokens, Linear(v), **{"optimizer": NGD, "steps": 2_000, "record": 20} | options)


def test_learning_rates_and_schedules_compile_once(problem):
    def sweep(rates):
        for lr in rates:
            run(*problem, steps=20, optimizer=steepest(frobenius, float(lr)))
            run(*problem, steps=20, optimizer=gd(optax.cosine_decay_schedule(float(lr), 20)))

    sweep([0.1])
    COMPILED.clear()
    sweep(np.linspace(0.01, 1, 9))
    assert not COMPILED


def test_another_size_is_seen_to_compile():
    COMPILED.clear()
    run(*sphere(3, 6, 11, seed=0), steps=20, weight=KeyQuery(7))  # sizes that no other test has
    assert COMPILED


def test_a_schedule_is_the_rate_of_its_step_in_every_call(problem, monkeypatch):
    monkeypatch.setattr("attsvm.training.driver.SCHEDULED", 7)
    path = run(*problem, steps=30, record=range(31), optimizer=steepest(frobenius, lambda k: 1 / (1 + k)))
    sizes = np.linalg.norm(np.diff(path.W, axis=0), axis=(1, 2))
    np.testing.assert_allclose(sizes, 1 / np.arange(1, 31), rtol=1e-6)  # JAX divides int32 in float32


def test_steps_beyond_the_largest_count_have_the_last_rate():
    rule = gd(optax.linear_schedule(1.0, 0.5, LAST)).rule
    with jax.enable_x64(True):
        for first in (LAST - 1, 2 * LAST, 2**40):  # a count that wraps round would begin again at 1
            np.testing.assert_allclose(written_out(rule, first, 3).lr.table, 0.5, rtol=1e-6)


def test_adam_goes_on_beyond_the_largest_count():
    rule = adam(0.1)
    with jax.enable_x64(True):
        W = {"W": jnp.ones((2, 2))}
        state = rule.init(W)._replace(updates=jnp.int32(LAST))
        for _ in range(2):  # at a negative count the step would be NaN
            step, state = rule.update(W, state, W)
    assert np.isfinite(step["W"]).all() and state.updates == LAST
