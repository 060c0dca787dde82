"""Thresholds and curves against scikit-learn, simulation and hand counts."""

import numpy as np
import pytest
from scipy.special import logit

from attsvm.probe.evaluation import area, curves, interval, threshold_at_fpr


def drawn(n=300, seed=0, shift=1.0, ties=False):
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.4
    scores = rng.standard_normal(n) + shift * truth
    return (np.round(scores) if ties else scores), truth


@pytest.mark.parametrize("ties", [False, True])
def test_the_roc_curve_and_its_area_are_scikit_learns(ties):
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score, roc_curve

    scores, truth = drawn(ties=ties)
    probability = 1 / (1 + np.exp(-scores))
    found = curves(scores, truth, 10)
    fpr, tpr, thresholds = roc_curve(truth, scores, drop_intermediate=False)
    assert (
        np.allclose(found.fpr, fpr)
        and np.allclose(found.tpr, tpr)
        and np.array_equal(found.thresholds, thresholds)
    )
    assert found.auc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert found.log_loss == pytest.approx(log_loss(truth, probability)) != found.brier
    assert found.brier == pytest.approx(brier_score_loss(truth, probability))


def test_calibrated_probabilities_have_a_small_error_and_shifted_ones_a_large_one():
    rng = np.random.default_rng(0)
    probability = rng.random(4000)
    truth = rng.random(4000) < probability
    good, bad = (curves(logit(p), truth, 10) for p in (probability, probability**3))
    assert good.calibration_error < 0.03 < 0.15 < bad.calibration_error
    assert (
        good.counts.sum() == 4000
        and ((good.low <= good.predicted) & (good.predicted <= good.high)).sum() >= 8
    )


def test_sure_mistakes_have_the_loss_of_their_score_whichever_class_is_the_positive_one():
    """1 − expit(40) is 0, and its logarithm −∞; the loss is 40."""
    scores, truth = np.array([40.0, 50.0, -60.0, 1.0]), np.array([False, True, True, False])
    one, other = curves(scores, truth, 2), curves(-scores, ~truth, 2)
    assert one.log_loss == pytest.approx((40 + 60 + np.log1p(np.e)) / 4, rel=1e-12)
    assert other.log_loss == one.log_loss and other.auc == one.auc
    assert one.predicted[1] == 1 and one.observed[1] == 0.5  # 40 and 50, though both probabilities are 1


@pytest.mark.parametrize("bins", [0, 2.5])
def test_bins_are_counted_in_whole_numbers(bins):
    with pytest.raises(ValueError, match="bins is"):
        curves(*drawn(), bins)


def test_the_interval_of_the_area_covers_it_as_often_as_it_says():
    from scipy.stats import norm

    true = norm.cdf(1 / np.sqrt(2))
    inside = [low <= true <= high for low, high in (area(*drawn(120, seed))[1] for seed in range(300))]
    assert 0.91 <= np.mean(inside) <= 0.985  # 0.95 with a standard error of 0.013


def test_the_interval_of_a_perfect_order_says_how_few_there_were():
    truth = np.arange(40) >= 30
    few, many = (area(np.arange(40.0 * k), np.repeat(truth, k)) for k in (1, 10))
    assert few[0] == many[0] == few[1][1] == 1 and 0.6 < few[1][0] < 0.75 < many[1][0] < 1


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("fpr", [0.01, 0.05, 0.5])
def test_the_threshold_flags_as_many_negatives_as_it_may_and_not_one_more(fpr, ties):
    scores, truth = drawn(400, ties=ties)
    found = threshold_at_fpr(scores, truth, fpr)
    flagged = found.flags(scores)
    assert flagged[~truth].mean() == found.fpr <= fpr and flagged[truth].mean() == found.tpr
    below = scores[scores < found.threshold].max()  # the next lower threshold flags too many
    assert (scores >= below)[~truth].mean() > fpr


def test_the_interval_of_the_threshold_covers_the_true_one_as_often_as_it_says():
    from scipy.stats import norm

    true, inside = norm.isf(0.05), []
    for seed in range(300):
        found = threshold_at_fpr(*drawn(400, seed), 0.05)
        inside.append(found.low <= true <= found.high)
    assert 0.92 <= np.mean(inside) <= 0.995  # order statistics are discrete: at least 0.95


def test_too_few_negatives_leave_the_interval_open():
    scores, truth = drawn(60)
    found = threshold_at_fpr(scores, truth, 0.001)
    assert found.high == np.inf and found.fpr == 0 and found.threshold > scores[~truth].max()
    assert "threshold" in str(found) and "inf" in str(found)


def test_the_interval_of_a_rate_is_scipys():
    from scipy.stats import binomtest

    for hits, count in ((0, 10), (3, 10), (10, 10)):
        exact = binomtest(hits, count).proportion_ci(method="exact")
        assert interval(hits, count) == pytest.approx((exact.low, exact.high))


def test_a_score_that_all_share_is_calibrated_by_its_share_in_every_order():
    """Bins that part equal scores would tell the order of the sequences: here 0 and 1 for a half."""
    truth = np.arange(40) >= 20
    for scores, error in ((np.zeros(40), 0.0), (np.full(40, logit(0.8)), 0.3)):
        found = [curves(scores[order], truth[order], 10) for order in (np.arange(40), np.arange(40)[::-1])]
        assert [each.calibration_error for each in found] == pytest.approx([error] * 2, abs=1e-12)


def test_the_order_of_sequences_changes_no_curve():
    scores, truth = drawn(ties=True)
    order = np.random.default_rng(1).permutation(len(truth))
    one, other = curves(scores, truth, 7), curves(scores[order], truth[order], 7)
    for name in ("predicted", "observed", "counts", "fpr", "tpr"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
    apart = curves(scores + 1e-9 * np.arange(300), truth, 7)  # without ties all bins are alike
    assert np.ptp(apart.counts) <= 1 < np.ptp(one.counts)


def test_scores_that_all_tie_do_not_tell_their_area_for_certain():
    area_, (low, high) = area(np.zeros(40), np.arange(40) >= 20)
    assert area_ == 0.5 and (low, high) == interval(10, 20) and low < 0.3 < 0.7 < high
