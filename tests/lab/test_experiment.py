"""Experiments: equal ones are trained once, and their measures are those of the programs."""

from dataclasses import replace

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import experiment
from attsvm_lab.experiment import Experiment

STEPS = 40


def factors(seed=0, **options):
    tokens, v = att.datasets.sphere(3, 3, 5, seed=range(seed, seed + 2))
    rule = att.steepest(att.frobenius, 0.1)
    return Experiment(tokens, v, rule, STEPS, att.KeyQuery(), **options)


def test_equal_experiments_are_trained_once(monkeypatch):
    experiment._path.cache_clear()
    calls, train = [], att.train
    monkeypatch.setattr(att, "train", lambda *a, **o: calls.append(o["steps"]) or train(*a, **o))
    start = {name: np.ones((2, 5, 5)) for name in "KQ"}
    first, again = factors(start=start), factors(start={name: 1 * X for name, X in start.items()})
    assert first == again and first.path is again.path
    assert calls == [STEPS]


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": factors(1).tokens},
        {"v": -factors().v},
        {"rule": att.steepest(att.frobenius, 0.2)},
        {"steps": STEPS + 2},
        {"weight": att.FullWeight()},
        {"start": {name: np.ones((2, 5, 5)) for name in "KQ"}},
        {"record": [STEPS]},
        {"options": {"batch": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_experiment_that_differs_in_anything_is_another(change):
    assert replace(factors(), **change) != factors()
    assert replace(factors()) == factors() and factors() != "factors"


def test_measures_are_those_of_the_certified_programs_of_the_end():
    runs = factors()
    best = att.max_margin(runs.path.tokens, runs.path.selected, att.nuclear)
    ratio = att.margin_ratio(runs.path, best)
    assert list(runs.path.index) == [0, STEPS // 2, STEPS]
    assert runs.share(att.nuclear) == pytest.approx(ratio[:, -1])
    assert runs.limit(att.nuclear) == pytest.approx(2 * ratio[:, -1] - ratio[:, -2])
    assert runs.share(att.frobenius) != pytest.approx(ratio[:, -1])


def test_runs_that_change_their_selection_have_not_settled():
    runs = factors()
    settled = [(a[1:] == a[:-1]).all() for a in runs.path.attention[:, -2:].argmax(-1)]
    assert len(runs.settled_runs()) == sum(settled)
    turned = runs.path.changed(W=runs.path.W * np.array([1.0, -1.0, 1.0])[:, None, None])
    assert any((a[1] != a[0]).any() for a in turned.attention[:, -2:].argmax(-1))


def test_diagonals_are_prompts_on_the_products_of_keys_and_queries():
    tokens, v = att.datasets.sphere(2, 3, 6, seed=0)
    start = np.ones(6), np.zeros(6)
    rule = att.steepest(att.linf, 0.01)
    path = Experiment(tokens, v, rule, STEPS, att.Diagonal(2), start).path
    assert path.W.shape[-2:] == (6, 1)
    logits = np.einsum("ntd,d->nt", tokens.keys * tokens.queries[:, None], path.final[:, 0])
    assert np.exp(path.log_attention[-1]) == pytest.approx(
        np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    )


def test_a_program_without_a_certificate_is_refused(monkeypatch):
    tokens, v = att.datasets.sphere(2, 3, 4, seed=0)
    best = att.best_tokens(tokens, v)
    solution = experiment.solved(tokens, best)
    monkeypatch.setattr(att, "max_margin", lambda *a, **o: replace(solution, W=0.9 * solution.W))
    with pytest.raises(ValueError, match="is not certified"):
        experiment.solved(tokens, best)
