"""The ridges by choice of the data."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.metrics import log_loss, roc_auc_score

from attsvm.numbers import library
from attsvm.probe import AttentionProbe
from attsvm.probe.fitting.fits import above_standard_error, largest_norm_prompt
from tests.probe.cases import everywhere, needle, problem, with_tolerances


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

    pooled, near = auc(head_ridge=1e-3, prompt_ridge=100.0), 0.01
    assert auc() > pooled - near
    strong = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    attending = tuple(10 * h for h in strong)
    with_tolerances(monkeypatch, "fits", head_ridges=strong, pooling_ridges=attending)
    assert auc() < pooled - 5 * near


def test_the_mean_of_many_tokens_gets_a_head_ridge_as_weak_as_it_needs(monkeypatch):
    """The class is 2.4 standard deviations of the mean of 144 tokens apart: the best log loss is known."""
    rng, y = np.random.default_rng(0), np.arange(600) % 2
    X = rng.standard_normal((600, 144, 2)) + 0.1 * (2 * y - 1)[:, None, None] * [1, 0]

    def loss():
        probe = AttentionProbe().fit(X[:200], y[:200])
        return log_loss(y[200:], probe.predict_proba(X[200:]))

    best = np.logaddexp(0, -(2 * y - 1) * 0.2 * X[:, :, 0].sum(1))[200:].mean()
    assert loss() < best + 0.06
    strong = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    with_tolerances(monkeypatch, "fits", head_ridges=strong, pooling_ridges=tuple(1000 * h for h in strong))
    assert loss() > best + 0.1


def test_one_token_of_a_thousand_is_found_from_the_largest_ones_and_not_from_mean_pooling(monkeypatch):
    (X, y), (others, truth) = needle(80, 0, T=1000), needle(200, 1, T=1000)

    def auc():
        return roc_auc_score(truth, AttentionProbe().fit(X, y).decision_function(others))

    assert auc() > 0.93
    monkeypatch.setattr("attsvm.probe.fitting.fits.largest_norm_prompt", lambda _, goal: np.zeros(6))
    assert auc() < 0.7


def test_loud_tokens_that_tell_nothing_change_nothing(monkeypatch):
    """They are a start only; what is found from it must hold out better."""
    X, y = everywhere(100, 0)
    X[:, 0] += 20 * np.eye(20)[4]
    found = AttentionProbe().fit(X, y)
    with_tolerances(monkeypatch, "fits", weak_ridge=0.0)
    np.testing.assert_array_equal(AttentionProbe().fit(X, y).coef_, found.coef_)


def test_the_prompt_of_largest_norm_is_the_mean_of_the_tokens_of_largest_norm():
    goal, backend, *_ = problem(np.float32)
    weights, mean, scale = goal.training[0], *goal.standard
    tokens = [(x - mean) / scale for x in goal.store]
    m = weights @ np.stack([x[(x**2).sum(1).argmax()] for x in tokens])
    level = np.log(weights @ goal.store.lengths) + 2
    expected = level * m / max(m @ m, level)
    prompt = largest_norm_prompt(backend, goal)
    np.testing.assert_allclose(prompt, expected, rtol=0, atol=1e-5)  # of 1e-7 and size 1
    smallest = np.stack([x[(x**2).sum(1).argmin()] for x in tokens])
    assert np.abs(prompt - weights @ smallest).max() > 0.1


def test_what_few_folds_tell_by_chance_is_not_clearly_better():
    assert all(above_standard_error(np.array(gains)) for gains in ([0.4, 0.6, 0.5], [0.1]))
    assert not any(above_standard_error(np.array(gains)) for gains in ([-0.06, 0.14, 0.01], [-0.1, -0.1]))


@pytest.mark.parametrize("settings", [{}, {"positive": True}])
def test_a_search_on_a_gpu_chooses_as_one_on_the_host(settings, monkeypatch):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    monkeypatch.setattr("attsvm.numbers.library.on_gpu", lambda x: library.home(x) == "torch")
    X, y = needle(40, 0, T=200)
    here, there = X.astype(np.float32), torch.tensor(X, dtype=torch.float32)
    host, device = (AttentionProbe(**settings).fit(x, y) for x in (here, there))
    np.testing.assert_allclose(device.path_["held_out"][:3], host.path_["held_out"][:3], atol=1e-5)  # float32
    assert (device.select(there) == host.select(here)).mean() > 0.95
    assert np.abs(host.path_["held_out"][:3] - host.path_["held_out"][-3:]).max() > 1e-2
