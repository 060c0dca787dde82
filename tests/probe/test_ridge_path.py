"""The ridges by choice of the data."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.metrics import roc_auc_score

from attsvm.probe import AttentionProbe
from tests.probe.cases import everywhere, needle


def test_a_needle_gets_a_weak_prompt_ridge_and_a_faint_class_a_strong_one():
    (X, y), (test, truth) = needle(160, 0, T=64), needle(200, 1, T=64)
    found, even = AttentionProbe().fit(X, y), AttentionProbe().fit(*everywhere(160, 0))
    assert found.prompt_ridge_ <= 0.03 < 0.3 <= even.prompt_ridge_
    assert roc_auc_score(truth, found.decision_function(test)) > 0.97
    as_text_wants = AttentionProbe(head_ridge=0.1, prompt_ridge=1.0).fit(X, y)
    assert roc_auc_score(truth, as_text_wants.decision_function(test)) < 0.9


def test_the_path_has_every_candidate_and_the_choice_is_its_lowest():
    X, y = everywhere(60, 2)
    probe = AttentionProbe(cv=3).fit(X, y)
    path, best = probe.path_, np.argmin(probe.path_["held_out"])
    assert path["folds"].shape == (len(path["held_out"]), 3)
    assert (path["head_ridge"][best], path["prompt_ridge"][best]) == (probe.head_ridge_, probe.prompt_ridge_)
    again = AttentionProbe(cv=3).fit(X, y)
    np.testing.assert_array_equal(again.path_["held_out"], path["held_out"])
    np.testing.assert_array_equal(again.coef_, probe.coef_)
    assert AttentionProbe(head_ridge=1, prompt_ridge=1).fit(X, y).path_ is None


def test_a_given_ridge_is_kept_and_the_other_chosen():
    X, y = needle(80, 0)
    probe = AttentionProbe(head_ridge=0.02).fit(X, y)
    assert probe.head_ridge_ == 0.02 and len(set(probe.path_["prompt_ridge"])) > 2


def test_too_few_sequences_get_strong_ridges():
    probe = AttentionProbe().fit(np.random.default_rng(0).standard_normal((3, 2, 4)), [0, 1, 1])
    assert probe.path_ is None and probe.prompt_ridge_ == 1.0


def test_where_every_token_tells_a_little_the_default_is_mean_pooling(monkeypatch):
    """Weak ridges of the head came with weak ones of the prompt, whose attention then learned noise."""

    def little(n):
        rng, y = np.random.default_rng([n, 1]), np.arange(n) % 2
        x = rng.standard_normal((n, 96, 16))
        x[:, :, 0] += 0.06 * (2 * y - 1)[:, None]
        return x, y

    (X, y), (others, truth) = little(300), little(1000)

    def auc(**settings):
        return roc_auc_score(truth, AttentionProbe(**settings).fit(X, y).decision_function(others))

    pooled, near = auc(prompt_ridge=1e4), 0.01
    assert auc() > pooled - near
    monkeypatch.setattr("attsvm.probe.fitting.ridge_path.RATIO", (10.0, 1.0))
    assert auc() < pooled - 5 * near
