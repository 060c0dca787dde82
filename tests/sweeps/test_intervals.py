"""Intervals beside SciPy's."""

import numpy as np
import pytest
from scipy import stats

from attsvm.sweeps.intervals import mean, share

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("true", "runs"), [(0, 5), (3, 7), (50, 100), (1000, 1000), (1, 4096)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_interval_of_a_share_is_wilsons(true, runs, confidence):
    ours = share(np.arange(runs) < true, confidence)
    wanted = stats.binomtest(true, runs).proportion_ci(confidence, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert ours.value == true / runs


def test_the_interval_of_a_share_is_not_the_normal_one():
    ours = share(np.arange(10) < 1)
    assert ours.low > 0.1 - 1.96 * np.sqrt(0.1 * 0.9 / 10)


def test_the_interval_of_a_mean_is_students_and_leaves_out_what_is_missing():
    numbers = np.append(np.random.default_rng(0).standard_normal(12), [np.nan, np.nan])
    ours, finite = mean(numbers), numbers[:12]
    wanted = stats.t.interval(0.95, 11, finite.mean(), stats.sem(finite))
    assert (ours.low, ours.high) == pytest.approx(wanted, rel=1e-12)
    assert (ours.runs, ours.missing) == (12, 2)


def test_one_number_and_none_have_no_interval():
    assert mean(np.array([1.0])).width == np.inf
    assert mean(np.array([np.nan])).width == np.inf
    assert share(np.array([], bool)).width == np.inf


def test_wilsons_interval_covers_the_true_share_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [share(rng.random(60) < 0.8) for _ in range(600)]
    covered = np.mean([e.low <= 0.8 <= e.high for e in found])
    assert 0.92 < covered < 0.98
