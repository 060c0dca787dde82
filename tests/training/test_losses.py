"""Losses known through their logarithms."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from attsvm.training.losses import correlation, exponential, logistic

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
