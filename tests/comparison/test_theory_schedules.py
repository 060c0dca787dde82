"""No limit is claimed for steps that end, ascend or sum to a finite number, or for a class of one's own."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attsvm.comparison.hypotheses import SCHEDULE, SQUARES
from attsvm.comparison.theory import NoTheorem, limit_norm
from attsvm.datasets import sphere
from attsvm.norms import Entrywise, RowWise, Schatten, frobenius, linf, spectral
from attsvm.training.optimizers import adam, compositional, gd, mirror, per_block, polyak, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.rules import Compositional, GradientDescent, Optimizer, Steepest
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery, MultiHead

pytestmark = pytest.mark.quick

ENDLESS = {
    "constant": lambda k: 0.1 + 0 * k,
    "warm-up from zero": optax.linear_schedule(0.0, 0.1, 1000),
    "1/k": lambda k: 1 / (1.0 + k),
    "1/sqrt(k)": lambda k: 0.1 / jnp.sqrt(1.0 + k),
    "1/(k log k)": lambda k: 1 / ((2.0 + k) * jnp.log(2.0 + k)),
    "cosine to a tenth": optax.cosine_decay_schedule(0.1, 1000, alpha=0.1),
    "waves to zero": lambda k: 0.1 * (1 + jnp.cos(k / 7.0)) / 2,
    "every other step": lambda k: 0.1 * (k % 2),
    "growing": lambda k: 0.1 * jnp.sqrt(1.0 + k),
}
ENDING = {
    "zero": lambda k: 0.0 * k,
    "ascent": lambda k: -1.0 + 0 * k,
    "ascent late": lambda k: jnp.where(k < 10_000, 0.1, -0.1),
    "ascent at the first step": lambda k: jnp.where(k == 0, -0.1, 0.1),
    "NaN": lambda k: jnp.nan * k,
    "cosine to zero": optax.cosine_decay_schedule(0.1, 1000),
    "exponential": optax.exponential_decay(0.1, 1000, 0.9),
    "staircase": optax.exponential_decay(0.1, 100_000, 0.5, staircase=True),
    "1/k²": lambda k: 1 / (1.0 + k) ** 2,
    "integers": lambda k: 1 / (1 + k) ** 2,
    "k^-1.2": lambda k: (1.0 + k) ** -1.2,
    "1/(k log² k)": lambda k: 1 / ((2.0 + k) * jnp.log(2.0 + k) ** 2),
    "exponential growth": lambda k: 2.0**k,
}
RULES = {
    "gd": (FullWeight(), gd),
    "normalised": (FullWeight(), lambda lr: steepest(frobenius, lr)),
    "Muon": (KeyQuery(), lambda lr: steepest(spectral, lr)),
    "mirror": (FullWeight(), lambda lr: mirror(3, lr, normalised=False)),
    "Adam": (FullWeight(), lambda lr: adam(lr, eps=0.0)),
    "compositional": (KeyQuery(), compositional),
    "heads": (MultiHead(2), gd),
    "factors": (Diagonal(2), gd),
    "blocks": (KeyQuery(), lambda lr: per_block(gd(lr))),
}


@pytest.mark.parametrize("schedule", ENDLESS)
def test_endless_steps_have_the_limit_of_constant_ones_and_a_hypothesis_more(schedule):
    for weight, rule in RULES.values():
        limit, constant = limit_norm(weight, rule(ENDLESS[schedule])), limit_norm(weight, rule(0.1))
        assert limit.norm == constant.norm
        assert limit.standing == constant.standing or SQUARES[0] in limit.hypotheses
        assert set(SCHEDULE) <= set(limit.hypotheses) and not set(SCHEDULE) & set(constant.hypotheses)


@pytest.mark.parametrize("schedule", ENDING)
def test_steps_that_end_or_ascend_have_no_limit(schedule):
    for weight, rule in RULES.values():
        with pytest.raises(NoTheorem, match=r"^(lr is|the steps lr\(k\) sum).*no limit.*Nearest: .* → "):
            limit_norm(weight, rule(ENDING[schedule]))


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (lambda k: 1 / np.sqrt(1.0 + k), "asks which step it is, in an `if` or in NumPy"),
        (lambda k: 0.1 if k < 5 else 0.01, "asks which step it is"),
        (lambda k: 0.1j + 0 * k, "is complex"),
        (lambda k: jnp.ones(2), r"shape \(2,\) at a step"),
    ],
    ids=["NumPy", "if", "complex", "two"],
)
def test_a_schedule_that_cannot_be_evaluated_is_refused_with_the_reason(schedule, told):
    with pytest.raises(ValueError, match=told):
        limit_norm(FullWeight(), gd(schedule))
    tokens, v = sphere(2, 3, 2)
    with pytest.raises(ValueError, match=told):
        train(tokens, Linear(v), optimizer=gd(schedule), steps=1)


@pytest.mark.parametrize("rate", [0.0, -1.0, np.nan, np.inf, (0.1, -0.1)])
def test_a_record_with_an_impossible_rate_has_no_limit(rate):
    for rule in (GradientDescent(rate), Steepest(linf, rate), Compositional(spectral, rate, 0.01)):
        with pytest.raises(NoTheorem, match="not positive"):
            limit_norm(KeyQuery(), rule)


# ---------------------------------------------------------------------- exact types

BASES = [Entrywise(2), Entrywise(3), Schatten(2), Schatten(np.inf), RowWise(2), RowWise(np.inf)]


@pytest.mark.parametrize("base", BASES, ids=str)
def test_a_norm_made_from_ours_is_not_taken_for_ours(base):
    made = type("Made", (type(base),), {"steepest": lambda self, G: -G})
    norm = made(base.p)
    for weight in (FullWeight(), KeyQuery(), Diagonal(), Diagonal(2)):
        with pytest.raises(NoTheorem, match="no limit known"):
            limit_norm(weight, steepest(norm, 0.1))


@dataclass(frozen=True)
class Uphill(GradientDescent):
    def update(self, grads, state, params=None, **options):
        return grads, state


class Other(Optimizer):
    def __new__(cls):
        return super().__new__(cls, GradientDescent(0.1))


@dataclass(frozen=True)
class Reflected(FullWeight):
    def pullback(self, params, G):
        return {"W": -G}


@pytest.mark.parametrize(
    ("weight", "optimizer"),
    [
        (FullWeight(), Optimizer(Uphill(0.1))),
        (FullWeight(), Uphill(0.1)),
        (Reflected(), gd(0.1)),
        (MultiHead(2, Reflected()), gd(0.1)),
    ],
    ids=["rule", "record", "weight", "head"],
)
def test_a_rule_or_weight_made_from_ours_is_not_taken_for_ours(weight, optimizer):
    with pytest.raises(NoTheorem, match=r"no limit known.*Nearest"):
        limit_norm(weight, optimizer)


def test_an_optimizer_made_from_ours_is_measured_and_has_no_theorem():
    limit = limit_norm(FullWeight(), Other())
    assert (limit.norm, limit.standing) == (frobenius, "conjecture") and "moves like" in limit.reference


@pytest.mark.parametrize("base", [KeyQuery])
def test_the_nearest_case_of_a_weight_made_from_ours_is_ours(base):
    made = type("Made", (base,), {})
    with pytest.raises(NoTheorem, match=f"Nearest: {base.__name__} with gd → "):
        limit_norm(made(), gd(0.1))


# ---------------------------------------------------------------------- one algorithm, one answer

EQUALS = {
    "mirror(2)": (mirror(2, 0.1), steepest(frobenius, 0.1)),
    "mirror(2) at its true scale": (mirror(2, 0.1, normalised=False), gd(0.1)),
    "Schatten 2": (steepest(Schatten(2), 0.1), steepest(frobenius, 0.1)),
    "rows": (steepest(RowWise(2), 0.1, 0.9), steepest(frobenius, 0.1, 0.9)),
    "Adam without averages": (adam(0.1, 0.0, 0.0, 0.0), steepest(linf, 0.1)),
}


@pytest.mark.parametrize("pair", EQUALS)
@pytest.mark.parametrize(
    "weight", [FullWeight(), KeyQuery(), Diagonal(), Diagonal(2), MultiHead(2)], ids=repr
)
def test_one_algorithm_has_one_answer(weight, pair):
    def answer(optimizer):
        try:
            return limit_norm(weight, optimizer)
        except NoTheorem as reason:
            return str(reason)

    one, other = map(answer, EQUALS[pair])
    assert one == other


@pytest.mark.parametrize("pair", EQUALS)
def test_what_has_one_answer_takes_the_same_steps(pair):
    params = {"K": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "Q": jnp.array([[0.3, 0.1]])}
    grads = {"K": jnp.array([[0.2, -1.0], [2.0, 0.7]]), "Q": jnp.array([[-0.4, 0.6]])}
    one, other = ((rule.update(grads, rule.init(params), params))[0] for rule in EQUALS[pair])
    for name in params:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5)


def test_adam_with_a_longer_first_average_names_the_hypothesis_it_breaks():
    assert "b1 ≤ b2" in str(limit_norm(FullWeight(), adam(0.1, 0.9, 0.9, 0.0)).hypotheses)
    for b1, b2 in [(0.99, 0.9), ([0.1, 0.99], 0.9)]:
        with pytest.raises(NoTheorem, match="needs b1 ≤ b2"):
            limit_norm(FullWeight(), adam(0.1, b1, b2, 0.0))


def test_polyak_steps_that_may_ascend_have_no_limit():
    assert limit_norm(FullWeight(), polyak(1.9)).standing == "theorem"
    with pytest.raises(NoTheorem, match="from 2 on"):
        limit_norm(FullWeight(), polyak(2.0))


def test_decay_bounds_signum_of_batches_too():
    with pytest.raises(NoTheorem, match="bounds the weight"):
        limit_norm(FullWeight(), steepest(linf, 0.1, 0.9, 0.01), batch=4)


def test_decay_is_named_where_nothing_is_known_without_it_either():
    with pytest.raises(NoTheorem, match=r"^decay .* bounds the weight.*without decay, of which: no limit"):
        limit_norm(FullWeight(), adam(0.1, decay=0.01))
