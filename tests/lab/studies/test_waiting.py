"""The study of waiting: its prediction is the proven one, its runs follow it, and false ones do not."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.sweeps.plugins import plugin
from attsvm_lab.sweeps.study import read_study

FOLDER = str(Path(__file__).parents[3] / "lab" / "studies")
GRID = 0.01  # time step of the study's equations
STATIONARY = 0.02  # with decay a run stands at its stop; 0.2 percent was seen


def of(name):
    return plugin(f"waiting:{name}", FOLDER)


def stop(pull, start, other=None):
    """A stop of W = e₁ e₁ᵀ with one spare direction, and spare columns of length start in it."""
    M = np.diag([1.0, pull, 0.0])
    column, sign = np.array([0, start, 0]), 1.0 if other is None else other
    K, Q = np.zeros((3, 2)), np.zeros((3, 2))
    K[0, 0] = Q[0, 0] = 1.0
    K[:, 1], Q[:, 1] = column, sign * column
    return of("Stop")(M, K, Q, np.diag([1.0, 0, 0]), step=1.0, fall=0.1)


def test_exponents_are_read_from_words():
    assert of("exponents")("4, 4/3") == (4.0, pytest.approx(4 / 3))
    assert of("exponents")("inf, 2") == (np.inf, 2.0)


def test_gradient_descent_needs_the_logarithm_over_the_pull_less_one():
    for pull, start in ((1.5, 1e-3), (3.0, 1e-6)):
        wanted = np.log(0.1 / start) / (pull - 1)
        assert stop(pull, start).time_to_leave((2.0, 2.0)) == pytest.approx(wanted, abs=GRID)
        assert stop(pull, start).time_to_leave((2.0, 2.0)) != pytest.approx(wanted * pull, rel=0.1)
    assert stop(0.9, 1e-3).time_to_leave((2.0, 2.0)) == np.inf


def test_gradient_descent_against_the_pull_never_leaves():
    assert stop(3.0, 1e-3, other=-1.0).time_to_leave((2.0, 2.0)) == np.inf


@pytest.mark.parametrize("p", [3.0, 4.0, 8.0])
def test_steps_above_p_2_need_the_time_of_lemma_7_from_every_start(p):
    a, y = (p - 2) / (p - 1), 2.0 ** (1 / (p - 1))
    wanted = -np.log1p(-(0.1**a) / y) / a
    for start in (1e-8, 1e-12):
        assert stop(2.0, start).time_to_leave((p, p)) == pytest.approx(wanted, abs=5 * GRID)
    assert stop(2.0, 1e-12).time_to_leave((2.0, 2.0)) > 10 * wanted


def test_steps_with_r_below_one_never_leave():
    assert stop(3.0, 0.05).time_to_leave((1.5, 1.5)) == np.inf
    assert stop(3.0, 0.05).time_to_leave((2.0, 2.0)) < 1


def test_a_floor_ends_the_growth_of_the_wait():
    times = [stop(2.0, start).time_to_leave((2.0, 2.0), 1e-8) for start in (1e-6, 1e-9)]
    assert times[1] == pytest.approx(times[0], rel=1e-2)
    assert times[1] == pytest.approx(np.log(0.1 / 1e-4), rel=1e-2)
    assert stop(2.0, 1e-9).time_to_leave((2.0, 2.0)) > 1.5 * times[1]


def test_growth_takes_exponentially_many_steps_without_decay_and_linearly_many_with_it():
    plain, decayed = {"lr": 0.01}, {"lr": 0.01, "decay": 1.0}  # the length 1 is that of decay 1
    at = stop(2.0, 1e-3)
    assert [at.steps(τ, plain) for τ in (1.0, 2.0)] == pytest.approx([100 * np.expm1(τ) for τ in (1, 2)])
    assert [at.steps(τ, decayed) for τ in (1.0, 2.0)] == pytest.approx([100, 200])


def test_small_steps_are_rounded_away_and_in_a_column_of_their_own_only_by_their_share():
    """A place of float32 is 2^-24 of an entry: a change of 1e-3 of it stands, one of 1e-3 · 1e-6 does not."""
    words = {"lr": 0.02, "decay": 0.05, "weights": "float32"}
    assert not stop(2.0, 1e-6).held(words)
    assert stop(2.0, 1e-6).held(words | {"turned": True})
    assert not stop(2.0, 1e-2).held(words | {"turned": True})
    assert stop(2.0, 1e-6).held(words | {"weights": "bfloat16"})
    assert not stop(2.0, 1e-6).held(words | {"weights": "bfloat16 at random"})


def test_numbers_are_rounded_to_the_nearest_or_at_random_without_a_bias():
    import jax.numpy as jnp

    x = jnp.full((100, 40), 1.003)
    for weights in ("bfloat16", "bfloat16 at random"):
        rule = of("_rounded")(weights)
        params = {"K": jnp.zeros_like(x), "Q": jnp.zeros_like(x)}
        steps, _ = rule.update({"K": x, "Q": x}, rule.init(params), params)
        ends = np.unique(np.asarray(steps["K"]))
        if weights == "bfloat16":
            assert ends.tolist() == [1.0]
        else:
            assert ends.tolist() == [1.0, 1.0078125]
            assert float(steps["K"].mean()) == pytest.approx(1.003, abs=3e-4)  # 5 standard errors


DECAY = {"start": 1e-4, "lr": 0.02, "decay": 0.05, "before": 8_000, "steps": 20_000}


@pytest.fixture(scope="module")
def waited():
    """Four draws with decay, each with its head."""
    tokens, v = of("draws")(4, 4, 8, range(4))
    path = of("trained")(tokens, att.Linear(v), seed=range(4), **DECAY)
    return [(path.run(k), v[k]) for k in range(4)]


def test_runs_with_decay_leave_when_they_should(waited):
    ratios, exchanged = [], []
    predicted = [of("predicted")(*run, DECAY) for run in waited]
    for k, run in enumerate(waited):
        measured = of("left")(*run, DECAY)
        assert np.isfinite(measured) == (predicted[k] < DECAY["steps"])
        ratios.append(measured / predicted[k])
        exchanged.append(measured / predicted[k - 1])
    assert np.nanmax(np.abs(np.log(ratios))) < STATIONARY
    assert np.nanmax(np.abs(np.log(exchanged))) > 10 * STATIONARY


def test_a_run_stands_still_at_its_stop_until_the_second_column_comes(waited):
    for run, v in waited:
        early = run.index <= DECAY["before"]
        assert not run.K[early][:, :, 1].any() and run.K[~early][0, :, 1].any()
        assert of("pull")(run, v, DECAY) > 1


def test_a_record_judges_runs_by_their_predictions():
    nan = np.nan
    left = np.array([10.0, 20.0, nan, nan, 7.0])
    predicted = np.array([10.0, 40.0, nan, 50.0, 9.0])
    pull = np.array([3.0, 1.5, 2.5, 4.0, nan])
    record = of("judged")(left, predicted, pull, 100.0)
    assert (record["stops"], record["left"], record["agree"]) == (4, 2, 3)
    assert record["ratio"][0] == 0.75 and record["clear"]["measured"][0] is None
    assert record["all"]["predicted"][0] == 45 and len(record["runs"]) == 4


def test_every_cell_of_the_study_has_a_prediction_of_its_kind():
    study = read_study(f"{FOLDER}/waiting.toml")
    assert len(study.cells) > 50 and len(study.seeds.begin) >= 8
    assert {cell.words["trainer"] for cell in study.cells} == {"waiting:trained"}
    (one,) = read_study(f"{FOLDER}/waiting.toml", "one").cells
    assert one.words.items() <= {**one.words, "p": "2, 2"}.items() and one.training.steps == 60_000
    assert SimpleNamespace(**one.words).decay == 0.05
