"""Features of tokens: kernels by closed forms, and several side by side."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.data.standard import Standard
from attsvm.probe.fitting.features import SPREAD, rbf
from tests.probe.cases import ring


def test_products_of_kernel_features_are_the_kernel_on_its_landmarks():
    """1 / (1 + γ ‖x − x'‖²), by the distances of all pairs; other tokens are not in their span."""
    rng = np.random.default_rng(0)
    tokens, others = rng.standard_normal((2, 40, 6))
    store = TokenStore.from_flat(tokens, np.arange(41))
    found = rbf(store, Standard(np.zeros(6), np.ones(6)))

    def error(x):
        apart = ((x[:, None] - x) ** 2).sum(-1)
        features = found.transform(x)
        return np.abs(features @ features.T - 1 / (1 + SPREAD / 6 * apart)).max()

    assert error(tokens) < 1e-10 < 1e-3 < error(others)


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
