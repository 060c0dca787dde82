"""What counts as a number at the door."""

import numpy as np
import pytest

from attsvm.given import real, told, whole

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("value", [0, -3, 10**400, np.int8(3), np.uint64(7)])
def test_integers_of_python_and_numpy_are_whole(value):
    assert whole(value)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(2), "3", None])
def test_truth_values_words_and_fractions_are_not_whole(value):
    assert not whole(value)


@pytest.mark.parametrize("value", [0, -3, 0.5, 1e-300, np.float64(2), np.float32(2), np.int8(2)])
def test_what_float64_holds_is_real(value):
    assert real(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, np.nan, np.inf, np.float32(-np.inf), 10**400, "0.5", [1.0]]
)
def test_truth_values_words_and_what_is_not_finite_are_not_real(value):
    assert not real(value)


def test_a_huge_number_is_told_by_its_size():
    assert told(10**400) == "a whole number of 1,329 bits"
    assert told("a") == "'a'"
