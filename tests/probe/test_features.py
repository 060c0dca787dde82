"""Features of tokens: kernels by closed forms, and several side by side."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.fitting.features import rbf
from attsvm.probe.fitting.objective import Standard
from attsvm.probe.fitting.tolerances import TOLERANCES
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
        return np.abs(features @ features.T - 1 / (1 + TOLERANCES.spread / 6 * apart)).max()

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


# ---------------------------------------------------------------------- the same numbers in other types

AGREE = 2e-5
"""Of the largest score. Measured: 8e-7; with distances in float32 9e-4 at a size of 30, 4e-2 at 3000."""


def with_massive_first_tokens(size, n=120, T=8, d=16):
    """Sequences in float16 whose first token is so many times as long as the others, as a sink is."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, T, d))
    y = (X[:, 1:, 0].max(1) > 1.4).astype(int)
    X[:, 0] += size * np.sign(rng.standard_normal(d))
    return X.astype(np.float16), y


@cache
def fitted(features, size):
    X, y = with_massive_first_tokens(size)
    return AttentionProbe(features=features, head_ridge=0.01, prompt_ridge=0.01).fit(X.astype(float), y)


@pytest.mark.parametrize(
    ("features", "size"),
    [(features, size) for features in ("rbf", ("rbf", "linear")) for size in (0, 30, 3000)]
    + [("linear", 3000)],
    ids=str,
)
def test_a_probe_scores_the_same_numbers_alike_in_every_type_and_as_a_module(features, size):
    torch = pytest.importorskip("torch", reason="to_torch needs the extra torch")
    X, probe = with_massive_first_tokens(size)[0], fitted(features, size)
    exact, module = probe.decision_function(X.astype(float)), probe.to_torch()
    for dtype in (np.float16, np.float32, np.float64):
        given = X.astype(dtype)
        as_module = module(torch.as_tensor(given)).detach().numpy()
        for scores in (probe.decision_function(given), as_module):
            assert np.abs(scores - exact).max() < AGREE * np.abs(exact).max()


@pytest.mark.parametrize("features", ["linear", "rbf"])
@pytest.mark.parametrize("padding", [np.nan, np.inf, 1e30])
def test_a_module_does_not_read_what_padding_holds(features, padding):
    torch = pytest.importorskip("torch", reason="to_torch needs the extra torch")
    X, module = with_massive_first_tokens(3000)[0], fitted(features, 3000).to_torch()
    tokens, mask = torch.as_tensor(X[:5].astype(np.float32)), torch.ones(5, 8, dtype=torch.bool)
    short = module(tokens[:, :5])
    mask[:, 5:], tokens[:, 5:] = False, padding
    torch.testing.assert_close(module(tokens, mask), short)
    torch.testing.assert_close(module.step(module.start(5), tokens, mask)[1], short)
    assert module.attention(tokens, mask)[..., 5:].abs().max() == 0
    module(tokens, mask).sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in module.parameters())


def test_kernel_features_go_in_float32_to_a_device_without_float64():
    torch = pytest.importorskip("torch", reason="to_torch needs the extra torch")
    X, module = with_massive_first_tokens(0)[0], fitted("rbf", 0).to_torch()

    def to_apple(tensor):
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return tensor.clone()

    moved = module._apply(to_apple)
    assert moved.maps[0].landmarks.dtype == torch.float32
    assert bool(moved(torch.as_tensor(X[:3])).isfinite().all())
