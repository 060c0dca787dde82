"""Benign overfitting: claims hold, broken twins do not."""

import numpy as np
import pytest

from attsvm_lab import datasets
from attsvm_lab.claims import claims
from attsvm_lab.claims.benign_overfitting import (
    FEW,
    joint,
    right_labels_win,
    share_of_draws_with_a_wrong_majority,
)
from tests.lab.claims.agreement import check, each_claim


@each_claim("benign_overfitting")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


WRONG_MAJORITY = (575, 1317, 1460)
"""Seeds of n = 20 on which a class has more wrong labels than right ones, or as many."""


@pytest.mark.parametrize("seed", WRONG_MAJORITY)
@pytest.mark.parametrize("ratio", [1.25, 2.0])
def test_a_class_with_a_wrong_majority_is_not_benign_at_any_ratio(seed, ratio):
    outcome = joint(seed, ratio)
    assert outcome.best.certified and not outcome.right_labels_win
    assert outcome.right < 1 and outcome.wrong > 0 and outcome.test < 0.65


@pytest.mark.parametrize("seed", [1300, 1301, 1302])
def test_a_right_majority_in_each_class_is_benign(seed):
    outcome = joint(seed, 1.25)
    assert outcome.right_labels_win
    assert outcome.right == 1 and outcome.wrong == 0 and outcome.test > 0.99


def test_the_claim_above_the_threshold_is_not_applicable_to_a_wrong_majority():
    claim = claims["above_the_threshold_the_joint_program_is_benign"]
    verdicts = {seed: claim(seed) for seed in (1317, 1300)}
    assert verdicts[1317].status == "not applicable" and "outnumber" in verdicts[1317].reason
    assert verdicts[1300].holds


def test_the_derived_share_of_wrong_majorities_is_that_of_draws():
    runs, sizes = 4000, FEW | {"d": 50, "flipped": 0.2}
    won = [right_labels_win(datasets.signal_beside_noise(**sizes, seed=seed)[0]) for seed in range(runs)]
    derived = share_of_draws_with_a_wrong_majority(20, 0.2)
    four_errors = 4 * np.sqrt(derived * (1 - derived) / runs)
    assert abs(1 - np.mean(won) - derived) < four_errors
    assert abs(1 - np.mean(won) - share_of_draws_with_a_wrong_majority(20, 0.1)) > four_errors
    assert round(share_of_draws_with_a_wrong_majority(20, 0.1), 4) == 0.0048
