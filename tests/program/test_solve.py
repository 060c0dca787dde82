"""Answers that rounding may have spoilt are looked at again, and only those."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from attsvm import datasets
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, frobenius, l1, nuclear
from attsvm.numbers.threads import single_thread
from attsvm.program import solve as module, working_set
from attsvm.program.answer import Answer
from attsvm.program.certificate import certify_scaled
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision import route as extended_precision
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotCertified, NotSeparable
from attsvm.program.solve import by_engines, refined
from tests.program import conftest


@pytest.fixture
def rows():
    instance = conftest.matrix()
    return Constraints.of(instance.tokens, instance.selected)


def test_a_tame_problem_needs_no_second_look(rows):
    answer = by_engines(rows, frobenius)
    assert module._certain(rows, frobenius, answer)
    assert not module._certain(rows, frobenius, replace(answer, gap=1e-6))
    assert not module._certain(rows, frobenius, replace(answer, W=1e6 * answer.W))


def test_a_program_with_ties_needs_no_second_look_where_its_ties_hold():
    rows = conftest_rows(conftest.tied)
    answer = by_engines(rows, frobenius)
    assert module._certain(rows, frobenius, answer)
    assert not module._certain(rows, frobenius, replace(answer, W=answer.W + 1e-6 * np.abs(answer.W).max()))


def test_wide_programs_in_the_frobenius_norm_are_certified_without_a_second_look(monkeypatch):
    tokens, v = datasets.sphere(n=4, T=4, d=64, seed=range(8))
    best = np.argmax(np.einsum("rntd,rd->rnt", tokens.keys, v), -1)
    monkeypatch.setattr(module, "_refined_run", lambda *_, **__: pytest.fail("refined"))
    solution = max_margin(tokens, best)
    assert solution.certified.all()
    answer = Answer(solution.W, solution.token_multipliers, gap=np.zeros(8))
    assert module._certain(solution.constraints, frobenius, answer).all()
    assert not module._certain(solution.constraints, l1, answer).any()


def conftest_rows(build):
    instance = build()
    return Constraints.of(instance.tokens, instance.selected, instance.required)


def test_a_spoilt_answer_is_mended(rows):
    good = by_engines(rows, frobenius)
    spoilt = Answer(good.W + 1e-3 * np.abs(good.W).max(), good.multipliers)
    mended = refined(rows, frobenius, spoilt)
    assert certify_scaled(rows, frobenius, spoilt.W, spoilt.multipliers).worst > 1e-6
    assert certify_scaled(rows, frobenius, mended.W, mended.multipliers).worst <= 1e-9


def test_one_spoilt_run_of_a_batch_is_mended_and_the_others_are_left():
    tokens, v = datasets.sphere(n=3, T=4, d=5, seed=range(3))
    rows = Constraints.of(tokens, np.argmax(np.einsum("rntd,rd->rnt", tokens.keys, v), -1))
    good = by_engines(rows, frobenius)
    W = good.W.copy()
    W[1] *= np.nan
    mended = refined(rows, frobenius, replace(good, W=W, gap=np.array([0.0, np.inf, 0.0])))
    assert np.array_equal(mended.W[[0, 2]], good.W[[0, 2]])
    assert frobenius.value(mended.W[1]) == pytest.approx(frobenius.value(good.W[1]), rel=1e-8)


@pytest.mark.parametrize("separable", [True, False])
@pytest.mark.parametrize("norm", [frobenius, l1], ids=str)
def test_numbers_that_are_not_finite_are_no_answer_and_no_proof(separable, norm):
    rows = conftest_rows(conftest.crowded)
    W, multipliers = np.full((rows.d, rows.e), np.nan), np.full(rows.active.shape, np.nan)
    mended = refined(rows, norm, Answer(W, multipliers, separable, gap=0.0))
    certificate = certify_scaled(rows, norm, mended.W, mended.multipliers)
    assert mended.separable
    assert certificate.primal <= 1e-9  # in l1 it is the shortest weight of the Frobenius norm
    assert certificate.worst <= 1e-9 or norm == l1


@pytest.mark.parametrize("slack", [None, 1.0])
def test_whatever_an_engine_finds_numbers_come_out(monkeypatch, slack):
    def broken(program, *_, **__):
        return Answer(np.full((program.d, program.e), np.nan), np.full(program.active.shape, np.inf))

    instance = conftest.matrix()
    monkeypatch.setattr(module, "by_engines", broken)
    monkeypatch.setattr(module, "SOFT_ROWS", 0)
    monkeypatch.setattr(working_set, "solve_on_pools", broken)
    monkeypatch.setattr(extended_precision, "solve_in_extended_precision", lambda *_, **__: None)
    with pytest.warns(NotCertified):
        solution = max_margin(instance.tokens, instance.selected, slack=slack)
    assert np.isfinite(solution.W).all() and np.isfinite(solution.multipliers).all()
    assert not solution.certified


def test_an_engine_that_linear_algebra_ends_has_no_answer_and_another_is_found(monkeypatch):
    def broken(*_):
        raise np.linalg.LinAlgError("SVD did not converge")

    instance = conftest.matrix()
    monkeypatch.setattr(module, "route_of", lambda norm: broken)
    with pytest.warns(NotCertified, match="attains the margin"):
        solution = max_margin(instance.tokens, instance.selected, nuclear)
    assert solution.certificate.primal <= 1e-9 and not solution.certified
    monkeypatch.setattr(extended_precision, "solve_in_extended_precision", lambda *_, **__: None)
    with pytest.warns(NotCertified, match="attains the margin 0; the best one is at most inf"):
        assert not max_margin(instance.tokens, instance.selected, nuclear).certified


def test_a_proof_that_proves_nothing_is_not_believed_where_nothing_else_is_found(monkeypatch):
    def hopeless(program, *_):
        return Answer(np.zeros((program.d, program.e)), program.active * 1.0, False)

    instance = conftest.matrix()
    monkeypatch.setattr(module, "by_engines", hopeless)
    monkeypatch.setattr(extended_precision, "solve_in_extended_precision", lambda *_, **__: None)
    with pytest.warns(NotCertified):
        assert not max_margin(instance.tokens, instance.selected).certified


def test_a_proof_that_proves_nothing_is_not_believed(rows):
    answer = refined(rows, frobenius, Answer(np.zeros((rows.d, rows.e)), rows.active * 1.0, False))
    assert answer.separable
    assert certify_scaled(rows, frobenius, answer.W, answer.multipliers).worst <= 1e-9


# ---------------------------------------------------------------------- once wrong, each


def certified(keys, selected, norm=frobenius, queries=None, **options):
    solution = max_margin(Tokens(keys, queries), selected, norm, **options)
    assert solution.certified, solution.certificate
    return solution


@pytest.mark.parametrize("runs", [None, 3])
def test_tied_unit_vectors_in_l_one_and_a_half(runs):
    keys, selected = np.array([[[0.0, 0], [0, 1], [-1, 0]]]), np.array([[True, True, False]])
    if runs is None:
        assert np.allclose(certified(keys, selected, Entrywise(1.5)).W[:, 0], [1, 0], atol=1e-8)
        return
    solution = max_margin(Tokens(np.stack([keys] * runs)), selected, Entrywise(1.5))
    assert solution.separable.all() and solution.certified.all()


def test_ties_for_an_exponent_far_above_two():
    certified(np.eye(4)[None], np.array([[True, True, False, False]]), Entrywise(50))


def test_a_short_row_beside_a_long_one():
    keys, queries = np.array([[[0.0], [-1e-18]], [[0.0], [-1.0]]]), [[1.03, 0.16], [-0.59, -1.34]]
    certified(keys, [0, 0], queries=queries)
    keys = np.zeros((2, 2, 2))
    keys[:, 1] = [[-3e-9, 4e-9], [4, -7]]
    certified(keys, [0, 0])
    assert certified(np.array([[[0.0], [-1e-150]], [[0.0], [-1.0]]]), [0, 0]).W[0, 0] == pytest.approx(1e150)


def test_soft_margins_at_a_large_price():
    keys = np.zeros((4, 2, 2))
    keys[:, 1] = [[2, -33], [-15, 31], [63, -56], [-58, -7]]
    certified(keys, [0] * 4, slack=1e6)
    assert certified(np.array([[[3.0], [0.0]]]), [0], slack=1e16).W[0, 0] == pytest.approx(1 / 3, rel=1e-8)


def test_thousands_of_rows_in_two_dimensions_do_not_all_join_at_once():
    random = np.random.default_rng(0)
    keys, queries = random.standard_normal((3000, 3, 2)), random.standard_normal((3000, 2))
    best = np.argmax(np.einsum("ntd,de,ne->nt", keys, random.standard_normal((2, 2)), queries), 1)
    certified(keys, best, l1, queries=queries)


@pytest.mark.parametrize("scale", [1e-309, 1e-320])
def test_a_weight_that_float64_cannot_hold_is_an_error_in_words(scale):
    with pytest.raises(ValueError, match=r"W of size 1e3\d\d, and float64 holds"):
        max_margin(Tokens(scale * np.array([[[0.0, 1.0], [1.0, 0.0]]])), [0])


def test_what_is_hopeless_stays_hopeless(conflict, norm):
    with pytest.raises(NotSeparable):
        max_margin(conflict.tokens, conflict.selected, norm, required=conflict.required)


# ---------------------------------------------------------------------- threads


def test_many_threads_leave_the_users_threads_as_they_were():
    instance = conftest.matrix()
    before = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(max_margin, instance.tokens, instance.selected, nuclear) for _ in range(40)]
        assert all(job.result().certified for job in jobs)
    after = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    assert all(after[path] == threads for path, threads in before.items())


def test_the_last_to_leave_restores_the_threads():
    first, second = single_thread(), single_thread()
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    inside = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    second.__exit__(None, None, None)
    after = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert set(inside) == {1}
    assert after == [pool["num_threads"] for pool in blas]


def test_in_a_batch_too_a_proof_is_believed_only_if_it_is_one():
    tokens, v = datasets.sphere(n=3, T=4, d=5, seed=range(3))
    keys, best = tokens.keys.copy(), np.argmax(np.einsum("rntd,rd->rnt", tokens.keys, v), -1)
    keys[2, 1], best[2, 1] = keys[2, 0], (best[2, 0] + 1) % 4
    queries = tokens.queries.copy()
    queries[2, 1] = queries[2, 0]
    rows = Constraints.of(Tokens(keys, queries), best)
    good = by_engines(rows, frobenius)
    assert good.separable.tolist() == [True, True, False]
    W, multipliers = good.W.copy(), good.multipliers.copy()
    W[1], multipliers[1] = 0.0, rows.active[1]
    mended = refined(rows, frobenius, Answer(W, multipliers, np.array([True, False, False]), good.gap))
    assert mended.separable.tolist() == [True, True, False]
    np.testing.assert_allclose(mended.W[1], good.W[1], rtol=1e-7, atol=1e-9)
    assert np.array_equal(mended.multipliers[2], good.multipliers[2])
