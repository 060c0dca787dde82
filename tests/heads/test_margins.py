"""The margin of a weight beside the best one."""

import numpy as np

from attsvm import Tokens, datasets, l1, max_margin
from attsvm.heads.audit import margins


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
