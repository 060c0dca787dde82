"""Runs as the last axis, in parts, on several devices: the same digits as one run alone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from attsvm import frobenius, l1, linf, spectral
from attsvm.datasets import sphere
from attsvm.training import devices, driver, engine, runs as runs_axis
from attsvm.training.compilation import local_devices
from attsvm.training.init import gaussian, uniform
from attsvm.training.optimizers import adam, gd, mirror, steepest
from attsvm.training.prediction_heads import Linear, QuadraticPenalty
from attsvm.training.runs import FEWEST
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, KeyQuery
from tests.archives import arrays_of

RUNS = 2 * FEWEST + 1
ROUNDING = 1e-11  # what 60 steps make of sums in another order
NGD = steepest(frobenius, 0.1)
START = uniform(range(RUNS))
# Each kind of rule, weight, start and head once: every case is three programs that XLA compiles twice.
CASES = {
    "normalised": {},
    "coordinate with momentum, quadratic head": {
        "optimizer": steepest(l1, 0.1, momentum=0.9),
        "head": "quadratic",
    },
    "spectral on separate factors": {
        "optimizer": steepest(spectral, 0.1),
        "weight": KeyQuery(2, separate=True),
        "init": START,
    },
    "mirror with a trained head": {
        "optimizer": mirror(3, 0.1),
        "init": gaussian(range(RUNS)),
        "train_head": steepest(frobenius, 0.05),
    },
    "adam on a schedule": {"optimizer": optax.adam(optax.exponential_decay(0.5, 20, 0.5))},
    "adam in log scale": {"optimizer": adam(0.1, decay=0.01)},
    "gradient descent on a schedule": {
        "optimizer": gd(optax.exponential_decay(0.5, 20, 0.5)),
        "weight": Diagonal(),
    },
}


@pytest.fixture(scope="module")
def problem():
    return sphere(3, 4, 5, seed=range(RUNS))


@pytest.fixture
def on_cpu():
    """Parts and threads are ways of a CPU, on a machine with a GPU too."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def run(tokens, v, head="linear", **options):
    given = Linear(v) if head == "linear" else QuadraticPenalty(v, np.full(v.shape[:-1], 0.3))
    return train(tokens, given, **{"optimizer": NGD, "steps": 60, "record": 4} | options)


def without_runs_last(monkeypatch, **other):
    def model(*given):
        return replace(made(*given), **{"runs_last": False} | other)

    module = sys.modules["attsvm.training.train"]
    made = module.model_of
    monkeypatch.setattr(module, "model_of", model)


def assert_close(path, other):
    for name in ("W", "loss", "log_excess"):
        np.testing.assert_allclose(getattr(path, name), getattr(other, name), rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_array_equal(path.stopped, other.stopped)


@pytest.mark.parametrize("case", CASES)
def test_runs_in_lanes_are_the_runs_one_by_one(case, problem, monkeypatch):
    together = run(*problem, **CASES[case])
    without_runs_last(monkeypatch)
    assert_close(together, run(*problem, **CASES[case]))


def test_a_sum_over_many_examples_is_the_sum():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, runs_axis.TALL, 3))
    with jax.enable_x64(True):
        found = runs_axis.contract("nd,ne->de", a, b)
    np.testing.assert_allclose(found, a.T @ b, rtol=1e-12, atol=1e-12)


def test_a_wrong_run_in_the_lanes_would_be_seen(problem):
    together = run(*problem)
    with pytest.raises(AssertionError):
        assert_close(together, run(problem[0], problem[1][::-1]))


def test_blocks_of_steps_as_a_gpu_takes_them_are_the_same_steps(problem, monkeypatch, on_cpu):
    """Runs last and one compiled loop over steps; a GPU takes its own kernel instead, tested elsewhere."""
    usual = run(*problem, steps=77)
    without_runs_last(monkeypatch, runs_last=True, cpu=False)
    assert_close(run(*problem, steps=77), usual)


@pytest.mark.parametrize(
    ("cores", "cached", "shared"), [(2, 1 << 30, False), (2, 1 << 30, True), (1, 1, False)]
)
def test_runs_in_parts_end_in_the_same_bits(cores, cached, shared, monkeypatch, on_cpu):
    """Two cores share the runs; one takes them in parts that its cache holds."""
    count = 4 * FEWEST + 1  # 33 runs: 17 and 16, filled up to 17
    tokens, v = sphere(3, 4, 5, seed=range(count))
    given = (tokens.run(0), v[0]) if shared else (tokens, v)
    whole = run(*given, init=uniform(range(count)))
    chunked, chunks_of = [], driver.chunks_of
    for module in (devices, driver):
        monkeypatch.setattr(module, "cores", lambda: cores)
    monkeypatch.setattr(devices, "CACHED", cached)
    monkeypatch.setattr(driver, "chunks_of", lambda *given: chunked.append(chunks_of(*given)) or chunked[-1])
    parted = run(*given, init=uniform(range(count)))
    assert len(chunked[0]) == 2
    for name in ("W", "loss", "stopped"):
        np.testing.assert_array_equal(getattr(parted, name), getattr(whole, name))
    longer = run(*given, steps=90, resume=parted)
    assert longer.W.shape[0] == count


def test_a_run_in_lanes_that_diverges_keeps_its_last_finite_weight_and_the_others_go_on(problem):
    tokens, v = problem
    start = np.zeros((RUNS, 5, 5))
    start[3] = 1.7e308
    path = run(tokens, Linear(v).v, init=start, optimizer=steepest(linf, 1e307))
    stays = run(tokens.run(0), v[0], optimizer=steepest(linf, 1e307))
    assert path.stopped[3] == "diverged"
    assert np.isfinite(path.W).all()
    assert (np.abs(path.final[3]) > 1.6e308).all()
    np.testing.assert_array_equal(path.final[0], stays.final)


def test_the_last_finite_weight_does_not_depend_on_where_calls_end(problem, monkeypatch):
    tokens, v = problem
    rule = steepest(frobenius, lambda step: 1e290 * 2.0**step)
    whole = run(tokens, v, optimizer=rule, steps=90)
    monkeypatch.setattr("attsvm.training.train.first_steps", lambda *_: 7)
    monkeypatch.setattr("attsvm.training.segments.SEGMENT", 0.0)
    cut = run(tokens, v, optimizer=rule, steps=90)
    assert (whole.stopped == "diverged").all()
    np.testing.assert_array_equal(cut.final, whole.final)


def test_calls_with_room_for_one_record_reach_the_end(problem, monkeypatch):
    usual = run(*problem, record=[7, 59])
    monkeypatch.setattr(engine, "MOST_BYTES", 1)
    again = run(*problem, record=[7, 59])
    for name in ("W", "loss", "log_excess"):
        np.testing.assert_array_equal(getattr(again, name), getattr(usual, name))


FOUR = """
import sys
import jax, numpy as np
from tests.training.test_runs import trained_and_resumed

np.savez(sys.argv[1], *trained_and_resumed(), devices=len(jax.devices()))
"""


def trained_and_resumed():
    tokens, v = sphere(3, 4, 5, seed=range(21))
    rule = steepest(frobenius, 0.1, momentum=0.5)
    path = train(tokens, Linear(v), optimizer=rule, steps=50, record=3)
    return path.W, train(tokens, Linear(v), optimizer=rule, steps=70, record=3, resume=path).final


def test_four_devices_compute_the_same_as_one(tmp_path, on_cpu):
    file = tmp_path / "four.npz"
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "OMP_NUM_THREADS": "1",
    }
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FOUR, file], check=True, env=os.environ | settings, cwd=root)
    four = arrays_of(file)
    assert (four["devices"], len(local_devices())) == (4, 1)
    for ours, one in zip((four["arr_0"], four["arr_1"]), trained_and_resumed(), strict=True):
        # Lanes of 6 and of 21 runs fill vectors otherwise, and fuse products otherwise: 70 steps add this up.
        np.testing.assert_allclose(ours, one, rtol=0, atol=1e-10)
