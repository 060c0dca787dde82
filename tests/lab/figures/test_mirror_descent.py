"""Figures of mirror descent: why the published runs stopped, and how they chose programs."""

import numpy as np

from tests.lab.figures.arrays import agreements, arrays


def test_the_usual_gradient_stops_where_ours_goes_on():
    joint_run = arrays("mirror-joint")
    ours, usual = np.linalg.norm(joint_run["W_2"][-1]), np.linalg.norm(joint_run["usual_W_2"])
    assert usual < 6 < 60 < ours
    assert joint_run["W_away_2"][-1] < joint_run["usual_W_away_2"] / 100


def test_mixed_tokens_explain_the_published_cross_values():
    found = agreements("mirror-own-program")
    assert found.count("differs: the published recipe gives the published number") == 2
