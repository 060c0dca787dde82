"""Batches: a run has the same digits in every study, and padding changes no more than rounding."""

from itertools import pairwise

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.sweeps import batch
from attsvm_lab.sweeps.batch import ONE_BATCH, batches, compute
from attsvm_lab.sweeps.cell import INIT, OF_HEADS, study_code
from attsvm_lab.sweeps.study import read_study
from attsvm_lab.sweeps.sweep import _jobs

ROUNDING = 1e-9
"""Of a margin ratio after 60 steps; what the paddings change is 1e-15."""


def columns(given, seeds, few=False):
    (cell,) = read_study(given).cells
    return [compute([b], study_code())[0] for b in batches(cell, seeds, few, "cpu")]


@pytest.fixture
def one(study):
    return study | {"data": {"model": "sphere", "n": 2, "T": 3, "d": 3}}


def test_where_batches_end_does_not_depend_on_the_seeds_asked_for(one):
    (cell,) = read_study(one).cells
    for device in ("cpu", "gpu"):
        some, more = (batches(cell, range(k), False, device) for k in (65, 40_000))
        assert more[: len(some)] == some
        assert all(a.stop == b.start for a, b in pairwise(more))
    assert [b.seeds for b in batches(cell, range(70, 130), False, "cpu")] == [range(64, 128), range(128, 192)]


def test_long_trainings_have_short_batches(one):
    (cell,) = read_study(one | {"train": {"steps": 10_000_000}}).cells
    assert len(batches(cell, range(1), False, "cpu")[0].seeds) < 64


@pytest.mark.parametrize("training", [{"norm": "linf"}, {"optimizer": "gd", "loss": "exponential"}])
def test_padding_changes_no_more_than_rounding(one, training, monkeypatch):
    given = one | {"train": one["train"] | training}
    padded = columns(given, range(4), few=True)[0]
    monkeypatch.setattr(batch, "FREE", dict.fromkeys(batch.FREE, 0.0))
    plain = columns(given, range(4), few=True)[0]
    assert (padded["kind"] == plain["kind"]).all()
    np.testing.assert_allclose(padded["margin_ratio"], plain["margin_ratio"], rtol=ROUNDING)


def test_a_job_has_one_program_and_long_batches_no_padding(one):
    cells = read_study(one | {"data": {"model": "sphere", "n": [1, 2], "T": [2, 3, 9], "d": [3, 20]}}).cells
    for device in ("cpu", "gpu"):
        todo = [b for cell in cells for b in batches(cell, range(20_000), False, device)]
        jobs = _jobs(todo, device)
        assert sorted(map(id, todo)) == sorted(id(b) for job in jobs for b in job)
        assert all(len({b.program(device) for b in job}) == 1 for job in jobs)
    assert todo[0].program("gpu")[-1] == (1, 16, 16, 16)
    assert todo[1].program("gpu")[-1] == (1, 2, 3, 3)


def test_a_run_of_a_batch_is_the_run_of_train(one):
    found = columns(one, range(4), few=True)[0]
    tokens, v = att.datasets.sphere(2, 3, 3, seed=range(4))
    path = att.train(tokens, att.Linear(v), optimizer=att.steepest(att.frobenius, 0.5), steps=60)
    assert (found["kind"][:4] == att.classify(path, v)).all()
    ratio = att.compare(path, att.max_margin(tokens, path.selected)).numbers["margin ratio"][:, -1]
    np.testing.assert_allclose(found["margin_ratio"][:4], ratio, rtol=ROUNDING)


@pytest.mark.parametrize("across", ["joint", "apart"])
def test_several_heads_are_judged_by_the_worst_of_them(one, across):
    """Each has values of its own, those of a draw far away, and its own program."""
    names = ["kind", "margin_ratio:frobenius", "arrival:frobenius"]
    given = one | {"train": one["train"] | {"heads": 2, "across": across}, "measure": names}
    found = columns(given, range(4), few=True)[0]
    tokens, first = att.datasets.sphere(2, 3, 3, seed=range(4))
    _, second = att.datasets.sphere(2, 3, 3, seed=range(OF_HEADS, OF_HEADS + 4))
    v, rule = np.stack([first, second], 1), att.steepest(att.frobenius, 0.5)
    path = att.train(tokens, att.Linear(v), weight=att.MultiHead(2, norm=across), optimizer=rule, steps=60)
    heads = [path.head(h) for h in range(2)]
    ratios = [att.margin_ratio(head, att.max_margin(tokens, head.selected))[:, -1] for head in heads]
    np.testing.assert_allclose(found["margin_ratio:frobenius"][:4], np.min(ratios, 0), rtol=ROUNDING)
    assert not np.allclose(np.min(ratios, 0), ratios[0])
    both = np.all([att.classify(head, v[:, h]) == "global" for h, head in enumerate(heads)], 0)
    assert ((found["kind"][:4] == "global") == both).all()


def test_data_and_start_of_a_run_are_independent(one):
    (cell,) = read_study(one | {"train": {"init": "gaussian"}, "measure": "kind"}).cells
    drawn = cell.start(range(3))({"W": (3, 3)})["W"]
    np.testing.assert_array_equal(drawn[1], att.gaussian(INIT + 1)({"W": (3, 3)})["W"])
    assert not np.allclose(drawn[1], att.gaussian(1)({"W": (3, 3)})["W"])


def test_a_worker_with_other_code_is_refused(one):
    (cell,) = read_study(one).cells
    with pytest.raises(ConnectionError, match="another version of attsvm"):
        compute(batches(cell, range(1), True, "cpu"), "other code")


def test_every_measure_is_a_number_a_truth_or_a_word_per_run(one):
    names = [
        "kind",
        "separable",
        "margin_ratio",
        "one_minus_cosine",
        "norm_growth",
        "rate",
        "margin_ratio:l1",
    ]
    found = columns(one | {"measure": names}, range(ONE_BATCH), few=True)[0]
    assert set(found) == {"stopped", *names}
    assert all(column.shape == (ONE_BATCH,) for column in found.values())
    assert found["separable"].dtype == bool
    np.testing.assert_allclose(found["norm_growth"], 1, atol=0.2)
    assert np.nanmedian(found["one_minus_cosine"]) < 0.05
    assert (found["margin_ratio"] <= 1 + 1e-12).all()


def test_separable_is_about_the_best_tokens_wherever_a_run_ended(one):
    given = one | {
        "data": {"model": "prompt_sphere", "n": 3, "T": 3, "d": 2},
        "measure": ["kind", "separable"],
    }
    found = columns(given, range(ONE_BATCH), few=True)[0]
    tokens, v = att.datasets.prompt_sphere(3, 3, 2, seed=range(ONE_BATCH))
    expected = att.separable(tokens, att.best_tokens(tokens, v))
    assert (found["separable"] == expected).all()
    assert 0 < expected.sum() < ONE_BATCH and set(found["kind"]) >= {"global", "local"}


def test_programs_are_solved_of_the_first_runs_and_a_way_may_be_looked_at_early(one):
    names = ["margin_ratio:l1", "margin_ratio:frobenius", "margin_ratio:frobenius@0.1", "arrival:frobenius"]
    found = columns(one | {"measure": names, "programs": 3}, range(4), few=True)[0]
    assert np.isfinite(found["margin_ratio:l1"]).tolist() == [True] * 3 + [False] * 13
    ends, early, steps = (found[name] for name in names[1:])
    assert (early < ends).all()
    assert (np.isfinite(steps) == (ends >= 0.99)).all()
    low = columns(one | {"measure": ["arrival:frobenius@0.5"]}, range(4), few=True)[0][
        "arrival:frobenius@0.5"
    ]
    assert (np.isfinite(low) == (ends >= 0.5)).all() and (
        low[np.isfinite(steps)] < steps[np.isfinite(steps)]
    ).all()
    every = columns(one | {"measure": names}, range(4), few=True)[0]
    np.testing.assert_array_equal(every["margin_ratio:l1"][:3], found["margin_ratio:l1"][:3])


def test_diagonals_are_judged_among_diagonals(one):
    way = {"weight": "diagonal_kq", "norm": "lp:4", "lr": 0.02, "steps": 600}
    found = columns(one | {"train": way, "measure": ["kind", "margin_ratio"]}, range(4), few=True)[0]
    ratio = found["margin_ratio"][np.isfinite(found["margin_ratio"])]
    assert len(ratio) > 8
    assert ratio.max() <= 1 + ROUNDING  # against every matrix W the best diagonal may fall short
    assert np.median(ratio) > 0.95
