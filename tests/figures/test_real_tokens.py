"""The theorem on real tokens: runs that arrive are seen, and so are runs that do not."""

import numpy as np
import pytest

from attsvm.figures.ours.real_tokens import WAYS, experiment, reviews
from attsvm.program.max_margin import max_margin


@pytest.fixture
def arrays():
    shape = (len(WAYS), 10, 3)
    error = np.broadcast_to([1e-1, 1e-3, 1e-6], shape)
    return {
        "ways": np.array(tuple(WAYS)),
        "steps": np.array([10, 100, 1000]),
        "error": error,
        "other": np.full(shape, 0.1),
        "selection": np.tile(np.arange(10) // 4, (len(WAYS), 1)),
        "local": np.ones(shape[:2], bool),
        "certified": np.ones(shape[:2], bool),
    }


def test_runs_that_arrive_agree(arrays):
    assert {check.agreement for check in experiment.checks(arrays)} == {"agrees"}


@pytest.mark.parametrize("name", ["error", "other"])
def test_the_two_programs_exchanged_disagree(arrays, name):
    other = {"error": "other", "other": "error"}[name]
    found = {check.agreement for check in experiment.checks(arrays | {name: arrays[other]})}
    assert "differs, not explained" in found


def test_starts_that_are_not_locally_optimal_do_not_count(arrays):
    lost = np.where(np.arange(10)[:, None] < 5, 0.1, arrays["error"])
    local = np.tile(np.arange(10) >= 5, (len(WAYS), 1))
    assert {c.agreement for c in experiment.checks(arrays | {"error": lost, "local": local})} == {"agrees"}
    assert "differs, not explained" in {c.agreement for c in experiment.checks(arrays | {"error": lost})}


def test_the_picture_has_a_bar_for_every_selection(arrays):
    left, right = experiment.picture(arrays).axes
    assert len(right.patches) == 3 * len(WAYS)
    assert left.get_xlabel() and right.get_xlabel()


def test_a_prompt_arrives_at_the_program_of_real_reviews():
    found = experiment.experiment(starts=2, steps=1_000, ways=("prompt, p = 2",))
    assert found["certified"].all() and found["local"].all()
    assert found["error"][0, :, -1].max() < 1e-3 < 1e-2 < found["other"][0, :, -1].min()


def test_coordinates_of_the_span_change_no_program():
    (plain, _), (spanned, _) = reviews(), reviews(queries=True)
    with_query = type(plain)(plain.keys, plain.keys[:, 0], mask=plain.mask)
    margins = [max_margin(tokens, np.ones(8, int)).margin for tokens in (with_query, spanned)]
    assert margins[0] == pytest.approx(margins[1], rel=1e-6)
    assert margins[0] != pytest.approx(max_margin(plain, np.ones(8, int)).margin, rel=1e-2)
