"""What one does with a fitted probe: judge it, hand it on to torch, look at it in a notebook."""

import copy
import warnings

import numpy as np
import pytest


def test_a_probe_is_judged_by_its_own_scores(probe, three, X, y):
    from sklearn.metrics import roc_auc_score

    found = probe.curves(X, y)
    assert found.auc == pytest.approx(roc_auc_score(y == "yes", probe.decision_function(X)))
    assert probe.curves(X, y, positive="no").auc == pytest.approx(found.auc)
    labels = three.predict(X)
    for one in three.classes_:
        other = three.curves(X, labels, positive=one)
        assert other.auc == pytest.approx(roc_auc_score(labels == one, three.predict_proba(X)[:, one]))
    at = probe.threshold_at_fpr(X, y, 0.1)
    assert at.flags(probe.decision_function(X))[y == "no"].mean() == at.fpr <= 0.1


def test_wrong_calls_say_what_to_pass(probe, X, y):
    for call, said in (
        (lambda: probe.threshold_at_fpr(X, y, 1.5), "fpr is 1.5"),
        (lambda: probe.threshold_at_fpr(X, y, positive="maybe"), r"Pass one of \['no', 'yes'\]"),
        (lambda: probe.curves(X, ["yes"] * 60), "one class only"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_the_curves_are_drawn(probe, X, y):
    figure = probe.curves(X, y).plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[0].startswith("AUC ") and "calibration error" in titles[1]


def test_the_torch_module_gives_the_probes_scores(any_probe, X):
    torch = pytest.importorskip("torch", reason="to_torch needs torch")
    module, T = any_probe.to_torch(), max(map(len, X))
    padded, mask = np.full((len(X), T, 12), 1e3), np.zeros((len(X), T), bool)
    for i, x in enumerate(X):
        padded[i, : len(x)], mask[i, : len(x)] = x, True
    given = torch.tensor(padded), torch.tensor(mask)
    with torch.no_grad():
        scores = module(*given).numpy()
        assert np.abs(scores - any_probe.decision_function(X)).max() <= 1e-4 * np.abs(scores).max()
        attention = np.moveaxis(module.attention(*given).numpy(), 1, 0)
        # the inverse root of a kernel matrix, with entries up to 1,000, stretches the rounding of float32
        near = 1e-5 if any_probe.features_ is None else 1e-3
        assert np.allclose(np.squeeze(attention), any_probe.attention(X), rtol=0, atol=near)
        assert not np.allclose(module(given[0]).numpy(), scores)  # without the mask the padding counts
    double = module.double()
    with torch.no_grad():
        assert double(*given).dtype == torch.float64


def test_the_torch_module_runs_on_a_batch_of_streams(any_probe, X):
    torch = pytest.importorskip("torch", reason="to_torch needs torch")
    module = any_probe.to_torch()
    streams = torch.tensor(np.stack([x[:2] for x in X[:5]]))
    with torch.no_grad():
        state = module.start(5)
        for t in range(2):
            state, scores = module.step(state, streams[:, t])
        assert torch.allclose(scores, module(streams), atol=1e-5)


def test_scores_of_any_size_have_curves_without_a_warning(probe, X, y):
    sure = copy.deepcopy(probe)
    sure.coef_, sure.intercept_ = 1e5 * probe.coef_, 1e5 * probe.intercept_
    assert sure.decision_function(X).min() < -1e3  # e^1000 is no number
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sure.curves(X, y).auc == pytest.approx(probe.curves(X, y).auc)
