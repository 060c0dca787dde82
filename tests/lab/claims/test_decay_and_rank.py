"""Decay and rank: the claims hold, their twins do not, and what is measured is what it is called."""

import numpy as np
import pytest

from attsvm_lab.claims import decay_and_rank as decay
from tests.lab.claims.agreement import check, each_claim

DIFFERENCES = 1e-6
"""Error of central differences with a step of 1e-5 of a loss of order one."""


@each_claim("decay_and_rank")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)


def loss(inputs, W):
    logits = np.einsum("ntd,de,ne->nt", inputs.keys, W, inputs.queries)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.log1p(np.exp(-weights[np.arange(len(weights)), inputs.winners])).mean()


@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0])
def test_the_descent_is_minus_the_gradient_of_the_loss(scale):
    inputs, rng = decay.drawn(0, 3)[0], np.random.default_rng(0)
    W, towards = scale * rng.standard_normal((decay.D, decay.D)), rng.standard_normal((decay.D, decay.D))
    slope = (loss(inputs, W + 1e-5 * towards) - loss(inputs, W - 1e-5 * towards)) / 2e-5
    assert slope == pytest.approx(-(decay.descent(inputs, W) * towards).sum(), abs=DIFFERENCES)


@pytest.mark.parametrize("rule", [name for name, rule in decay.RULES.items() if rule.norm is not None])
def test_only_the_own_norms_steepest_weight_is_on_the_path_of_a_small_ball(rule):
    inputs = decay.drawn(1, 1)[0]
    M = decay.descent(inputs, np.zeros((decay.D, decay.D)))
    U, _, Vh = np.linalg.svd(M)
    steepest = {"GD": np.outer(U[:, 0], Vh[0]), "Schatten 4": M, "Muon": U @ Vh}
    off = {
        name: decay.off_the_path(inputs, 1e-6 * W / np.linalg.norm(W), decay.RULES[rule].norm)
        for name, W in steepest.items()
    }
    assert off.pop(rule) < 1e-4
    assert min(off.values()) > 1e-2


def test_ranks_count_what_they_say():
    W = np.diag([2.0, 2.0, 1.0, 0.03, 0.01])
    assert decay.stable_rank(W) == pytest.approx(2.25, abs=1e-3)
    assert decay.numerical_rank(W) == 4


@pytest.mark.parametrize("name", decay.SCHEDULES)
def test_schedules_reach_the_rate_and_all_but_the_constant_one_end_near_zero(name):
    rates = [float(decay.SCHEDULES[name](0.1, 200)(k)) for k in range(200)]
    assert max(rates) == pytest.approx(0.1, rel=1e-6)
    assert (rates[-1] < 0.01) == (name != "constant")


def test_a_fifth_of_the_training_winners_is_random_and_none_of_the_fresh_ones():
    train, fresh = decay.drawn(2, 1)
    sizes = [len(np.unique(x.winners)) for x in (train, fresh)]
    assert sizes == [decay.T, decay.T] and len(fresh.winners) == decay.FRESH
    again = decay.drawn.__wrapped__(2, 1)[0]
    np.testing.assert_array_equal(train.winners, again.winners)
