"""Compiled programs: a bounded number of them, and none twice while it is in use."""

import gc

import jax
import numpy as np
import pytest

from attsvm import frobenius
from attsvm.datasets import sphere
from attsvm.training import engine, programs
from attsvm.training.heads import Linear
from attsvm.training.optimizers import steepest
from attsvm.training.programs import Program
from attsvm.training.train import train

FEW = 2


@pytest.fixture(autouse=True)
def little_garbage():
    """What earlier tests left is none of ours: to look through it would take seconds, here and later."""
    gc.freeze()


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(programs, "MOST", FEW)


def held():
    """Programs that XLA holds in this process."""
    gc.collect()
    return len(jax.local_devices()[0].client.live_executables())


def run(width):
    tokens, v = sphere(2, 2, width, seed=0)
    return train(tokens, Linear(v), optimizer=steepest(frobenius, 0.1), steps=3)


def growth(widths):
    before = held()
    for width in widths:
        run(width)
    return held() - before


def test_new_shapes_take_the_place_of_those_used_least_recently(monkeypatch):
    monkeypatch.setattr(programs, "MOST", 1_000)
    assert growth([3]) > 0
    monkeypatch.setattr(programs, "MOST", 1)
    assert growth((4, 5)) <= 0
    assert len(engine.advance) == 1


def counting(calls, **options):
    return Program(lambda power, x: calls.append(x.shape) or x**power, static=1, **options)


def test_shapes_that_take_turns_are_compiled_once(few):
    calls = []
    function = counting(calls)
    for size in (1, 2, 1, 2, 1, 2):
        np.testing.assert_array_equal(function(2, np.full(size, 3.0)), np.full(size, 9.0))
    assert calls == [(1,), (2,)]
    function(2, np.ones(3))  # the least recently used, of size 1, goes
    function(2, np.ones(2))
    function(2, np.ones(1))
    assert calls == [(1,), (2,), (3,), (1,)]


def test_what_is_compiled_in_has_a_program_of_its_own(few):
    function = counting([])
    assert [float(function(power, np.float64(3))) for power in (1, 2, 3)] == [3, 9, 27]
    assert len(function) == FEW
