"""The engine of vector problems, against closed forms, an independent solver and its own certificate."""

import numpy as np
import pytest

from attsvm import Tokens
from attsvm.norms import frobenius
from attsvm.program import working_set
from attsvm.program.certificate import certify
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius import active_set, dense, route
from attsvm.program.frobenius.route import solve_frobenius

EXACT = 1e-12
GAP = 1e-9  # a tenth of what the package promises


def planted(n, T, d, seed=0, shift=0.1):
    """Unit tokens and the token that a hidden direction ranks highest, moved along that direction."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((n, T, d))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    hidden = rng.standard_normal(d)
    hidden /= np.linalg.norm(hidden)
    best = np.argmax(keys @ hidden, axis=1)
    keys[np.arange(n), best] += shift * hidden
    return keys, best


def solved(rows):
    """The engine's answer with its certificate."""
    answer = solve_frobenius(rows)
    assert answer.separable
    W, multipliers, _ = rows.units.restored(answer.W, answer.multipliers)
    return W, multipliers, certify(rows, frobenius, W, multipliers)


def refuted(rows):
    """The engine's Farkas proof: multipliers and the size of what should cancel."""
    answer = solve_frobenius(rows)
    assert not answer.separable
    gain = (answer.multipliers * rows.bound).sum()
    assert (answer.multipliers[rows.separating] >= 0).all() and gain > 0
    return answer.multipliers, np.linalg.norm(rows.combine(answer.multipliers)) / gain


@pytest.mark.parametrize(
    ("third", "required", "p"),
    [((0.5, 1), 1.0, (4 / 3, 1 / 3)), ((0.5, 1.5), 1.0, (1.25, 0.25)), ((0.5, 1.5), (1, 1, 0), (1, 0))],
)
def test_the_joint_training_examples_have_their_closed_forms(third, required, p):
    keys = np.stack([np.zeros((3, 2)), [(1, 1), (1, -1), third]], axis=1)
    W, _, certificate = solved(Constraints.of(Tokens(keys), np.ones(3, int), required))
    assert np.allclose(W[:, 0], p, atol=EXACT, rtol=0)
    assert certificate.worst <= EXACT


@pytest.mark.parametrize(
    "shape", [(1, 2, 1), (1, 8, 3), (6, 8, 10), (5, 4, 40), (100, 16, 32), (300, 20, 24)]
)
@pytest.mark.parametrize("shift", [0.1, 1e-3])
def test_every_size_is_certified(shape, shift):
    keys, best = planted(*shape, shift=shift)
    assert solved(Constraints.of(Tokens(keys), best))[2].worst <= GAP


@pytest.mark.parametrize("shape", [(8, 6, 5), (300, 20, 24)])
def test_masks_ties_queries_and_required_margins_agree_with_cvxpy(shape):
    cvxpy = pytest.importorskip("cvxpy")
    n, T, d = shape
    rng = np.random.default_rng(1)
    keys, best = planted(n, T, d + 2)
    selected = np.arange(T) == best[:, None]
    keys[0, (best[0] + 1) % T] = keys[0, best[0]] + np.eye(d + 2)[0] * 0.3
    selected[0, (best[0] + 1) % T] = True
    queries = rng.choice([-1.0, 1.0], (n, 1)) * rng.uniform(0.5, 2, (n, 1))
    mask = (rng.random((n, T)) < 0.8) | selected
    required = rng.choice([0.0, 1.0, 2.0], n)
    rows = Constraints.of(Tokens(keys * np.sign(queries)[..., None], queries, mask=mask), selected, required)
    W, _, certificate = solved(rows)
    w, rest, tie = cvxpy.Variable(d + 2), np.nonzero(rows.separating), np.nonzero(rows.tied)
    A, E = (rows.differences(*at) * queries[at[0]] for at in (rest, tie))
    best_norm = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(w)), [A @ w >= rows.bound[rest], E @ w == 0]).solve()
    assert certificate.worst <= GAP
    assert np.isclose(np.linalg.norm(W), best_norm, rtol=1e-6)  # what the interior point reaches


def test_the_verdict_agrees_with_a_linear_program_near_the_threshold():
    from scipy.optimize import linprog

    rng = np.random.default_rng(2)
    verdicts = []
    for _ in range(150):
        d = int(rng.integers(8, 17))
        rows = Constraints.of(Tokens(rng.standard_normal((8, 8, d))), rng.integers(0, 8, 8))
        A = rows.differences(*np.nonzero(rows.active))
        feasible = linprog(np.zeros(d), -A, -np.ones(len(A)), bounds=(None, None)).status == 0
        answer = solve_frobenius(rows)
        verdicts.append(feasible)
        assert answer.separable == feasible
        assert solved(rows)[2].worst <= GAP if feasible else refuted(rows)[1] <= EXACT
    assert 10 < sum(verdicts) < 140  # both verdicts are put to the test


@pytest.mark.parametrize("shape", [(6, 8, 3), (300, 20, 24)])
def test_a_random_selection_is_refuted_by_few_rows(shape):
    keys, _ = planted(*shape)
    rows = Constraints.of(Tokens(keys), np.random.default_rng(3).integers(0, shape[1], shape[0]))
    multipliers, error = refuted(rows)
    assert error <= EXACT
    assert np.count_nonzero(multipliers) <= shape[2] + 1


@pytest.mark.parametrize("shape", [(6, 8, 40), (400, 20, 24)])
def test_a_hidden_contradiction_is_found_as_a_pair(shape):
    keys, best = planted(*shape)
    keys[5], best[5] = keys[3], (best[3] + 1) % shape[1]
    multipliers, error = refuted(Constraints.of(Tokens(keys), best))
    assert error <= EXACT
    assert set(np.nonzero(multipliers)[0]) == {3, 5} and np.count_nonzero(multipliers) == 2


@pytest.mark.parametrize("shape", [(6, 8, 10), (300, 20, 24), (3, 4, 40)])
def test_a_copy_of_the_selected_token_is_a_proof_by_itself(shape):
    keys, best = planted(*shape)
    keys[1, (best[1] + 1) % shape[1]] = keys[1, best[1]]
    multipliers, error = refuted(Constraints.of(Tokens(keys), best))
    assert error == 0
    assert np.argwhere(multipliers).tolist() == [[1, (best[1] + 1) % shape[1]]]


@pytest.mark.parametrize("shape", [(6, 8, 10), (300, 20, 24)])
def test_copies_of_the_selected_token_are_harmless_where_nothing_is_required(shape):
    keys, best = planted(*shape)
    keys[1, (best[1] + 1) % shape[1]] = keys[1, best[1]]
    required = np.where(np.arange(shape[0]) == 1, 0.0, 1.0)
    assert solved(Constraints.of(Tokens(keys), best, required))[2].worst <= GAP


def test_repeated_data_change_nothing():
    keys, best = planted(200, 16, 24)
    once = solved(Constraints.of(Tokens(keys), best))
    thrice = solved(Constraints.of(Tokens(np.tile(keys, (3, 1, 1))), np.tile(best, 3)))
    assert thrice[2].worst <= GAP
    assert np.allclose(once[0], thrice[0], rtol=1e-10)


@pytest.mark.parametrize("tiny", [1e-2, 1e-4, 1e-6, 1e-8])
def test_near_ties_are_solved_to_the_accuracy_of_doubles(tiny):
    keys = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-1.0, tiny], [0.0, 0.0]]])
    W, _, certificate = solved(Constraints.of(Tokens(keys), [0, 0]))
    assert np.allclose(W[:, 0], [1.0, 2 / tiny], rtol=1e-7)
    assert certificate.worst <= max(GAP, 1e-15 / tiny)


def test_a_shared_offset_of_the_keys_does_not_matter():
    keys, best = planted(300, 20, 24)
    shifted = solved(Constraints.of(Tokens(keys + 1e4), best))
    assert shifted[2].worst <= GAP
    assert np.allclose(shifted[0], solved(Constraints.of(Tokens(keys), best))[0], rtol=1e-6)


def test_a_pool_that_overflows_forgets_rows_and_finds_them_again(monkeypatch):
    monkeypatch.setattr(working_set, "LARGEST_POOL", 24)
    monkeypatch.setattr(route, "NUMBERS_OF_VECTORS", 0)
    keys, best = planted(400, 20, 8, shift=1e-3)
    assert solved(Constraints.of(Tokens(keys), best))[2].worst <= GAP


def test_many_ties_span_what_few_ties_span():
    rng = np.random.default_rng(4)
    keys, best = planted(400, 8, 20)
    copies = keys[np.arange(400), best][:, None]
    keys = np.pad(np.concatenate([keys, copies], axis=1), ((0, 0), (0, 0), (0, 10)))
    keys[:, 8, 20:] = rng.standard_normal((400, 10))
    selected = (np.arange(9) == best[:, None]) | (np.arange(9) == 8)
    W, _, certificate = solved(Constraints.of(Tokens(keys), selected))
    assert certificate.worst <= GAP
    assert np.abs(W[20:]).max() <= GAP


def test_one_dimensional_keys_are_solved_by_their_few_decisive_rows():
    rng = np.random.default_rng(5)
    queries, w = rng.standard_normal((30, 6)), rng.standard_normal(6)
    keys = rng.standard_normal((30, 5, 1))
    best = np.argmax(keys[..., 0] * (queries @ w)[:, None], axis=1)
    W, _, certificate = solved(Constraints.of(Tokens(keys, queries), best))
    assert W.shape == (1, 6)
    assert certificate.worst <= GAP
    assert refuted(Constraints.of(Tokens(keys, queries), (best + 1) % 5))[1] <= EXACT


@pytest.mark.parametrize(
    ("keys", "queries"), [((64, 6, 8, 10), 1), ((40, 6, 3, 1), 5), ((2, 300, 20, 24), 1)], ids=str
)
def test_a_batch_gives_what_its_problems_give_alone(keys, queries):
    rng = np.random.default_rng(6)
    tokens = Tokens(rng.standard_normal(keys), rng.standard_normal((*keys[:2], queries)))
    rows = Constraints.of(tokens, rng.integers(0, keys[2], keys[:2]))
    answer = solve_frobenius(rows)
    for run in range(keys[0]):
        alone = solve_frobenius(rows.run(run))
        assert alone.separable == answer.separable[run]
        # The least margin, one, that W is scaled to is a sum in another order: its rounding grows with W.
        rounding = 1e-14 * (1 + np.linalg.norm(alone.W))
        assert np.allclose(alone.W, answer.W[run], rtol=rounding, atol=0)
        assert np.allclose(alone.multipliers, answer.multipliers[run], rtol=rounding, atol=0)


@pytest.mark.parametrize("small", [route.NUMBERS_OF_VECTORS, 0], ids=["whole", "working set"])
def test_degenerate_data_get_the_verdict_of_a_linear_program(small, monkeypatch):
    from scipy.optimize import linprog

    monkeypatch.setattr(route, "NUMBERS_OF_VECTORS", small)
    rng = np.random.default_rng(9)
    for _ in range(150):
        n, T, d = rng.integers(1, 12), rng.integers(2, 7), rng.integers(1, 9)
        keys, queries = rng.integers(-2, 3, (n, T, d)), rng.integers(-1, 3, (n, 1))
        score = (keys @ rng.standard_normal(d)) * queries
        selected = (score >= score.max(1, keepdims=True)) | (rng.random((n, T)) < 0.05)
        rows = Constraints.of(Tokens(keys, queries), selected, rng.choice([0.0, 1.0, 3.0], n))
        (A, E) = (
            rows.differences(*at) * queries[at[0]] for at in map(np.nonzero, (rows.separating, rows.tied))
        )
        bound = -rows.bound[rows.separating]
        feasible = linprog(np.zeros(d), -A, bound, E, np.zeros(len(E)), bounds=(None, None)).status == 0
        if (rows.bound > 0).any():
            assert solved(rows)[2].worst <= GAP if feasible else refuted(rows)[1] <= EXACT


def test_margins_and_combinations_of_large_data_follow_their_formulas():
    rng = np.random.default_rng(10)
    keys, queries, W = rng.standard_normal((2000, 9, 40)), rng.standard_normal((2000, 3)), rng.random((40, 3))
    rows = Constraints.of(Tokens(keys, queries), np.zeros(2000, int))
    margins = np.einsum("ntd,de,ne->nt", keys[:, :1] - keys, W, queries)
    assert np.allclose(rows.margins(W), margins, atol=EXACT * 100)
    multipliers = np.zeros((2000, 9))
    assert not rows.combine(multipliers).any()
    multipliers[7, 2], multipliers[1500, 8] = 2.0, 3.0
    expected = np.einsum("nt,ntd,ne->de", multipliers, keys[:, :1] - keys, queries)
    assert np.allclose(rows.combine(multipliers), expected, atol=EXACT)


def test_rows_can_be_appended_after_a_solve():
    rng = np.random.default_rng(7)
    A = rng.standard_normal((200, 12))
    A *= np.sign(A @ np.ones(12))[:, None]
    state = active_set.empty(200, 12)
    for part in np.split(np.arange(200), 4):
        length = dense.lengths(A[part])
        state.rows[part] = A[part] / length[:, None]
        active_set.append(state, 1 / length, np.zeros(50, bool))
        assert active_set.advance(state) == active_set.SOLVED
    assert np.allclose(state.p, dense.solve_rows(A, np.ones(200)).w, rtol=1e-10)


def test_fewer_rows_than_columns_are_solved_in_their_span():
    rng = np.random.default_rng(8)
    A = rng.standard_normal((6, 500))
    point = dense.solve_rows(A, np.ones(6))
    assert np.allclose(point.w, A.T @ point.multipliers, atol=EXACT)
    assert (A @ point.w).min() >= 1 - EXACT
    assert not dense.solve_rows(np.vstack([A, -A[:1]]), np.ones(7)).separable


def test_a_solution_of_a_smaller_pool_is_rejected():
    keys, best = planted(100, 16, 32)
    rows = Constraints.of(Tokens(keys), best)
    part = solve_frobenius(Constraints.of(Tokens(keys[:50]), best[:50]))
    padded = np.vstack([part.multipliers, np.zeros((50, 16))])
    assert certify(rows, frobenius, part.W, padded).worst > 1e-3
