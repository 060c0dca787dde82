"""Losses known through their logarithms."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from attsvm import Linear, MultiHead, Tokens, frobenius, gd, regularisation_path, train
from attsvm.training.losses import correlation, exponential, log_loss, logistic

pytestmark = pytest.mark.quick

EXACT = {
    logistic: lambda f: mp.log1p(mp.exp(-f)),
    exponential: lambda f: mp.exp(-f),
    correlation: lambda f: -f,
}
DROPS = [1e-300, 1e-20, 1e-8, 0.3, 0.999, 1.0, 1.001, 30.0, 800.0]


@pytest.mark.parametrize("loss", EXACT, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("f", [-40.0, -1.0, 0.0, 2.0, 50.0])
def test_the_increase_of_a_loss_is_exact_for_drops_of_every_size(loss, f):
    with jax.enable_x64(True):
        ours = loss.log_increase(jnp.full(len(DROPS), f), jnp.log(jnp.asarray(DROPS)))
    with mp.workdps(400):
        exact = [float(mp.log(EXACT[loss](mp.mpf(f) - d) - EXACT[loss](mp.mpf(f)))) for d in DROPS]
    np.testing.assert_allclose(ours, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("loss", EXACT, ids=lambda loss: type(loss).__name__)
def test_the_slope_is_the_derivative_of_the_value(loss):
    with jax.enable_x64(True):
        f = jnp.linspace(-30, 30, 25)
        slope = jax.vmap(jax.grad(loss.value))(f)
        np.testing.assert_allclose(-jnp.exp(loss.log_slope(f)), slope, rtol=1e-12)


@pytest.mark.parametrize("loss", EXACT, ids=lambda loss: type(loss).__name__)
def test_no_drop_is_no_increase(loss):
    with jax.enable_x64(True):
        assert loss.log_increase(jnp.asarray(1.0), jnp.asarray(-jnp.inf)) == -jnp.inf


def test_the_slope_of_the_logistic_loss_is_known_where_it_underflows():
    with jax.enable_x64(True):
        assert float(logistic.log_slope(jnp.asarray(5_000.0))) == -5_000.0


@pytest.mark.parametrize("f", [1e-9, 0.5, 1.0])
def test_the_log_loss_rises_exactly_up_to_where_it_ends(f):
    drops = f * np.array([1e-300, 1e-20, 1e-8, 0.3, 0.999, 1 - 1e-12])
    with jax.enable_x64(True):
        ours = log_loss.log_increase(jnp.full(len(drops), f), jnp.asarray(np.log(drops)))
        assert log_loss.log_increase(jnp.asarray(f), jnp.log(jnp.asarray(f))) == jnp.inf
    with mp.workdps(400):
        exact = [float(mp.log(-mp.log1p(-mp.mpf(float(d)) / mp.mpf(f)))) for d in drops]
    # Near its end, 1 − δ/f has the rounding of δ/f: one bit of 1e-12.
    np.testing.assert_allclose(ours[:5], exact[:5], rtol=1e-12, atol=1e-12)
    assert ours[5] == pytest.approx(exact[5], rel=1e-4)


def test_the_log_loss_of_what_no_attention_makes_positive_is_refused_in_words():
    keys = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    tokens, fine = (Tokens(keys, values=np.array(v)[None, :, None]) for v in ([-1.0, 0.0], [1.0, 0.0]))
    for use in (
        lambda data, head: train(data, head, loss=log_loss, optimizer=gd(0.1), steps=2),
        lambda data, head: regularisation_path(data, head, loss=log_loss, norm=frobenius, radii=[1.0]),
    ):
        with pytest.raises(
            ValueError, match=r"of a positive number, and example 0 has scores up to 0: no att"
        ):
            use(tokens, Linear(np.ones(1)))
        with pytest.raises(ValueError, match="−log of a positive number"):
            use(fine, Linear(np.array([[1.0], [-1.0]])))  # of two runs, one
        assert np.isfinite(use(fine, Linear(np.ones(1))).loss).all()


def test_of_several_heads_the_sum_must_become_positive():
    tokens = Tokens(np.ones((2, 3, 2, 2)) * [1.0, 2.0], values=np.ones((3, 2, 1)))
    both = np.array([[2.0], [-1.0]])
    for v in (both, np.stack([both, both])):
        path = train(tokens, Linear(v), weight=MultiHead(2), loss=log_loss, optimizer=gd(0.1), steps=2)
        np.testing.assert_allclose(path.loss, 0, atol=1e-14)  # −log(2 − 1)
    with pytest.raises(ValueError, match="example 0 has scores up to -1:"):
        train(tokens, Linear(both - 1), weight=MultiHead(2), loss=log_loss, optimizer=gd(0.1), steps=2)


def test_the_log_loss_trains_among_negative_scores_as_long_as_their_mean_is_positive():
    keys = np.array([[1.0, 0.0, 0.4], [0.3, -1.0, 0.0]])[..., None]

    def mean_loss(w, gamma):  # ∞ where it has no value
        s = np.exp(keys[..., 0] * w)
        f = (s * gamma).sum(1) / s.sum(1)
        return -np.log(np.where(f > 0, f, 0)).mean() if (f > 0).all() else np.inf

    gamma = np.array([[1.0, -2.0, 0.1], [0.2, 0.3, -0.1]])  # f > 0 from W = 0.6 on
    tokens, head = Tokens(keys, values=gamma[..., None]), Linear(np.ones(1))
    path = regularisation_path(tokens, head, loss=log_loss, radii=[0.5, 2.0], starts=2)
    least = [min(mean_loss(w, gamma) for w in np.linspace(-r, r, 4001)) for r in path.index]
    np.testing.assert_allclose(np.nan_to_num(path.loss, nan=np.inf), least, rtol=1e-6)
    assert path.stopped == "steps"  # not "converged": the first ball has no point with a loss
    init = np.array([[[1.5]], [[0.0]]])
    runs = train(tokens, head, loss=log_loss, optimizer=gd(0.1), steps=100, init=init, record=[0])
    assert list(runs.stopped) == ["steps", "diverged"]
    assert runs.loss[0, -1] == pytest.approx(mean_loss(runs.final[0].item(), gamma), rel=1e-12)
    assert runs.loss[0, -1] < mean_loss(1.5, gamma) - 0.1 and np.isnan(runs.loss[1]).all()
