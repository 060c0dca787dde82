"""Optimizers: the geometry of their steps, and what they do past underflow."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import block_diag

from attsvm import Entrywise, LongestRow, Schatten, frobenius, l1, linf, nuclear, spectral
from attsvm.datasets import sphere
from attsvm.norms import RowWise
from attsvm.training.optimizers import gd, mirror, per_block, polyak, scale_free, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery

pytestmark = pytest.mark.quick

NORMS = [l1, linf, frobenius, nuclear, spectral, Entrywise(3), Schatten(1.5), LongestRow(), RowWise(3)]
TINY = -5_000.0


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def one_step(optimizer, grads, params=None, **known):
    """NumPy's arrays, by one program: each operation on its own would be another to compile."""

    def step(grads, params, known):
        params = jax.tree.map(jnp.zeros_like, grads) if params is None else params
        return optimizer.update(grads, optimizer.init(params), params, **known)[0]

    return jax.tree.map(np.asarray, jax.jit(step)(grads, params, known))


def matrix(seed=0, shape=(4, 3)):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_steepest_step_has_length_lr_and_the_largest_decrease(norm):
    G = matrix()
    step = one_step(steepest(norm, 0.1), {"W": G})["W"]
    assert float(norm.value(step)) == pytest.approx(0.1, rel=1e-12)
    assert float((-step * G).sum()) == pytest.approx(0.1 * float(norm.dual.value(G)), rel=1e-12)


@pytest.mark.parametrize("norm", [l1, linf, frobenius, Entrywise(3)], ids=str)
def test_several_parameters_are_one_vector_for_an_entrywise_norm(norm):
    grads = {"K": matrix(1), "Q": matrix(2, (5, 3))}
    step = one_step(steepest(norm, 0.1), grads)
    joint = np.concatenate([np.ravel(step["K"]), np.ravel(step["Q"])])
    assert float(norm.value(joint)) == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize("norm", [nuclear, spectral, Schatten(1.5), LongestRow(), RowWise(3)], ids=str)
def test_several_parameters_are_one_block_matrix_for_norms_of_singular_values_and_rows(norm):
    grads = {"K": matrix(1), "Q": matrix(2, (5, 3))}
    step = one_step(steepest(norm, 0.1), grads)
    joint = block_diag(step["K"], step["Q"])
    dual = norm.dual.value(block_diag(grads["K"], grads["Q"]))
    assert float(norm.value(joint)) == pytest.approx(0.1, rel=1e-12)
    assert -sum(float((step[k] * grads[k]).sum()) for k in grads) == pytest.approx(0.1 * float(dual))


class Own:
    """A norm that the package does not know as one of its own."""

    def __init__(self, norm):
        self.p, self.dual, self.value, self.steepest = norm.p, norm.dual, norm.value, norm.steepest


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_several_parameters_have_the_p_norm_of_their_norms_for_a_norm_of_ones_own(norm):
    grads = {"K": matrix(1), "Q": matrix(2, (5, 3))}
    step, known = (one_step(steepest(each, 0.1), grads) for each in (Own(norm), norm))
    for k in grads:
        np.testing.assert_allclose(step[k], known[k], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="matrices or vectors"):
        one_step(steepest(Own(norm), 0.1), {"W": matrix(0, (2, 3, 4))})


def test_per_block_normalises_every_parameter_on_its_own():
    step = one_step(per_block(steepest(frobenius, 0.1)), {"K": matrix(1), "Q": matrix(2, (5, 3))})
    for block in step.values():
        assert float(frobenius.value(block)) == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize(
    "optimizer", [steepest(frobenius, 0.1), steepest(spectral, 0.1, momentum=0.9), mirror(3, 0.1)], ids=str
)
def test_scale_free_steps_do_not_see_the_log_scale(optimizer):
    grads = {"W": matrix()}
    there, here = one_step(optimizer, grads, log_scale=TINY), one_step(optimizer, grads)
    np.testing.assert_allclose(there["W"], here["W"], rtol=1e-14)


def test_polyaks_step_depends_on_the_scales_only_through_their_difference():
    grads = {"W": matrix()}
    there = one_step(polyak(), grads, log_scale=TINY, log_excess=TINY - 1)
    here = one_step(polyak(), grads, log_excess=-1.0)
    np.testing.assert_allclose(there["W"], here["W"], rtol=1e-12)
    expected = -np.exp(-1.0) * grads["W"] / (grads["W"] ** 2).sum()
    np.testing.assert_allclose(here["W"], expected, rtol=1e-12)


def test_gradient_descent_uses_the_true_scale_and_so_stops_where_it_underflows():
    grads = {"W": matrix()}
    np.testing.assert_allclose(one_step(gd(0.5), grads, log_scale=-2.0)["W"], -0.5 * np.exp(-2) * grads["W"])
    assert (one_step(gd(0.5), grads, log_scale=TINY)["W"] == 0).all()


def test_momentum_averages_raw_gradients_even_when_each_has_underflowed():
    optimizer, first, second = steepest(frobenius, 1.0, momentum=0.9), matrix(1), matrix(2)
    state = optimizer.init({"W": first})
    _, state = optimizer.update({"W": first}, state, log_scale=TINY)
    step, _ = optimizer.update({"W": second}, state, log_scale=TINY - 2)
    average = 0.9 * 0.1 * first + 0.1 * np.exp(-2.0) * second
    np.testing.assert_allclose(step["W"], -average / jnp.linalg.norm(average), rtol=1e-11)


@pytest.mark.parametrize("p", [1.1, 1.5, 2, 3])
def test_a_mirror_step_minimises_the_linearised_loss_plus_the_bregman_divergence(p):
    W, G, lr = matrix(3), matrix(4), 0.1
    new = W + one_step(mirror(p, lr, normalised=False), {"W": G}, {"W": W})["W"]
    slope = lr * G + jnp.sign(new) * jnp.abs(new) ** (p - 1) - jnp.sign(W) * jnp.abs(W) ** (p - 1)
    np.testing.assert_allclose(slope, 0, atol=1e-12)


def test_mirror_descent_with_p_two_is_gradient_descent():
    W, G = {"W": matrix(3)}, {"W": matrix(4)}
    ours, plain = (one_step(rule, G, W)["W"] for rule in (mirror(2, 0.1), steepest(frobenius, 0.1)))
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-15)  # of steps of length 0.1, whose sum cancels


def test_mirror_descent_remembers_weights_that_underflow():
    # p = 1.01 raises the dual variable to the 100th power: W is 0 in float64 for the first steps.
    optimizer, W, G = mirror(1.01, 1e-4, normalised=False), {"W": jnp.zeros(1)}, {"W": -jnp.ones(1)}
    state = optimizer.init(W)
    for _ in range(10_000 // 1_000):
        _, state = optimizer.update(G, state, W)
    assert float(state.U["W"][0]) == pytest.approx(1e-3, rel=1e-12)


def test_a_schedule_is_followed():
    optimizer = steepest(frobenius, lambda step: 1.0 / (1 + step))
    state, sizes = optimizer.init({"W": matrix()}), []
    for _ in range(3):
        step, state = optimizer.update({"W": matrix()}, state)
        sizes.append(float(frobenius.value(step["W"])))
    np.testing.assert_allclose(sizes, [1, 1 / 2, 1 / 3])


def test_each_optimizer_works_in_an_optax_chain():
    chain = optax.chain(steepest(frobenius, 1.0), optax.trace(0.9), optax.scale(0.1))
    step = one_step(scale_free(chain), {"W": matrix()}, log_scale=TINY)
    assert float(frobenius.value(step["W"])) == pytest.approx(0.1, rel=1e-12)


def test_equal_optimizers_are_equal_so_that_they_share_a_compiled_loop():
    assert steepest(frobenius, 0.1) == steepest(frobenius, 0.1)
    assert hash(steepest(frobenius, 0.1)) == hash(steepest(frobenius, 0.1))
    assert steepest(frobenius, 0.1) != steepest(frobenius, 0.2)
    assert steepest(frobenius, 0.1) != steepest(spectral, 0.1)


@pytest.mark.parametrize("lr", [0, -1.0, float("nan"), float("inf"), "fast", True])
@pytest.mark.parametrize("make", [gd, lambda lr: steepest(frobenius, lr), lambda lr: mirror(3, lr)])
def test_a_learning_rate_that_is_not_positive_is_refused(make, lr):
    with pytest.raises(ValueError, match=r"lr is .*positive"):
        make(lr)


def test_other_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="1 < p"):
        mirror(1.0, 0.1)
    with pytest.raises(ValueError, match="momentum"):
        steepest(frobenius, 0.1, momentum=1.0)
    with pytest.raises(ValueError, match="factor"):
        polyak(0)
    with pytest.raises(TypeError, match="not an optimizer"):
        scale_free("adam")
    with pytest.raises(ValueError, match=r"no norm 'spectra'\. Did you mean spectral\? Pass frobenius, "):
        steepest("spectra", 0.1)
    with pytest.raises(ValueError, match="excess"):
        one_step(polyak(), {"W": matrix()})


def test_two_norms_take_steps_of_the_two_optimizers_apart():
    tokens, v = sphere(2, 3, 4, seed=0)
    start = {"K": np.eye(4), "Q": np.eye(4)[::-1].copy()}
    options = {"steps": 1, "record": [1], "init": start}
    train_with = lambda norm, weight: train(  # noqa: E731
        tokens, Linear(v), weight=weight, optimizer=steepest(norm, 0.1), **options
    )
    both = train_with((spectral, frobenius), KeyQuery())
    for weight in (KeyQuery(separate=True), KeyQuery()):
        again = train_with(("spectral", "frobenius"), weight)
        np.testing.assert_array_equal(both.W, again.W)
    apart = {norm: train_with(norm, KeyQuery(separate=True)) for norm in (spectral, frobenius)}
    np.testing.assert_allclose(both.K, apart[spectral].K, rtol=1e-14)
    np.testing.assert_allclose(both.Q, apart[frobenius].Q, rtol=1e-14)
    assert np.abs(both.K - apart[frobenius].K).max() > 1e-3
    for weight in (FullWeight(), Diagonal(3)):
        with pytest.raises(ValueError, match="2 norms, one for each factor"):
            train(tokens, Linear(v), weight=weight, optimizer=steepest((spectral, frobenius), 0.1), steps=1)
