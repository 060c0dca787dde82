"""A power law is found, and two points are none."""

import numpy as np
import pytest

from attsvm_lab.programs import fit_rate

pytestmark = pytest.mark.quick


def test_a_power_law_is_recovered_with_its_interval():
    x = np.geomspace(10, 1e5, 60)
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(60))
    rate = fit_rate(x, 7 * x**-2 * noise)
    assert rate.low < -2 < rate.high
    assert rate.r2 > 0.999


def test_a_rate_needs_three_points():
    with pytest.raises(ValueError, match="pass ≥ 3"):
        fit_rate([1.0, 100.0], [1.0, 0.1])


@pytest.mark.parametrize(
    "x, error, last",
    [([1, 2, 3], [1, 2], 10), ([], [], 10), ([[1, 2, 3]], [[3, 2, 1]], 10), ([1, 2, 3], [3, 2, 1], -1)],
)
def test_points_without_a_partner_are_refused(x, error, last):
    with pytest.raises(ValueError, match="Pass one error per x"):
        fit_rate(x, error, last=last)


@pytest.mark.parametrize("x, error", [([1, 2, 3, 4], [9, np.inf, 2, 1]), ([1, 2, 3, np.nan], [9, 3, 2, 1])])
def test_no_rate_is_fitted_to_what_is_not_finite(x, error):
    with pytest.raises(ValueError, match="not finite"):
        fit_rate(x, error)
