"""The study of capacity: its draws, how they are decided, and the fit of the window."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import ndtr

from attsvm_lab import datasets

FOLDER = Path(__file__).parents[3] / "lab" / "studies"
LOAD = np.array([0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5])


@pytest.fixture(scope="module")
def capacity():
    sys.path.insert(0, str(FOLDER))
    import capacity

    yield capacity
    sys.path.remove(str(FOLDER))


def test_a_load_is_a_part_of_the_capacity(capacity):
    tokens, _ = capacity.loaded(0.5, 2, 10, 0.0, range(3))
    assert (tokens.runs, tokens.n, tokens.T, tokens.d) == (3, 10, 2, 10)


def test_a_draw_is_decided_by_a_certificate(capacity):
    told = {}
    for n in (5, 40):
        tokens, _ = datasets.planted(n, 3, 8, seed=0)
        told[n] = capacity.selectable(SimpleNamespace(tokens=tokens))
    assert told == {5: "separable", 40: "not separable"}


def test_the_fit_finds_place_width_and_exponent_and_its_intervals_hold_them(capacity):
    rng, cells = np.random.default_rng(0), []
    for d in (16, 64):
        n = np.round(LOAD * 2 * d).astype(int)
        for count in n:
            share = ndtr((1.02 - count / (2 * d)) * np.sqrt(d) / 0.7)
            hits = int(rng.binomial(2_000, share))
            cells.append(
                {"T": 2, "strength": 0.0, "d": d, "n": int(count), "separable": hits, "draws": 2_000}
            )
    found = capacity.fitted(cells, resamples=100)
    value, low, high = found["exponent"]
    assert low < -0.5 < high and high - low < 0.15 and value == pytest.approx(-0.5, abs=0.08)
    for group in found["groups"]:
        assert group["place"][1] < 1.02 < group["place"][2]
        assert not group["place"][1] < 1.1 < group["place"][2]
