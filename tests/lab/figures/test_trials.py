"""How trials of one initialisation are compared with trials of several."""

import numpy as np
import pytest
from scipy import stats

from attsvm_lab.figures.mirror_descent import trials


def test_the_interval_is_that_of_student():
    low, high = trials.interval(np.array([1.0, 2.0, 3.0]))
    assert (low + high) / 2 == pytest.approx(2) and (high - low) / 2 == pytest.approx(
        4.302653 / np.sqrt(3), rel=1e-6
    )


@pytest.mark.parametrize("count", [3, 10])
def test_one_trial_that_went_astray_is_found_from_mean_and_spread(count):
    every = np.full(count, 81.0)
    every[0] = 50.0
    found = trials.outlier(every.mean(), every.std(ddof=1), count)
    assert found == pytest.approx((81, 50))
    assert trials.outlier(-every.mean(), -every.std(ddof=1), count) == pytest.approx((-81, -50))
    every[1:] += np.linspace(-1, 1, count - 1)
    assert trials.outlier(every.mean(), every.std(ddof=1), count) != pytest.approx((81, 50), abs=1e-3)
    others = every[1:].mean(), every[1:].std(ddof=1)
    assert trials.without_trial(every.mean(), every.std(ddof=1), 50.0, count) == pytest.approx(others)


def test_the_published_trial_at_its_cap_is_the_one_at_chance():
    """Two independent numbers, epochs and accuracy, both tell of one trial in ten."""
    epochs, last = trials.COLLAPSED["epochs"], trials.COLLAPSED["last"]
    assert trials.outlier(epochs[0], -epochs[1])[1] == pytest.approx(trials.CAP, abs=0.1)
    assert trials.outlier(*last)[1] == pytest.approx(trials.CHANCE, abs=0.1)
    mean, spread = trials.UNMASKED["1.1"].epochs
    assert 9 * mean == pytest.approx(501, abs=1e-6)  # whole epochs
    assert 8 * spread**2 == pytest.approx(16, abs=1e-3)  # nine whole numbers around 501 / 9


def test_a_mean_of_one_initialisation_is_covered_as_often_as_the_interval_says():
    """Three initialisations of ours, one of theirs with ten trials; a narrower interval fails.

    A seed gives the same to every p of a size: with the freedom of nine cells, not of three sizes, it covers
    too little.
    """
    rng, initial, within = np.random.default_rng(0), 0.4, 0.1
    hits = []
    for _ in range(3000):
        seeds = {size: initial * rng.standard_normal(3) for size in trials.SIZES}
        cells = {cell: seeds[cell[0]] + within * rng.standard_normal(3) for cell in trials.PUBLISHED}
        theirs = initial * rng.standard_normal() + within * rng.standard_normal(10)
        less, spread = cells[3, "2"].mean() - theirs.mean(), trials.pooled(cells)
        width = stats.t.ppf(0.975, 11) * theirs.std(ddof=1) * np.sqrt(1 / 3 + 1 / 10)
        both = (trials.difference_interval(less, (spread[0], freedom), 3) for freedom in (spread[1], 18))
        hits.append((*(low <= 0 <= high for _, low, high in both), abs(less) <= width))
    covered, nine, naive = np.mean(hits, 0)
    assert covered == pytest.approx(0.955, abs=0.012)  # three standard errors; a bit more than 0.95
    assert nine < 0.935 and naive < 0.5


def test_a_quotient_of_variances_has_the_interval_of_fisher():
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(1000):
        a, b = 2 * rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
        found, low, high = trials.variance_ratio(
            *(trials.pooled({(3, "2"): x[0], (4, "2"): x[1]}) for x in (a, b))
        )
        assert low < found < high
        hits.append(low <= 4 <= high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.021)  # three standard errors
