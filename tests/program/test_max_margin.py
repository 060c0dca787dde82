"""The programs against general solvers and closed forms, and the record they return."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius, nuclear
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.solution import Solution
from tests.program import conftest
from tests.program.conftest import ALL_NORMS, STRICTLY_CONVEX, VARIANTS
from tests.program.oracles import least_squares_solution, rows_of, smallest

pytestmark = pytest.mark.quick

OBJECTIVE = 1e-6
"""Relative agreement of norms: Clarabel stops at a gap of 1e-8 in units of its own scaling."""

DIRECTION = 2e-3
"""Agreement of W: two solutions with gap ε are √(2ε/(p−1)) apart, the more so the flatter the norm."""

ROUNDING = 1e-10
"""Agreement with an oracle that is exact up to rounding."""

EXACT = 1e-12
"""Agreement with closed forms."""


# ---------------------------------------------------------------------- general solvers


def test_the_norm_agrees_with_cvxpy_and_so_does_the_weight_of_a_strictly_convex_one(instance, norm):
    solution = max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    value, W = smallest(instance.tokens, instance.selected, norm, instance.required)
    assert solution.certified, solution.certificate
    assert norm.value(solution.W) == pytest.approx(value, rel=OBJECTIVE)
    if norm in STRICTLY_CONVEX:
        assert np.abs(solution.W - W).max() <= DIRECTION * np.abs(W).max()


def test_the_frobenius_weight_agrees_with_least_distance_programming(instance):
    solution = max_margin(instance.tokens, instance.selected, required=instance.required)
    w = least_squares_solution(*rows_of(instance.tokens, instance.selected, instance.required))
    assert np.abs(solution.W.ravel() - w).max() <= ROUNDING * np.abs(w).max()


def test_separate_is_the_hard_margin_svm_of_labelled_features(norm):
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((12, 6)), rng.choice([-1.0, 1.0], 12)
    features += 2 * labels[:, None]
    solution = separate(labels[:, None] * features, norm)
    tokens = Tokens(np.stack([labels[:, None] * features, np.zeros((12, 6))], axis=1))
    value, _ = smallest(tokens, np.zeros(12, int), norm)
    assert norm.value(solution.W) == pytest.approx(value, rel=OBJECTIVE)


# ---------------------------------------------------------------------- closed forms

ORIGIN = [0.0, 0.0]
ONE_INPUT = [[[-0.1, 1.0], [1.0, 0.0], ORIGIN]]
TWO_LOSSES = [[ORIGIN, [1.0, 1.0]], [ORIGIN, [1.0, -1.0]]]
TIGHT = [*TWO_LOSSES, [ORIGIN, [0.5, 1.0]]]
LOOSE = [*TWO_LOSSES, [ORIGIN, [0.5, 1.5]]]

CLOSED_FORMS = {
    "one input, first token": (ONE_INPUT, [0], 1.0, [-0.1 / 1.01, 1 / 1.01]),
    "one input, second token": (ONE_INPUT, [1], 1.0, [1, 0]),
    "two losses": (TWO_LOSSES, [1, 1], 1.0, [1, 0]),
    "joint, tight": (TIGHT, [1, 1, 1], 1.0, [4 / 3, 1 / 3]),
    "joint, loose": (LOOSE, [1, 1, 1], 1.0, [1.25, 0.25]),
    "joint, loose, relaxed": (LOOSE, [1, 1, 1], [1, 1, 0], [1, 0]),
}


@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_the_prompts_of_the_first_paper_are_exact(case):
    keys, selected, required, p = CLOSED_FORMS[case]
    solution = max_margin(Tokens(keys), selected, required=required)
    assert np.abs(solution.W[:, 0] - p).max() <= EXACT


@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_a_constant_query_z_turns_the_prompt_p_into_p_zᵀ_over_z_squared(case):
    keys, selected, required, p = CLOSED_FORMS[case]
    z = np.array([0.6, -1.0, 2.0])
    tokens = Tokens(keys, np.tile(z, (len(keys), 1)))
    solution = max_margin(tokens, selected, required=required)
    assert np.abs(solution.W - np.outer(p, z) / (z @ z)).max() <= EXACT


def test_the_head_of_the_joint_example_is_exact():
    labels, features = np.array([1.0, -1.0, 1.0]), np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    solution = separate(labels[:, None] * features)
    assert np.abs(solution.W[:, 0] - [0, 1]).max() <= EXACT


def test_every_norm_finds_the_corner_where_p1_is_least(norm):
    solution = max_margin(Tokens(TIGHT), [1, 1, 1], norm)  # the rows imply p₁ ≥ 4/3
    assert solution.W[:, 0] == pytest.approx([4 / 3, 1 / 3], rel=1e-7)


def test_one_constraint_needs_a_norm_of_one_over_its_dual_norm(norm):
    rng = np.random.default_rng(3)
    keys, z = rng.standard_normal((1, 2, 4)), rng.standard_normal((1, 3))
    solution = max_margin(Tokens(keys, z), [0], norm)
    row = np.outer(keys[0, 0] - keys[0, 1], z[0])
    assert norm.value(solution.W) == pytest.approx(1 / norm.dual.value(row), rel=1e-8)


# ---------------------------------------------------------------------- structure of the solution


@pytest.mark.parametrize("norm", [frobenius, nuclear], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_rank_is_at_most_the_number_of_examples(norm, n):
    tokens, v = datasets.sphere(n=n, T=5, d=8, seed=n)
    assert 1 <= max_margin(tokens, best_tokens(tokens, v), norm).rank <= n


@pytest.mark.parametrize("norm", [frobenius, nuclear], ids=str)
def test_the_rows_of_the_weight_lie_in_the_span_of_the_queries(norm):
    tokens, v = datasets.sphere(n=4, T=5, d=8, seed=0)
    W = max_margin(tokens, best_tokens(tokens, v), norm).W
    inside = np.linalg.pinv(tokens.queries) @ tokens.queries
    assert np.abs(W - W @ inside).max() <= 1e-6 * np.abs(W).max()


def test_the_weight_of_another_norm_has_a_larger_norm(norm):
    instance = conftest.matrix()
    own = max_margin(instance.tokens, instance.selected, norm)
    others = [max_margin(instance.tokens, instance.selected, N) for N in ALL_NORMS if norm != N]
    assert all(norm.value(own.W) < (1 - 1e-4) * norm.value(other.W) for other in others)


def test_tied_tokens_have_equal_logits_and_the_others_lower_ones(norm):
    instance = conftest.tied()
    W = max_margin(instance.tokens, instance.selected, norm).W
    logits = np.einsum("ntd,de,ne->nt", instance.tokens.keys, W, instance.tokens.queries)
    top = np.where(instance.selected, logits, np.nan)
    others = np.where(instance.selected, -np.inf, logits)
    assert np.nanmax(top, 1) - np.nanmin(top, 1) == pytest.approx(0, abs=1e-8)
    assert (
        np.nanmin(top, 1) - others.max(1) == pytest.approx(1, rel=1e-8)
        or (np.nanmin(top, 1) - others.max(1) >= 1 - 1e-8).all()
    )


def test_required_margins_are_reached_exactly_somewhere_and_only_there_are_multipliers(instance, norm):
    solution = max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    A, b, tied = rows_of(instance.tokens, instance.selected, instance.required)
    slack = np.where(tied, 0, A @ solution.W.ravel() - b)
    assert slack[~tied & (b > 0)].min() == pytest.approx(0, abs=1e-9)
    assert solution.multipliers @ slack <= 2e-8 * norm.value(solution.W)


def test_the_frobenius_weight_is_its_norm_times_the_combined_rows(instance):
    solution = max_margin(instance.tokens, instance.selected, required=instance.required)
    A, _, _ = rows_of(instance.tokens, instance.selected, instance.required)
    combined = (solution.multipliers @ A).reshape(solution.W.shape)
    assert np.abs(solution.W - frobenius.value(solution.W) * combined).max() <= 1e-7


def test_support_are_the_tokens_at_the_required_margin():
    solution = max_margin(Tokens(ONE_INPUT), [1])  # token 0 has margin 1.1, token 2 has 1
    assert solution.support.tolist() == [[False, False, True]]


def test_example_and_token_name_the_constraints(instance):
    solution = max_margin(instance.tokens, instance.selected, required=instance.required)
    dense = np.zeros(instance.tokens.mask.shape)
    dense[solution.example, solution.token] = solution.multipliers
    assert np.array_equal(dense, solution.token_multipliers)


# ---------------------------------------------------------------------- the record


@pytest.mark.parametrize(("build", "norm"), [*zip(VARIANTS, cycle(ALL_NORMS), strict=False)])
def test_a_saved_solution_loads_with_its_certificate(build, norm, tmp_path):
    instance = build()
    solution = max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    solution.save(tmp_path / "solution.npz")
    loaded = Solution.load(tmp_path / "solution.npz")
    assert np.array_equal(loaded.W, solution.W) and loaded.norm == norm
    assert loaded.certificate == solution.certificate


def test_a_file_with_a_changed_weight_loses_its_certificate(tmp_path):
    instance = conftest.matrix()
    solution = max_margin(instance.tokens, instance.selected)
    replace(solution, W=0.99 * solution.W).save(tmp_path / "solution.npz")
    assert not Solution.load(tmp_path / "solution.npz").certified


def test_a_solution_prints_its_norm_margin_and_certificate(norm):
    instance = conftest.matrix()
    text = repr(max_margin(instance.tokens, instance.selected, norm))
    assert str(norm) in text and "margin" in text and "; certified" in text


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_a_norm_without_a_program_names_those_that_have_one(exponent):
    class Other:
        p = exponent  # 2 does not make it the Frobenius norm
        dual, value, steepest = frobenius, frobenius.value, frobenius.steepest

        def __str__(self):
            return "Other"

    instance = conftest.matrix()
    with pytest.raises(ValueError, match=r"Other.*Supported: Entrywise\(p\) and Schatten\(p\)"):
        max_margin(instance.tokens, instance.selected, Other())


def test_selection_by_index_and_by_boolean_are_the_same_program():
    instance = conftest.matrix()
    chosen = instance.selected[:, None] == np.arange(instance.tokens.T)
    by_index = max_margin(instance.tokens, instance.selected)
    assert np.array_equal(by_index.W, max_margin(instance.tokens, chosen).W)
