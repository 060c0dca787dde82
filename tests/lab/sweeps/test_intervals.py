"""Intervals beside SciPy's."""

import numpy as np
import pytest
from scipy import stats

from attsvm_lab.sweeps.intervals import estimate, mean, share
from attsvm_lab.sweeps.study import Seeds

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


def students(numbers, confidence=0.95):
    half = stats.t.ppf(0.5 + confidence / 2, len(numbers) - 1) * stats.sem(numbers)
    return numbers.mean() - half, numbers.mean() + half


def test_the_interval_of_a_mean_holds_students_and_leaves_out_what_is_missing():
    numbers = np.append(np.random.default_rng(0).standard_normal(4000), [np.nan, np.nan])
    for runs in (12, 4000):
        ours, (low, high) = mean(numbers[-runs - 2 :]), students(numbers[-runs - 2 : -2])
        assert ours.low <= low + 1e-12 and high <= ours.high + 1e-12
        assert (ours.runs, ours.missing) == (runs, 2)
    assert ours.width == pytest.approx(high - low, rel=0.01)


@pytest.mark.parametrize("runs", [8, 64, 1000])
def test_of_zeros_and_ones_that_are_all_equal_the_mean_has_wilsons_interval_and_no_bounds_no_width(runs):
    z = stats.t.ppf(0.975, runs - 1)
    ours = mean(np.ones(runs), bounds=(0.0, 1.0))
    assert (ours.low, ours.high) == pytest.approx((1 / (1 + z * z / runs), 1.0), abs=1e-12)
    assert mean(np.ones(runs)).width == 0  # whence the least number of seeds


def test_the_interval_of_a_mean_scales_with_numbers_and_bounds():
    numbers = np.random.default_rng(0).random(40)
    one, other = mean(numbers, bounds=(0.0, 1.0)), mean(7 * numbers - 3, bounds=(-3.0, 4.0))
    scaled = (7 * one.low - 3, 7 * one.high - 3)
    assert (other.low, other.high) == pytest.approx(scaled, abs=1e-12)


# ---------------------------------------------------------------------- coverage of a sweep to a precision

SWEEPS, LEAST = 200, 0.89
"""A coverage of 0.95 has a standard deviation of 0.015 over so many sweeps: four of them below."""

MOST = 4096


def failing(rate):
    """Runs that end at 1, and at this rate at 0."""
    return lambda rng: (rng.random(MOST) >= rate).astype(float), 1 - rate


def mixed(rate):
    """Numbers about 0.95, and at this rate about 0.25."""

    def draw(rng):
        lower, upper = 0.2 + 0.1 * rng.random(MOST), 0.93 + 0.04 * rng.random(MOST)
        return np.where(rng.random(MOST) < rate, lower, upper)

    return draw, 0.95 - 0.7 * rate


LAWS = {f"{law.__name__} {rate}": law(rate) for law in (failing, mixed) for rate in (0.01, 0.05, 0.5)} | {
    "uniform": (lambda rng: rng.random(MOST), 0.5),
    "beta": (lambda rng: rng.beta(5, 1, MOST), 5 / 6),
    "normal": (lambda rng: 0.5 + 0.1 * rng.standard_normal(MOST), 0.5),
}


def covered(law, rule):
    """How often the interval with which a rule ends covers the mean."""
    (draw, true), rng = LAWS[law], np.random.default_rng(0)
    ends = [rule(draw(rng)) for _ in range(SWEEPS)]
    return np.mean([low <= true <= high for low, high in ends])


def by_our_rule(measure, width):
    def rule(numbers):
        plan, seeds = Seeds(range(64), measure, width, most=MOST), range(64)
        while (more := plan.extended(seeds, {measure: numbers[: len(seeds)]})) is not None:
            seeds = more
        found = estimate({measure: numbers[: len(seeds)]}, measure)
        return found.low, found.high

    return rule


@pytest.mark.parametrize("measure", ["margin_ratio:l1@0.5", "module:function"])
@pytest.mark.parametrize("law", LAWS)
def test_a_sweep_to_the_precision_of_a_mean_covers_it_as_often_as_it_says(law, measure):
    for width in (0.02, 0.1):
        assert covered(law, by_our_rule(measure, width)) > LEAST


@pytest.mark.parametrize("width", [0.02, 0.1])
def test_students_interval_alone_does_not_cover_where_failures_are_rare(width):
    def rule(numbers):
        runs = 64
        while np.subtract(*students(numbers[:runs])) < -width and runs < MOST:
            runs *= 2
        return students(numbers[:runs])

    assert covered("failing 0.01", rule) < 0.7


def test_one_number_and_none_have_no_interval():
    assert mean(np.array([1.0])).width == np.inf
    assert mean(np.array([np.nan])).width == np.inf
    assert share(np.array([], bool)).width == np.inf


def test_wilsons_interval_covers_the_true_share_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [share(rng.random(60) < 0.8) for _ in range(600)]
    covered = np.mean([e.low <= 0.8 <= e.high for e in found])
    assert 0.92 < covered < 0.98
