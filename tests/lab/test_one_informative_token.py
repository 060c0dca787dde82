"""Data with one informative token: match and copy, sparse signals, one location; their closed forms."""

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.special import comb, erf
from scipy.stats import norm

import attsvm as att
from attsvm_lab import datasets
from attsvm_lab.datasets.one_location import zeta
from attsvm_lab.datasets.sparse_signals import cone_distance

FRESH = {
    "match_and_copy": lambda **more: datasets.match_and_copy(4, 3, 5, **more)[0],
    "sparse_signals": lambda **more: datasets.sparse_signals(4, 3, 5, **more)[0],
    "one_location": lambda **more: datasets.one_location(4, 3, 5, **more)[0],
}


@pytest.mark.parametrize("name", FRESH)
def test_fresh_inputs_share_no_draw_with_training_and_seeds_stack(name):
    train, fresh = FRESH[name](seed=3), FRESH[name](seed=3, fresh=4)
    assert fresh.keys.shape == train.keys.shape
    assert not np.isin(fresh.keys, train.keys).any()
    many = FRESH[name](seed=range(2, 5), fresh=4)
    np.testing.assert_array_equal(many.run(1).keys, fresh.keys)
    np.testing.assert_array_equal(many.run(1).values, fresh.values)


def test_fresh_inputs_keep_the_hidden_directions():
    signals = [datasets.sparse_signals(4, 3, 5, seed=1, fresh=fresh)[1] for fresh in (0, 7)]
    hidden = [datasets.one_location(4, 3, 5, seed=1, fresh=fresh)[1] for fresh in (0, 7)]
    np.testing.assert_array_equal(*signals)
    np.testing.assert_array_equal(hidden[0].k, hidden[1].k)
    assert abs(hidden[0].k @ hidden[0].v) < 1e-15


def test_the_matched_pair_alone_is_the_target():
    tokens, place = datasets.match_and_copy(50, 4, 6, seed=0)
    zero = (tokens.values == 0).all(-1)
    np.testing.assert_array_equal(zero, np.arange(4) == place[:, None])
    np.testing.assert_array_equal(tokens.keys[np.arange(50), place], tokens.queries)
    noisy, _ = datasets.match_and_copy(50, 4, 6, seed=0, target_noise=0.1)
    assert not (noisy.values == 0).all(-1).any()


@pytest.mark.parametrize("rows", [1, 3])
def test_signals_stand_on_so_many_rows_of_one_class(rows):
    tokens, xi = datasets.sparse_signals(200, 6, 4, 1e3, seed=0, rows=rows)
    marked = (tokens.keys @ xi > 500).sum(1)
    np.testing.assert_array_equal(marked, np.where(tokens.labels > 0, rows, 0))
    assert 60 < (tokens.labels > 0).sum() < 140


def test_the_response_is_what_the_marked_token_says():
    tokens, truth = datasets.one_location(200, 5, 300, seed=0)
    np.testing.assert_array_equal((tokens.keys @ truth.k).argmax(1), truth.place)  # √150 against N(0, 1)
    at = np.arange(200), truth.place
    np.testing.assert_allclose(tokens.keys[at] @ truth.v, truth.response, atol=1e-12)
    np.testing.assert_allclose(tokens.values[at], 0, atol=1e-12)


# ---------------------------------------------------------------------- the exact risk


@pytest.mark.parametrize(("t", "a"), [(0.0, 0.5), (0.7, 0.4), (-2.0, 1.5)])
def test_zeta_is_that_of_mpmath_and_its_slope_not_zeta_with_exchanged_arguments(t, a):
    exact = mp.quad(lambda g: mp.erf(t + a * g) ** 2 * mp.npdf(g), [-9, 0, 9])
    slope = (zeta(t + 1e-5, a) - zeta(t - 1e-5, a)) / 2e-5
    assert float(zeta(t, a)) == pytest.approx(float(exact), rel=1e-12)
    assert abs(float(zeta(a, t)) - float(slope)) > 1e-2  # what the published code takes for the slope


RISK = datasets.LocationRisk(d=20, T=6, variance=0.7, sharpness=0.6, noise=0.3)
ANYWHERE = datasets.Overlaps(0.3, 0.5, -0.4, 0.2, 0.1)


def test_the_risk_is_that_of_drawn_inputs_and_no_other():
    tokens, truth = datasets.one_location(30_000, 6, 20, seed=0, variance=0.7, noise=0.3)
    rng = np.random.default_rng(9)
    k, v = (x / np.linalg.norm(x) for x in rng.standard_normal((2, 20)) + 2 * np.stack([truth.k, truth.v]))
    at = datasets.Overlaps(k @ truth.k, v @ truth.v, k @ v, v @ truth.k, k @ truth.v)
    error = (truth.response - (erf(0.6 * (tokens.keys @ k)) * (tokens.keys @ v)).sum(1)) ** 2
    sampling = error.std() / np.sqrt(len(error))
    assert abs(error.mean() - RISK.value(at)) < 5 * sampling
    assert abs(error.mean() - RISK.on_manifold(at.kappa, at.nu)) > 20 * sampling


def test_on_the_manifold_the_risk_is_in_closed_form():
    at = datasets.Overlaps(np.array([0.4, -0.9]), np.array([0.6, 0.1]), *np.zeros((3, 2)))
    np.testing.assert_allclose(RISK.value(at), RISK.on_manifold(at.kappa, at.nu), rtol=1e-9)


@pytest.mark.parametrize("name", datasets.Overlaps._fields)
def test_the_gradient_of_the_risk_is_that_of_differences(name):
    step = 1e-6
    up, down = (ANYWHERE._replace(**{name: getattr(ANYWHERE, name) + s}) for s in (step, -step))
    expected = (RISK.value(up) - RISK.value(down)) / (2 * step)
    assert float(getattr(RISK.gradient(ANYWHERE), name)) == pytest.approx(float(expected), rel=1e-7)


# ---------------------------------------------------------------------- capacity


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_of_two_tokens_the_cone_is_a_half_plane(shift):
    mean = -shift / np.sqrt(2)
    exact = (1 + mean**2) * norm.cdf(mean) + mean * norm.pdf(mean)
    assert cone_distance(2, shift) == pytest.approx(exact, rel=5e-3)


def test_the_nearest_point_of_the_cone_is_that_of_a_solver():
    g = np.random.default_rng(0).standard_normal((3_000, 4))
    edges = np.concatenate([-np.ones((3, 1)), np.eye(3)], axis=1).T  # of the polar cone: e_t − e_1
    exact = [((edges @ nnls(edges, u)[0]) ** 2).sum() for u in g]
    assert abs(cone_distance(4, 0.0) - np.mean(exact)) < 4 * np.std(exact) / np.sqrt(len(exact))


def test_a_prompt_selects_one_of_two_as_often_as_cover_counts():
    n, d, runs = 12, 6, 400
    tokens, _ = datasets.planted(n, 2, d, seed=range(runs))
    exact = sum(comb(n - 1, k) for k in range(d)) / 2 ** (n - 1)  # one half: n = 2d is the capacity
    share = np.mean(att.separable(tokens, np.zeros(n, int)))
    assert datasets.capacity(2) == pytest.approx(2, rel=1e-12)
    assert exact == 0.5
    assert abs(share - exact) < 4 * np.sqrt(0.25 / runs)


def test_capacity_falls_with_tokens_and_grows_with_the_signal():
    several = [datasets.capacity(T) for T in (2, 4, 8)]
    assert several == sorted(several, reverse=True)
    assert datasets.capacity(4, 2.0) > 2 * datasets.capacity(4, 0.5) > 2 * datasets.capacity(4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: datasets.match_and_copy(T=1), "Pass T ≥ 2, a whole number"),
        (lambda: datasets.sparse_signals(T=3, rows=4), r"Pass 1 … 3"),
        (lambda: datasets.one_location(d=1), "d is 1. Pass d ≥ 2"),
        (lambda: datasets.capacity(1), "Pass T ≥ 2"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
