"""What counts as a number at the door."""

import inspect

import numpy as np
import pytest

from attsvm import datasets
from attsvm._support.validation import as_seeds, describe, is_finite, is_integer

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("value", [0, -3, 10**400, np.int8(3), np.uint64(7)])
def test_integers_of_python_and_numpy_are_whole(value):
    assert is_integer(value)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(2), "3", None])
def test_truth_values_words_and_fractions_are_not_whole(value):
    assert not is_integer(value)


@pytest.mark.parametrize("value", [0, -3, 0.5, 1e-300, np.float64(2), np.float32(2), np.int8(2)])
def test_what_float64_holds_is_real(value):
    assert is_finite(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, np.nan, np.inf, np.float32(-np.inf), 10**400, "0.5", [1.0]]
)
def test_truth_values_words_and_what_is_not_finite_are_not_real(value):
    assert not is_finite(value)


def test_a_huge_number_is_told_by_its_size():
    assert describe(10**400) == "a whole number of 1,329 bits"
    assert describe("a") == "'a'"


SIZES = {"n": 3, "T": 4, "d": 5}
DRAWN = [
    (function, name)
    for function in (vars(datasets)[each] for each in datasets.__all__)
    for name in (inspect.signature(function).parameters if inspect.isfunction(function) else ())
    if name in SIZES
]


@pytest.mark.parametrize(("function", "name"), DRAWN, ids=lambda part: getattr(part, "__name__", part))
def test_every_data_set_names_a_size_that_is_none(function, name):
    given = {other: SIZES[other] for other in inspect.signature(function).parameters if other in SIZES}
    function(**given)
    for wrong in (-1, 1.5, np.nan, "3", None, True, 0):
        with pytest.raises(ValueError, match=rf"^{name} is {wrong!r}. Pass {name} ≥ \d, a whole number.$"):
            function(**given | {name: wrong})


@pytest.mark.parametrize("seed", [None, [0, None], -1, 0.5])
def test_what_is_no_seed_is_named(seed):
    wrong = seed[1] if isinstance(seed, list) else seed
    with pytest.raises(ValueError, match=rf"^seed is {wrong}. Pass a nonnegative integer"):
        as_seeds(seed)
