"""Figures of "Transformers as Support Vector Machines": exact ranks, the textbook gradient, projections."""

import numpy as np

from attsvm import datasets
from attsvm.data.tokens import Tokens
from attsvm_lab.claims.gen_svm import on_simplex
from attsvm_lab.figures import textbook
from attsvm_lab.figures.transformers_as_svms.rank import experiment
from attsvm_lab.figures.transformers_as_svms.trajectories import RECORD
from tests.lab.figures.arrays import arrays


def test_exact_ranks_are_not_the_published_ones():
    checks = experiment.checks(arrays("rank"))
    told = [check.agreement for check in checks if check.recipe is not None]
    assert told.count("differs: the published recipe gives the published number") > len(told) / 2


def test_points_of_the_simplex_project_to_themselves_and_others_move():
    inside, outside = np.array([0.2, 0.3, 0.5]), np.array([2.0, 0.0, 0.0])
    np.testing.assert_allclose(on_simplex(inside), inside)
    np.testing.assert_allclose(on_simplex(outside), [1.0, 0.0, 0.0])


def test_the_textbook_descent_is_ours_until_attention_saturates():
    tokens, v = datasets.two_fans(seed=None)
    twice = Tokens(np.stack([tokens.keys] * 2), tokens.queries)
    ours, steps = arrays("two-fans")["path_full"], np.concatenate([[0], RECORD])
    usual = textbook.textbook_descent(
        twice, textbook.linear_head(twice, np.stack([v] * 2)), (np.zeros((2, 2, 2)),), steps
    )[0]
    usual, early = np.einsum("kde,ne->nkd", usual, tokens.queries), steps < 100
    np.testing.assert_allclose(usual[:, early], ours[:, early], atol=1e-9)
    assert np.all(np.linalg.norm(usual[:, -1], axis=-1) < 0.9 * np.linalg.norm(ours[:, -1], axis=-1))
