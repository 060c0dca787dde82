"""A trained map of the tokens: its gradient, its members, and what it is for."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.model_selection import StratifiedKFold

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.data.backends import backend_of
from attsvm.probe.fitting import relu
from attsvm.probe.fitting.attention import read_out
from attsvm.probe.fitting.features import mapped
from attsvm.probe.fitting.objective import Objective
from tests.probe.cases import ring

TWO = StratifiedKFold(2)


def objective(k, h, parts=()):
    rng = np.random.default_rng(0)
    store = TokenStore.from_flat(rng.standard_normal((17, 3)) * [1, 5, 0.2], [0, 3, 4, 9, 12, 17])
    labels = np.array([0, 1, 2, 1, 0])
    targets = np.eye(3)[labels].T[None] if k == 3 else (labels > 0)[None, None].astype(float)
    return Objective.of(
        store, targets, np.array([1.0, 2, 1, 1, 3]), np.array(parts, np.int8).reshape(-1, 5), h
    )


@pytest.mark.parametrize(("k", "h"), [(1, 1), (3, 2)])
def test_the_gradient_of_a_network_is_the_derivative(monkeypatch, k, h):
    monkeypatch.setattr(relu, "DROPOUT", 0.0)
    goal = objective(k, h)
    run = relu.MemberTraining(backend_of(goal.store.rows), goal, 0, 0)
    run.point = run.point + 0.1
    found, steps = run._gradient(np.arange(5)), 1e-6 * np.eye(len(run.point))
    for index in range(0, len(found), 7):
        ends = [relu.held_out_loss(goal, 0, run.scores(run.point + sign * steps[index])) for sign in (1, -1)]
        assert found[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)
    assert all(np.abs(part).max() > 1e-3 for part in run.network(found))


def test_members_set_different_folds_aside_and_their_scores_are_averaged():
    goal = objective(1, 1, [[-1, 1, 1, 1, 1], [1, 1, -1, 1, 1]])
    done = relu.train(goal, 2, seed=3)
    scores = read_out(mapped(goal.store, done.features), [done.weights], np.zeros(done.features.width))[1]
    runs = [relu.MemberTraining(backend_of(goal.store.rows), goal, number, 3) for number in range(2)]
    assert [run.training.tolist() for run in runs] == [[1, 2, 3, 4], [0, 1, 3, 4]]
    points, held, _ = relu.train_together(goal, runs)
    by_hand = []
    for run, point, own in zip(runs, points, held, strict=True):
        net = run.network(point)
        _, hidden, token_scores = run._hidden(net, goal.store.read(slice(0, 5)))
        logits = np.split((hidden @ net.prompts)[:, 0], [3, 4, 9, 12])
        weights, values = [np.exp(x - x.max()) for x in logits], np.split(token_scores[:, 0], [3, 4, 9, 12])
        pooled = [w @ v / w.sum() for w, v in zip(weights, values, strict=True)]
        by_hand.append(np.array(pooled) + net.intercept)
        assert relu.held_out_loss(goal, run.fold, own) in done.held_out
        aside = relu.held_out_weights(goal, run.fold) > 0
        np.testing.assert_array_equal(done.scores[run.fold - 1][:, aside], own)
    np.testing.assert_allclose(scores[0, 0], np.mean(by_hand, axis=0), atol=1e-10)
    assert np.abs(by_hand[0] - by_hand[1]).max() > 1e-3


def test_the_loss_of_many_is_told_by_few():
    goal, rng = objective(1, 1), np.random.default_rng(0)
    own = [rng.standard_normal((1, 5)) for _ in range(2)]
    alone = np.mean([relu.held_out_loss(goal, 0, scores) for scores in own])
    pair = relu.held_out_loss(goal, 0, np.mean(own, axis=0))
    assert relu.expected_loss(goal, 0, own, 2) == pytest.approx(pair, abs=1e-15)
    assert relu.expected_loss(goal, 0, own, 10**9) == pytest.approx(alone - 2 * (alone - pair), abs=1e-8)
    first = relu.held_out_loss(goal, 0, own[0])
    assert relu.expected_loss(goal, 0, own[:1], 5) == first != pytest.approx(pair)


def test_trained_features_tell_what_no_line_tells_and_can_be_repeated(monkeypatch):
    monkeypatch.setattr(relu, "MAX_STEPS", 500)
    (X, y), (test, truth) = ring(120, 0), ring(120, 1)
    fit = lambda seed: AttentionProbe(features="relu", cv=TWO, random_state=seed).fit(X, y)  # noqa: E731
    probe = fit(0)
    assert AttentionProbe().fit(X, y).score(test, truth) < 0.8 < 0.9 < probe.score(test, truth)
    assert probe.prompt_.shape == (3 + 2 * relu.FEATURES, 2) and probe.path_["folds"].shape == (1, 2)
    monkeypatch.setattr(relu, "MAX_STEPS", 50)
    np.testing.assert_array_equal(fit(0).coef_, fit(0).coef_)
    assert np.abs(fit(1).coef_ - fit(0).coef_).max() > 1e-3
    assert fit(0).stability(X, y, resamples=2).same_label.shape == (120,)


def test_units_of_the_features_do_not_matter_to_a_trained_map(monkeypatch):
    monkeypatch.setattr(relu, "MAX_STEPS", 100)
    X, y = ring(60, 0)
    probe = AttentionProbe(features="relu", cv=TWO)
    here, far = probe.fit(X, y).predict_proba(X), X * [1e-3, 1.0, 1e4]
    np.testing.assert_allclose(probe.fit(far, y).predict_proba(far), here, atol=1e-6)
    assert np.abs(probe.predict_proba(X) - here).max() > 1e-2
