"""Rows at length one, their span and the linear systems on them."""

import tracemalloc

import numpy as np
import pytest

from attsvm import Tokens, nuclear
from attsvm.numbers.linear import Cholesky, conjugate_gradients
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Rows, Span

pytestmark = pytest.mark.quick


def program(seed=0, n=5, T=4, d=6, e=3, tied=False):
    rng = np.random.default_rng(seed)
    tokens = Tokens(rng.standard_normal((n, T, d)), rng.standard_normal((n, e)) if e > 1 else None)
    selected = np.zeros((n, T), bool)
    selected[:, 0], selected[0, 1] = True, tied
    return Constraints.of(tokens, selected)


@pytest.mark.parametrize(("n", "d", "e"), [(5, 6, 3), (5, 6, 1), (40, 30, 20)])
def test_rows_are_the_programs_rows_at_length_one(n, d, e):
    whole = program(n=n, d=d, e=e, tied=True)
    rows = Rows.of(whole)
    W = np.random.default_rng(1).standard_normal((d, e))
    lam = np.random.default_rng(2).standard_normal(len(rows))
    assert np.allclose(rows.margins(W) * rows.length, whole.margins(W)[whole.active], rtol=1e-12)
    assert np.allclose(rows.combine(lam * rows.length), whole.combine(rows.spread(lam)))
    assert np.allclose(np.linalg.norm(rows.dense, axis=1), 1.0)
    assert np.allclose(rows.gram, rows.dense @ rows.dense.T, atol=1e-14)
    some = rows.some(np.arange(0, len(rows), 3))
    assert np.allclose(some.margins(W), rows.margins(W)[::3])
    assert some.tied.sum() <= rows.tied.sum() == 1


def test_zero_rows_are_left_out():
    keys = np.random.default_rng(0).standard_normal((3, 4, 5))
    keys[1, 2] = keys[1, 0]
    rows = Rows.of(Constraints.of(Tokens(keys), [0, 0, 0]))
    assert len(rows) == 8
    assert (1, 2) not in set(zip(rows.example.tolist(), rows.token.tolist(), strict=True))


def test_a_weight_loses_nothing_in_the_span_of_its_rows():
    whole = program(n=2, T=3, d=9, e=4)
    span = Span.of(whole)
    assert span.shape == (4, 2)
    W = np.random.default_rng(1).standard_normal((9, 4))
    inside = span.expand(span.reduce(W))
    assert np.allclose(whole.margins(inside), whole.margins(W))
    assert nuclear.value(inside) < nuclear.value(W)
    reduced = Rows.of(whole).within(span)
    assert np.allclose(reduced.margins(span.reduce(W)), Rows.of(whole).margins(W))
    assert Span.exactly(reduced.delta, whole.queries).shape == (4, 2)
    wrong = Span(span.left[:, :3], span.right)
    assert not np.allclose(whole.margins(wrong.expand(wrong.reduce(W))), whole.margins(W))


def test_products_of_a_few_rows_need_no_products_of_all_queries():
    rng = np.random.default_rng(0)
    tokens = Tokens(rng.standard_normal((2000, 2, 2)), rng.standard_normal((2000, 3)))
    few = Rows.of(Constraints.of(tokens, np.zeros(2000, int))).some(np.array([0, 7, 1999]))
    tracemalloc.start()
    gram = few.gram
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(few.queries) == 2000 and peak < 1 << 20
    np.testing.assert_allclose(gram, few.dense @ few.dense.T, atol=1e-14)


def test_a_singular_matrix_is_factored_with_a_ridge_and_an_indefinite_one_is_not():
    A = np.random.default_rng(0).standard_normal((6, 3))
    right = A @ np.ones(3)
    found = Cholesky(lambda: A @ A.T).solve(right)
    assert np.allclose(A @ A.T @ found, right, atol=1e-4)
    with pytest.raises(np.linalg.LinAlgError):
        Cholesky(lambda: A @ A.T - np.eye(6))


def test_conjugate_gradients_reach_the_goal_or_say_so():
    A = np.random.default_rng(0).standard_normal((30, 30))
    K, right = A @ A.T + np.eye(30), np.arange(30.0)
    found, converged = conjugate_gradients(lambda x: K @ x, lambda r: r, right, np.zeros(30), 1e-9, 200)
    assert converged
    assert np.allclose(found, np.linalg.solve(K, right), atol=1e-8)
    assert not conjugate_gradients(lambda x: K @ x, lambda r: r, right, np.zeros(30), 1e-9, 2)[1]
