"""Runs that end when their direction has settled."""

import numpy as np
import pytest

from attsvm import Tokens, frobenius
from attsvm.datasets import sphere
from attsvm.training import segments
from attsvm.training.init import gaussian
from attsvm.training.optimizers import steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train

NGD = steepest(frobenius, 0.1)


def run(tokens, v, **options):
    return train(tokens, Linear(v), **{"optimizer": NGD, "steps": 2_000, "record": 20} | options)


def test_a_run_ends_where_its_direction_has_settled(problem):
    whole, short = run(*problem), run(*problem, tolerance=1e-2)
    assert (whole.stopped, short.stopped) == ("steps", "converged")
    last = short.index[-1]
    assert 100 <= last < 2_000
    assert last in whole.index
    np.testing.assert_array_equal(short.final, whole.W[list(whole.index).index(last)])


def test_a_tolerance_that_is_not_reached_changes_nothing(problem):
    whole, strict = run(*problem), run(*problem, tolerance=1e-15)
    assert strict.stopped == "steps"
    np.testing.assert_array_equal(strict.W, whole.W)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_directions_of_weights_of_every_size_are_told_apart(unit, problem):
    tokens, v = problem
    units = Tokens(tokens.keys / unit, tokens.queries, tokens.labels, values=tokens.keys)
    rule = steepest(frobenius, 0.1 * unit)
    one, other = run(tokens, v, tolerance=1e-2), run(units, v, tolerance=1e-2, optimizer=rule)
    assert one.stopped == other.stopped == "converged"
    np.testing.assert_array_equal(one.index, other.index)


def test_every_run_settles_for_itself_and_keeps_its_weight(problem):
    tokens, v = problem
    start = np.concatenate([gaussian(range(2))({"W": (5, 5)})["W"], 300 * run(*problem).final[None]])
    paths = run(tokens, v, init=start, tolerance=1e-4)
    alone = run(tokens, v, init=start[2], tolerance=1e-4)
    assert (paths.stopped[2], alone.stopped) == ("converged", "converged")
    assert alone.index[-1] < paths.index[-1]
    place = list(paths.index).index(alone.index[-1])
    np.testing.assert_allclose(paths.W[2, place:], np.broadcast_to(alone.final, paths.W[2, place:].shape))


def test_a_settled_run_goes_on_without_a_tolerance(problem):
    short = run(*problem, tolerance=1e-2)
    same = run(*problem, tolerance=1e-2, resume=short, steps=3_000)
    on = run(*problem, resume=short)
    np.testing.assert_array_equal(same.final, short.final)
    np.testing.assert_array_equal(on.final, run(*problem).final)


def test_runs_that_settle_at_different_times_end_in_the_same_bits_after_pauses(monkeypatch):
    tokens, v = sphere(3, 4, 5, seed=range(4))
    options = {"tolerance": 1e-3, "steps": 2_000}
    whole = run(tokens, v, **options)
    monkeypatch.setattr("attsvm.training.segments.SEGMENT", 0.0)
    monkeypatch.setattr("attsvm.training.train.first_steps", lambda *_: 37)
    path, pauses = None, 0
    while path is None or "interrupted" in path.stopped:
        try:
            with segments.pausing(0.0):
                path = run(tokens, v, resume=path, **options)
        except segments.Paused as pause:
            path, pauses = pause.path, pauses + 1
    assert pauses > 3 and len(set(whole.W[:, :, 0, 0].ravel())) > 4
    for name in ("index", "W", "stopped"):
        np.testing.assert_array_equal(getattr(path, name), getattr(whole, name), err_msg=name)


@pytest.mark.parametrize("tolerance", [0, -1e-3, 1.0, "small", True])
def test_a_tolerance_that_is_none_is_refused(tolerance, problem):
    with pytest.raises(ValueError, match=r"tolerance is .*Pass a number in \(0, 1\)"):
        run(*problem, tolerance=tolerance)
