"""Folds keep groups together."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.model_selection import GroupKFold

from attsvm.probe import AttentionProbe, ProbeSuite
from attsvm.probe.fitting.folds import folds


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


@pytest.mark.parametrize(
    "groups", [np.arange(80), np.arange(20), np.zeros((40, 1))], ids=["long", "short", "2-d"]
)
def test_groups_that_are_not_one_per_sequence_are_refused(groups):
    with pytest.raises(ValueError, match=r"groups has shape .* Pass one per sequence: \(40,\)"):
        folds(3, np.arange(40) % 2, groups, np.ones(40))


def test_folds_of_a_generator_serve_all_layers():
    """It gives its pairs once."""
    rng = np.random.default_rng(0)
    X, y, places = rng.standard_normal((40, 3, 4)), np.arange(40) % 2, np.arange(40)
    pairs = [(places[places % 4 != k], places[places % 4 == k]) for k in (0, 1)]
    given, once = (
        ProbeSuite(cv=cv).fit({5: X, 11: X[:, ::-1]}, y[:, None]).probes_ for cv in (pairs, iter(pairs))
    )
    for layer in (5, 11):
        expected, found = (probes[layer][0].path_["folds"] for probes in (given, once))
        assert expected.shape[1] == 2 and np.array_equal(found, expected)
