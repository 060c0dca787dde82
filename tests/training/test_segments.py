"""Long runs in segments: Ctrl-C, going on, progress, and one compiled program for all of them."""

import json
import os
import signal
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import optax
import pytest

from attsvm import Interrupted, Path, Schatten, Tokens, frobenius, spectral
from attsvm._support import progress
from attsvm.training import driver, engine, segments
from attsvm.training.batches import Batches
from attsvm.training.init import gaussian
from attsvm.training.losses import exponential
from attsvm.training.optimizers import adam, gd, mirror, polyak, scale_free, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery

NGD = steepest(frobenius, 0.1)
ARRAYS = ("index", "W", "loss", "log_excess", "stopped", "K", "Q", "v")
SETTINGS = {
    "normalised": {},
    "adam": {"optimizer": optax.adam(0.1)},
    "adam of batches": {"optimizer": adam(0.1, decay=0.01), "batch": Batches(2, order="replacement")},
    "schedule, every step": {
        "optimizer": gd(optax.exponential_decay(0.5, 100, 0.5)),
        "record": range(51),
    },
    "momentum of two blocks": {
        "optimizer": steepest(spectral, 0.1, momentum=0.9),
        "weight": KeyQuery(2, separate=True),
    },
    "polyak and a trained head": {"optimizer": polyak(), "train_head": steepest(frobenius, 0.01)},
    "mirror descent of runs": {"optimizer": mirror(3, 0.1), "init": gaussian(range(3))},
}


def run(tokens, v, **options):
    return train(tokens, Linear(v), **{"optimizer": NGD, "steps": 300, "record": 20} | options)


@pytest.fixture
def short_segments(monkeypatch):
    """Calls of at most 7 steps, with room for few records."""
    monkeypatch.setattr(segments, "SEGMENT", 0.0)
    monkeypatch.setattr(engine, "MANY", 80)
    monkeypatch.setattr("attsvm.training.train.first_steps", lambda *_: 7)


@pytest.fixture
def ctrl_c(monkeypatch):
    """A real SIGINT in the call that passes step 30."""
    advance = driver.engine.advance
    steps = []

    def pressing(plan, data, scores, state, lengths, count):
        steps.append(int(lengths.sum()))
        if sum(steps[:-1]) < 30 <= sum(steps):
            os.kill(os.getpid(), signal.SIGINT)
        return advance(plan, data, scores, state, lengths, count)

    monkeypatch.setattr(driver.engine, "advance", pressing)


def assert_equal(path, other):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(path, name), getattr(other, name), err_msg=name)


# ---------------------------------------------------------------------- Ctrl-C and going on


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_goes_on_after_ctrl_c_ends_in_the_same_bits(
    name, problem, ctrl_c, short_segments, tmp_path
):
    options = {"steps": 50} | SETTINGS[name]  # calls of seven steps take their time
    with pytest.raises(Interrupted) as interrupted:
        run(*problem, **options)
    interrupted.value.path.save(tmp_path / "run.npz")
    loaded = Path.load(tmp_path / "run.npz")
    assert 30 <= loaded.index[-1] < options["steps"]
    going_on = {key: value for key, value in options.items() if key != "init"}
    shared = {"tokens": problem[0], "v": problem[1]}
    assert_equal(run(**shared, **going_on, resume=loaded), run(**shared, **options))


def test_segments_of_any_length_compute_the_same_bits(problem, short_segments, monkeypatch):
    short = run(*problem)
    monkeypatch.undo()
    assert_equal(short, run(*problem))


def test_an_interrupted_path_ends_with_a_record_of_its_last_step(problem, ctrl_c, short_segments):
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run(*problem)
    path = interrupted.value.path
    assert path.stopped == "interrupted"
    np.testing.assert_array_equal(path.final, run(*problem, steps=int(path.index[-1])).final)


def test_ctrl_c_in_the_last_segment_is_not_lost(problem, ctrl_c):
    with pytest.raises(Interrupted) as interrupted:
        run(*problem)
    assert_equal(interrupted.value.path, run(*problem))


def test_a_finished_run_goes_on_and_keeps_its_records(problem):
    first = run(*problem, steps=100)
    longer = run(*problem, resume=first)
    assert set(first.index) <= set(longer.index)
    np.testing.assert_array_equal(longer.final, run(*problem).final)


def test_the_optimizers_memory_is_needed_to_go_on(problem):
    rule = steepest(frobenius, 0.1, momentum=0.9)
    whole, half = run(*problem, optimizer=rule), run(*problem, optimizer=rule, steps=150)
    forgetful = run(*problem, optimizer=rule, steps=150, init=half.final)
    np.testing.assert_array_equal(run(*problem, optimizer=rule, resume=half).final, whole.final)
    assert not np.array_equal(forgetful.final, whole.final)


def test_the_handler_of_ctrl_c_is_given_back(problem):
    run(*problem)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_ones_own_stays(problem, ctrl_c, short_segments):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(True))
    try:
        assert run(*problem).stopped == "steps"
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [True]


def test_a_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), segments.Segments("training", 1, 1) as watch:
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.pressed
        os.kill(os.getpid(), signal.SIGINT)


BAD = {
    "steps is 300 but resume has taken 300": {},
    "either init, or resume": {"init": gaussian(0), "steps": 400},
    r"another optimizer: Steepest\(norm=.*, now Mirror\(p=3.0": {"optimizer": mirror(3, 0.1), "steps": 400},
    r"another optimizer: Steepest\(norm=.*, now GradientDescent": {"optimizer": gd(0.1), "steps": 400},
    r"another optimizer: .*p=2.*now .*p=inf": {"optimizer": steepest(spectral, 0.1), "steps": 400},
    r"another loss: Logistic\(\), now Exponential\(\)": {"loss": exponential, "steps": 400},
    r"another weight: FullWeight\(\), now Diagonal\(\)": {"weight": Diagonal(), "steps": 400},
    "another train_head: nothing, now Gradient": {"train_head": gd(0.1), "steps": 400},
    "another weight, head or optimizer": {"optimizer": steepest(frobenius, 0.1, momentum=0.9), "steps": 400},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_go_on_is_named(message, problem):
    with pytest.raises(ValueError, match=message):
        run(*problem, resume=run(*problem), **BAD[message])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cubic:
    v: Any

    def value(self, pooled):
        return (pooled @ self.v) ** 3

    def gradient(self, pooled):
        return 3 * (pooled @ self.v)[:, None] ** 2 * self.v


def test_a_head_of_the_same_arrays_is_another_one(problem):
    (tokens, v), path = problem, run(*problem)
    with pytest.raises(ValueError, match="another head: Linear, now Cubic"):
        train(tokens, Cubic(v), optimizer=NGD, steps=400, resume=path)


class Own:
    """A norm of one's own, told apart by what its instances hold."""

    def __init__(self, norm, note=None):
        self.p, self.dual, self.value, self.steepest, self.note = (
            norm.p,
            norm.dual,
            norm.value,
            norm.steepest,
            note,
        )

    @cached_property
    def asked(self):
        return 1


def test_a_norm_of_ones_own_that_holds_something_else_is_another_one(problem):
    norm = Own(frobenius, np.arange(3.0))
    path = run(*problem, optimizer=steepest(norm, 0.1))
    assert norm.asked  # kept in the instance, and no part of what it is
    run(*problem, optimizer=steepest(norm, 0.2), steps=310, resume=path)
    for other in (Own(Schatten(3), np.arange(3.0)), Own(frobenius, np.arange(3.0)[::-1].copy())):
        with pytest.raises(ValueError, match="another optimizer"):
            run(*problem, optimizer=steepest(other, 0.1), steps=310, resume=path)


def test_what_may_differ_goes_on_and_so_does_a_path_of_an_earlier_version(problem):
    path = run(*problem)
    run(*problem, optimizer=steepest(frobenius, 0.2), steps=310, resume=path)


def test_a_run_by_optax_is_said_to_be_one_whatever_its_address(problem):
    rule = optax.adam(0.1)
    path = run(*problem, optimizer=rule)
    words = json.loads(str(path.state["trained"]))
    assert words["optimizer"] == "Foreign(GradientTransformationExtraArgs, scaled=True)"
    with pytest.raises(ValueError, match=r"now Foreign.*scaled=False"):
        run(*problem, optimizer=scale_free(rule), steps=310, resume=path)


def test_another_problem_does_not_go_on(problem):
    (tokens, v), path = problem, run(*problem)
    other = Tokens(2 * tokens.keys, tokens.queries, tokens.labels)
    with pytest.raises(ValueError, match="other tokens"):
        run(other, v, resume=path, steps=400)
    with pytest.raises(ValueError, match="another head"):
        run(tokens, 2 * v, resume=path, steps=400)
    with pytest.raises(ValueError, match="no state"):
        run(tokens, v, resume=replace(path, state=None), steps=400)


def test_a_process_that_was_forked_after_training_is_warned_once(problem, monkeypatch, recwarn):
    monkeypatch.setattr(segments, "_users", [])
    run(*problem, steps=3)
    run(*problem, steps=3)
    assert not [w for w in recwarn if w.category is segments.Forked]
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.warns(segments.Forked, match="forked after JAX had run") as said:
        run(*problem, steps=3)
        run(*problem, steps=3)
    assert len(said) == 1


# ---------------------------------------------------------------------- progress


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_run_shows_its_progress_on_a_terminal_only(
    terminal, problem, monkeypatch, short_segments, capsys
):
    silent = run(*problem)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    assert_equal(run(*problem), silent)
    assert ("training" in capsys.readouterr().err) == terminal


# ---------------------------------------------------------------------- one program

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)


def compilations(tokens, v, **options):
    COMPILED.clear()
    run(tokens, v, **options)
    return len(COMPILED)


SWEEP = {
    "lr": {"optimizer": steepest(frobenius, 0.3)},
    "whole lr": {"optimizer": steepest(frobenius, 3)},
    "fewer steps": {"steps": 77},
    "more steps": {"steps": 1_234},
    "records": {"record": [5, 9]},
    "start": {"init": gaussian(3)},
}


@pytest.mark.parametrize("change", SWEEP)
def test_a_sweep_over_rates_steps_and_records_compiles_once(change, problem):
    run(*problem)
    assert compilations(*problem, **SWEEP[change]) == 0


@pytest.mark.parametrize(
    ("one", "other", "weight"),
    [
        (polyak(1.0), polyak(0.5), FullWeight()),
        (mirror(3, 0.1), mirror(3, 0.2), KeyQuery(separate=True)),
        (gd(0.1), gd(0.2), KeyQuery(separate=True)),
        (steepest(frobenius, 0.1, momentum=0.9), steepest(frobenius, 0.2, momentum=0.5), FullWeight()),
    ],
    ids=["polyak", "mirror", "gd", "momentum"],
)
def test_every_number_of_our_optimizers_is_an_argument_of_the_program(one, other, weight, problem):
    run(*problem, optimizer=one, weight=weight)
    assert compilations(*problem, optimizer=other, weight=weight) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": steepest(Schatten(2.25), 0.1)},
        {"optimizer": mirror(2.25, 0.1)},
        {"optimizer": gd(lambda _: 0.1)},
        {"optimizer": optax.sgd(0.1)},
    ],
    ids=["norm", "exponent", "schedule", "optax"],
)
def test_what_changes_the_computation_is_compiled_anew(other, problem):
    run(*problem)
    assert compilations(*problem, **other) > 0
