"""Certificates and proofs: right answers pass, and every kind of wrong answer is rejected."""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius, l1
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotCertified, NotSeparable
from tests.program import conftest
from tests.program.oracles import farkas_residual, feasible, rows_of

pytestmark = pytest.mark.quick

PROOF = 1e-9
"""Largest residual of a proof that no weight exists."""

SAME, ROUNDING = 1e-13, 1e-10
"""Two computations of one number differ by SAME; what a certificate adds for the rounding of its sums."""


@pytest.fixture
def solution(norm):
    return solved(norm)


@cache
def solved(norm):
    instance = conftest.matrix()
    return max_margin(instance.tokens, instance.selected, norm)


# ---------------------------------------------------------------------- what a certificate says


def test_the_certificate_is_what_plain_numpy_computes(instance, norm):
    solution = max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    W, multipliers = 1.01 * solution.W, 0.9 * solution.multipliers
    A, b, tied = rows_of(instance.tokens, instance.selected, instance.required)
    margins, combined = A @ W.ravel(), (multipliers @ A).reshape(W.shape)
    lower = multipliers @ b / norm.dual.value(combined)
    upper = norm.value(W) / min(1, (margins[b > 0] / b[b > 0]).min())
    certificate = replace(solution, W=W, multipliers=multipliers).certificate
    gap, primal = 1 - lower / upper, np.abs(margins[tied]).max(initial=0) / b.max()
    assert gap - SAME <= certificate.gap <= gap + ROUNDING
    assert primal - SAME <= certificate.primal <= primal + ROUNDING


SIZES = (1e-9, 1e-4, 1.0, 1e4, 1e9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("beside", SIZES)
def test_a_row_without_a_margin_is_measured_in_logits_whatever_the_scale_of_its_example(size, beside, norm):
    # Example 0 asks for a margin, example 1 for a tie, or for the order alone: it is off by half a logit.
    keys = np.array([[[beside, 0.0], [0, 0]], [[0, size], [0, 0]]])
    W, lam = np.array([[1 / beside], [0.5 / size]]), np.array([1.0, 0.0])
    cases = (([[True, False], [True, True]], 1.0, None), ([0, 1], [1.0, 0.0], None))
    soft = (([[True, False], [True, True]], 1.0, 1.0),) if norm == frobenius else ()
    for selected, required, slack in cases + soft:
        solution = max_margin(Tokens(keys), selected, norm, required=required, slack=slack)
        off = replace(solution, W=W, multipliers=lam).certificate
        assert off.primal >= 0.5 - SAME
        assert solution.certified


@pytest.mark.parametrize("alone", ["tied", "masked"])
def test_a_margin_that_no_row_asks_for_excuses_no_tie(alone, norm):
    # The first example asks for 1e12, but has no token that loses: the last one's tie is off by half a logit.
    keys = np.array([[[1.0, 2.0], [1, 2]], [[1, 0], [0, 0]], [[0, 1], [0, 0]]])
    mask = np.array([[True, alone == "tied"], [True, True], [True, True]])
    tokens, selected = Tokens(keys, mask=mask), mask & [[True, True], [True, False], [True, True]]
    solution = max_margin(tokens, selected, norm, required=[1e12, 1.0, 1.0])
    lam = np.array([0.0, 1.0, 0.0])[-solution.multipliers.size :]
    off = replace(solution, W=np.array([[1.0], [0.5]]), multipliers=lam)
    assert solution.certified and solution.required[0] == 1e12
    assert off.certificate.primal >= 0.5 - SAME
    long = replace(solution, W=3 * solution.W)
    assert solution.support.sum() == 1 and not long.support.any()


def test_the_tie_of_a_large_example_holds_in_logits_beside_a_margin_that_no_row_asks_for():
    keys = np.array([[[0.0, 0.0], [0, 0]], [[1e-9, 0.0], [0, 0]], [[1e8, 3e7], [0, 0]]])
    selected = [[True, True], [True, False], [True, True]]
    solution = max_margin(Tokens(keys), selected, required=[1e12, 1.0, 1.0])
    assert solution.certified and abs(_exact_logit(keys[2, 0], solution.W)) <= 1e-8  # it was off by 2.4


@pytest.mark.parametrize("size", [1e-100, 1e-250, 1e-300])
@pytest.mark.parametrize("selected", [[[1, 1], [1, 0]], [[1, 0], [1, 0]]], ids=["tied", "alone"])
def test_an_example_without_a_losing_token_is_no_unit_of_the_others(selected, size, norm):
    keys, selected = np.array([[[0.0, size], [0, 2 * size]], [[1, 0], [0, 0]]]), np.array(selected, bool)
    mask = selected | [[False], [True]]
    solution = max_margin(Tokens(keys, mask=mask), selected, norm)
    assert solution.certified  # with keys of size 1e-300, W was 8e28 and certified, too
    np.testing.assert_allclose(solution.W, [[1], [0]], atol=1e-9)


def _exact_logit(key, W):
    return float(sum(Fraction(x) * Fraction(w) for x, w in zip(key.tolist(), W[:, 0].tolist(), strict=True)))


@pytest.mark.parametrize(
    ("large", "selected", "required"),
    [([1e8, 3e7], [[True, False], [True, True]], 1.0), ([1e8, -1e8 * (1 - 1e-9)], [0, 1], [1.0, 0.0])],
)
def test_rows_of_large_examples_are_rounded_until_they_hold_in_logits(large, selected, required):
    keys = np.array([[[1e-9, 0.0], [0, 0]], [large, [0, 0]]])
    solution = max_margin(Tokens(keys), selected, required=required)
    logit = _exact_logit(keys[1, 0], solution.W)
    assert solution.certified
    assert logit <= 1e-8
    assert logit >= -1e-8 or required != 1.0


def test_a_tie_that_float64_cannot_hold_is_not_certified():
    keys = np.array([[[1e-9, 0.0], [0, 0]], [[np.pi * 1e12, np.e * 1e12], [0, 0]]])
    with pytest.warns(NotCertified, match=r"not certified: .* gap .* W attains the margin .* at most"):
        tie = max_margin(Tokens(keys), [[True, False], [True, True]])
    assert abs(_exact_logit(keys[1, 0], tie.W)) > 0.01
    assert not tie.certified
    assert str(tie).startswith("NOT certified")


def test_printed_runs_begin_with_those_that_are_not_certified():
    tokens, v = datasets.sphere(n=4, T=4, d=6, seed=range(3))
    solution = max_margin(tokens, best_tokens(tokens, v))
    W = solution.W.copy()
    W[1] *= 0.9
    assert str(replace(solution, W=W)).startswith("1 of 3 runs NOT certified")
    assert "NOT" not in str(solution)


def test_the_margin_is_what_the_weight_attains_and_the_bound_what_any_can(solution):
    bad = replace(solution, W=solution.W + 0.1 * np.abs(solution.W).max())
    A, b, _ = rows_of(solution.tokens, solution.selected, solution.required)
    attained = (A @ bad.W.ravel() / b).min() / solution.norm.value(bad.W)
    assert bad.margin == pytest.approx(attained, rel=1e-9)
    assert solution.margin == pytest.approx(1 / solution.norm.value(solution.W), rel=1e-15)
    assert bad.margin < solution.margin <= bad.margin_bound * (1 + 1e-9)
    assert bad.margin_bound == pytest.approx(solution.margin, rel=1e-7)
    assert f"margin {bad.margin:.6g}, the best one at most {bad.margin_bound:.6g}" in str(bad)


def test_the_certificate_says_over_how_many_rows_it_was_taken(instance):
    solution = max_margin(instance.tokens, instance.selected, required=instance.required)
    m = len(rows_of(instance.tokens, instance.selected, instance.required)[1])
    assert solution.certificate.rows == len(solution.multipliers) == m
    assert f"certified over {m} constraints: primal violation" in str(solution)
    batch = max_margin(instance.tokens.repeated(2), instance.selected, required=instance.required)
    assert batch.certificate.rows.tolist() == [m, m]
    assert f"worst over {2 * m} constraints" in str(batch)


def test_the_multipliers_prove_the_least_norm_and_those_of_inequalities_are_not_negative(instance, norm):
    solution = max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    A, b, tied = rows_of(instance.tokens, instance.selected, instance.required)
    combined = (solution.multipliers @ A).reshape(solution.W.shape)
    assert norm.dual.value(combined) == pytest.approx(1, abs=1e-9)
    assert solution.multipliers @ b == pytest.approx(norm.value(solution.W), rel=1e-8)

    assert solution.multipliers[~tied].min() >= 0


@pytest.mark.parametrize("size", [(40, 6, 5), (300, 32, 64)], ids=str)
def test_margins_and_combinations_are_those_of_the_dense_rows(size):
    n, T, d = size
    rng = np.random.default_rng(0)
    keys, queries, W = rng.standard_normal(size), rng.standard_normal((n, 3)), rng.standard_normal((d, 3))
    mask, selected = rng.random((n, T)) < 0.8, rng.integers(T, size=n)
    mask[np.arange(n), selected] = True
    rows = Constraints.of(Tokens(keys, queries, mask=mask), selected)
    delta = np.where(mask[..., None], keys[np.arange(n), selected][:, None] - keys, 0)
    weights = rng.standard_normal((n, T)) * (rng.random(n) < 0.3)[:, None]
    for busy in (weights, weights + 1):
        combined = np.einsum("nt,ntd,ne->de", busy * rows.active, delta, queries)
        assert rows.combine(busy * rows.active) == pytest.approx(combined, abs=1e-9)
    assert rows.margins(W) == pytest.approx(np.einsum("ntd,de,ne->nt", delta, W, queries), abs=1e-10)


# ---------------------------------------------------------------------- wrong answers


def test_a_shrunk_weight_is_rejected(solution):
    assert solution.certified
    assert not replace(solution, W=(1 - 1e-6) * solution.W).certified


def test_a_weight_that_is_too_long_is_rejected(solution):
    assert not replace(solution, W=(1 + 1e-6) * solution.W).certified


def test_a_weight_in_another_direction_is_rejected(solution):
    turned = solution.W + 1e-3 * np.random.default_rng(0).standard_normal(solution.W.shape)
    assert not replace(solution, W=turned).certified


def test_the_zero_weight_is_rejected(solution):
    assert not replace(solution, W=0 * solution.W).certified


def test_a_weight_with_a_nan_is_rejected(solution):
    W = solution.W.copy()
    W[0, 0] = np.nan
    assert not replace(solution, W=W).certified


def test_multipliers_with_a_nan_are_rejected(solution):
    multipliers = solution.multipliers.copy()
    multipliers[0] = np.nan
    assert not replace(solution, multipliers=multipliers).certified


def test_the_weight_of_another_selection_is_rejected(solution):
    other = (np.argmax(solution.selected, 1) + 1) % solution.tokens.T
    chosen = other[:, None] == np.arange(solution.tokens.T)
    assert not replace(solution, selected=chosen).certified


def test_the_weight_of_other_tokens_is_rejected(solution):
    other = conftest.planted(5, 5, 6, seed=99)[0]
    assert not replace(solution, tokens=other).certified


def test_a_weight_for_smaller_margins_is_rejected(solution):
    assert not replace(solution, required=2 * solution.required).certified


def test_permuted_multipliers_are_rejected(solution):
    assert not replace(solution, multipliers=solution.multipliers[::-1]).certified


def test_negative_multipliers_are_rejected(solution):
    multipliers = solution.multipliers.copy()
    multipliers[np.argmin(multipliers)] = -0.01 * multipliers.max()
    assert not replace(solution, multipliers=multipliers).certified


def test_missing_multipliers_are_rejected(solution):
    assert not replace(solution, multipliers=0 * solution.multipliers).certified


def test_multipliers_that_claim_too_much_are_rejected(solution):
    assert not replace(solution, multipliers=1.001 * solution.multipliers).certified


def test_the_solution_of_one_norm_is_not_certified_for_another():
    instance = conftest.matrix()
    solution = max_margin(instance.tokens, instance.selected, frobenius)
    assert not replace(solution, norm=l1).certified


def test_a_tie_that_is_broken_is_rejected(norm):
    instance = conftest.tied()
    solution = max_margin(instance.tokens, instance.selected, norm)
    index = np.flatnonzero(rows_of(instance.tokens, instance.selected)[2])[0]
    i, t = solution.example[index], solution.token[index]
    keys = instance.tokens.keys.copy()
    keys[i, t] += 1e-3
    moved = replace(instance.tokens, keys=keys, values=keys)
    assert solution.certified and not replace(solution, tokens=moved).certified


# ---------------------------------------------------------------------- proofs that no weight exists


def proof_of(instance, norm=frobenius) -> NotSeparable:
    with pytest.raises(NotSeparable) as caught:
        max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    return caught.value


def test_every_norm_proves_what_cannot_be_separated_in_a_short_message(conflict, norm):
    error, rows = proof_of(conflict, norm), rows_of(conflict.tokens, conflict.selected)
    assert farkas_residual(rows, error.multipliers) <= PROOF
    A, b, _ = rows
    combined = (error.multipliers @ A).reshape(conflict.tokens.d, conflict.tokens.e)
    assert error.residual == pytest.approx(norm.dual.value(combined) / (error.multipliers @ b), abs=1e-14)
    assert len(str(error)) < 600  # however many rows conflict


def test_a_permuted_proof_proves_nothing(conflict):
    rows = rows_of(conflict.tokens, conflict.selected)
    shuffled = np.random.default_rng(0).permutation(proof_of(conflict).multipliers)
    assert farkas_residual(rows, shuffled) > 1e-3


def test_a_proof_with_one_row_missing_proves_nothing(conflict):
    rows, multipliers = rows_of(conflict.tokens, conflict.selected), proof_of(conflict).multipliers
    multipliers[np.argmax(np.abs(multipliers))] = 0
    assert farkas_residual(rows, multipliers) > 1e-3


def test_the_conflict_names_the_rows_of_the_proof(conflict):
    error = proof_of(conflict)
    active = conflict.tokens.mask.copy()
    chosen = np.asarray(conflict.selected)
    first = np.argmax(chosen, 1) if chosen.dtype == bool else chosen
    active[np.arange(len(first)), first] = False
    pairs = np.argwhere(active)[error.multipliers != 0]
    assert sorted(error.conflict) == sorted(map(tuple, pairs.tolist()))


@pytest.mark.parametrize("build", [conftest.opposite, conftest.opposite_prompt], ids=conftest.name)
def test_two_opposite_examples_are_proved_by_two_rows(build, norm):
    instance = build()
    error = proof_of(instance, norm)
    assert sorted(i for i, _ in error.conflict) == [3, 4]
    assert "3" in str(error) and "4" in str(error)


def test_without_one_row_of_the_proof_the_rest_has_no_contradiction(conflict):
    A, b, tied = rows_of(conflict.tokens, conflict.selected)
    used = np.flatnonzero(proof_of(conflict).multipliers)
    for left_out in used[~tied[used]]:
        kept = used[used != left_out]
        assert not (b[kept] > 0).any() or feasible(A[kept], b[kept], tied[kept])
