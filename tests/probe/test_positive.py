"""positive=True: the prompt is the head, so that no token can speak against the class."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

from attsvm.probe import AttentionProbe
from tests.probe.cases import needle, ring

RIDGES = {"head_ridge": 0.05, "prompt_ridge": 0.05}


def bags(n, seed, poison):
    """Positive by one instance at 3 e_0; a loud one at -10 e_1 in the bags of the class `poison`."""
    rng, y = np.random.default_rng(seed), np.arange(n) % 2
    X = rng.standard_normal((n, 8, 4))
    X[y == 1, 0, 0] += 3
    X[y == poison, 1, 1] -= 10
    return X, y


@pytest.mark.parametrize("settings", [{}, RIDGES, {"features": "rbf"}, {"features": "auto"}])
def test_the_prompt_is_the_head(settings):
    X, y = ring(60, 0)
    tied = AttentionProbe(positive=True, **settings).fit(X, y)
    np.testing.assert_array_equal(tied.coef_.sum(2) / tied.coef_.max(), tied.prompt_ / tied.prompt_.max())
    free = AttentionProbe(**RIDGES).fit(X, y)
    assert np.abs(free.coef_[:, :, 0] - free.prompt_).max() > 0.1


def test_the_fit_is_where_scipy_finds_no_lower_objective():
    X, y = needle(60, 0)
    probe = AttentionProbe(positive=True, tol=1e-9, **RIDGES).fit(X, y)
    z = (X - X.mean((0, 1))) / X.std((0, 1))

    def objective(point):
        token_scores = z @ point[:-1]
        scores = (softmax(token_scores, axis=1) * token_scores).sum(1) + point[-1]
        losses = logsumexp([np.zeros(len(y)), -(2 * y - 1) * scores], axis=0)
        return losses.mean() + 0.05 * point[:-1] @ point[:-1]

    w, mean, scale = probe.prompt_[:, 0], X.mean((0, 1)), X.std((0, 1))
    own = np.append(w * scale, probe.intercept_[0] + mean @ w)
    assert objective(own) == pytest.approx(probe.objective_, abs=1e-9)
    lower = minimize(objective, own, method="Nelder-Mead", options={"maxfev": 2000}).fun
    assert lower == pytest.approx(probe.objective_, abs=1e-7)
    assert objective(1.05 * own) > probe.objective_ + 1e-4


def test_a_token_that_speaks_against_the_class_is_not_seen():
    X, y = bags(200, 0, poison=0)
    for positive in (True, False):
        probe = AttentionProbe(positive=positive, head_ridge=0.05, prompt_ridge=0.05).fit(X, y)
        clean = X[:1, 2:]
        loud = np.concatenate([clean, [[-30 * probe.coef_[:, 0, 0] / np.linalg.norm(probe.coef_)]]], 1)
        change = np.abs(probe.decision_function(loud) - probe.decision_function(clean)).max()
        assert (change < 0.01) == positive


def test_poison_that_moves_to_the_positive_bags_fools_signed_evidence_alone():
    """After the unit tests of Raff & Holt 2023."""
    (X, y), (others, truth) = bags(200, 0, poison=0), bags(200, 1, poison=1)
    positive, signed = (
        roc_auc_score(truth, AttentionProbe(positive=each).fit(X, y).decision_function(others))
        for each in (True, False)
    )
    assert signed < 0.2 < 0.7 < positive


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"features": "last"}, "linear"), ({"head_ridge": 1.0}, "same"), ({}, "two")],
)
def test_what_cannot_be_positive_is_refused(settings, message):
    X, _ = needle(12, 0)
    with pytest.raises(ValueError, match=message):
        AttentionProbe(positive=True, **settings).fit(X, np.arange(12) % 3)
