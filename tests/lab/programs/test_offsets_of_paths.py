"""Where the head is trained along, attention follows the program of its label margins."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs


def limit_of_shares(path, shares):
    """What is missing is a number of logits: its share falls like 1/N(W)."""
    length = path.norm(att.spectral)[-2:]
    return (length[1] * shares[1] - length[0] * shares[0]) / (length[1] - length[0])


@pytest.fixture(scope="module")
def trained():
    """W by spectral and v by normalised steps of one length: v and W grow alike."""
    tokens, v = att.datasets.sphere(8, 3, 4, seed=3)

    def rate(step):
        return 0.4 * (step + 1.0) ** -0.55

    rules = att.steepest(att.spectral, rate), att.steepest(att.frobenius, rate)
    path = att.train(
        tokens, att.Linear(v), optimizer=rules[0], train_head=rules[1], steps=8000, record=[4000, 8000]
    )
    return path, att.max_margin(tokens, path.selected, att.spectral)


def test_attention_reaches_the_offset_program_and_not_the_plain_margin(trained):
    path, solution = trained
    shares = [programs.offset_program(path, solution, k).share(path.W[k]) for k in (-2, -1)]
    assert limit_of_shares(path, shares) == pytest.approx(1.0, abs=0.03)
    assert att.margin_ratio(path, solution)[-1] < 0.8


def test_the_program_of_a_negated_head_is_another(trained):
    path, solution = trained
    negated = programs.offset_program(path.changed(v=-path.v), solution)
    assert abs(negated.share(path.final) - programs.offset_program(path, solution).share(path.final)) > 0.05


def test_a_path_without_a_head_or_with_a_weight_of_zero_is_refused(trained):
    path, solution = trained
    with pytest.raises(ValueError, match="no trained head"):
        programs.offset_program(path.changed(v=None), solution)
    with pytest.raises(ValueError, match="norm 0"):
        programs.offset_program(path.changed(W=np.zeros_like(path.W)), solution)
