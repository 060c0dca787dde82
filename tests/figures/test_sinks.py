"""The figure of sinks."""

import numpy as np

from attsvm import datasets, max_margin
from attsvm.figures.sinks.trigger import closed_form, experiment


def test_the_recorded_layers_are_those_of_the_program():
    assert {check.agreement for check in experiment.checks(experiment())} == {"agrees"}


def test_relu_layers_under_the_name_of_softmax_are_seen():
    arrays = experiment()
    wrong = arrays | {f"{name}_softmax": arrays[f"{name}_relu"] for name in ("W", "bos")}
    assert "differs, not explained" in {check.agreement for check in experiment.checks(wrong)}


def test_the_drawn_lines_are_the_certified_program():
    solution = max_margin(*datasets.trigger_means(16, 6, 6, seed=0))
    assert solution.certified
    np.testing.assert_allclose(solution.W, closed_form(6), atol=1e-7)


def test_every_panel_names_its_axes():
    assert all(ax.get_ylabel() and ax.get_title() for ax in experiment.draw(experiment()).axes)
