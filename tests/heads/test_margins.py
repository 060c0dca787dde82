"""The margin of a weight beside the best one."""

import numpy as np
import pytest

from attsvm import Tokens, datasets, frobenius, l1, max_margin, offset_margin, spectral
from attsvm.heads.margins import margins


def test_the_solution_has_its_own_margin_and_no_weight_a_better_one():
    tokens, _ = datasets.sphere(4, 3, 5, seed=0)
    selected = np.zeros(4, int)
    best = max_margin(tokens, selected, l1)
    found = margins(tokens, selected, 7 * best.W, l1)
    assert abs(found.ratio - 1) < 1e-8 and found.certified and abs(found.own * l1.value(best.W) - 1) < 1e-8
    assert margins(tokens, selected, best.W + 0.1, l1).ratio < 0.99


def test_a_weight_of_zeros_has_no_margin():
    tokens, _ = datasets.sphere(4, 3, 5, seed=0)
    found = margins(tokens, np.zeros(4, int), np.zeros((5, 5)))
    assert found.own == found.ratio == 0 < found.best


def test_queries_that_see_one_token_have_nothing_to_separate():
    found = margins(Tokens(np.ones((2, 1, 3))), np.zeros(2, int), np.ones((3, 1)))
    assert found.own == found.best == np.inf and np.isnan(found.ratio) and not found.conflict


@pytest.mark.parametrize("norm", [frobenius, spectral], ids=str)
def test_with_label_margins_a_weight_is_judged_by_the_offset_program(norm):
    tokens, _ = datasets.sphere(6, 3, 5, seed=1)
    selected, offsets = np.zeros(6, int), np.linspace(0.3, 0.7, 6)
    best, plain = offset_margin(tokens, selected, norm, offsets=offsets), max_margin(tokens, selected, norm)
    found = margins(tokens, selected, 5 * best.W, norm, label_margins=5 * offsets)
    assert found.certified and abs(found.offset_share - 1) < 1e-6 and found.ratio < 0.95
    other = margins(tokens, selected, plain.W, norm, label_margins=norm.value(plain.W) * offsets)
    assert other.offset_share < 0.98 and other.ratio > 1 - 1e-6  # the plain solution falls short of it


def test_without_label_margins_or_weight_the_offset_program_is_not_judged():
    tokens, _ = datasets.sphere(4, 3, 5, seed=0)
    for W, label_margins in ((np.eye(5), None), (np.zeros((5, 5)), np.ones(4))):
        assert np.isnan(margins(tokens, np.zeros(4, int), W, label_margins=label_margins).offset_share)
    with pytest.raises(ValueError, match="one number per example"):
        margins(tokens, np.zeros(4, int), np.eye(5), label_margins=np.ones(3))
