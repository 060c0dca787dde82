"""The losses of a training: computed when they are asked for, once, and those of its own weights."""

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from attsvm import frobenius
from attsvm.datasets import sphere
from attsvm.training import engine, programs
from attsvm.training.init import gaussian
from attsvm.training.optimizers import steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, KeyQuery


@pytest.fixture
def looks(monkeypatch):
    """The calls of the program that looks."""
    observe, calls = engine.observe, []
    monkeypatch.setattr(engine, "observe", lambda *given: calls.append(given) or observe(*given))
    return calls


def run(tokens, v, **options):
    return train(tokens, Linear(v), optimizer=steepest(frobenius, 0.1), steps=20, **options)


def mean_loss(tokens, v, W):
    """1/n Σ log(1 + e^(−f)) of weights (…, d, e), by the textbook."""
    weights = np.exp(np.einsum("ntd,...de,ne->...nt", tokens.keys, W, tokens.queries))
    scores = tokens.labels[:, None] * (tokens.keys @ v)
    return np.log1p(np.exp(-(weights * scores).sum(-1) / weights.sum(-1))).mean(-1)


def test_no_loss_is_computed_before_it_is_asked_for_and_then_once(problem, looks):
    path = run(*problem)
    assert path.selected.any() and path.norm().any() and path.changed(W=2 * path.W).final.any()
    assert not looks
    assert path.loss.shape == path.log_excess.shape == path.changed(K=path.W).loss.shape == path.index.shape
    assert len(looks) == 1


def test_the_losses_are_those_of_the_weights_that_were_trained(problem):
    path = run(*problem, weight=KeyQuery(), init=gaussian(range(3)))
    other = path.changed(W=-path.W)
    np.testing.assert_array_equal(other.run(1).loss, path.loss[1])
    np.testing.assert_allclose(path.loss, mean_loss(*problem, path.W), rtol=1e-12)  # of sums of few terms
    assert not np.allclose(path.loss, mean_loss(*problem, other.W), rtol=1e-3)


@pytest.mark.parametrize("copied", [deepcopy, replace, lambda path: pickle.loads(pickle.dumps(path))])
def test_a_copy_has_them_too(problem, copied, looks):
    path = run(*problem)
    found = copied(path)
    assert len(looks) == 1
    np.testing.assert_array_equal(found.loss, path.loss)
    np.testing.assert_array_equal(found.log_excess, path.log_excess)


def test_weights_of_one_shape_share_the_program_and_another_shape_has_its_own(problem, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 1_000)
    assert run(*problem).loss.any()
    held = len(engine.observe)
    for weight in (KeyQuery(2), Diagonal()):
        assert run(*problem, weight=weight, init=gaussian(0)).loss.any()
    assert len(engine.observe) == held
    assert run(*sphere(3, 6, 13, seed=0)).loss.any()  # a size that no other test has
    assert len(engine.observe) == held + 1
