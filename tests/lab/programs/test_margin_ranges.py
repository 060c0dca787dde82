"""Between which required margins the same rows stay active."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.programs import required_range
from tests.program.test_derivative import copied_support, program, solved

WITH_RANGES = [att.frobenius, att.Entrywise(1.5), att.Entrywise(3), att.Schatten(3), att.l1, att.linf]

BESIDE = 1e-3
"""How far before and behind a change the program is solved again, relative to the way to it."""


def support(data, selected, norm):
    """The losing tokens whose row is active."""
    return att.sensitivity(solved(data, selected, norm)).support


@pytest.mark.parametrize("norm", WITH_RANGES, ids=str)
def test_the_same_rows_are_active_up_to_the_ends_of_a_range(norm):
    data, selected = program((3, 3, 4, 3), 1)
    solution, ends = solved(data, selected, norm), 0
    here_active = att.sensitivity(solution).support
    for i in range(3):
        here = data["required"][i]
        for end in required_range(solution, i):
            if not 0 < end.required < np.inf:
                continue
            at = [
                support(with_required(data, i, here + (end.required - here) * s), selected, norm)
                for s in SIDES
            ]
            assert (at[0] == here_active).all()
            if end.token >= 0:
                ends += 1
                assert at[1][end.example, end.token] != here_active[end.example, end.token]
    assert ends > 0


SIDES = 1 - BESIDE, 1 + BESIDE


def with_required(data, example, margin):
    required = data["required"].copy()
    required[example] = margin
    return data | {"required": required}


def test_a_copied_support_token_has_no_range():
    with pytest.raises(ValueError, match="not regular"):
        required_range(solved(*copied_support(0)), 0)


def test_norms_without_a_derivative_of_W_have_no_ranges():
    data, selected = program((3, 3, 4, 3), 1)
    with pytest.raises(NotImplementedError, match="norm_by_required"):
        required_range(solved(data, selected, att.nuclear), 0)
    with pytest.raises(IndexError, match="example 7 of 3"):
        required_range(solved(data, selected), 7)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_scale_of_the_tokens_does_not_count(scale):
    data, selected = program((3, 3, 4, 2), 1)
    here, there = (solved(data | {"keys": s * data["keys"]}, selected) for s in (1, scale))
    ends = [
        np.array([[end.required for end in required_range(s, i)] for i in range(3)]) for s in (here, there)
    ]
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_one_row_has_every_range():
    low, high = required_range(att.max_margin(att.Tokens([[[2.0], [1.0]]]), [0]), 0)
    assert (low.required, high.required) == (0, np.inf)


def test_examples_that_require_nothing_have_an_upper_end_alone():
    data, selected = program((3, 3, 4, 2), 1)
    data["required"] = np.array([1.0, 0.0, 1.0])
    assert required_range(solved(data, selected), 1).low.required == 0
