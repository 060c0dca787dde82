"""Regularisation paths against convex programs, closed forms and the limits of the theorems."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from attsvm import datasets
from attsvm.data.path import Path
from attsvm.data.selection import TiedScores, best_tokens, scores
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, frobenius, l1, nuclear
from attsvm.training import attention
from attsvm.training.data import arrays
from attsvm.training.losses import logistic
from attsvm.training.prediction_heads import Linear, QuadraticPenalty
from attsvm.training.regularise import regularisation_path
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery
from tests.training.geometry import angle, max_margin, rows

RADII = np.array([10.0, 100, 1000])
RUNS, STARTS = 2, 2
CASES = {
    "Frobenius": (frobenius, FullWeight()),
    "nuclear": (nuclear, FullWeight()),
    "(K, Q)": (nuclear, KeyQuery()),
    "l1.5": (Entrywise(1.5), FullWeight()),
    "l3": (Entrywise(3), FullWeight()),
}


@cache
def problem():
    return datasets.sphere(n=3, T=4, d=4, seed=range(RUNS))


@cache
def path(case, last=1000.0):
    norm, weight = CASES[case]
    tokens, v = problem()
    return regularisation_path(
        tokens, Linear(v), norm=norm, weight=weight, radii=[*RADII[:-1], last], starts=STARTS
    )


@cache
def best_margin(norm, run):
    """The largest margin of the best tokens in the unit ball of a norm, by a general convex solver."""
    cp = pytest.importorskip("cvxpy")
    A, _ = best_rows(run)
    W, margin = cp.Variable(A.shape[1:]), cp.Variable()
    size = cp.normNuc(W) if norm == nuclear else cp.pnorm(cp.vec(W, order="C"), norm.p)
    above = A.reshape(len(A), -1) @ cp.vec(W, order="C") >= margin
    return cp.Problem(cp.Maximize(margin), [size <= 1, above]).solve(solver="CLARABEL")


def best_rows(run):
    tokens, v = problem()
    return rows(tokens.run(run), scores(tokens.run(run), v[run]).argmax(-1))


def margin(W, A):
    return np.einsum("...de,mde->...m", W, A).min(-1)


def log_slack(run):
    """How much margin the smallest loss may give away: log of T Σ_j c_j / min_j c_j.

    Every losing token j adds between c_j e^(−margin_j)/T and C_j e^(−margin_j) to n (L − L*), with
    c, C = gap · |ℓ'| at the best and at the worst score. L(W_R) ≤ L(R · best direction) gives the rest.
    """
    tokens, v = problem()
    gamma = scores(tokens.run(run), v[run])
    gap = np.array([gamma[i].max() - gamma[i, t] for i, t in best_rows(run)[1]])
    slope = 1 / (1 + np.exp([gamma.max(), gamma.min()]))
    return np.log(tokens.T * (slope[1] * gap).sum() / (slope[0] * gap).min())


# ---------------------------------------------------------------------- the global path


@pytest.mark.parametrize("case", CASES)
def test_the_margin_is_the_best_of_the_norm_up_to_a_constant(case):
    norm, found = CASES[case][0], path(case)
    for run in range(RUNS):
        best = best_margin(norm, run)
        reached = margin(found.W[run], best_rows(run)[0])
        assert (reached <= RADII * best * (1 + 1e-4)).all()  # 1e-4: the general solver's accuracy
        assert (reached >= RADII * best * (1 - 1e-4) - log_slack(run))[1:].all()


@pytest.mark.parametrize("run", range(RUNS))
def test_the_angle_to_the_program_falls_like_one_over_the_radius(run):
    W = max_margin(best_rows(run)[0])
    angles = np.array([angle(found, W) for found in path("Frobenius").W[run]])
    assert (np.diff(angles) < 0).all()
    # cos ≥ margin / best margin, since W is a combination of the rows with its margin as the sum.
    assert 1 - np.cos(angles[-1]) <= log_slack(run) * np.linalg.norm(W) / RADII[-1]
    assert angles[-1] * RADII[-1] <= 1.5 * angles[-2] * RADII[-2]


@jax.jit
@jax.vmap
@partial(jax.vmap, in_axes=(None, None, 0))
def mantissa(data, v, W):
    look = attention.attend(data, W)
    return attention.gradient(data, look, attention.read(data, look, Linear(v)), logistic).mantissa


def slopes(W):
    """Mantissas of the gradient at weights (runs, k, d, e)."""
    tokens, v = problem()
    with jax.enable_x64(True):
        return np.asarray(mantissa(jax.device_put(arrays(tokens)), jnp.asarray(v), jnp.asarray(W)))


@pytest.mark.parametrize("case", CASES)
def test_gradient_and_weight_are_dual_at_every_radius(case):
    norm, found = CASES[case][0], path(case)
    G = slopes(found.W)
    aligned = -(G * found.W).sum((-2, -1)) / (norm.dual.value(G) * RADII)
    np.testing.assert_allclose(aligned, 1, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_path_lies_on_spheres_converges_and_its_loss_falls(case):
    norm, found = CASES[case][0], path(case)
    np.testing.assert_allclose(found.norm(norm), np.tile(RADII, (RUNS, 1)), rtol=1e-6)
    assert (found.stopped == "converged").all()
    assert (np.diff(found.log_excess) < 0).all()
    assert ((found.agreed >= 0) & (found.agreed <= STARTS)).all()


def test_nuclear_ball_and_factors_find_the_same_margin():
    for run in range(RUNS):
        A = best_rows(run)[0]
        np.testing.assert_allclose(
            margin(path("nuclear").W[run], A), margin(path("(K, Q)").W[run], A), rtol=1e-4
        )
    squares = (path("(K, Q)").K ** 2).sum((-2, -1)) + (path("(K, Q)").Q ** 2).sum((-2, -1))
    np.testing.assert_allclose(squares, np.tile(2 * RADII, (RUNS, 1)), rtol=1e-9)


@pytest.mark.parametrize("norm, other", [("nuclear", "Frobenius"), ("Frobenius", "nuclear"), ("l3", "l1.5")])
def test_the_path_of_another_norm_does_not_win(norm, other):
    N = CASES[norm][0]
    for run in range(RUNS):
        A = best_rows(run)[0]
        own, foreign = (margin(path(c).final[run], A) / N.value(path(c).final[run]) for c in (norm, other))
        assert foreign < 0.995 * own


def test_nothing_underflows_at_a_radius_of_a_hundred_thousand():
    found = path("Frobenius", last=1e5)
    for run in range(RUNS):
        A = best_rows(run)[0]
        W = max_margin(A)
        assert margin(found.final[run], A) >= 1e5 / np.linalg.norm(W) - log_slack(run)
        assert angle(found.final[run], W) <= 0.02 * angle(path("Frobenius").final[run], W)
    assert (found.log_excess[:, -1] < -1e3).all()
    assert (found.stopped == "converged").all()


def test_a_run_alone_gives_what_it_gives_among_others():
    tokens, v = problem()
    alone = regularisation_path(tokens.run(1), Linear(v[1]), radii=RADII[:2], starts=STARTS)
    np.testing.assert_allclose(alone.W, path("Frobenius").W[1, :2], rtol=0, atol=1e-5 * RADII[1])
    assert alone.W.shape == (2, 4, 4)
    assert alone.agreed.shape == (2,)


def test_diagonal_factors_take_the_l1_ball():
    tokens, v = datasets.sphere(n=1, T=2, d=3, seed=0)
    weight = Diagonal(2)
    W = regularisation_path(tokens, Linear(v), norm=l1, weight=weight, radii=[300.0], starts=2).final
    largest = np.abs((tokens.keys[0, 0] - tokens.keys[0, 1]) * tokens.queries[0]).argmax()
    assert abs(W[largest, largest]) == pytest.approx(300, rel=1e-5)
    assert np.abs(W).sum() == pytest.approx(300, rel=1e-5)


def test_where_no_weight_separates_the_minimum_stays_inside():
    keys = np.array([[[0.0], [1]], [[0], [1]]])  # one key difference, two opposite wishes
    tokens = Tokens(keys, values=np.array([[[0.0], [2]], [[1.5], [0]]]))
    found = regularisation_path(tokens, Linear([1.0]), radii=[0.1, 100.0], starts=2)

    def loss(w):
        return np.logaddexp(0, -2 / (1 + np.exp(-w))) + np.logaddexp(0, -1.5 / (1 + np.exp(w)))

    assert found.final.item() == pytest.approx(minimize_scalar(loss, bracket=(-5, 0, 5)).x, abs=1e-4)


def test_a_head_that_rewards_mixing_keeps_the_attention_of_its_closed_form():
    gamma, strength = np.array([0.9, 0.6, 0.1]), 0.5
    tokens = Tokens(np.eye(3)[None])
    found = regularisation_path(tokens, QuadraticPenalty(gamma, strength), radii=[1.0, 30.0], starts=3)
    # argmax over the simplex of γᵀs − strength ‖s‖²: the projection of γ/(2·strength) on the simplex.
    expected = np.maximum(gamma - 0.25, 0)
    np.testing.assert_allclose(found.attention[-1, 0], expected, atol=1e-6)


# ---------------------------------------------------------------------- ridge


def test_a_ridge_balances_the_gradient_and_lies_on_the_path():
    tokens, v = problem()
    ridges = np.array([1e-2, 1e-20, 1e-200])
    found = regularisation_path(tokens.run(0), Linear(v[0]), ridge=ridges, starts=STARTS)
    radii = found.norm()
    ball = regularisation_path(tokens.run(0), Linear(v[0]), radii=radii, starts=STARTS)
    np.testing.assert_allclose(found.W, ball.W, rtol=0, atol=1e-5 * radii[-1])
    # dL/dR = −λR along the path; L − L* = e^log_excess, so d log_excess/dR = −λR e^(−log_excess).
    step = 1e-3 * radii[-1]
    near = regularisation_path(
        tokens.run(0), Linear(v[0]), radii=radii[-1] + step * np.array([-1, 1]), starts=STARTS
    )
    slope = np.diff(near.log_excess)[0] / (2 * step)
    assert np.log(-slope) + found.log_excess[-1] == pytest.approx(np.log(ridges[-1] * radii[-1]), abs=1e-4)
    assert found.kind == "ridge"
    assert found.stopped == "converged"


# ---------------------------------------------------------------------- record and bad input


def test_a_saved_path_keeps_how_many_starts_agreed(tmp_path):
    path("Frobenius").save(tmp_path / "path.npz")
    loaded = Path.load(tmp_path / "path.npz")
    np.testing.assert_array_equal(loaded.agreed, path("Frobenius").agreed)
    np.testing.assert_array_equal(loaded.run(1).agreed, path("Frobenius").agreed[1])
    assert loaded.kind == "radius"


BAD = {
    "pass either radii, or ridge": {},
    "radii must be strictly increasing": {"radii": [2.0, 1.0]},
    r"radii is \[0.0": {"radii": [0.0, 1.0]},
    r"radii is \[nan": {"radii": [np.nan]},
    "radii is 'far'": {"radii": "far"},
    r"radii is \['1'": {"radii": ["1", "2"]},
    r"radii is \[True": {"radii": [True]},
    "Diagonal has 3 factors": {"radii": [1.0], "weight": Diagonal(3), "norm": l1},
    "around.W is not an array": {"radii": [1.0], "around": SimpleNamespace(W="far")},
    "ridge must be strictly decreasing": {"ridge": [0.1, 0.2]},
    "starts is 0": {"radii": [1.0], "starts": 0},
    "seed is -1": {"radii": [1.0], "seed": -1},
    "is not a norm": {"radii": [1.0], "norm": 2},
    "is not a weight": {"radii": [1.0], "weight": KeyQuery},
    "is not a loss": {"radii": [1.0], "loss": "logistic"},
    "Pass norm=nuclear": {"radii": [1.0], "weight": KeyQuery()},
    "head_radii has 1 entries": {"radii": [1.0, 2.0], "head_radii": [1.0]},
    "ridge takes a fixed head": {"ridge": [1.0], "head_radii": [1.0]},
    "around.W has shape": {"radii": [1.0], "around": SimpleNamespace(W=np.ones(3))},
    "around.W is zero": {"radii": [1.0], "around": SimpleNamespace(W=np.zeros((4, 4)))},
    "cone is 2": {"radii": [1.0], "around": SimpleNamespace(W=np.ones((4, 4))), "cone": 2},
    "Drop ridge": {"ridge": [1.0], "around": SimpleNamespace(W=np.ones((4, 4)))},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    tokens, v = datasets.sphere(2, 3, 4, seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        regularisation_path(tokens, Linear(v), **BAD[message])


def test_a_head_of_wrong_width_is_named():
    tokens, v = datasets.sphere(2, 3, 4, seed=0)
    with pytest.raises(ValueError, match="3 wide but the values are 4 wide"):
        regularisation_path(tokens, Linear(v[:3]), radii=[1.0])


@pytest.mark.filterwarnings("error")
def test_where_no_token_loses_the_path_stays_at_zero_and_all_starts_agree():
    alone, alike = np.array([[[1.0, 2.0]], [[0.5, -1.0]]]), np.array([[[1.0, 2.0], [1.0, 2.0]]])
    for keys in (alone, alike):  # the excess is −∞ everywhere
        found = regularisation_path(Tokens(keys), Linear([1.0, 1.0]), radii=[1.0, 10.0], starts=2)
        assert not found.W.any() and (found.agreed == 2).all() and (found.log_excess == -np.inf).all()


def test_tokens_of_one_key_count_by_the_mean_of_their_values():
    random = np.random.default_rng(0)
    keys, values, head = (
        random.standard_normal((3, 4, 4)),
        random.standard_normal((3, 4, 2)),
        Linear([1.0, 0.5]),
    )
    keys[:, 1] = keys[:, 0]
    mean = values.copy()
    mean[:, :2] = values[:, :2].mean(1, keepdims=True)
    by_hand = Tokens(keys, values=mean)
    path, other = (
        regularisation_path(each, head, radii=[100.0, 1e5], starts=2)
        for each in (Tokens(keys, values=values), by_hand)
    )
    assert np.array_equal(path.W, other.W) and np.array_equal(path.log_excess, other.log_excess)
    assert np.array_equal(path.tokens.values, values)
    with pytest.warns(TiedScores):  # one of the two will do: no weight tells them apart
        best = best_tokens(by_hand, head.v).argmax(1)
    delta = np.take_along_axis(keys, best[:, None, None], 1) - keys
    limit = max_margin(delta[(delta != 0).any(-1)][..., None])
    assert angle(path.final, limit) < 5e-5 < angle(path.W[0], limit)  # 0.5/R


@pytest.mark.parametrize("size", [1e-170, 1e170])
def test_scores_that_no_number_holds_have_no_path(size):
    tokens, v = datasets.sphere(2, 3, 4, seed=0)
    for scaled in (Tokens(tokens.keys, values=size * tokens.keys), Tokens(size * tokens.keys)):
        with pytest.raises(ValueError, match=r"scores reach .*beyond float64"):
            regularisation_path(scaled, Linear(size * v), radii=[1 / np.abs(scaled.keys).max()])
