"""The soft-margin program: one hinge per example, checked by cvxpy, LIBLINEAR and closed forms."""

import re
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from lab.benchmarks.instances import planted, random_selection

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius, l1, nuclear
from attsvm.program import solve, working_set
from attsvm.program.extended_precision import route as extended
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.solution import NotCertified, NotSeparable, Solution
from tests.program.conftest import CONFLICTS, VARIANTS, Instance, name
from tests.program.oracles import rows_of


@pytest.fixture(autouse=True, params=["gram", "steps"])
def engine(request, monkeypatch):
    """Small programs are solved by loops on the Gram matrix, larger ones by steps in W: test both."""
    if request.param == "steps":
        monkeypatch.setattr(solve, "SOFT_ROWS", 0)
    return request.param


ORACLE = 1e-6
"""Relative accuracy of Clarabel's objective at its default settings."""


def least_cost(instance, slack):
    """min ½‖w‖² + Σ C ξ as a cvxpy user writes it, solved by Clarabel."""
    A, b, tied = rows_of(*vars(instance).values())
    example = np.repeat(np.arange(instance.tokens.n), instance.tokens.mask.sum(1) - 1)[~tied]
    w, xi = cp.Variable(A.shape[1]), cp.Variable(instance.tokens.n, nonneg=True)
    limits = [A[~tied] @ w >= b[~tied] - xi[example]] + ([A[tied] @ w == 0] if tied.any() else [])
    price = np.broadcast_to(slack, (instance.tokens.n,))
    return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(w) + price @ xi), limits).solve(solver=cp.CLARABEL)


def cost(solution):
    return 0.5 * np.sum(solution.W**2) + float(solution.slack @ solution.shortfall)


def soft(instance, slack):
    tokens, selected, required = vars(instance).values()
    return max_margin(tokens, selected, required=required, slack=slack)


@pytest.mark.parametrize("build", VARIANTS + CONFLICTS, ids=name)
@pytest.mark.parametrize("slack", [0.03, 1.0, 50.0])
def test_the_cost_is_that_of_a_general_solver(build, slack):
    solution = soft(build(), slack)
    assert solution.certified
    assert cost(solution) == pytest.approx(least_cost(build(), slack), rel=ORACLE, abs=ORACLE)


def test_each_example_may_have_its_own_price():
    tokens, selected = planted(8, 5, 4, seed=3)
    prices = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0])
    solution = soft(Instance(tokens, selected), prices)
    assert solution.certified
    assert cost(solution) == pytest.approx(least_cost(Instance(tokens, selected), prices), rel=ORACLE)
    assert not replace(solution, slack=prices[::-1]).certified


@pytest.mark.parametrize("e", [1, 9])
def test_a_large_price_gives_the_program_without_slack(e):
    tokens, selected = planted(7, 6, 9, e=e, seed=1)
    hard = max_margin(tokens, selected)
    enough = 1.01 * hard.token_multipliers.sum(1).max() / hard.margin
    soft_solution = max_margin(tokens, selected, slack=enough)
    assert np.allclose(soft_solution.W, hard.W, rtol=0, atol=1e-9 / hard.margin)
    assert np.allclose(soft_solution.multipliers, hard.multipliers / hard.margin, atol=1e-8)
    assert max_margin(tokens, selected, slack=0.5 * enough).shortfall.max() > 1e-3


def test_one_example_with_two_tokens_has_a_closed_form():
    """W = min(C, 1/‖A‖²) A for A = δ zᵀ."""
    tokens = Tokens([[[1.0, 2.0], [0.5, 0.0]]], [[2.0, -1.0]])
    row = np.outer([0.5, 2.0], [2.0, -1.0])
    for price in (1e-12, 0.01, 0.04, 0.05, 3.0):
        solution = max_margin(tokens, [0], slack=price)
        weight = min(price, 1 / np.sum(row**2))
        assert np.allclose(solution.W, weight * row, rtol=1e-12, atol=0)
        assert np.allclose(solution.multipliers, [weight], rtol=1e-12)


def shortest_mean(tokens, selected):
    """The shortest Σ_i (mean of example i's rows), however they are weighed: W/C of small C, by Clarabel."""
    A, _, _ = rows_of(tokens, selected, np.ones(tokens.n))
    shares = cp.Variable((tokens.n, tokens.T - 1), nonneg=True)
    mean = A.T @ cp.vec(shares, order="C")
    exact = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    whole = [cp.sum(shares, axis=1) == 1]
    cp.Problem(cp.Minimize(cp.sum_squares(mean)), whole).solve(solver=cp.CLARABEL, **exact)
    return mean.value.reshape(tokens.d, tokens.e)


@pytest.mark.parametrize("price", [1e-3, 1e-10, 1e-30, 1e-250])
@pytest.mark.parametrize("offset", [0.0, 2.0**20])
def test_a_small_price_is_paid_in_full_and_the_weight_is_the_shortest_mean_of_rows(price, offset):
    tokens, selected = planted(6, 5, 4, seed=2)
    keys = tokens.keys + offset
    solution = max_margin(Tokens(keys, tokens.queries), selected, slack=price)
    limit = shortest_mean(Tokens(keys - offset, tokens.queries), selected)
    assert solution.certified
    assert np.allclose(solution.token_multipliers.sum(1), price, rtol=1e-12, atol=0)
    assert np.allclose(solution.W / price, limit, rtol=0, atol=1e-6 * np.abs(limit).max())
    even = np.full_like(solution.multipliers, price / 4)  # it costs nearly as little, and is another weight
    other = solution.constraints.combine(np.where(solution.constraints.separating, price / 4, 0.0))
    other = np.ldexp(other, solution.constraints.units.exponent[0])
    assert np.abs(other / price - limit).max() > 0.1 * np.abs(limit).max()
    for wrong in (replace(solution, W=other, multipliers=even), replace(solution, W=0 * other)):
        assert not wrong.certified


def test_without_tokens_it_is_the_linear_svm_of_liblinear():
    svm = pytest.importorskip("sklearn.svm", reason="scikit-learn is an extra")
    random = np.random.default_rng(0)
    features, labels = random.standard_normal((60, 5)), np.sign(random.standard_normal(60))
    peer = svm.LinearSVC(C=0.7, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    peer.fit(features, labels)
    solution = separate(labels[:, None] * features, slack=0.7)
    assert solution.certified
    assert np.allclose(solution.W[:, 0], peer.coef_[0], atol=1e-6)


def test_contradictory_examples_have_a_solution_and_fall_short():
    tokens, selected = random_selection(20, 4, 3)
    solution = max_margin(tokens, selected, slack=2.0)
    assert solution.certified and solution.separable
    assert solution.shortfall.max() > 0.5
    assert "soft-margin (C = 2)" in str(solution) and "fall short" in str(solution)


@pytest.mark.parametrize("e", [1, 6])
def test_what_is_not_optimal_is_not_certified(e):
    tokens, selected = planted(12, 5, 6, e=e, seed=4, shift=0.0)
    solution = max_margin(tokens, selected, slack=0.5)
    other = (selected + 1) % tokens.T
    assert solution.certified and solution.shortfall.max() > 0.01
    assert not replace(solution, W=0.9 * solution.W).certified
    assert not replace(solution, multipliers=np.roll(solution.multipliers, 4)).certified
    assert not replace(solution, slack=0.4 * np.ones(12)).certified
    assert not replace(solution, slack=0.6 * np.ones(12)).certified
    assert not replace(solution, selected=other[:, None] == np.arange(tokens.T)).certified


def test_a_multiplier_above_the_price_is_a_violation():
    tokens, selected = planted(6, 5, 4, seed=2)
    solution = max_margin(tokens, selected, slack=0.01)
    certificate = replace(solution, multipliers=1.1 * solution.multipliers).certificate
    assert certificate.dual == pytest.approx(0.1)


def test_ties_stay_equalities():
    tokens, best = planted(5, 5, 8, seed=8)
    chosen = best[:, None] == np.arange(5)
    chosen[1, (best[1] + 1) % 5] = True
    solution = max_margin(tokens, chosen, slack=0.2)
    logits = np.einsum("td,de,e->t", tokens.keys[1], solution.W, tokens.queries[1])
    assert solution.certified
    assert np.ptp(logits[chosen[1]]) < 1e-10
    assert not max_margin(tokens, best, slack=0.2).constraints.tied.any()


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e100])
@pytest.mark.parametrize("price", [1e-3, 1.0, 1e6])
def test_units_do_not_matter(scale, price):
    """Keys c times larger want a weight c times smaller, at a price c² times smaller."""
    tokens, selected = planted(6, 5, 4, seed=5)
    one = max_margin(tokens, selected, slack=price)
    other = max_margin(Tokens(scale * tokens.keys, tokens.queries), selected, slack=price / scale**2)
    assert one.certified and other.certified
    assert np.allclose(scale * other.W, one.W, rtol=0, atol=1e-6 * np.abs(one.W).max())


def test_identical_tokens_and_single_tokens_fall_short_without_harm():
    keys = np.ones((2, 3, 2))
    keys[1, 1:] = 0.0
    mask = np.array([[True, True, True], [True, False, False]])
    solution = max_margin(Tokens(keys, np.ones((2, 2)), mask=mask), [0, 0], slack=3.0)
    assert solution.certified
    assert np.array_equal(solution.shortfall, [1.0, 0.0])
    assert not solution.W.any()


def test_single_precision_tokens_are_solved_in_double():
    tokens, selected = planted(6, 5, 4, seed=6)
    single = Tokens(tokens.keys.astype(np.float32), tokens.queries.astype(np.float32))
    assert max_margin(single, selected, slack=1.0).certified


def test_all_runs_are_solved():
    many = [planted(5, 4, 3, seed=k) for k in range(3)]
    keys, queries = (np.stack([getattr(t, x) for t, _ in many]) for x in ("keys", "queries"))
    solutions = max_margin(Tokens(keys, queries), np.stack([s for _, s in many]), slack=0.3)
    assert solutions.certified.all() and solutions.shortfall.shape == (3, 5)
    assert np.allclose(solutions.run(1).W, max_margin(*many[1], slack=0.3).W)
    assert solutions.run(1).certified and "certified" in str(solutions)


def test_no_price_or_an_infinite_one_is_the_program_without_slack(tmp_path):
    tokens, selected = planted(5, 4, 6, seed=7)
    hard, infinite = (max_margin(tokens, selected, slack=c) for c in (None, np.inf))
    assert infinite.slack is None
    assert np.array_equal(hard.W, infinite.W)
    free = max_margin(tokens, selected, slack=0.0)
    assert not free.W.any() and free.certified
    free.save(tmp_path / "free.npz")
    assert np.array_equal(Solution.load(tmp_path / "free.npz").slack, np.zeros(5))


@pytest.mark.parametrize(
    ("slack", "norm", "message"),
    [
        (-1.0, frobenius, "slack must be ≥ 0"),
        (np.nan, frobenius, "slack must be ≥ 0"),
        ([1.0, 2.0], frobenius, "slack has shape (2,) but tokens has n=5"),
        ([1.0, 1.0, np.inf, 1.0, 1.0], frobenius, "infinite for some examples only"),
        (1.0, nuclear, "slack needs the Frobenius (l2) norm"),
        (1.0, l1, "slack needs the Frobenius (l2) norm"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(slack, norm, message):
    tokens, selected = planted(5, 4, 6, seed=7)
    with pytest.raises(ValueError, match=re.escape(message)):
        max_margin(tokens, selected, norm, slack=slack)


@pytest.mark.parametrize("e", [1, 6], ids=["prompt", "matrix"])
@pytest.mark.parametrize("slack", [0.1, 3.0, 1e6])
def test_a_copy_of_a_selected_token_is_paid_for_wherever_the_keys_lie(e, slack):
    tokens, selected = planted(5, 4, 9, e=e, seed=4)
    keys = tokens.keys.round(6)
    keys[2, (selected[2] + 1) % 4] = keys[2, selected[2]]  # a row of no length beside rows that are short
    far = keys + 2.0**24
    near = Tokens(far - 2.0**24, tokens.queries)  # the same differences, to the bit
    solution = max_margin(Tokens(far, tokens.queries), selected, slack=slack)
    assert solution.certified
    assert cost(solution) == pytest.approx(least_cost(Instance(near, selected), slack), rel=ORACLE)
    with pytest.raises(NotSeparable, match="identical keys"):
        max_margin(Tokens(far, tokens.queries), selected)


@pytest.mark.parametrize("e", [1, 6], ids=["prompt", "matrix"])
@pytest.mark.parametrize("slack", [0.1, 3.0, 1e6])
def test_the_rows_of_some_examples_lead_to_the_answer_of_all(monkeypatch, e, slack):
    tokens, selected = planted(40, 6, 7, e=e, seed=4)
    keys = tokens.keys.copy()
    keys[3, (selected[3] + 1) % 6] = keys[3, selected[3]]  # a zero row asks for a margin, and is paid for
    chosen = selected[:, None] == np.arange(6)
    chosen[5, (selected[5] + 2) % 6] = True
    tokens = Tokens(keys, tokens.queries)
    whole = max_margin(tokens, chosen, slack=slack)
    monkeypatch.setattr(solve, "SOFT_ROWS", 0)
    monkeypatch.setattr(solve, "WHOLE_KEYS", 0)
    monkeypatch.setattr(solve, "PROBE", 0)
    few = max_margin(tokens, chosen, slack=slack)
    assert whole.certified and few.certified
    assert cost(few) == pytest.approx(cost(whole), rel=1e-8)
    assert few.shortfall[3] >= 1
    monkeypatch.setattr(working_set, "ROUNDS", 1)
    monkeypatch.setattr(extended, "solve_in_extended_precision", lambda *_: None)
    with pytest.warns(NotCertified, match="so is a smaller C"):
        assert not max_margin(tokens, chosen, slack=slack).certified


@pytest.mark.parametrize("slack", [1e-3, 1.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("size", [1, 30])
def test_most_of_a_thousand_examples_fall_short_at_any_price(slack, size):
    # Their multipliers go from zero to C: a σ that follows the rows alone takes dozens of moves.
    r = np.random.default_rng(0)
    tokens = Tokens(np.round(size * 10 * r.standard_normal((1000, 2, 5))), r.standard_normal((1000, 4)))
    selected = r.integers(2, size=1000)
    solution = max_margin(tokens, selected, slack=slack)
    assert solution.certified
    assert (solution.shortfall > 1e-6).mean() > 0.3
    assert not replace(solution, W=0.999 * solution.W).certified
