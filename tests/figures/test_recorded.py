"""Figures of recorded trainings: they say who made them, and a record that says otherwise is noticed."""

import numpy as np
import pytest

from attsvm import figures
from attsvm.figures.mirror_descent import sentiment
from attsvm.figures.recorded import recorded

NAMES = [name for name, figure in figures.ALL.items() if figure.recorded]


def test_there_are_recorded_figures():
    assert {"sentiment", "vision", "vision-sparsity"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_figure_says_who_made_it_and_disagrees_with_nothing(name):
    figure = figures.ALL[name]
    arrays = figure.compute("quick")
    assert "commit" in figure.recorded and "experiments/" in figure.recorded
    assert "disagrees" not in {check.agreement for check in figure.checks(arrays)}
    assert all(ax.get_xlabel() or not ax.lines for ax in figure.picture(arrays).axes[:1])


def test_every_run_records_its_settings_and_a_curve():
    for name, run in recorded("transformers")["runs"].items():
        assert {"task", "optimizer", "lr", "seed", "half"} <= set(run["settings"]), name
        assert len(run["test_accuracy"]) == len(run["epoch"]) and run["epoch"][-1] <= run["trained"]


def test_exchanged_optimizers_are_noticed():
    arrays = sentiment.experiment()
    names = [name for name in arrays if name.startswith(("test 3 1.1", "epoch 3 1.1", "ended 3 1.1"))]
    twins = {name: name.replace("3 1.1", "3 2") for name in names}
    other = arrays | {a: arrays[b] for a, b in twins.items()} | {b: arrays[a] for a, b in twins.items()}
    assert "disagrees" in {check.agreement for check in sentiment.checks(other)}


def test_the_interval_is_that_of_student():
    low, high = sentiment.interval(np.array([1.0, 2.0, 3.0]))
    assert (low + high) / 2 == pytest.approx(2) and (high - low) / 2 == pytest.approx(
        4.302653 / np.sqrt(3), rel=1e-6
    )
