"""Contradictions: proofs that anyone can check, as short as possible, in words."""

import pickle
from functools import partial

import numpy as np
import pytest

from attsvm import Tokens
from attsvm.norms import frobenius, l1, nuclear
from attsvm.program.conflict import explain
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius.route import solve_frobenius
from attsvm.program.solution import NotSeparable

pytestmark = pytest.mark.quick

EXACT = 1e-12


def refused(rows, norm, multipliers):
    return NotSeparable(partial(explain, rows, norm, multipliers))


def explained(keys, selected, queries=None, required=1.0, norm=frobenius):
    """The exception of a prompt problem, its proof checked."""
    rows = Constraints.of(Tokens(keys, queries), selected, required)
    answer = solve_frobenius(rows)
    assert not answer.separable
    return checked(rows, refused(rows, norm, answer.multipliers))


def checked(rows, error):
    """Farkas: λ ≥ 0 on inequalities, Σ λ_j A_j = 0, Σ λ_j b_j > 0; and the pairs are its support."""
    assert isinstance(error, NotSeparable)
    multipliers = np.ldexp(rows.unpack(error.multipliers), rows.units.exponent[:, None])
    assert (multipliers[rows.separating] >= 0).all()
    gain = (multipliers * rows.bound).sum()
    assert gain > 0
    assert np.abs(rows.combine(multipliers)).max() / gain <= EXACT
    assert error.conflict == [tuple(pair) for pair in np.argwhere(multipliers).tolist()]
    return error


def random_keys(shape=(1000, 8, 6), seed=0):
    """Keys, and the token that a hidden direction ranks highest."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal(shape)
    return keys, np.argmax(keys @ rng.standard_normal(shape[2]), axis=1)


def test_identical_keys_are_named():
    keys, best = random_keys((5, 4, 20))
    best[3] = 2
    keys[3, 0] = keys[3, 2]
    error = explained(keys, best)
    assert str(error) == "no W ranks token 2 above token 0 in example 3 (identical keys)."
    assert error.conflict == [(3, 0)] and error.residual == 0


def test_a_zero_query_is_named():
    keys, best = random_keys((5, 4, 20))
    queries = np.array([[1.0], [1.0], [0.0], [1.0], [1.0]])
    assert "in example 2 (the query is zero)" in str(explained(keys, best, queries))


def test_opposite_orders_of_the_same_two_tokens_are_named():
    keys, best = random_keys((1000, 8, 40))
    keys[900] = keys[700]
    best[900] = (best[700] + 1) % 8
    error = explained(keys, best)
    assert str(error).startswith("examples 700 and 900 want opposite orders of the same two tokens")
    assert error.conflict == [(700, best[900]), (900, best[700])]


def test_a_token_between_two_others_is_named():
    keys = np.array([[[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]]])
    assert "its key lies between those of tokens 0 and 1" in str(explained(keys, [2]))


def test_a_token_inside_the_hull_of_others_is_named():
    keys = np.array([[[0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [1.0, 1.0]]])
    assert "is an average of the keys of tokens 0, 1 and 2" in str(explained(keys, [3]))


def test_a_tie_that_forbids_an_order_is_named():
    keys = np.array([[[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]], [[2.0, 0.0], [4.0, 0.0], [9.0, 9.0]]])
    selected = np.array([[True, True, False], [False, True, False]])
    required = [0.0, 1.0]
    assert "while tokens 0 and 1 of example 0 are tied" in str(explained(keys, selected, None, required))


def test_a_larger_conflict_lists_its_pairs_and_multipliers():
    keys, _ = random_keys()
    error = explained(keys, np.zeros(1000, int))
    assert "contradict each other: (example, token) pairs (" in str(error)
    assert "with multipliers" in str(error)
    assert 2 < len(error.conflict) <= 7


def test_a_wasteful_proof_is_made_irreducible():
    keys, _ = random_keys((40, 8, 6))
    rows = Constraints.of(Tokens(keys), np.zeros(40, int))
    first = solve_frobenius(rows).multipliers
    kept = np.flatnonzero(~first.any(axis=1))
    second = solve_frobenius(Constraints.of(Tokens(keys[kept]), np.zeros(len(kept), int))).multipliers
    mixed = first.copy()
    mixed[kept] = second
    error = checked(rows, refused(rows, frobenius, mixed))
    assert len(error.conflict) <= 7 < np.count_nonzero(mixed)
    for left_out in error.conflict:  # what remains without one row has a solution
        pairs = np.array([pair for pair in error.conflict if pair != left_out])
        A = rows.differences(*pairs.T)
        assert np.linalg.matrix_rank(A) == len(A)


def test_an_opposite_pair_inside_a_wasteful_proof_is_found():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 5))
    keys = np.array([[x, y], [y, x], [0 * x, y], [0 * x, -y], [x, 0 * y], [-x, 0 * y]])
    queries = np.tile(rng.standard_normal(3), (6, 1))
    rows = Constraints.of(Tokens(keys, queries), np.zeros(6, int))
    rough = np.zeros((6, 2))
    rough[:, 1] = 1.0
    assert len(checked(rows, refused(rows, nuclear, rough)).conflict) == 2


def test_noise_in_a_proof_is_left_out():
    keys, best = random_keys((50, 8, 40))
    keys[9], best[9] = keys[7], (best[7] + 1) % 8
    rows = Constraints.of(Tokens(keys), best)
    noisy = solve_frobenius(rows).multipliers + np.where(rows.active, 1e-13, 0.0)
    assert len(checked(rows, refused(rows, l1, noisy)).conflict) == 2


@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1e6, 1e150])
def test_multipliers_and_residual_are_in_the_units_of_the_tokens(scale):
    keys, _ = random_keys((40, 8, 6))
    error = explained(scale * keys, np.zeros(40, int))
    A = (keys[:, :1] - keys)[:, 1:].reshape(-1, 6)
    expected = np.linalg.norm(error.multipliers @ A) * scale / error.multipliers.sum()
    assert error.residual <= EXACT * scale
    assert np.isclose(error.residual, expected, atol=1e-14 * scale)


def test_a_separable_problem_has_no_proof():
    keys, best = random_keys((30, 8, 6))
    rows = Constraints.of(Tokens(keys), best)
    error = refused(rows, frobenius, np.where(rows.active, 1.0, 0.0))
    assert error.residual > 1e-3  # all it says: no W shorter than 1/residual


def test_a_proof_is_put_into_words_once_and_only_when_asked():
    asked = []
    error = NotSeparable(lambda: asked.append(1) or explain(*contradictory()))
    assert not asked
    assert str(error) in repr(error) and error.conflict
    assert len(asked) == 1


def test_a_refusal_travels_between_processes():
    error = refused(*contradictory())
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and np.array_equal(copy.multipliers, error.multipliers)
    assert str(copy) != str(refused(*contradictory(seed=1)))


def contradictory(seed=0):
    keys, _ = random_keys((30, 8, 6), seed)
    rows = Constraints.of(Tokens(keys), np.random.default_rng(seed).integers(8, size=30))
    return rows, frobenius, solve_frobenius(rows).multipliers
