"""A study with a training of the user's own: what it is given, what it returns, and what is refused."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attsvm_lab as lab
from attsvm_lab.sweeps.study import read_study

SOURCE = """
import numpy as np
import attsvm as att

def straight(tokens, head, seed, speed, steps=10):
    steps = np.arange(steps + 1)
    W = speed * steps[None, :, None, None] * np.ones((len(seed), 1, tokens.d, 1))
    return att.Path.of(tokens, W, steps)

def seeds(tokens, head, seed, speed):
    return seed

def speed(path, v, words):
    return words["speed"] + len(path.index)

def width(path, v, length=3):
    return float(length)
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study whose trainer is in a file beside it."""
    (tmp_path / "rides.py").write_text(SOURCE, encoding="utf8")
    monkeypatch.chdir(tmp_path)
    return {
        "measure": ["rides:speed", "rides:width", "margin_ratio:frobenius"],
        "seeds": 3,
        "data": {"model": "prompt_sphere", "n": 2, "T": 2, "d": 2},
        "train": {"trainer": "rides:straight", "speed": [0.5, 2.0], "steps": 4},
    }


def test_a_trainer_is_given_its_arguments_and_its_path_is_measured(study, tmp_path):
    done = lab.sweep(study, ThreadPoolExecutor(1), out=tmp_path / "out")
    assert [cell.words["speed"] for cell in done.cells] == [0.5, 2.0]
    assert done.runs["rides:speed"].tolist() == [5.5] * 3 + [7.0] * 3
    assert done.runs["rides:width"].tolist() == [3.0] * 6
    assert np.isfinite(done.runs["margin_ratio:frobenius"]).any()
    assert not {"optimizer", "weight"} & set(done.cells[0].words)


def test_another_text_of_the_trainer_is_another_result(study, tmp_path):
    keys = [read_study(study).cells[0].key(True)]
    (tmp_path / "rides.py").write_text(SOURCE + "\n# changed", encoding="utf8")
    keys.append(read_study(study).cells[0].key(True))
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"trainer": "rides:straight"}, "train.speed is missing: rides:straight takes speed, steps"),
        ({"trainer": "rides:straight", "speed": 1.0, "lr": 2.0}, "train.lr means nothing to rides:straight"),
        ({"trainer": "rides:straight", "speed": 1.0, "n": 2}, "train.n is the name of another column"),
        ({"trainer": "straight", "speed": 1.0}, "train.trainer is 'straight'. Pass a function of yours"),
        ({"trainer": "rides:curved", "speed": 1.0}, "rides has no 'curved'"),
    ],
)
def test_what_a_trainer_does_not_take_is_refused(study, train, words):
    with pytest.raises(ValueError, match=words):
        read_study({**study, "train": train})


def test_a_measure_without_a_norm_is_refused_because_no_limit_is_known(study):
    with pytest.raises(ValueError, match="no limit is known for rides"):
        read_study({**study, "measure": "margin_ratio"})


def test_a_trainer_returns_a_path_of_all_runs(study, tmp_path):
    train = {"trainer": "rides:seeds", "speed": 1.0}
    with pytest.raises(ValueError, match="rides:seeds returned range"):
        lab.sweep({**study, "train": train}, ThreadPoolExecutor(1), out=tmp_path / "out")
