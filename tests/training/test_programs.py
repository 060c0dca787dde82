"""Compiled programs: a bounded number of them, none twice while it is in use; and `where` inside of them."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm import frobenius
from attsvm.datasets import sphere
from attsvm.training import engine, programs
from attsvm.training.optimizers import steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.programs import Program, where
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


# ---------------------------------------------------------------------- where

TEST = np.array([[True, False, True], [False, False, True]])
WIDE = np.arange(6.0).reshape(2, 3)
CASES = {
    "arrays": (WIDE, -WIDE),
    "a column and a number": (WIDE[:, :1], 0),
    "a number and a row": (-np.inf, WIDE[0]),
    "single precision stays": (WIDE.astype(np.float32), 1.5),
    "whole numbers and a fraction": (WIDE.astype(np.int32), 0.5),
    "whole numbers": (WIDE.astype(np.int32), 7),
    "truth": (TEST, False),
    "an array wider than the test": (np.stack([WIDE, WIDE]), 1.0),
    "not a number": (WIDE * np.nan, WIDE),
}


@pytest.mark.parametrize("case", CASES)
def test_where_is_jnp_where_for_every_type_and_shape(case):
    yes, no = CASES[case]
    with jax.enable_x64(True):
        found = jax.jit(where)(TEST, yes, no) if isinstance(no, np.ndarray) else None
        found = jax.jit(lambda test: where(test, yes, no))(TEST) if found is None else found
        expected = jnp.where(TEST, yes, no)
        other = where(jnp.asarray(~TEST), yes, no)  # outside of a program, and the other choice
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, other, equal_nan=True)


def test_runs_choose_each_for_itself():
    tests, yes = jnp.asarray([True, False]), jnp.asarray([1.0, 2.0])
    np.testing.assert_array_equal(jax.vmap(lambda t, y: where(t, y, 0.0))(tests, yes), [1.0, 0.0])


@pytest.mark.parametrize(("choose", "functions"), [(where, 0), (jnp.where, 1)], ids=["ours", "jnp"])
def test_where_is_no_function_in_the_program(choose, functions):
    text = jax.jit(lambda test, yes: choose(test, yes, 0.0)).lower(TEST, WIDE).as_text()
    assert text.count("func.func private") == functions
