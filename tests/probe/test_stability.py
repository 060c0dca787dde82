"""Probes of resamples say the same of a clear task, and not of noise."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.base import clone

from attsvm.probe import AttentionProbe
from attsvm.probe.evaluation import _bootstrap_counts


def test_resamples_of_a_clear_task_agree_and_of_noise_do_not(X, y, probe):
    clear = probe.stability(X, y, resamples=4)
    noise = np.random.default_rng(0).permutation(y)
    lost = clone(probe).fit(X, noise).stability(X, noise, resamples=4)
    assert clear.same_token.mean() > lost.same_token.mean() and clear.prompts.mean() > lost.prompts.mean()
    assert clear.same_label.mean() > 0.8 and clear.spread.shape == (60,) and "4 resamples" in repr(clear)
    page = probe.explain(X, y=y, stability=clear)
    assert np.array_equal(page.stays, clear.same_token)
    with pytest.raises(ValueError, match="stability is of 60 sequences"):
        probe.explain(X[:5], stability=clear)


def test_whole_groups_are_drawn():
    rng, y = np.random.default_rng(0), np.arange(12) % 2
    groups = np.repeat(np.arange(4), 3)
    for _ in range(10):
        drawn = _bootstrap_counts(rng, y, groups).reshape(4, 3)
        assert (drawn == drawn[:, :1]).all() and drawn[:, 0].sum() == 4
    assert len({tuple(_bootstrap_counts(rng, y, None)) for _ in range(5)}) == 5


def test_resamples_keep_groups_in_one_fold(X, y, monkeypatch):
    """Of a group's turns none may tell of the others."""
    seen, own, groups = [], AttentionProbe.fit, np.arange(len(y)) // 3
    probe = AttentionProbe(features=["linear", "last"])

    def fit(self, X, y, sample_weight=None, groups=None):
        seen.append(groups)
        return own(self, X, y, sample_weight, groups)

    monkeypatch.setattr(AttentionProbe, "fit", fit)
    probe.fit(X, y, groups=groups).stability(X, y, resamples=2, groups=groups)
    assert len(seen) == 3 and all(np.array_equal(one, groups) for one in seen)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\). Pass one per sequence: \(60,\)"):
        probe.stability(X, y, resamples=2, groups=groups[:3])


def test_a_probe_whose_features_were_chosen_is_fitted_again_with_the_chosen_ones(X, y, probe):
    chosen = clone(probe).set_params(features="auto")
    vars(chosen).update({name: value for name, value in vars(probe).items() if name.endswith("_")})
    one, other = (each.stability(X, y, resamples=2) for each in (chosen, probe))
    assert np.array_equal(one.spread, other.spread)


def test_classes_that_no_resample_holds_are_an_error_and_no_endless_loop():
    """Of 20 sequences of 20 classes a resample has all with a chance of 20!/20²⁰, one in forty million."""
    with pytest.raises(ValueError, match="resamples in a row lack a class: of 20 classes"):
        _bootstrap_counts(np.random.default_rng(0), np.arange(20), None)
    assert _bootstrap_counts(np.random.default_rng(0), np.arange(4), None).tolist() == [1.0] * 4
