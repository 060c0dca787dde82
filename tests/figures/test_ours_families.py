"""The family of joint directions and the fractions over a grid: agreement, and how it is lost."""

import numpy as np
import pytest

from attsvm.figures.ours import fractions, joint_family
from attsvm.program.max_margin import max_margin
from attsvm.selection import best_tokens
from attsvm.tokens import Tokens


@pytest.fixture(scope="module")
def family():
    return joint_family.experiment.compute("quick")


@pytest.fixture(scope="module")
def grid():
    """Counts with the shares of the independent table, for one and two inputs."""
    share = np.ones((2, 3, 4))
    for (n, T, d), value in fractions.TABLE.items():
        share[n - 1, fractions.LENGTHS.index(T), fractions.WIDTHS.index(d)] = value
    counts = np.round(200 * share)
    longer = np.array([[160, 190], [161, 192]])
    return {"inputs": np.array([1, 2]), "runs": 200, "global": counts, "local": counts, "longer": longer}


def disagreements(figure, arrays):
    return [check.what for check in figure.checks(arrays) if check.agreement == "differs, not explained"]


def test_joint_descent_follows_the_program_of_its_ratio(family):
    assert not disagreements(joint_family.experiment, family)


@pytest.mark.parametrize("end", ["mm", "relaxed"])
def test_neither_end_of_the_family_predicts_joint_descent(family, end):
    wrong = family | {
        "own_program": family[end],
        "own_ratio": np.full_like(family["ratio"], end == "relaxed"),
    }
    assert len(disagreements(joint_family.experiment, wrong)) == 2


def test_the_family_runs_from_the_full_to_the_relaxed_program(family):
    angles = joint_family.closed_form(np.array([0.0, 1.0, 5.0]))
    ends = (
        np.degrees(np.arctan2(*family["mm"][0, 1::-1])),
        np.degrees(np.arctan2(*family["relaxed"][0, 1::-1])),
    )
    np.testing.assert_allclose(angles, [ends[0], ends[1], ends[1]], atol=1e-9)
    assert ends[0] - ends[1] > 11


def test_fractions_agree_with_their_table_and_reversed_widths_do_not(grid):
    assert not disagreements(fractions.experiment, grid)
    assert disagreements(fractions.experiment, grid | {"global": grid["global"][..., ::-1]})


def test_a_share_that_grows_with_the_steps_is_reported(grid):
    wrong = grid | {"longer": np.array([[160, 190], [190, 195]])}
    assert disagreements(fractions.experiment, wrong)


def test_masked_tokens_and_zero_coordinates_change_no_program():
    tokens, v = fractions._cell(2, 5, 4, runs=3)
    small = Tokens(tokens.keys[:, :, :5, :4], labels=tokens.labels)
    ours, plain = (max_margin(t, best_tokens(t, w)) for t, w in ((tokens, v), (small, v[:, :4])))
    np.testing.assert_allclose(ours.W[:, :4], plain.W, atol=1e-9)
    assert ours.support[..., :5].tolist() == plain.support.tolist()
    assert not ours.support[..., 5:].any()


def test_every_panel_names_its_axes(family, grid):
    for figure, arrays in ((joint_family.experiment, family), (fractions.experiment, grid)):
        axes = figure.draw(arrays).axes
        assert all(ax.get_xlabel() and ax.get_title() for ax in axes)
        assert axes[0].get_ylabel()
