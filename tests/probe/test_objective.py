"""What is minimised: whom each fold learns from, and how much every sequence counts."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.fitting.objective import Objective


def test_a_fold_learns_from_its_part_and_is_tested_on_the_rest():
    store = TokenStore.from_flat(np.arange(10.0).reshape(5, 2), np.arange(6))
    importance, parts = (
        np.array([1.0, 2, 3, 4, 10]),
        np.array([[1, 1, -1, -1, 0], [-1, -1, 1, 1, 1]], np.int8),
    )
    goal = Objective.of(store, np.zeros((1, 1, 5)), importance, parts)
    np.testing.assert_allclose(
        goal.training, [importance / 20, [1 / 3, 2 / 3, 0, 0, 0], [0, 0, 3 / 17, 4 / 17, 10 / 17]]
    )
    np.testing.assert_allclose(goal.held_out, [np.zeros(5), [0, 0, 3 / 7, 4 / 7, 0], [1 / 3, 2 / 3, 0, 0, 0]])
    np.testing.assert_allclose(goal.fold_share, [0, 0.7, 0.3])
    assert not np.allclose(Objective.of(store, goal.targets, importance, -parts).fold_share, goal.fold_share)


def test_integer_weights_are_repetitions_of_sequences(planted):
    sequences, labels, _ = planted
    weight = np.arange(120) % 3
    settings = {"tol": 1e-10, "prompt_ridge": 0.1}
    weighted = AttentionProbe(**settings).fit(sequences, labels, sample_weight=weight)
    again = np.repeat(np.arange(120), weight)
    repeated = AttentionProbe(**settings).fit([sequences[i] for i in again], labels[again])
    plain = AttentionProbe(**settings).fit(sequences, labels)
    np.testing.assert_allclose(weighted.prompt_, repeated.prompt_, atol=1e-6)
    assert np.abs(plain.prompt_ - repeated.prompt_).max() > 1e-3
