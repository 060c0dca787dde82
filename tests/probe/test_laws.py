"""Laws of every kind of features: a weight of two is two copies; an offset of all tokens tells nothing."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe
from tests.probe.conftest import sequences

KINDS = ["linear", "rbf", "last", ("linear", "last"), ("rbf", "linear")]
FIXED = {"head_ridge": 0.1, "prompt_ridge": 0.1, "tol": 1e-9}

every_kind = pytest.mark.parametrize("features", KINDS, ids=str)


def fitted(features, X, y, weight=None):
    return AttentionProbe(features=features, **FIXED).fit(X, y, weight)


def apart(scores, expected):
    """The largest difference of two lists of scores, of the largest score."""
    return np.abs(np.array(scores) - expected).max() / np.abs(expected).max()


# ---------------------------------------------------------------------- weights

COPY = 1e-6
"""Sums of float64 in another order: the fits end at derivatives of 1e-9. Measured: 2e-7 with the root of a
kernel, which multiplies what is rounded by a thousand; 1e-9 without."""

ARRANGEMENTS = {"beside": lambda twice: np.sort(twice), "behind": lambda twice: twice}


@every_kind
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_weight_of_two_is_two_copies(features, arrangement):
    X, largest = sequences(n=48, d=4)
    y, doubled = largest > 4, np.flatnonzero(np.arange(48) % 3 == 0)
    places = ARRANGEMENTS[arrangement](np.concatenate([np.arange(48), doubled]))
    weight = np.ones(48)
    weight[doubled] = 2
    by_copies = fitted(features, [X[i] for i in places], y[places]).decision_function(X)
    by_weight = fitted(features, X, y, weight).decision_function(X)
    without = fitted(features, X, y).decision_function(X)
    assert apart(by_weight, by_copies) < COPY
    assert apart(without, by_copies) > 1e-3


# ---------------------------------------------------------------------- offsets

OFFSET = 1e4

EXACT, SINGLE = 1e-10, 1e-6
"""Of the largest score: in float64 tokens of 1e4 are exact to 2e-12; products in float32 err by 1e-7 each.
Measured: 5e-13, 3e-7."""


def exported(probe, tmp_path):
    """The score function of a probe's file."""
    file = probe.export(tmp_path / "exported.py", skip=0)
    spec = importlib.util.spec_from_file_location("exported", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.score


@every_kind
def test_what_is_exported_scores_tokens_far_from_the_origin_as_the_probe_does(features, tmp_path):
    torch = pytest.importorskip("torch", reason="to_torch needs the extra torch")
    X, largest = sequences(n=48, d=4)
    far = [x + OFFSET for x in X]
    probe, near = fitted(features, far, largest > 4), fitted(features, X, largest > 4)
    expected = probe.decision_function(far)
    assert apart(near.decision_function(X), expected) < SINGLE
    assert apart(near.decision_function(far), expected) > 0.1
    module, of_file = probe.to_torch(), exported(probe, tmp_path)
    tensors = [torch.as_tensor(x) for x in far]
    assert apart([module(x[None]).item() for x in tensors], expected) < SINGLE
    module.double()
    assert apart([module(x[None]).item() for x in tensors], expected) < SINGLE
    double = probe.to_torch(torch.float64)
    assert apart([double(x[None]).item() for x in tensors], expected) < EXACT
    assert apart([of_file(x) for x in tensors], expected) < EXACT
    assert apart([probe.step(probe.start(), x)[1] for x in far], expected) < EXACT


@every_kind
@pytest.mark.parametrize("fitted_on", [np.float32, np.float64])
def test_tokens_far_from_the_origin_score_alike_in_every_precision(features, fitted_on):
    """They are the same numbers in both."""
    X, largest = sequences(n=48, d=4)
    single = [(x + OFFSET).astype(np.float32) for x in X]
    probe = fitted(features, [x.astype(fitted_on) for x in single], largest > 4)
    exact = np.array([probe.step(probe.start(), x)[1] for x in single])
    for dtype in (np.float32, np.float64):
        assert apart(probe.decision_function([x.astype(dtype) for x in single]), exact) < SINGLE
