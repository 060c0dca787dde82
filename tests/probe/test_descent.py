"""Many functions are minimised side by side, each as if alone."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from attsvm.numbers.stored.matrix import Matrix
from attsvm.probe import AttentionProbe
from attsvm.probe.data.backends import Host
from attsvm.probe.fitting import fits
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.objective import Evaluation
from attsvm.probe.fitting.tolerances import TOLERANCES
from tests.probe.cases import everywhere


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

    backend = Host(Matrix(np.zeros((1, 1))))
    found, (points, *_), _ = minimise(backend, evaluate, np.zeros((5, 8)), steps=500, tolerance=1e-9)
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


@pytest.mark.parametrize(("level", "goes_on"), [(0.1, [1]), (0.9, [0, 1]), (0.99, [0])])
def test_a_rival_goes_on_if_it_is_ahead_and_alone_if_it_is_far_ahead(level, goes_on):
    """Two starts of one function, which is lower around the second."""
    backend, sizes = Host(Matrix(np.zeros((1, 1)))), np.logspace(-2, 1, 6)

    def evaluate(points, which):
        r = points - 1.0
        values = np.where(which == 1, level, 1.0) + np.log(np.cosh(r)) @ sizes * 0.01
        return Evaluation(values, 0.01 * sizes * np.tanh(r), np.zeros(len(which)))

    how = {"steps": 500, "tolerance": 1e-9}
    found = minimise(backend, evaluate, np.zeros((2, 6)), rivals=[(0, 1)], **how).scalars
    both = minimise(backend, evaluate, np.zeros((2, 6)), **how).scalars
    assert np.flatnonzero(np.isfinite(found.value)).tolist() == goes_on and np.isfinite(both.value).all()
    assert np.flatnonzero(found.steps > TOLERANCES.rival_passes).tolist() == goes_on
    assert (both.steps > TOLERANCES.rival_passes).all()
    np.testing.assert_array_equal(found.value[goes_on], both.value[goes_on])


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize(("prompt_ridge", "head_ridge"), [(1e4, 0.03), (1e8, 0.03), (1e8, 1e5), (0.1, 1e8)])
def test_any_ridge_ends_at_the_optimum(prompt_ridge, head_ridge, dtype, monkeypatch):
    """What strong ridges leave, mean pooling or the intercept, is fitted as scikit-learn fits it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 6, 30)).astype(dtype)
    y = (X.mean(1, dtype=float)[:, 0] + 0.3 * rng.standard_normal(120) > 0).astype(int)
    flat = X.astype(float).reshape(-1, 30)
    pooled = ((X.astype(float) - flat.mean(0)) / flat.std(0)).mean(1)
    oracle = LogisticRegression(C=1 / (head_ridge * len(y)), tol=1e-10, max_iter=10_000).fit(pooled, y)

    def error():
        probe = AttentionProbe(head_ridge=head_ridge, prompt_ridge=prompt_ridge).fit(X, y)
        return np.abs(probe.decision_function(X) - oracle.decision_function(pooled)).max()

    assert error() < 0.01
    if (prompt_ridge, head_ridge) == (1e8, 0.03):
        monkeypatch.setattr(fits, "_metric", lambda *given: None)
        assert error() > 0.1
