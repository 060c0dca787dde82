"""The figures of sparse signals and one location: two ways to the same steps."""

import numpy as np

from attsvm_lab import datasets
from attsvm_lab.claims.sparse_signals import prompt
from attsvm_lab.figures.one_location import where_descent_ends
from attsvm_lab.figures.sparse_signals import two_steps


def test_the_second_step_of_joint_descent_is_the_papers_formula():
    tokens, _ = datasets.sparse_signals(60, 4, 8, seed=0)
    np.testing.assert_allclose(two_steps.two_steps(tokens), prompt(tokens), atol=1e-10)


def test_on_the_manifold_both_descents_take_the_same_steps():
    k = np.array([[0.3, 0.0, np.sqrt(1 - 0.09), 0.0]])
    v = np.array([[0.0, -0.2, 0.0, np.sqrt(1 - 0.04)]])
    risk = where_descent_ends.RISK
    seen, _ = where_descent_ends.on_spheres(risk, k, v, 0.01, 200)
    alone = where_descent_ends.on_manifold(risk, np.array([0.3, -0.2]), 0.01, 200)
    np.testing.assert_allclose(seen[0, :, [0, 3]].T, alone, atol=1e-9)
    assert np.abs(alone[-1] - alone[0]).min() > 0.01
