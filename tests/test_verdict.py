"""A verdict says what was measured and never claims more."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm import datasets
from attsvm.norms import Entrywise, Schatten, frobenius, nuclear
from attsvm.path import Path
from attsvm.program.max_margin import max_margin
from attsvm.selection import TiedScores, best_tokens
from attsvm.tokens import Tokens
from attsvm.training.heads import Linear
from attsvm.training.optimizers import gd
from attsvm.training.train import train
from attsvm.verdict import (
    at_least,
    at_most,
    classify,
    compare,
    cosine,
    divergence,
    judge,
    margin_ratio,
    told,
)

pytestmark = pytest.mark.quick


def ray(tokens, W, radii=(1.0, 10.0, 100.0, 1000.0)):
    """A path along one direction."""
    weights = np.asarray(radii)[:, None, None] * W
    zeros = np.zeros(len(radii))
    return Path(tokens, np.asarray(radii), weights, zeros, zeros, "steps")


@pytest.fixture(scope="module")
def problem():
    tokens, v = datasets.sphere(4, 5, 6, seed=0)
    return tokens, v, max_margin(tokens, best_tokens(tokens, v))


def test_all_evidence_met_holds():
    assert judge("c", at_least("a", 2, 1), at_most("b", 0, 1), told("t", 5)).holds


def test_evidence_missed_fails_unless_it_was_on_its_way():
    assert judge("c", at_least("a", 0, 1)).status == "fails"
    assert judge("c", at_least("a", 0, 1), on_its_way=True).status == "inconclusive"
    assert judge("c", at_least("a", float("nan"), 1)).status == "fails"


def test_a_false_hypothesis_makes_a_claim_not_applicable():
    verdict = judge("c", at_least("a", 2, 1), given={"x": True, "the moon is cheese": False})
    assert verdict.status == "not applicable"
    assert "the moon is cheese" in str(verdict)


@pytest.mark.filterwarnings("error")
def test_the_size_of_a_weight_changes_nothing(problem):
    tokens, _, solution = problem
    small, large = (compare(ray(tokens, size * solution.W), solution) for size in (1.0, 1e290))
    assert large.holds and large["1 − cosine"] == pytest.approx(small["1 − cosine"], abs=1e-12)
    assert not compare(ray(tokens, -1e290 * solution.W), solution).holds


@pytest.mark.filterwarnings("error")
def test_a_selection_of_all_tokens_is_not_compared(problem):
    tokens, _, solution = problem
    everything = max_margin(tokens, tokens.mask)
    verdict = compare(ray(tokens, np.zeros_like(solution.W)), everything)
    assert verdict.status == "not applicable" and "tokens to win over" in verdict.reason


def test_the_solution_itself_has_margin_ratio_one(problem):
    tokens, v, solution = problem
    verdict = compare(ray(tokens, solution.W), solution, v)
    assert verdict.holds
    assert verdict["margin ratio"] == pytest.approx(1, abs=1e-9)
    assert verdict["share of best tokens"] == 1


def test_another_direction_fails(problem):
    tokens, _, solution = problem
    tilted = solution.W + 0.02 * solution.W.max() * np.random.default_rng(0).standard_normal((6, 6))
    verdict = compare(ray(tokens, tilted), solution)
    assert verdict.status == "fails"


def test_a_path_to_other_tokens_is_not_comparable(problem):
    tokens, v, solution = problem
    worst = max_margin(tokens, best_tokens(tokens, -v))
    assert compare(ray(tokens, worst.W), solution).status == "not applicable"


def test_a_path_still_improving_is_inconclusive(problem):
    tokens, _, solution = problem
    noise = np.random.default_rng(0).standard_normal((6, 6)) * solution.W.max() * 0.2
    radii = np.array([1.0, 2.0, 4.0, 8.0])
    W = radii[:, None, None] * solution.W + noise
    path = Path(tokens, radii, W, radii, radii, "steps")
    assert compare(path, solution).status == "inconclusive"


def test_no_weight_beats_the_best_margin(problem):
    tokens, _, solution = problem
    W = np.random.default_rng(1).standard_normal((50, 6, 6)) + 3 * solution.W
    path = Path(tokens, np.arange(50.0), W, np.zeros(50), np.zeros(50), "steps")
    assert margin_ratio(path, solution).max() < 1


def test_the_frobenius_solution_falls_short_in_the_nuclear_norm(problem):
    tokens, _, solution = problem
    other = max_margin(tokens, solution.selected, nuclear)
    assert margin_ratio(ray(tokens, solution.W), other)[-1] < 0.995
    assert margin_ratio(ray(tokens, other.W), other)[-1] == pytest.approx(1, abs=1e-7)


def test_the_divergence_is_one_minus_cosine_for_p_two_and_zero_at_the_target():
    A, B = np.random.default_rng(0).standard_normal((2, 3, 4))
    cosine = (A * B).sum() / np.sqrt((A * A).sum() * (B * B).sum())
    assert divergence(A[None], B, frobenius)[0] == pytest.approx(1 - cosine)
    assert divergence(5 * A[None], A, Entrywise(1.5))[0] == pytest.approx(0, abs=1e-12)
    assert divergence(B[None], A, Entrywise(3))[0] > 0.1
    assert divergence(5 * A[None], A, Schatten(3))[0] == pytest.approx(0, abs=1e-12)
    assert divergence(B[None], A, Schatten(3))[0] > 0.1


def test_runs_are_classified_by_where_they_end():
    tokens, v = datasets.single_input(0.0)
    global_, local, neither = (np.array(p)[:, None] for p in ([-0.1, 1.0], [1.0, 0.0], [-1.0, -1.0]))
    assert [classify(ray(tokens, W), v) for W in (global_, local, neither)] == ["global", "local", "neither"]


def test_a_run_that_never_moved_is_not_called_local():
    tokens, v = datasets.single_input(0.0)
    for W in (np.zeros((2, 1)), np.array([[1.0], [0.0]])):
        still = ray(tokens, W, radii=(1.0, 1.0))
        assert classify(still, v) == "unmoved"
    assert classify(ray(tokens, W), v) == "local"


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-300])
def test_where_a_run_ended_does_not_depend_on_how_far_it_came(size):
    tokens, v = datasets.single_input(0.0)
    ways = (np.array(p)[:, None] for p in ([-0.1, 1.0], [1.0, 0.0], [-1.0, -1.0]))
    assert [classify(ray(tokens, size * W), v) for W in ways] == ["global", "local", "neither"]


def test_tokens_that_tie_with_different_scores_are_no_local_optimum():
    tokens = Tokens([[[1.0, 0.0], [0.0, 1.0]]])
    along = ray(tokens, np.array([[1.0], [1.0]]))
    assert along.selected.all()
    assert classify(along, [1.0, 0.0]) == "neither"
    with pytest.warns(TiedScores):
        assert classify(along, [1.0, 1.0]) == "global"  # both are best


@pytest.mark.parametrize("moving", [True, False])
def test_a_zero_gradient_leaves_a_run_unmoved(moving):
    tokens, v = datasets.sphere(3, 4, 5, seed=range(2))
    heads = v * np.array([[1.0], [float(moving)]])
    run = train(tokens, Linear(heads), optimizer=gd(0.5), steps=200, record=2)
    assert (classify(run, v)[1] == "unmoved") != moving
    assert classify(run, v)[0] != "unmoved"


def test_one_radius_is_no_run_that_never_moved():
    tokens, v = datasets.single_input(0.0)
    alone = replace(ray(tokens, np.array([[1.0], [0.0]]), radii=(1.0,)), kind="radius")
    assert classify(alone, v) == "local"


def test_verdicts_print_and_plot(problem):
    tokens, _, solution = problem
    verdict = compare(ray(tokens, solution.W), solution)
    assert "margin ratio: 1   (wanted ≥ 0.99)" in str(verdict)
    assert len(verdict.plot().axes) >= 2


def test_what_is_no_path_or_no_solution_of_it_is_refused_in_words(problem):
    tokens, _, solution = problem
    path = ray(tokens, solution.W)
    for pair in ((solution, path), (path.W, solution), (path, None)):
        with pytest.raises(TypeError, match="Pass a path"):
            compare(*pair)
    wide, short = (max_margin(datasets.sphere(*size)[0], [0, 0, 0, 0]) for size in ((4, 5, 7), (4, 3, 6)))
    with pytest.raises(ValueError, match=r"W \(6, 6\) and the solution \(7, 7\)"):
        margin_ratio(path, wide)
    with pytest.raises(ValueError, match=r"\(4, 5\), the solution's \(4, 3\)"):
        compare(path, short)
    with pytest.raises(ValueError, match=r"shapes \(4, 6, 6\) and \(3, 3\)"):
        cosine(path.W, np.ones((3, 3)))


def test_a_claim_that_could_not_fail_is_refused():
    for evidence in ((), (told("number", 1.0),)):
        with pytest.raises(ValueError, match="it could not fail"):
            judge("nothing", *evidence)
    assert judge("nothing", given={"something": False}).status == "not applicable"
    assert judge("something", told("number", 1.0), at_least("other", 1, 0)).holds
