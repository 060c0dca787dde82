"""The figures of benign overfitting: what they read off curves."""

import numpy as np
import pytest

from attsvm_lab import datasets
from attsvm_lab.figures.benign_overfitting import level, phases, regimes
from attsvm_lab.figures.recorded import recorded


def test_a_level_is_found_between_two_points_of_a_curve():
    signal = np.array([5.0, 10.0, 20.0])
    assert level.crossing(signal, np.array([0.6, 0.5, 0.4])) == pytest.approx(10)
    assert level.crossing(signal, np.array([0.7, 0.6, 0.4])) == pytest.approx(np.sqrt(200))


def test_the_share_of_the_program_is_that_of_random_classes():
    snr = np.array([1.4, 1.6, 1.7, 2.0])
    tokens, _ = datasets.signal_beside_noise(phases.N, 2, 3, seed=range(4000), flipped=phases.WRONG)
    classes = np.where(tokens.keys[..., 0].any(-1), 1, -1)
    right = classes == tokens.labels
    least = np.minimum((right & (classes > 0)).sum(-1), (right & (classes < 0)).sum(-1))
    drawn = (least[:, None] > phases.N / snr**2).mean(0)
    np.testing.assert_allclose(phases.program(snr), drawn, atol=5 * 0.5 / 4000**0.5)


def test_the_record_is_whole():
    cells = recorded(phases.RECORD)["cells"]
    assert len({(cell["T"], cell["lr"], cell["snr"]) for cell in cells}) == 3 * 2 * 17
    assert sum(cell["runs"] for cell in cells) >= 100_000


def test_a_shared_seed_of_training_and_test_costs_two_inputs_in_a_thousand():
    shared = regimes._shared(np.array([1.0, 0.8]), np.array([1.0, 1.0]))
    np.testing.assert_allclose(shared, [0.998, 1.0])
