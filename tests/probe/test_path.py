"""The ridges by choice of the data; kernel features; suites."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from attsvm.numbers.stored.matrix import Matrix
from attsvm.probe import AttentionProbe, ProbeSuite, TokenStore
from attsvm.probe.data.arithmetic import Host
from attsvm.probe.fitting import relu
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.folds import folds
from attsvm.probe.fitting.kinds import Way, best_mean
from attsvm.probe.fitting.objective import Evaluation, Objective


def needle(n, seed, T=16, d=6):
    """One of T tokens carries a mark and, in another direction, the class."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, T, d)), np.arange(n) % 2
    place = np.arange(n), rng.integers(0, T, n)
    X[(*place, 0)] += 4
    X[(*place, 1)] += 3 * (2 * y - 1)
    return X, y


def everywhere(n, seed, T=6, d=20):
    """A faint class in the mean of all tokens, and little else to be learned."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return rng.standard_normal((n, T, d)) + 0.15 * (2 * y - 1)[:, None, None] * (np.arange(d) < 3), y


# ---------------------------------------------------------------------- the choice


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


def test_groups_stay_together_in_folds():
    labels, groups = np.arange(40) % 2, np.repeat(np.arange(10), 4)
    for cv in (3, GroupKFold(3)):
        parts = folds(cv, labels, groups, np.ones(40))
        assert all(len(set(part[groups == g])) == 1 for part in parts for g in range(10))
    alone = folds(3, labels, None, np.ones(40))
    assert any(len(set(part[groups == g])) == 2 for part in alone for g in range(10))


def test_copies_in_one_group_do_not_look_like_evidence():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 3, 30)), rng.integers(0, 2, 12)
    copies, labels, groups = np.repeat(X, 8, axis=0), np.repeat(y, 8), np.repeat(np.arange(12), 8)
    fooled = AttentionProbe(cv=3).fit(copies, labels)
    honest = AttentionProbe(cv=3).fit(copies, labels, groups=groups)
    assert fooled.path_["held_out"].min() < 0.1 < 0.5 < honest.path_["held_out"].min()


def test_too_few_sequences_get_strong_ridges():
    probe = AttentionProbe().fit(np.random.default_rng(0).standard_normal((3, 2, 4)), [0, 1, 1])
    assert probe.path_ is None and probe.prompt_ridge_ == 1.0


# ---------------------------------------------------------------------- the descent


def test_many_functions_at_once_end_where_each_ends_alone():
    rng = np.random.default_rng(0)
    targets, sizes = rng.standard_normal((5, 8)), np.logspace(-2, 2, 8)

    def one(x, i):
        r = x - targets[i]
        return 1 + float(np.log(np.cosh(r)) @ sizes), sizes * np.tanh(r)

    def evaluate(points, which):
        done = [one(x, i) for x, i in zip(points, which, strict=True)]
        values, gradients = zip(*done, strict=True)
        return Evaluation(np.array(values), np.array(gradients), np.zeros(len(which)))

    where = Host(Matrix(np.zeros((1, 1))))
    found, (points, *_), _ = minimise(where, evaluate, np.zeros((5, 8)), steps=500, tolerance=1e-9)
    for i in range(5):
        alone = minimize(one, np.zeros(8), args=(i,), jac=True, method="L-BFGS-B", options={"gtol": 1e-9})
        assert found.value[i] <= alone.fun + 1e-8
    np.testing.assert_allclose(points, targets, atol=1e-6)
    assert (found.slope <= 1e-9).all() and np.abs(points - targets[::-1]).max() > 0.1


def test_single_precision_ends_at_the_optimum_of_double():
    X, y = everywhere(80, 3)
    fixed = {"head_ridge": 0.1, "prompt_ridge": 0.1, "tol": 1e-7}
    half = X.astype(np.float16)
    one, other = AttentionProbe(**fixed).fit(half, y), AttentionProbe(**fixed).fit(half.astype(float), y)
    np.testing.assert_allclose(one.predict_proba(half), other.predict_proba(half.astype(float)), atol=1e-5)
    assert one.n_iter_ < 100
    rough = AttentionProbe(**fixed | {"tol": 1e-1}).fit(half, y)
    assert np.abs(rough.predict_proba(half) - other.predict_proba(half)).max() > 1e-3


# ---------------------------------------------------------------------- features


def ring(n, seed):
    """The marked token lies near the origin in one class, and on a ring around it in the other."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 5, 3)), np.arange(n) % 2
    angle = rng.uniform(0, 2 * np.pi, n)
    X[:, 0, :2] = np.where(y, 3.0, 0.3)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    X[:, 0, 2] = 4
    return X, y


def test_kernel_features_are_chosen_where_no_line_tells_the_classes(monkeypatch):
    monkeypatch.setattr(relu, "MOST", 50)  # trained features are tested elsewhere
    (X, y), (test, truth) = ring(120, 0), ring(120, 1)
    linear, auto = AttentionProbe().fit(X, y), AttentionProbe(features="auto").fit(X, y)
    assert linear.score(test, truth) < 0.75 < 0.9 < auto.score(test, truth)
    assert "rbf" in auto.kinds_ and "linear" not in auto.kinds_
    assert AttentionProbe(features="auto").fit(*everywhere(160, 0)).features_ is None


def test_a_kind_joins_the_mean_where_that_holds_out_better():
    """Scores with errors of their own are better together; those with the same errors are not."""
    rng = np.random.default_rng(0)
    truth, errors = rng.integers(0, 2, 400), rng.standard_normal((3, 400))
    store = TokenStore.from_flat(rng.standard_normal((400, 2)), np.arange(401))
    targets, no_folds = truth[None, None].astype(float), np.zeros((0, 400), np.int8)
    goal, sign = Objective.of(store, targets, np.ones(400), no_folds, 1), 2 * truth - 1
    own = {"linear": sign + errors[0], "rbf": sign + errors[1], "relu": sign + errors[0] + 2 * errors[2]}
    losses = {kind: float(np.logaddexp(0, -sign * score).mean()) for kind, score in own.items()}
    ways = {kind: Way(losses[kind], lambda kind=kind: own[kind][None], lambda: None) for kind in own}
    assert sorted(best_mean(goal, ways)) == ["linear", "rbf"]
    ways["rbf"] = Way(losses["linear"] + 1e-9, ways["linear"].scores, lambda: None)
    assert best_mean(goal, ways) == ["linear"]


def test_a_probe_on_several_kinds_of_features_is_the_mean_of_those_on_each():
    X, y = ring(80, 0)
    kinds, fixed = (["rbf", "linear"], "rbf", "linear"), {"head_ridge": 0.01, "prompt_ridge": 0.1}
    probe, one, line = (AttentionProbe(features=kind, **fixed).fit(X, y) for kind in kinds)
    assert probe.kinds_ == ["rbf", "linear"] and probe.attention(X).shape == (2, 80, 5)
    mean = (one.decision_function(X) + line.decision_function(X)) / 2
    np.testing.assert_allclose(probe.decision_function(X), mean, atol=1e-4)
    flat = probe.features_.transform(X.reshape(-1, 3)).reshape(80, 5, -1)
    by_hand = np.einsum("hnt,ntd,dhk->n", probe.attention(X), flat, probe.coef_) + probe.intercept_
    np.testing.assert_allclose(probe.decision_function(X), by_hand, atol=1e-4)
    assert np.abs(by_hand - one.decision_function(X)).max() > 1e-2


@pytest.mark.parametrize(("bad", "message"), [({"features": "mlp"}, "rbf"), ({"n_average": 2}, "no effect")])
def test_features_without_a_meaning_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        AttentionProbe(**bad).fit(*everywhere(20, 0))


# ---------------------------------------------------------------------- suites


def test_a_suite_fits_every_concept_as_a_probe_would():
    X, y = needle(120, 0)
    Y = np.column_stack([y, X[:, :, 2].mean(1) > 0])
    fixed = {"head_ridge": 0.02, "prompt_ridge": 0.02}
    suite = ProbeSuite(**fixed).fit({"a": X, "b": X[:, ::-1]}, Y, names=["needle", "mean"])
    for column, name in enumerate(["needle", "mean"]):
        alone = AttentionProbe(**fixed).fit(X, Y[:, column])
        np.testing.assert_allclose(suite.probes_["a"][name].coef_, alone.coef_, atol=1e-4)
        np.testing.assert_allclose(
            suite.decision_function({"a": X})["a"][:, column], alone.decision_function(X), atol=1e-4
        )
    assert np.abs(suite.probes_["a"]["needle"].coef_ - suite.probes_["a"]["mean"].coef_).max() > 1e-2


def test_soft_targets_between_two_labels_end_between_them():
    X, y = everywhere(80, 4)
    soft = np.column_stack([y, 0.5 + 0.2 * (2 * y - 1), 1 - y])
    scores = ProbeSuite(head_ridge=0.1, prompt_ridge=1.0).fit(X, soft).decision_function(X)[0]
    sure, unsure, turned = np.abs(scores).mean(0)
    assert unsure < 0.6 * sure and turned == pytest.approx(sure, rel=1e-3)
    with pytest.raises(ValueError, match="from 0 to 1"):
        ProbeSuite().fit(X, 2 * soft)


def test_the_table_names_layers_and_concepts_and_is_drawn():
    (X, y), (test, truth) = needle(80, 0), needle(80, 1)
    noise = np.random.default_rng(0).standard_normal(X.shape)
    suite = ProbeSuite(head_ridge=0.02, prompt_ridge=0.02).fit({3: noise, 7: X}, y[:, None], names=["class"])
    table = suite.auc({3: noise, 7: test}, truth[:, None])
    assert table.auc[1, 0] > 0.95 and "class" in str(table) and "    7 |" in str(table)
    assert len(table.plot().axes[0].texts) == 2
    with pytest.raises(ValueError, match="layer 5 was not fitted"):
        suite.auc({5: test}, truth[:, None])


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
