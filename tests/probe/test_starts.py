"""With fixed ridges a fit has the starts of the search: mean pooling, and the tokens of largest norm."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.metrics import roc_auc_score

from attsvm.probe import AttentionProbe, ProbeSuite
from attsvm.probe.data.sequences import as_store
from attsvm.probe.fitting.fits import FitOptions, choose_ridges
from attsvm.probe.fitting.objective import Objective
from tests.probe.cases import everywhere, needle, with_tolerances

WEAK = {"head_ridge": 0.03, "prompt_ridge": 0.03}


@pytest.fixture
def from_mean_pooling_alone(monkeypatch):
    def without():
        with_tolerances(monkeypatch, "fits", weak_ridge=0.0)

    return without


@pytest.mark.parametrize("settings", [WEAK, WEAK | {"positive": True}])
def test_with_given_ridges_one_token_of_a_thousand_is_found(settings, from_mean_pooling_alone):
    (X, y), (others, truth) = (needle(n, seed, T=1000, mark=8) for n, seed in ((80, 0), (200, 1)))

    def fit():
        probe = AttentionProbe(**settings).fit(X, y)
        return probe.objective_, roc_auc_score(truth, probe.decision_function(others))

    objective, auc = fit()
    from_mean_pooling_alone()
    missed, chance = fit()
    assert objective < 0.7 * missed and auc > 0.85 > 0.65 > chance


def test_features_are_compared_by_fits_with_both_starts(monkeypatch):
    X, y = needle(60, 0, T=500, mark=8)
    parts = np.where(np.arange(60) % 3 == np.arange(3)[:, None], -1, 1)
    objective = Objective.of(as_store(X), y[None, None], np.ones(60), parts)

    def held_out():
        plan = FitOptions([*WEAK.values()], 1000, 1e-6, compare_kinds=True)
        return choose_ridges(objective, plan)[0].held_out

    assert held_out() < 0.2
    with_tolerances(monkeypatch, "fits", weak_ridge=0.0)
    assert held_out() > 0.6


def test_every_concept_of_a_suite_has_both_starts(from_mean_pooling_alone):
    X, y = needle(80, 0, T=1000)
    Y = np.column_stack([y, X[:, :, 2].mean(1) > 0])

    def objectives():
        return [probe.objective_ for probe in ProbeSuite(**WEAK).fit(X, Y).probes_[0].values()]

    found = objectives()
    from_mean_pooling_alone()
    missed = objectives()
    assert found[0] < 0.6 * missed[0] and found[1] == pytest.approx(missed[1], abs=1e-6)


def test_where_the_loudest_tokens_tell_nothing_a_fit_is_that_of_mean_pooling(from_mean_pooling_alone):
    X, y = everywhere(100, 0)
    X[:, 0] += 20 * np.eye(20)[4]
    found = AttentionProbe(**WEAK).fit(X, y).coef_
    from_mean_pooling_alone()
    # Two probes in a pass are rounded otherwise than one; the optimum is known to tol = 1e-6.
    np.testing.assert_allclose(found, AttentionProbe(**WEAK).fit(X, y).coef_, atol=1e-5)
    assert np.abs(found).max() > 0.01


def test_resamples_of_a_probe_that_found_a_rare_token_find_it_too(from_mean_pooling_alone):
    X, y = needle(60, 0, T=500, mark=8)
    probe = AttentionProbe().fit(X, y)
    stays = probe.stability(X, y, resamples=2).same_token.mean()
    from_mean_pooling_alone()
    lost = probe.stability(X, y, resamples=2).same_token.mean()
    assert stays > 0.9 > 0.7 > lost  # 1.0 and 0.58
