"""Kinds of features: which are chosen, and the mean of several."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.fitting.features import KindResult, best_mean
from attsvm.probe.fitting.objective import Objective
from tests.probe.cases import everywhere, ring


def test_kernel_features_are_chosen_where_no_line_tells_the_classes():
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
    goal, sign = Objective.of(store, targets, np.ones(400), no_folds), 2 * truth - 1
    own = {"linear": sign + errors[0], "rbf": sign + errors[1], "last": sign + errors[0] + 2 * errors[2]}
    losses = {kind: float(np.logaddexp(0, -sign * score).mean()) for kind, score in own.items()}
    ways = {kind: KindResult(losses[kind], lambda kind=kind: own[kind][None], lambda: None) for kind in own}
    assert sorted(best_mean(goal, ways)) == ["linear", "rbf"]
    ways["rbf"] = KindResult(losses["linear"] + 1e-9, ways["linear"].scores, lambda: None)
    assert best_mean(goal, ways) == ["linear"]


@pytest.mark.parametrize("features", ["mlp", [], ["rbf", "rbf"], ["linear", "auto"]], ids=str)
def test_features_without_a_meaning_are_refused(features):
    with pytest.raises(ValueError, match=r'^features is .*Pass "linear", "rbf", "last", a list of some'):
        AttentionProbe(features=features).fit(*everywhere(20, 0))
