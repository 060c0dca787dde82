"""The family of joint directions, and the problems of the fractions over a grid."""

import numpy as np

from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.program.max_margin import max_margin
from attsvm_lab.figures.ours import fractions, joint_family
from tests.lab.figures.arrays import arrays


def test_the_family_runs_from_the_full_to_the_relaxed_program():
    family = arrays("joint-family")
    angles = joint_family.closed_form(np.array([0.0, 1.0, 5.0]))
    ends = (
        np.degrees(np.arctan2(*family["mm"][0, 1::-1])),
        np.degrees(np.arctan2(*family["relaxed"][0, 1::-1])),
    )
    np.testing.assert_allclose(angles, [ends[0], ends[1], ends[1]], atol=1e-9)
    assert ends[0] - ends[1] > 11


def test_masked_tokens_and_zero_coordinates_change_no_program():
    tokens, v = fractions._cell(2, 5, 4, runs=3)
    small = Tokens(tokens.keys[:, :, :5, :4], labels=tokens.labels)
    ours, plain = (max_margin(t, best_tokens(t, w)) for t, w in ((tokens, v), (small, v[:, :4])))
    np.testing.assert_allclose(ours.W[:, :4], plain.W, atol=1e-9)
    assert ours.support[..., :5].tolist() == plain.support.tolist()
    assert not ours.support[..., 5:].any()
