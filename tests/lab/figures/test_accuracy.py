"""Tolerances are computed: samples of one experiment differ as seldom as they say, others do not pass."""

from dataclasses import asdict

import numpy as np
import pytest

from attsvm_lab.figures import (
    Accuracy,
    Check,
    axis,
    counted,
    digits,
    exactly,
    log_axis,
    restarted,
    sampled,
    within,
)
from attsvm_lab.figures.accuracy import LEVEL, along, log_digits, significant
from attsvm_lab.figures.figure import beside_each_other

PAIRS = 4_000
MANY = 4
"""So many times the stated rate of misses is still chance: 12 expected, 48 would be 10 standard errors."""


def misses(references, ours, accuracies):
    found = zip(references, ours, accuracies, strict=True)
    return np.mean([abs(a - b) > known.tolerance for a, b, known in found])


@pytest.mark.parametrize(("theirs", "runs"), [(100, 5), (1, 12), (10, 200)])
def test_means_of_one_experiment_differ_at_the_stated_rate_and_of_another_nearly_always(theirs, runs):
    rng = np.random.default_rng(0)
    published = rng.standard_normal((PAIRS, theirs)).mean(-1)
    ours = rng.standard_normal((PAIRS, runs))
    known = [sampled(each, theirs) for each in ours]
    rate = misses(published, ours.mean(-1), known)
    assert (1 - LEVEL) / MANY < rate < MANY * (1 - LEVEL)
    assert misses(published + 30, ours.mean(-1), known) > 0.99


def test_a_single_run_is_judged_by_the_published_spread():
    rng = np.random.default_rng(0)
    theirs, ours = rng.standard_normal((PAIRS, 10)), rng.standard_normal((PAIRS, 1))
    known = [sampled(own, 10, other.std(ddof=1)) for own, other in zip(ours, theirs, strict=True)]
    assert (1 - LEVEL) / MANY < misses(theirs.mean(-1), ours[:, 0], known) < MANY * (1 - LEVEL)
    assert sampled([1.0], 1).tolerance == np.inf


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97])
def test_shares_of_one_experiment_differ_at_most_at_the_stated_rate(share):
    rng = np.random.default_rng(0)
    theirs, ours = rng.binomial(100, share, PAIRS) / 100, rng.binomial(200, share, PAIRS) / 200
    known = [counted(own, 200, other, 100) for own, other in zip(ours, theirs, strict=True)]
    assert misses(theirs, ours, known) < MANY * (1 - LEVEL)
    assert misses(np.full(PAIRS, 1 - share if share != 0.5 else 0.9), ours, known) > 0.99


def test_means_over_the_same_data_sets_are_judged_by_the_spread_of_starts_alone():
    rng = np.random.default_rng(0)
    data = 10 * rng.standard_normal((PAIRS, 20, 1))
    published = (data + rng.standard_normal((PAIRS, 20, 1))).mean((1, 2))
    ours = data + rng.standard_normal((PAIRS, 20, 3))
    known = [restarted(each) for each in ours]
    rate = misses(published, ours.mean((1, 2)), known)
    assert (1 - LEVEL) / MANY < rate < MANY * (1 - LEVEL)
    assert misses(published + 3, ours.mean((1, 2)), known) > 0.99
    assert sampled(ours[0], 20).tolerance > 3 * known[0].tolerance
    assert restarted(ours[0, :, :1]).tolerance == np.inf


def test_few_runs_of_a_heavy_tail_are_judged_with_those_of_other_cells():
    rng = np.random.default_rng(0)
    cells = rng.lognormal(0, 2, (500, 4, 10))
    mean = float(np.exp(2))
    alone = [sampled(one[0], 500) for one in cells]
    together = [sampled(one[0], 500, alike=list(one[1:])) for one in cells]
    ours = cells[:, 0].mean(-1)
    assert misses(np.full(500, mean), ours, together) < misses(np.full(500, mean), ours, alone)


def test_accuracies_add_up_bounds_by_their_sum_and_errors_in_squares():
    both = digits(2) + axis(0, 10)
    assert both.tolerance == pytest.approx(0.205) and "2 decimals" in both.words and "0 to 10" in both.words
    one = sampled([0.0, 1.0, 2.0], 3)
    assert (one + one).error == pytest.approx(np.sqrt(2) * one.error)
    assert significant(0.0083).tolerance == pytest.approx(5e-5)
    assert log_digits(0.0083, 2).tolerance == pytest.approx(5e-5 / 0.0083 / np.log(10), rel=0.01)


def test_a_place_read_off_an_axis_costs_what_the_curve_changes_there():
    x, curve = np.arange(101), np.arange(101) / 10
    assert along(x, curve, 50, 0, 100).tolerance == pytest.approx(0.2)
    assert along(x, curve, 0, 0, 100).tolerance == 0


# ---------------------------------------------------------------------- what comes of a check


TWO = digits(2)


def row(ours, accuracy=TWO, kind="printed", **more):
    return Check("a number", kind, "nobody", 1.0, ours, accuracy, **more)


def test_only_a_row_whose_recipe_agrees_is_explained():
    good, bad = row(1.0), row(3.0)
    assert row(2.0, recipe=good).agreement == "differs: the published recipe gives the published number"
    assert row(2.0, recipe=bad).agreement == row(2.0).agreement == "differs, not explained"
    assert row(1.0, recipe=bad).agreement == "agrees"
    assert "a number: 1" in row(2.0, recipe=good).reason


def test_what_lacks_epochs_or_accepts_half_of_the_number_is_not_compared():
    assert row(1.0, short="3 of 9 epochs").agreement == "not comparable yet"
    assert row(1.4, axis(0, 30)).agreement == "agrees, but could not have failed"
    assert row(9.0, axis(0, 30)).agreement == "differs, not explained"
    assert row(1.4, axis(0, 30), "independent run").agreement == "agrees"


def figure_of(numbers, accuracy):
    """Rows that meet these published numbers exactly, as one figure has them."""
    return beside_each_other(
        [Check(f"row {x:g}", "printed", "nobody", x, x, accuracy, recipe=None) for x in numbers]
    )


def test_a_row_that_accepts_most_other_numbers_of_its_figure_could_not_have_failed():
    numbers = (82.5, 83.0, 83.5, 84.0)
    wide, narrow = (figure_of(numbers, digits(1) + Accuracy(error=e)) for e in (0.5, 0.02))
    assert {check.agreement for check in wide} == {"agrees, but could not have failed"}
    assert "differs from 0 of 3 other published numbers" in wide[0].reason
    assert {check.agreement for check in narrow} == {"agrees"}
    assert [check.told_apart for check in narrow] == [(3, 3)] * 4


def test_a_recipe_that_could_not_have_failed_explains_nothing():
    numbers = (1.0, 1.5, 2.0, 2.5)
    for error, status in ((0.5, "not comparable yet"), (0.02, "differs: the published recipe gives the")):
        accuracy = digits(1) + Accuracy(error=error)
        rows = [Check(f"row {x:g}", "printed", "nobody", x, x, accuracy) for x in numbers]
        own = Check("ours", "printed", "nobody", 1.0, 9.0, accuracy, item="row 1", recipe=rows[0])
        assert beside_each_other([*rows, own])[-1].agreement.startswith(status)


def test_a_reading_of_a_logarithmic_axis_is_known_to_a_factor():
    small, large = (log_axis(value, 0.004, 1.0).known_to for value in (0.005, 0.5))
    assert large == pytest.approx(100 * small) and 0.1 < small / 0.005 < 0.13
    assert axis(0.004, 1.0).known_to > 3 * small


def test_a_bound_set_by_hand_beside_a_measured_number_is_refused():
    with pytest.raises(ValueError, match="a bound set by hand"):
        row(1.0, within(0.5, "because"))
    assert row(1.0, within(0.5, "because"), "derived").agrees


def test_a_bare_number_is_no_accuracy():
    with pytest.raises(TypeError, match=r"its accuracy is 0\.002\. Pass one that says how well"):
        row(1.0, 0.002)


def test_a_recipe_of_another_number_is_refused():
    with pytest.raises(ValueError, match="its recipe is about 1, not 2"):
        Check("two", "printed", "nobody", 2.0, 2.0, exactly(), recipe=row(1.0))


def test_a_check_comes_back_from_its_record():
    one = row(2.0, recipe=row(1.0))
    assert Check.from_record(asdict(one)) == one
