"""What comes to a probe is taken as it is meant, or refused in words and without warnings."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe

FIXED = {"head_ridge": 0.1, "prompt_ridge": 0.1}


def scores(X, y, weight=None, **settings):
    return AttentionProbe(**settings).fit(X, y, sample_weight=weight).decision_function(X)


def test_only_the_ratios_of_weights_matter_however_large_they_are(X, y):
    weight = np.random.default_rng(0).integers(1, 9, len(X)).astype(float)
    expected = scores(X, y, weight)
    assert all(np.array_equal(scores(X, y, np.ldexp(weight, power)), expected) for power in (-1060, 1020))
    assert not np.array_equal(scores(X, y, weight + 1), expected)


@pytest.mark.parametrize("classes", [None, "balanced", {"no": 1, "yes": 3}], ids=str)
def test_a_weight_of_two_is_two_copies_and_of_none_is_none(X, y, classes):
    weight = np.where(y == "no", 1, np.arange(len(X)) % 3)
    places = np.repeat(np.arange(len(X)), weight)
    settings = {**FIXED, "class_weight": classes, "tol": 1e-9}
    copies = AttentionProbe(**settings).fit([X[i] for i in places], y[places])
    expected, found = copies.decision_function(X), scores(X, y, weight, **settings)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(scores(X, y, **settings) - expected).max() > 1e-2


def test_balanced_classes_do_not_know_how_large_the_weights_of_one_are(X, y):
    """Of 1e-300 and 1 the sums of both classes are the same in the end; of 1e±300 they would overflow."""
    even = scores(X, y, class_weight="balanced", **FIXED)
    for size in (1e-300, 1e300):
        found = scores(X, y, np.where(y == "no", size, 1.0), class_weight="balanced", **FIXED)
        np.testing.assert_allclose(found, even, atol=1e-4)


def test_weights_below_zero_are_refused_by_name(X, y):
    weight = np.ones(len(X))
    weight[7] = -2
    for settings, given, said in (
        ({}, weight, r"sample_weight\[7\] is -2. Pass numbers ≥ 0"),
        ({}, weight[:5], r"sample_weight has shape \(5,\)"),
        ({"class_weight": {"no": -1, "yes": 1}}, None, "class_weight is -1 for class 'no'"),
        ({"class_weight": {"no": 1, "yes": np.nan}}, None, "class_weight is nan for class 'yes'"),
    ):
        with pytest.raises(ValueError, match=said):
            scores(X, y, given, **FIXED, **settings)
    assert scores(X, y, class_weight={"no": 2, "yes": 1}, **FIXED).shape == (len(X),)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_an_infinite_entry_is_an_error_and_no_warning(X, y, probe, bad, dtype):
    X = [x.astype(dtype) for x in X]
    X[3][1, 1] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for use in (lambda: scores(X, y, **FIXED), lambda: probe.predict(X), lambda: probe.explain(X)):
            with pytest.raises(ValueError, match="sequence 3 has an entry that is NaN, infinite"):
                use()


class Table:
    """As much of a table of pandas as the probe asks for."""

    ndim = 2

    def __init__(self, **columns):
        self.columns, self.shape = list(columns), (len(next(iter(columns.values()))), len(columns))
        self.iloc = np.empty(self.shape, object)
        for i, column in enumerate(columns.values()):
            for j, cell in enumerate(column):
                self.iloc[j, i] = cell

    def __len__(self):
        return self.shape[0]


def test_the_one_column_of_a_table_holds_the_sequences(X, y, probe):
    table = Table(states=X)
    for form in (table, table.iloc, table.iloc[:, 0]):
        assert np.array_equal(probe.predict(form), probe.predict(X))
    with pytest.raises(ValueError, match="column 'states' of X holds arrays, and X has others"):
        probe.predict(Table(number=range(len(X)), states=X))


def test_a_number_of_folds_may_be_numpys(X, y, monkeypatch):
    monkeypatch.setattr("attsvm.probe.fitting.relu.MAX_STEPS", 50)
    settings = {"features": "relu", "random_state": 0}
    networks = [AttentionProbe(cv=cv, **settings).fit(X, y).prompt_.shape[1] for cv in (3, np.int64(3), 12)]
    assert networks == [10, 10, 12]


@pytest.mark.parametrize(("given", "said"), [(["good", "bad"], "X holds texts"), ([], "X has no sequences")])
def test_texts_and_nothing_are_refused_by_name(probe, given, said):
    for call in (probe.predict, lambda X: AttentionProbe().fit(X, [0, 1][: len(X)])):
        with pytest.raises(ValueError, match=said):
            call(given)
    assert len(probe.predict([np.zeros((1, probe.n_features_in_))])) == 1
