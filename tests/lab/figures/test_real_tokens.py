"""The theorem on real tokens: which starts count, and where a prompt arrives."""

import numpy as np
import pytest

from attsvm.program.max_margin import max_margin
from attsvm_lab.figures.ours.real_tokens import TRAININGS, experiment, reviews
from tests.lab.figures.arrays import agreements, arrays


def test_starts_that_are_not_locally_optimal_do_not_count():
    lost = np.where(np.arange(10)[:, None] < 5, 0.1, arrays("real-tokens")["error"])
    local = np.tile(np.arange(10) >= 5, (len(TRAININGS), 1))
    assert set(agreements("real-tokens", error=lost, local=local)) == {"agrees"}
    assert "differs, not explained" in agreements("real-tokens", error=lost)


def test_the_picture_has_a_bar_for_every_selection():
    _, right = experiment.picture(arrays("real-tokens")).axes
    assert len(right.patches) == 3 * len(TRAININGS)


def test_a_prompt_arrives_at_the_program_of_real_reviews():
    found = experiment.experiment(starts=2, steps=1_000, trainings=("prompt, p = 2",))
    assert found["certified"].all() and found["local"].all()
    assert found["error"][0, :, -1].max() < 1e-3 < 1e-2 < found["other"][0, :, -1].min()


def test_coordinates_of_the_span_change_no_program():
    (plain, _), (spanned, _) = reviews(), reviews(queries=True)
    with_query = type(plain)(plain.keys, plain.keys[:, 0], mask=plain.mask)
    margins = [max_margin(tokens, np.ones(8, int)).margin for tokens in (with_query, spanned)]
    assert margins[0] == pytest.approx(margins[1], rel=1e-6)
    assert margins[0] != pytest.approx(max_margin(plain, np.ones(8, int)).margin, rel=1e-2)
