"""The training loop: shapes, runs, records, reasons, errors."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attsvm import Tokens, frobenius, max_margin, spectral
from attsvm.data.equal_keys import merged
from attsvm.datasets import sphere
from attsvm.training import engine
from attsvm.training.init import gaussian, uniform
from attsvm.training.inputs import in_place, record_steps
from attsvm.training.losses import correlation, exponential, logistic
from attsvm.training.optimizers import gd, mirror, polyak, scale_free, steepest
from attsvm.training.prediction_heads import Linear, QuadraticPenalty, ReLUNetwork
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery

NGD = steepest(frobenius, 0.1)
ROUNDING = 1e-11  # what 200 steps make of one rounding error


def run(tokens, head, **options):
    settings = {"weight": FullWeight(), "loss": logistic, "optimizer": NGD, "steps": 200, "record": 5}
    return train(tokens, head, **settings | options)


# ---------------------------------------------------------------------- runs


def test_a_run_does_not_depend_on_the_runs_that_share_its_batch():
    tokens, v = sphere(3, 4, 5, seed=range(7))
    together = run(tokens, Linear(v))
    for r in (0, 6):
        alone = run(tokens.run(r), Linear(v[r]))
        np.testing.assert_allclose(together.W[r], alone.W, rtol=ROUNDING, atol=ROUNDING)
        np.testing.assert_allclose(together.run(r).log_excess, alone.log_excess, rtol=ROUNDING)


def test_several_inits_share_one_data_set(problem):
    tokens, v = problem
    together = run(tokens, Linear(v), init=gaussian(range(4)))
    alone = run(tokens, Linear(v), init=gaussian(2))
    assert together.W.shape == (4, 5, 5, 5)
    assert together.stopped.tolist() == ["steps"] * 4
    np.testing.assert_allclose(together.W[2], alone.W, rtol=ROUNDING, atol=ROUNDING)


def test_several_heads_share_one_data_set(problem):
    tokens, v = problem
    together = run(tokens, QuadraticPenalty(v, np.array([0.0, 1.0])))
    np.testing.assert_allclose(together.W[0], run(tokens, Linear(v)).W, rtol=ROUNDING, atol=ROUNDING)
    assert not np.allclose(together.W[1], together.W[0])


def test_runs_axes_that_differ_are_named():
    tokens, v = sphere(3, 4, 5, seed=range(3))
    with pytest.raises(ValueError, match=r"runs axes differ.*'tokens': 3.*'init W': 4"):
        run(tokens, Linear(v), init=gaussian(range(4)))


# ---------------------------------------------------------------------- records


def test_records_are_the_chosen_steps_and_both_ends(problem):
    tokens, v = problem
    chosen = run(tokens, Linear(v), record=[7, 30])
    dense = run(tokens, Linear(v), record=range(201))
    assert chosen.index.tolist() == [0, 7, 30, 200]
    np.testing.assert_array_equal(chosen.W, dense.W[chosen.index])


@pytest.mark.parametrize("count", [1, 2, 10, 50])
def test_a_count_gives_at_most_that_many_log_spaced_steps(count):
    index = record_steps(100_000, count)
    assert index[0] == 0
    assert index[-1] == 100_000
    assert len(index) <= max(count, 2)


def test_a_long_run_keeps_only_its_records():
    tokens = Tokens([[[1.0], [0.0]]])
    path = run(tokens, Linear([1.0]), steps=50_000, record=50)
    assert len(path.index) <= 50
    assert path.norm()[-1] == pytest.approx(5_000, rel=1e-9)


def test_the_recorded_loss_is_the_mean_loss(problem):
    tokens, v = problem
    path = run(tokens, Linear(v))
    margin = tokens.labels * (np.einsum("knt,ntd->knd", path.attention, tokens.keys) @ v)
    np.testing.assert_allclose(path.loss, np.log1p(np.exp(-margin)).mean(-1), rtol=1e-12)


def test_a_nonlinear_head_has_no_known_excess(problem):
    tokens, v = problem
    assert np.isnan(run(tokens, QuadraticPenalty(v, 0.5)).log_excess).all()


# ---------------------------------------------------------------------- weights, heads, optimizers


@pytest.mark.parametrize("weight", [FullWeight(), KeyQuery(), KeyQuery(2), Diagonal(), Diagonal(2)], ids=str)
def test_every_weight_lowers_the_loss(weight, problem):
    tokens, v = problem
    path = run(tokens, Linear(v), weight=weight)
    assert path.loss[-1] < path.loss[0]
    assert path.stopped == "steps"


@pytest.mark.parametrize("loss", [exponential, correlation])
def test_every_loss_falls(loss, problem):
    tokens, v = problem
    path = run(tokens, Linear(v), loss=loss)
    assert path.loss[-1] < path.loss[0]


def test_key_and_query_multiply_to_the_weight(problem):
    tokens, v = problem
    path = run(tokens, Linear(v), weight=KeyQuery(2))
    assert path.K.shape == path.Q.shape == (5, 5, 2)
    np.testing.assert_allclose(path.W, path.K @ path.Q.swapaxes(-1, -2), rtol=1e-12)


def test_key_and_query_are_normalised_together_or_separately(problem):
    tokens, v = problem
    for separate, size in ((False, 0.1), (True, 0.1 * np.sqrt(2))):
        path = run(tokens, Linear(v), weight=KeyQuery(separate=separate), steps=1)
        moved = np.concatenate([np.diff(path.K, axis=0).ravel(), np.diff(path.Q, axis=0).ravel()])
        assert np.linalg.norm(moved) == pytest.approx(size, rel=1e-12)


OPTIMIZERS = [
    gd(0.5),
    steepest(spectral, 0.1, momentum=0.9),
    mirror(1.5, 0.1),
    polyak(),
    optax.adam(0.1),
    optax.chain(polyak()),
    scale_free(optax.contrib.muon(0.1)),
    steepest(frobenius, optax.exponential_decay(0.1, 100, 0.5)),
]


@pytest.mark.parametrize("rule", [lambda lr: steepest(frobenius, lr), lambda lr: mirror(3, lr), gd])
def test_a_schedule_in_double_precision_keeps_single_precision_weights(rule, problem):
    tokens, v = problem
    single = Tokens(tokens.keys, tokens.queries, tokens.labels, dtype=np.float32)
    path = run(single, Linear(v), optimizer=rule(lambda k: jnp.linspace(0.1, 0.01, 300)[k]), steps=20)
    assert path.W.dtype == np.float32
    assert path.loss[-1] < path.loss[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=range(len(OPTIMIZERS)))
def test_every_optimizer_lowers_the_loss(optimizer, problem):
    tokens, v = problem
    path = run(tokens, Linear(v), optimizer=optimizer)
    assert path.loss[-1] < path.loss[0]
    assert np.diff(path.log_excess)[-1] < 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OwnHead:
    """A user's linear head with autodiff for its gradient."""

    v: object

    def value(self, pooled):
        return pooled @ self.v

    def gradient(self, pooled):
        return jax.grad(lambda r: self.value(r).sum())(pooled)


def test_a_head_of_ones_own_is_one_small_class(problem):
    tokens, v = problem
    own, built_in = run(tokens, OwnHead(v)), run(tokens, Linear(v))
    np.testing.assert_allclose(own.W, built_in.W, rtol=1e-9, atol=1e-9)


def test_a_relu_network_that_is_linear_trains_like_the_linear_head(problem):
    tokens, v = problem
    network = ReLUNetwork(np.stack([v, -v], 1), [1.0, -1.0])
    np.testing.assert_allclose(run(tokens, network).W, run(tokens, Linear(v)).W, rtol=1e-9, atol=1e-9)


def test_values_may_differ_from_the_keys():
    tokens, v = sphere(3, 4, 5, seed=3)
    apart = Tokens(tokens.keys, tokens.queries, tokens.labels, values=(tokens.keys @ v)[..., None])
    np.testing.assert_allclose(run(apart, Linear([1.0])).W, run(tokens, Linear(v)).W, rtol=1e-10, atol=1e-10)


def test_a_trained_head_moves_by_its_own_normalised_step(problem):
    tokens, _ = problem
    path = run(tokens, Linear(np.zeros(5)), train_head=steepest(frobenius, 0.2), record=range(201))
    np.testing.assert_allclose(np.linalg.norm(np.diff(path.v, axis=0), axis=-1), 0.2, rtol=1e-9)
    assert (path.W[1] == 0).all()  # no head yet: the first gradient of the weight is zero
    assert path.loss[-1] < 1e-3


# ---------------------------------------------------------------------- why a run stopped


def test_gradient_descent_that_has_underflowed_says_so(problem):
    tokens, v = problem
    path = run(tokens, Linear(v), optimizer=gd(0.5), init=1e6 * run(tokens, Linear(v)).final)
    assert path.stopped == "saturated"
    np.testing.assert_array_equal(path.W[-1], path.W[0])


def test_a_run_that_diverges_keeps_its_last_finite_weight(problem):
    tokens, v = problem
    path = run(tokens, Linear(v), optimizer=steepest(frobenius, lambda step: 1e300 * 10.0**step))
    assert path.stopped == "diverged"
    assert np.isfinite(path.W).all()


def test_examples_with_one_token_leave_nothing_to_train():
    path = run(Tokens(np.ones((2, 1, 3))), Linear(np.ones(3)))
    assert path.stopped == "saturated"
    assert (path.log_excess == -np.inf).all()


# ---------------------------------------------------------------------- precision, cache


def test_double_precision_is_scoped(problem):
    tokens, v = problem
    before = jax.config.jax_enable_x64
    path = run(tokens, Linear(v))
    assert isinstance(path.W, np.ndarray)
    assert path.W.dtype == np.float64
    assert jax.config.jax_enable_x64 == before


def test_single_precision_is_kept_when_asked_for():
    tokens, v = sphere(3, 4, 5, seed=0)
    single = Tokens(tokens.keys, tokens.queries, tokens.labels, dtype=np.float32)
    for optimizer in (polyak(), steepest(spectral, 0.1, momentum=0.9)):
        assert run(single, Linear(v), optimizer=optimizer).W.dtype == np.float32


def test_equal_settings_compile_once(problem):
    tokens, v = problem
    run(tokens, Linear(v))
    compiled = len(engine.advance)
    run(tokens, Linear(2 * v), optimizer=steepest(frobenius, 0.1), init=gaussian(3))
    assert len(engine.advance) == compiled


# ---------------------------------------------------------------------- bad input


def _first_column(grads):
    return jax.tree.map(lambda g: -g[:, :1], grads)


BAD = {
    "steps is 0": {"steps": 0},
    "steps is 1.5": {"steps": 1.5},
    "not an optimizer": {"optimizer": "adam"},
    "not a weight": {"weight": FullWeight},
    "not a loss": {"loss": "logistic"},
    "NaN": {"init": np.full((5, 5), np.nan)},
    r"init W has shape \(5,\)": {"init": np.zeros(5)},
    "init W has 0 runs": {"init": np.zeros((0, 5, 5))},
    "init W is complex": {"init": np.ones((5, 5), complex)},
    "init W is not an array of real numbers": {"init": np.full((5, 5), "1")},
    "steps is 10000000000000000000": {"steps": 10**19},
    r"update has shape \(5, 1\)": {"optimizer": optax.stateless(lambda grads, _: _first_column(grads))},
    "saddle": {"weight": KeyQuery(), "init": (np.zeros((5, 5)), np.zeros((5, 5)))},
    "init must give K and Q": {"weight": KeyQuery(), "init": np.ones((5, 5))},
    "record is 0": {"record": 0},
    "record is True": {"record": True},
    r"init W is not an array of real numbers \(5, 5\)": {"init": [[1.0, 2.0], [3.0]]},
    "the schedule lr asks which step it is": {"optimizer": gd(lambda k: 0.1 if k < 5 else 0.01)},
    r"the schedule lr has shape \(2,\)": {"optimizer": gd(lambda k: np.ones(2))},
    r"steps in 0…200": {"record": [300]},
    "train_head.* is not an optimizer|not an optimizer": {"train_head": 0.1},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_setting_is_named(message, problem):
    tokens, v = problem
    with pytest.raises((ValueError, TypeError), match=message):
        run(tokens, Linear(v), **BAD[message])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Linear(np.ones(4)), "4 wide but the values are 5 wide"),
        (Linear(np.full(5, np.inf)), "NaN or infinite"),
        (Linear(1.0), "has shape"),
        (Linear("v"), "arrays of numbers"),
        (Linear, "not a head"),
        (np.ones(5), "not a head"),
        (ReLUNetwork(np.ones((5, 3)), np.ones(2)), r"V \(5, 3\) and u \(2,\)"),
        (QuadraticPenalty(np.ones(4), 1.0), "4 wide"),
    ],
)
def test_a_bad_head_is_named(head, message, problem):
    with pytest.raises((ValueError, TypeError), match=message):
        run(problem[0], head)


@pytest.mark.parametrize(
    ("build", "name"),
    [(gd, "lr"), (lambda x: mirror(x, 0.1), "p"), (polyak, "factor")],
    ids=["lr", "p", "factor"],
)
def test_a_number_beyond_float64_is_named(build, name):
    build(2)  # whole numbers are numbers
    with pytest.raises(ValueError, match=f"{name} is a whole number of 1,329 bits"):
        build(10**400)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Own:
    """A head of the user's that forgets an axis of its value, or of its gradient, or none."""

    v: Any
    forgets: str = field(metadata={"static": True})

    def value(self, pooled):
        found = pooled @ self.v
        return found[:, None] if self.forgets == "value" else found

    def gradient(self, pooled):
        return self.v if self.forgets == "gradient" else jnp.broadcast_to(self.v, pooled.shape)


@pytest.mark.parametrize(
    ("forgets", "message"),
    [
        ("value", r"Own.value has shape \(3, 1\).*\(3,\)"),
        ("gradient", r"Own.gradient has shape \(5,\).*\(3, 5\)"),
    ],
)
def test_a_head_that_would_be_broadcast_is_refused(forgets, message, problem):
    tokens, v = problem
    run(tokens, Own(v, "nothing"), steps=2)
    with pytest.raises(ValueError, match=message):
        run(tokens, Own(v, forgets), steps=2)


def test_polyak_needs_a_known_best_loss(problem):
    tokens, v = problem
    with pytest.raises(ValueError, match="best loss"):
        run(tokens, QuadraticPenalty(v, 0.1), optimizer=polyak())


def test_a_diagonal_weight_needs_equal_widths():
    with pytest.raises(ValueError, match="equal width"):
        run(Tokens(np.ones((2, 3, 4))), Linear(np.ones(4)), weight=Diagonal())


def test_a_rank_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="rank is 0"):
        KeyQuery(0)
    with pytest.raises(ValueError, match="rank is True"):
        KeyQuery(True)
    assert KeyQuery(np.int64(2)) == KeyQuery(2)


def test_a_scale_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="scale is 'wide'"):
        gaussian(0, "wide")


def test_a_seed_must_not_be_negative():
    with pytest.raises(ValueError, match="seed"):
        uniform(-1)


@pytest.mark.parametrize(
    "units", [(1.0, 1.0, 1.0), (2.0**-300, 2.0**-300, 2.0**-300), (2.0**300, 2.0**-300, 2.0**-200)]
)
def test_units_of_keys_queries_and_values_change_those_of_the_weight_only(problem, units):
    (tokens, v), (a, b, c) = problem, units
    other = Tokens(a * tokens.keys, b * tokens.queries, tokens.labels, values=c * tokens.keys)
    path = run(other, Linear(v / c), optimizer=steepest(frobenius, 0.1 / (a * b)))
    plain = run(Tokens(tokens.keys, tokens.queries, tokens.labels, values=tokens.keys), Linear(v))
    np.testing.assert_allclose(a * b * path.W, plain.W, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_tokens_whose_gradient_no_number_holds_are_not_called_saturated_or_diverged(problem, size):
    tokens, v = problem
    with pytest.raises(
        ValueError, match=r"their product, as a gradient has it, are beyond float64. Divide each"
    ):
        run(Tokens(size * tokens.keys, size * tokens.queries, tokens.labels), Linear(v))
    single = Tokens(tokens.keys, 1e-25 * tokens.queries, tokens.labels, dtype=np.float32)
    with pytest.raises(ValueError, match="beyond float32"):
        run(Tokens(1e-15 * single.keys, single.queries, tokens.labels, dtype=np.float32), Linear(v))
    tiny = Tokens(np.float32(1e-40) * single.keys, labels=tokens.labels, dtype=np.float32)  # 0 on a device
    with pytest.raises(ValueError, match=r"reach 2\^-13\d, 2\^0, 2\^-\d\d: they or their product"):
        run(tiny, Linear(1e36 * v))
    assert run(single, Linear(v)).stopped == "steps"
    assert run(Tokens(0 * tokens.keys, tokens.queries, tokens.labels), Linear(v)).stopped == "saturated"


@pytest.fixture(scope="module")
def doubled():
    """The first token of every example is there twice, with two values; a head, a weight that selects it."""
    tokens, _ = sphere(3, 4, 5, seed=0)
    keys = np.concatenate([tokens.keys, tokens.keys[:, :1]], 1)
    keys[0, [0, 4], 0] = 0.0, -0.0  # equal numbers of different bits
    values = np.random.default_rng(1).standard_normal((3, 5, 2))
    ends = max_margin(Tokens(keys[:, :4], tokens.queries), np.zeros(3, int)).W
    return Tokens(keys, tokens.queries, tokens.labels, values=values), np.array([1.0, -0.5]), ends


def test_tokens_of_one_key_and_different_values_do_not_hide_the_others(doubled, exact_gradient):
    tokens, v, ends = doubled
    start = 1_000 * ends  # all others are below e^(−1000)
    path = run(tokens, Linear(v), init=start, steps=1, optimizer=steepest(frobenius, 1.0))
    assert path.stopped == "steps"
    unit, _ = exact_gradient(tokens, v, start)
    np.testing.assert_allclose(start - path.final, unit, rtol=0, atol=1e-9)  # start has errors of 1e-12


def test_tokens_of_one_key_are_trained_by_the_mean_of_their_values(doubled):
    tokens, v, _ = doubled
    mean, single = np.array(tokens.values), tokens.mask.copy()
    mean[:, [0, 4]] = mean[:, [0, 4]].mean(1, keepdims=True)
    by_hand = Tokens(tokens.keys, tokens.queries, tokens.labels, values=mean)
    path, other = (run(each, Linear(v), record=range(201)) for each in (tokens, by_hand))
    assert np.array_equal(path.W, other.W) and np.array_equal(path.log_excess, other.log_excess)
    assert np.array_equal(path.tokens.values, tokens.values)
    again = run(tokens, Linear(v), steps=300, resume=path)
    assert np.array_equal(again.final, run(by_hand, Linear(v), steps=300).final)
    single[:, 4] = False
    alone = Tokens(tokens.keys, tokens.queries, tokens.labels, single, values=tokens.values)
    assert np.abs(run(alone, Linear(v)).final - path.final).max() > 1e-2  # two tokens are more than one


def test_tokens_of_one_key_in_a_file_count_as_those_in_memory(doubled, tmp_path, monkeypatch):
    (tokens, v, ends), maps = doubled, {}
    monkeypatch.setattr("attsvm.training.inputs.COPY_LIMIT", 0)  # as if they were too large to be read
    monkeypatch.setattr("attsvm.numbers.stored.array.BLOCK", tokens.T * tokens.d)  # one example at a time
    for name in ("keys", "values"):
        np.save(tmp_path / f"{name}.npy", getattr(tokens, name))
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    stays = Tokens(maps["keys"], tokens.queries, tokens.labels, values=maps["values"])
    assert in_place(stays).stored
    for part in (slice(0, 3), slice(1, 3), slice(2, 3)):
        assert np.array_equal(merged(stays).values[part], merged(tokens).values[part])
    for init in (None, 3_000 * ends):
        path, other = (run(each, Linear(v), init=init, steps=20) for each in (stays, tokens))
        np.testing.assert_allclose(path.W, other.W, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(path.log_excess, other.log_excess, rtol=1e-12)
    single = Tokens(maps["keys"][:, :4], tokens.queries, tokens.labels, values=maps["values"][:, :4])
    assert merged(single) is single


def test_a_masked_token_has_no_key_that_another_could_share():
    keys = np.array([[[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]]])
    mask, values = np.array([[True, True, False]]), np.array([[[1.0], [0.0], [7.0]]])
    cut, whole = Tokens(keys[:, :2], values=values[:, :2]), Tokens(keys, mask=mask, values=values)
    assert merged(whole) is whole
    np.testing.assert_allclose(run(whole, Linear([1.0])).W, run(cut, Linear([1.0])).W, atol=1e-14)
