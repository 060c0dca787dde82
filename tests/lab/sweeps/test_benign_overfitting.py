"""The study of benign overfitting: a trained head, words of a measure, and the law of fresh inputs."""

import json
from pathlib import Path

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import datasets
from attsvm_lab.sweeps import batch
from attsvm_lab.sweeps.batch import batches, compute
from attsvm_lab.sweeps.cell import study_code
from attsvm_lab.sweeps.plugins import plugin
from attsvm_lab.sweeps.study import read_study
from attsvm_lab.sweeps.sweep import sweep

FOLDER = Path(__file__).parents[3] / "lab" / "studies"
DATA = {"model": "benign_overfitting:beside_noise", "n": 6, "T": 3, "d": 300, "flipped": 0.2}
GIVEN = {
    "measure": ["benign_overfitting:outcome", "benign_overfitting:accuracy"],
    "seeds": 4,
    "data": DATA | {"snr": [0.3, 3.0]},
    "train": {"optimizer": "gd", "lr": 0.02, "steps": 100, "train_head": True},
}
SIZES = {"flipped": 0.2, "in_span": True}


@pytest.fixture
def given(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return GIVEN


def trained(seed, snr, steps=100):
    tokens, v = datasets.signal_beside_noise(6, 3, 300, snr * 50**0.5, seed, **SIZES)
    rule = att.gd(0.02)
    return att.train(tokens, att.Linear(v), optimizer=rule, train_head=rule, steps=steps)


def test_every_word_of_a_measure_has_a_share_in_every_cell(given, here, tmp_path):
    done = sweep(given, here, out=tmp_path)
    shares = [cell.quantities["benign_overfitting:outcome = benign"].value for cell in done.cells]
    assert len(shares) == 2 and shares[0] == 0 < shares[1]
    assert "train_head" in done.facts["parameters"]
    told = plugin("benign_overfitting:summary", str(FOLDER))(done)["cells"]
    assert [cell["outcome = benign"][0] for cell in told] == pytest.approx(shares, rel=1e-3)
    assert json.loads(json.dumps(told)) == told  # a record is JSON
    assert told[1]["snr"] == 3.0 and {*told[0]} >= {"T", "lr", "steps", "runs", "accuracy"}


def test_a_head_trained_in_a_study_is_that_of_train_whatever_the_padding(given, monkeypatch):
    (cell,) = read_study(given | {"data": DATA | {"snr": 3.0}}).cells
    todo = batches(cell, range(4), True, "cpu")
    padded = compute(todo, study_code())[0]["benign_overfitting:accuracy"]
    monkeypatch.setattr(batch, "FREE", dict.fromkeys(batch.FREE, 0.0))
    np.testing.assert_array_equal(compute(todo, study_code())[0]["benign_overfitting:accuracy"], padded)
    own = plugin("benign_overfitting:accuracy", str(FOLDER))
    np.testing.assert_array_equal(padded[:2], [own(trained(seed, 3.0)) for seed in (0, 1)])


def test_margins_by_their_law_are_those_of_fresh_tokens():
    law = plugin("benign_overfitting:fresh_margins", str(FOLDER))
    path = trained(0, 1.0)
    fresh, _ = datasets.signal_beside_noise(6, 3, 300, 50**0.5, 0, **SIZES, fresh=20_000)
    logits = fresh.keys @ path.final[:, 0]
    s = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    drawn = fresh.labels * (s * (fresh.keys @ path.v[-1])).sum(-1)
    told, early = law(path, -1, 20_000), law(path, 20, 20_000)
    share = np.linspace(0.02, 0.98, 25)
    off = 6 * drawn.std() / 20_000**0.5  # six standard errors of a quantile, in the densest part of the law
    near = np.abs(np.quantile(told, share) - np.quantile(drawn, share))
    assert np.median(near) < off
    assert np.median(np.abs(np.quantile(early, share) - np.quantile(drawn, share))) > off
