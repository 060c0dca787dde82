"""A choice between two arrays in a program: values and types of jnp.where, and no function of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm.training.choosing import where

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
def test_it_is_jnp_where_for_every_type_and_shape(case):
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
def test_it_is_no_function_in_the_program(choose, functions):
    text = jax.jit(lambda test, yes: choose(test, yes, 0.0)).lower(TEST, WIDE).as_text()
    assert text.count("func.func private") == functions
