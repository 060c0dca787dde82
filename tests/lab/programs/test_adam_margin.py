"""The program of Adam in mini-batches: a fixed point of multipliers and the norm that they set."""

import cvxpy as cp
import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs
from tests.program.oracles import rows_of


def draw(seed, n=4, T=3, d=4):
    tokens, v = att.datasets.sphere(n=n, T=T, d=d, seed=seed)
    return tokens, att.best_tokens(tokens, v)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_fixed_point_solves_the_program_of_its_own_norm(batch):
    tokens, selected = draw(5)
    best = programs.adam_margin(tokens, selected, batch=batch)
    A, _, _ = rows_of(tokens, selected)
    w = cp.Variable(A.shape[1])
    size = cp.sum_squares(cp.multiply(np.sqrt(best.scale).ravel(), w))
    cp.Problem(cp.Minimize(size), [A @ w >= 1]).solve(solver=cp.CLARABEL)
    assert best.certified
    np.testing.assert_allclose(best.W.ravel(), w.value, atol=1e-5 * np.abs(w.value).max())


def test_where_all_gradients_of_an_entry_vanish_its_weight_is_bounded():
    tokens, selected = draw(0)  # an entry of P is 1e-11 of the largest
    best = programs.adam_margin(tokens, selected)
    assert best.certified and best.scale.min() < 1e-6
    longer = np.where(best.scale < 1e-6, 100 * best.W, best.W)
    assert not programs.AdamMargin(tokens, np.asarray(selected), 1, longer, best.multipliers).certified


@pytest.mark.parametrize("batch", [1, 2])
def test_the_norm_is_the_root_of_the_mean_square_of_batches(batch):
    from itertools import combinations

    tokens, selected = draw(1)
    best = programs.adam_margin(tokens, selected, batch=batch)
    keys, queries, winner = tokens.keys, tokens.queries, np.asarray(selected).argmax(1)
    each = [
        np.einsum("t,td,e->de", best.multipliers[i], keys[i, winner[i]] - keys[i], queries[i])
        for i in range(4)
    ]
    sums = [sum(each[i] for i in chosen) for chosen in combinations(range(4), batch)]
    P = np.sqrt(np.mean(np.square(sums), axis=0))
    np.testing.assert_allclose(best.scale, P / P.max(), rtol=1e-9)


def test_multipliers_of_other_programs_are_no_fixed_point():
    tokens, selected = draw(2)
    best = programs.adam_margin(tokens, selected)
    assert best.certified
    for norm in (att.frobenius, att.linf):
        lam = att.max_margin(tokens, selected, norm).token_multipliers
        lam = np.maximum(lam, 0) / np.maximum(lam, 0).sum()
        assert not programs.AdamMargin(tokens, np.asarray(selected), 1, best.W, lam).certified


def test_examples_of_one_size_in_every_entry_have_the_frobenius_margin():
    # Rows a (±1, …, ±1): P is the same in every entry (Baek, Song and Yun, Theorem on batches of one).
    rng = np.random.default_rng(0)
    rows = rng.choice([-1.0, 1.0], (5, 12)) * np.linspace(1, 2, 5)[:, None]
    tokens = att.Tokens(np.stack([rows, 0 * rows], 1))
    best = programs.adam_margin(tokens, [0] * 5)
    frobenius = att.max_margin(tokens, [0] * 5)
    assert best.certified
    np.testing.assert_allclose(best.W, frobenius.W, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_scale_of_tokens_does_not_matter(scale):
    tokens, selected = draw(3)
    one = programs.adam_margin(tokens, selected)
    other = programs.adam_margin(att.Tokens(scale * tokens.keys, tokens.queries), selected)
    assert other.certified
    np.testing.assert_allclose(other.W * scale, one.W, rtol=1e-6, atol=1e-9)


def test_no_weight_has_a_larger_share_than_the_fixed_point():
    tokens, selected = draw(4)
    best = programs.adam_margin(tokens, selected)
    assert best.share(best.W) == pytest.approx(1.0)
    weights = [att.max_margin(tokens, selected, norm).W for norm in (att.frobenius, att.linf, att.nuclear)]
    rng = np.random.default_rng(0)
    weights += [best.W + 0.1 * rng.standard_normal(best.W.shape) for _ in range(20)]
    assert all(best.share(W) < 1 for W in weights)


def test_one_example_of_one_row_has_the_sign_of_its_row():
    tokens = att.Tokens(np.array([[[3.0, -1.0], [0.0, 0.0]]]))
    np.testing.assert_allclose(np.sign(programs.adam_margin(tokens, [0]).W).ravel(), [1, -1])


def test_a_wrong_batch_or_an_inseparable_selection_is_refused():
    tokens, selected = draw(0)
    for batch in (0, 4, 1.5):
        with pytest.raises(ValueError, match="batch is"):
            programs.adam_margin(tokens, selected, batch=batch)
    keys = np.array([[[1.0], [0.0]], [[0.0], [1.0]]])
    with pytest.raises(att.NotSeparable):
        programs.adam_margin(att.Tokens(keys), [0, 0])
    with pytest.raises(ValueError, match="several tokens"):
        programs.adam_margin(tokens, np.ones((4, 3), bool))
