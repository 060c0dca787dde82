"""Is the smallest loss found? Regularisation paths against searches that share no code with the package."""

import os
import signal
from functools import cache

import numpy as np
import pytest

from attsvm import Interrupted, datasets
from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius, nuclear, spectral
from attsvm.training import search, segments
from attsvm.training.prediction_heads import Linear, QuadraticPenalty
from attsvm.training.regularise import regularisation_path

SHARE = 1e-4
"""Accuracy of the independent search: it may end this share of the loss above a minimum."""


@cache
def hidden_minimum():
    """Tokens whose path from radius 1 leads every branch to 0.6595 at radius 30; 0.5857 lies in the ball."""
    rng = np.random.default_rng(1)
    keys, queries, v = rng.standard_normal((3, 4, 3)), rng.standard_normal((3, 3)), rng.standard_normal(3)
    return Tokens(keys, queries, [1, -1, 1]), v


def loss_and_slope(tokens, v, W, strength=0.0):
    """The textbook mean logistic loss of weights (m, d, e) and its gradient."""
    X, z, Y = tokens.keys, tokens.queries, tokens.labels
    logits = np.einsum("ntd,mde,ne->mnt", X, W, z, optimize=True)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    pooled = np.einsum("mnt,ntd->mnd", s, X)
    f = Y * (pooled @ v - strength * (pooled**2).sum(-1))
    gain = np.einsum("ntd,mnd->mnt", X, v - 2 * strength * pooled) * Y[:, None]
    pull = (-1 / (1 + np.exp(f)) / len(Y))[..., None] * s * (gain - (s * gain).sum(-1, keepdims=True))
    return np.logaddexp(0, -f).mean(-1), np.einsum("mnt,ntd,ne->mde", pull, X, z, optimize=True)


def inside(W, norm, radius):
    """Projection of weights (m, d, e) on the ball, through their singular values."""
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    if norm == frobenius:
        sigma = sigma * np.minimum(1, radius / np.linalg.norm(sigma, axis=-1, keepdims=True))
    elif norm == spectral:
        sigma = np.minimum(sigma, radius)
    else:
        excess = (np.cumsum(sigma, -1) - radius) / np.arange(1, sigma.shape[-1] + 1)
        sigma = np.maximum(sigma - np.maximum(excess.max(-1, keepdims=True), 0), 0)
    return (U * sigma[:, None]) @ Vt


@cache
def smallest_loss(tokens, head, norm, radius, strength=0.0):
    """The best of 60 searches by projected gradients with halved steps."""
    v, rng = np.array(head), np.random.default_rng(0)
    W = radius * rng.standard_normal((60, tokens.d, tokens.e)) * 10 ** rng.uniform(-2, 1, (60, 1, 1))
    W, step = inside(W, norm, radius), np.full((60, 1, 1), radius / 10)
    loss, slope = loss_and_slope(tokens, v, W, strength)
    for _ in range(250):
        length = np.linalg.norm(slope, axis=(1, 2), keepdims=True)
        there = inside(W - step * slope / np.maximum(length, 1e-300), norm, radius)
        new, turned = loss_and_slope(tokens, v, there, strength)
        lower = (new < loss)[:, None, None]
        W, slope, step = (
            np.where(lower, there, W),
            np.where(lower, turned, slope),
            np.minimum(step * np.where(lower, 1.3, 0.5), radius),
        )
        loss = np.minimum(loss, new)
    return loss.min()


def test_the_independent_search_knows_the_hidden_minimum():
    tokens, v = hidden_minimum()
    assert smallest_loss(tokens, tuple(v), nuclear, 30.0) < 0.5871


@pytest.mark.parametrize("seed", range(3))
def test_a_minimum_that_no_branch_leads_to_is_found(seed):
    tokens, v = hidden_minimum()
    path = regularisation_path(tokens, Linear(v), norm=nuclear, radii=(1, 30), seed=seed)
    assert path.loss[-1] <= smallest_loss(tokens, tuple(v), nuclear, 30.0) * (1 + SHARE)
    assert path.stopped == "converged"


def test_without_fresh_starts_the_branch_from_the_first_radius_is_all_there_is(monkeypatch):
    tokens, v = hidden_minimum()
    fresh, calls = search.fresh_endpoints, iter(range(2))

    def once(*arguments):
        answer, radius = fresh(*arguments)
        return answer if next(calls) == 0 else answer._replace(rank=np.full_like(answer.rank, np.inf)), radius

    monkeypatch.setattr(search, "fresh_endpoints", once)
    blind = regularisation_path(tokens, Linear(v), norm=nuclear, radii=(1, 30))
    assert blind.loss[-1] > 1.1 * smallest_loss(tokens, tuple(v), nuclear, 30.0)


def test_starts_that_follow_one_branch_are_not_said_to_agree():
    def answer(*rank):
        nothing = np.zeros((1, 3), bool)
        found = dict.fromkeys(search.Endpoint._fields, nothing)
        return search.Endpoint(**found | {"rank": np.array([rank]), "head": Linear(nothing), "params": {}})

    better, same = search.compared(answer(1.0, 1.0, 1.0), answer(0.0, 1.0, 2.0))
    assert (better.tolist(), same.tolist()) == ([[True, False, False]], [[True, False, False]])
    assert not search.compared(answer(0.0, 0.0, 0.0), answer(1.0, 2.0, np.inf))[1].any()


@pytest.mark.parametrize(
    ("norm", "strength", "seed"),
    [(frobenius, 0.0, 0), (nuclear, 0.0, 1), (spectral, 0.0, 0), (frobenius, 0.5, 1)],
    ids=str,
)
def test_no_independent_search_finds_a_smaller_loss(norm, strength, seed):
    tokens, v = datasets.sphere(3, 4, 3, seed=seed)
    head = QuadraticPenalty(v, strength) if strength else Linear(v)
    path = regularisation_path(tokens, head, norm=norm, radii=(1, 20))
    assert path.loss[-1] <= smallest_loss(tokens, tuple(v), norm, 20.0, strength) * (1 + SHARE)


# ---------------------------------------------------------------------- prompts in the plane


RADII = np.array([0.7, 3.3, 17.0])


@cache
def prompts():
    """Prompts of width 2; the first has a minimum at radius 17 that only a rare random start finds."""
    rng = np.random.default_rng(0)
    keys, v, labels = (
        rng.standard_normal((100, 3, 8, 2)),
        rng.standard_normal((100, 2)),
        rng.choice([-1, 1], (100, 3)),
    )
    some = [69, *range(7)]
    return Tokens(keys[some], None, labels[some]), v[some]


def smallest_in_the_plane(tokens, v, radius):
    """The smallest loss over a grid of directions and lengths in the disc."""
    angle, length = np.linspace(0, 2 * np.pi, 720, endpoint=False), radius * np.linspace(0, 1, 40)
    points = length[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return loss_and_slope(tokens, v, points.reshape(-1, 2, 1))[0].min()


@cache
def plane_path():
    tokens, v = prompts()
    return regularisation_path(tokens, Linear(v), radii=RADII)


def test_no_point_of_a_grid_in_the_plane_has_a_smaller_loss():
    tokens, v = prompts()
    least = [[smallest_in_the_plane(tokens.run(k), v[k], R) for R in RADII] for k in range(tokens.runs)]
    assert (plane_path().loss <= np.array(least) + 1e-6).all()
    assert (np.array(least) <= plane_path().loss + 1e-2).all()  # the grid is fine enough to find it, too


@pytest.mark.parametrize("k", range(len(RADII)))
def test_radii_together_are_never_worse_than_a_radius_alone(k):
    tokens, v = prompts()
    alone, limits = regularisation_path(tokens, Linear(v), radii=RADII[[k]]), search.LIMITS
    worse = plane_path().log_excess[:, k] - alone.log_excess[:, 0]
    assert (worse <= 10 * limits.switch * limits.agreement).all()


def test_starts_do_not_all_agree_where_the_minimum_is_rare():
    assert 1 <= plane_path().agreed[0, -1] <= 4 < plane_path().agreed[1:].min()


# ---------------------------------------------------------------------- tokens and radii of every size


@pytest.fixture(scope="module")
def unit():
    tokens, v = hidden_minimum()
    return regularisation_path(tokens, Linear(v), radii=(1, 30), starts=4)


@pytest.mark.parametrize("size", [1e-300, 1e-80, 1e80, 1e290])
def test_tokens_times_s_and_radii_over_s_are_one_problem(size, unit):
    tokens, v = hidden_minimum()
    other = Tokens(size * tokens.keys, tokens.queries, tokens.labels, values=tokens.keys)
    path = regularisation_path(other, Linear(v), radii=np.array([1, 30]) / size, starts=4)
    np.testing.assert_allclose(path.loss, unit.loss, rtol=1e-6)
    np.testing.assert_allclose(size * path.W, unit.W, rtol=0, atol=1e-3)
    assert path.stopped == "converged"


@pytest.mark.parametrize("size", [1e-300, 1e-80])
def test_tiny_tokens_lead_along_the_gradient_at_zero(size):
    tokens, v = hidden_minimum()
    tiny = Tokens(size * tokens.keys, tokens.queries, tokens.labels, values=tokens.keys)
    W = regularisation_path(tiny, Linear(v), radii=(1, 30), starts=3).final
    slope = loss_and_slope(tokens, v, np.zeros((1, 3, 3)))[1][0]
    np.testing.assert_allclose(W, -30 * slope / np.linalg.norm(slope), atol=1e-5)


@pytest.mark.parametrize("radii", [(1, 1e300), (1e300,)], ids=str)
def test_a_radius_that_float64_cannot_resolve_is_refused(radii):
    tokens, v = hidden_minimum()
    with pytest.raises(ValueError, match=r"radii reach 1e\+300.* max_margin"):
        regularisation_path(tokens, Linear(v), radii=radii)


def test_a_head_radius_that_float64_cannot_resolve_is_refused():
    tokens, v = hidden_minimum()
    with pytest.raises(ValueError, match=r"head_radii reach 1e\+300"):
        regularisation_path(tokens, Linear(v), radii=(1, 30), head_radii=(1, 1e300))


# ---------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def ctrl_c(monkeypatch):
    """A real SIGINT after so many compiled calls."""

    def after(calls):
        best_weight, count = search.best_weight, iter(range(10**9))

        def pressing(*arguments):
            if next(count) == calls:
                os.kill(os.getpid(), signal.SIGINT)
            return best_weight(*arguments)

        monkeypatch.setattr(search, "best_weight", pressing)
        monkeypatch.setattr(segments, "SEGMENT", 0.0)

    return after


def calls_of_a_path(tokens, v, radii):
    return regularisation_path(tokens, Linear(v), radii=radii, starts=2)


def test_an_interrupted_path_holds_the_radii_solved_so_far(ctrl_c, monkeypatch):
    tokens, v = hidden_minimum()
    radii = np.geomspace(1, 100, 6)
    whole = calls_of_a_path(tokens, v, radii)
    monkeypatch.setattr("attsvm.training.regularise.first_steps", lambda *_: 50)
    ctrl_c(600)
    with pytest.raises(Interrupted) as interrupted:
        calls_of_a_path(tokens, v, radii)
    path = interrupted.value.path
    assert 0 < len(path.index) < 6
    np.testing.assert_array_equal(path.W, whole.W[: len(path.index)])


def test_a_path_interrupted_before_its_first_radius_is_none(ctrl_c):
    ctrl_c(0)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        calls_of_a_path(*hidden_minimum(), (1, 30))
    assert interrupted.value.path is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
