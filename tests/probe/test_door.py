"""What comes to a probe is taken as it is meant, or refused in words and without warnings."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.preprocessing import StandardScaler

from attsvm.probe import AttentionProbe, PerToken, as_sequences

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


def test_a_number_of_folds_may_be_numpys(X, y):
    paths = [AttentionProbe(cv=cv).fit(X, y).path_["folds"] for cv in (3, np.int64(3), 5)]
    assert np.array_equal(paths[0], paths[1]) and [path.shape[1] for path in paths] == [3, 3, 5]


@pytest.mark.parametrize(("given", "said"), [(["good", "bad"], "X holds texts"), ([], "X has no sequences")])
def test_texts_and_nothing_are_refused_by_name(probe, given, said):
    for call in (probe.predict, lambda X: AttentionProbe().fit(X, [0, 1][: len(X)])):
        with pytest.raises(ValueError, match=said):
            call(given)
    assert len(probe.predict([np.zeros((1, probe.n_features_in_))])) == 1


FORMS = [
    (None, "X is NoneType"),
    (3, "X is int"),
    ((x for x in []), "X is generator"),
    ("a text", "X holds texts"),
    (np.array(["a text", "another"]), "X holds texts"),
    ({12: [np.zeros((2, 3))]}, r"mapping with the keys \[12\]. Pass the sequences of one layer"),
    (np.zeros((2, 2, 2, 3)), r"shape \(2, 2, 2, 3\). Pass \(n, T, d\)"),
    (np.zeros((0, 2, 3), np.float32), r"X is empty: shape \(0, 2, 3\)"),
    ([np.zeros((1, 4, 3)), np.zeros((1, 5, 3))], r"shape \(1, 4, 3\). Pass \(4, 3\): \[x\[0\] for x in X\]"),
    ([np.zeros((2, 4, 3)), np.ones((2, 4), bool)], r"as a tuple: \(array, mask\)"),
    (tuple(np.zeros((6, 4, 3)) for _ in range(3)), "Pass one such array alone"),
    ([np.zeros((2, 3)), np.zeros(3)], r"sequence 1 has shape \(3,\). Pass \(T_i, 3\)"),
    ([np.zeros((2, 3)), None], r"sequence 1 has shape \(\)"),
    ((np.zeros((2, 4, 3), np.float32), np.ones((2, 5))), r"mask has shape \(2, 5\), X has n=2 and T=4"),
    (np.ma.masked_less(np.arange(24.0).reshape(2, 4, 3), 5), "whose mask would be lost"),
]


@pytest.mark.parametrize(("given", "said"), FORMS, ids=[said[:20] for _, said in FORMS])
def test_what_holds_no_sequences_is_refused_with_the_form_that_does(given, said):
    for use in (lambda X: AttentionProbe(**FIXED).fit(X, [0, 1]), as_sequences):
        with pytest.raises((ValueError, TypeError), match=said):
            use(given)


def test_a_transformer_of_tokens_names_the_remedy_for_one_sequence(X):
    scaled = PerToken(StandardScaler()).fit(X)
    with pytest.raises(ValueError, match=rf"X has shape \({len(X[0])}, .*Pass \[X\] for one sequence"):
        scaled.transform(X[0])
    assert np.array_equal(scaled.transform([X[0]])[0], scaled.transform(X)[0])


def test_numbers_in_objects_are_numbers(X, probe):
    assert np.array_equal(probe.predict([x.astype(object) for x in X]), probe.predict(X))
    assert not np.array_equal(probe.predict([(-x).astype(object) for x in X]), probe.predict(X))


@pytest.mark.parametrize("cv", [1, 0, -3, 2.5, None, "three", [([0], [99])], [[0, 1, 2]]], ids=str)
def test_folds_that_are_none_are_refused_in_words(X, y, cv):
    with pytest.raises(ValueError, match=r"^cv .*Pass a number of folds ≥ 2, a splitter, or pairs"):
        AttentionProbe(cv=cv).fit(X, y)


def test_what_is_missing_beside_the_sequences_is_named(X, y):
    groups = np.where(np.arange(len(X)) > 3, "a", None)
    with pytest.raises(ValueError, match="groups cannot be ordered"):
        AttentionProbe().fit(X, y, groups=groups)
    with pytest.warns(UserWarning, match=f"{len(X)} sequences in 1 groups .*Pass more groups"):
        AttentionProbe().fit(X, y, groups=np.zeros(len(X)))
    with pytest.raises(ValueError, match=r"1 class with weight, yes\. Pass sequences of another"):
        scores(X, y, np.where(y == "yes", 1.0, 0.0))
    with pytest.raises(ValueError, match="class_weight takes a name"):
        scores(X, y, "balanced")
