"""The papers' hypotheses can be tested, and fail where they must."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.program.max_margin import max_margin
from attsvm_lab.programs import all_tokens_support, in_cone, in_margin_cone, leakage_cost


def test_all_tokens_support_in_high_dimension_but_not_in_low():
    wide, v = datasets.sphere(2, 3, 60, seed=0)
    assert all_tokens_support(max_margin(wide, best_tokens(wide, v)))
    narrow, v = datasets.sphere(3, 6, 4, seed=0)
    assert not all_tokens_support(max_margin(narrow, best_tokens(narrow, v)))


def test_leaking_attention_costs_margin_where_the_other_token_is_zero():
    tight, _ = datasets.joint_training((0.5, 1.0))
    loose, _ = datasets.joint_training((0.5, 1.5))
    assert leakage_cost(tight, [1, 1, 1], starts=30) > 0.05
    assert leakage_cost(loose, [1, 1, 1], starts=30) <= 1e-9  # the loose example leaks for free


def test_the_cost_of_leaking_is_that_of_a_weight_and_not_of_any_attention():
    # An attention of one's own for each input would cost less than nothing; a prompt moves both inputs alike.
    values = [[[1.0, 0], [1.2, 0]], [[0, 1], [0, 0]]]
    tokens = Tokens([[[1.0], [0.0]]] * 2, labels=[1, 1], values=values)
    winner = 1 / (1 + np.exp(-np.linspace(-10, 12, 2001)))
    a, b = winner + 1.2 * (1 - winner), winner
    least = ((np.sqrt(0.5) - a * b / np.hypot(a, b)) / (1 - winner)).min()
    assert leakage_cost(tokens, [0, 0], starts=30) == pytest.approx(least, abs=1e-4)
    free = Tokens([[[1.0], [0.0]]] * 2, labels=[1, 1], values=[values[0], [[0, 1], [0, 1.2]]])
    assert leakage_cost(free, [0, 0], starts=30) < -0.1


def test_the_solution_is_in_its_cones_and_a_random_weight_is_not():
    tokens, v = datasets.sphere(3, 4, 6, seed=1)
    solution = max_margin(tokens, best_tokens(tokens, v))
    other = np.random.default_rng(0).standard_normal((6, 6))
    assert in_cone(10 * solution.W, solution, width=1e-6, radius=2.0)
    assert not in_cone(other, solution, width=0.1)
    assert not in_cone(solution.W, solution, width=0.1, radius=1e6)
    assert in_margin_cone(solution.W, solution, 0.99)
    assert not in_margin_cone(other, solution, 0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_length_of_a_weight_does_not_move_it_out_of_a_cone_nor_into_it(scale):
    tokens, v = datasets.sphere(3, 4, 6, seed=1)
    solution = max_margin(tokens, best_tokens(tokens, v))
    along, away = scale * solution.W, scale * np.random.default_rng(0).standard_normal((6, 6))
    assert in_cone(along, solution, width=1e-6) and in_margin_cone(along, solution, 0.99)
    assert not in_cone(away, solution, width=0.1) and not in_margin_cone(away, solution, 0.5)
    assert not in_cone(0 * along, solution, width=0.1) and not in_margin_cone(0 * along, solution, 0.5)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e5])
def test_the_margin_cone_honours_the_margins_that_the_solution_requires(scale):
    tokens, v = datasets.sphere(3, 4, 6, seed=1)
    required = scale * np.array([1.0, 5.0, 0.0])
    solution = max_margin(tokens, best_tokens(tokens, v), required=required)
    assert in_margin_cone(solution.W, solution, 0.999) and in_margin_cone(7 * solution.W, solution, 0.999)
    assert not in_margin_cone(solution.W, solution, 1.001)
    even = max_margin(tokens, best_tokens(tokens, v))
    assert not in_margin_cone(even.W, solution, 0.99)  # its second example falls short
    assert in_margin_cone(even.W, even, 0.999)


def test_a_margin_that_no_row_asks_for_widens_no_cone():
    tokens = Tokens([[[1.0, 2.0], [1, 2]], [[1, 0], [0, 0]]])
    solution = max_margin(tokens, [[True, True], [True, False]], required=[1e12, 1.0])
    assert in_margin_cone(solution.W, solution, 0.999)
    assert not in_margin_cone(-solution.W, solution, 0.999)


def test_the_leakage_of_several_tokens_in_an_example_is_refused():
    tokens, _ = datasets.joint_training((0.5, 1.0))
    with pytest.raises(ValueError, match=r"picks 2 tokens in example \d"):
        leakage_cost(tokens, np.ones((3, 2), bool))


def test_leakage_is_deterministic_in_its_seed():
    tokens, _ = datasets.joint_training()
    first = leakage_cost(tokens, [1, 1, 1], starts=20, seed=3)
    assert first == leakage_cost(tokens, [1, 1, 1], starts=20, seed=3)
