"""Recorded figures are computed again from data, and errors say what is missing."""

import argparse
from functools import partial

import numpy as np
import pytest

import again
import drive
import run
from attsvm import figures, recompute, reproduce
from attsvm.figures.recorded import FOLDER

PLAN = """# two trainings
sentiment --size 3 --optimizer mirror:2 --seed 0 --keep
vision --optimizer adam
"""


@pytest.fixture
def data(tmp_path):
    """Made-up reviews of five tokens."""
    rng, halves = np.random.default_rng(0), {}
    for half in ("train", "test"):
        halves |= {
            f"{half}_ids": rng.integers(1, 30_000, 50).astype(np.int16),
            f"{half}_lengths": np.full(10, 5, np.int16),
            f"{half}_labels": np.arange(10, dtype=np.uint8) % 2,
        }
    sentences = {"sentences": np.array([[1, 7, 2, 0], [1, 3, 9, 2]], np.int16), "pivotal": np.array([1, 2])}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "reviews.npz", **halves, **sentences)
    return tmp_path / "data"


def test_a_recorded_figure_is_computed_again_from_data(data, tmp_path, monkeypatch):
    """As `attsvm reproduce --only … --scale quick --data FOLDER`; one training each, in one process."""
    (tmp_path / "plan.txt").write_text(PLAN)
    (tmp_path / "own.txt").write_text(
        "sentiment --size 3 --optimizer adam+muon --seed 0 --keep --enough 0.17"
    )
    monkeypatch.setitem(again.OWN_PLAN, "head-ranks", tmp_path / "own.txt")
    (tmp_path / "spoken.txt").write_text("language --epochs 20 --optimizer adam --seed 0 --keep 0")
    monkeypatch.setitem(again.OWN_PLAN, "language", tmp_path / "spoken.txt")

    def here(words, check):
        again.main([*words[2:], "--plan", str(tmp_path / "plan.txt")])
        return argparse.Namespace(returncode=0)

    def one_by_one(lines, out, folder, seconds, at_once, *more):
        for line in lines:
            place = str(out / drive.name_of(line))
            run.main([*line.split(), *more, "--out", place, "--data", str(folder)])

    monkeypatch.setattr(recompute, "subprocess", argparse.Namespace(run=here))
    monkeypatch.setattr(drive, "drive", one_by_one)
    monkeypatch.setattr(run, "Sentiment", partial(run.Sentiment, width=24, hidden=16))
    small = {"pieces": 40, "length": 8, "width": 16, "depth": 1, "heads": 2, "hidden": 16}
    monkeypatch.setattr(run, "Language", partial(run.Language, **small))
    monkeypatch.setenv(FOLDER, "")  # put back at the end
    figure = figures.ALL["sentiment"]
    before = reproduce.fingerprint(figure, "quick")
    names = ["sentiment", "head-ranks", "language", "two-clouds"]
    recompute.recompute(names, data, tmp_path / "trained", tiny=True)
    arrays = figure.compute("quick")
    assert [name for name in arrays if name.startswith("test")] == ["test 3 2 0"]
    assert arrays["epoch 3 2 0"].tolist() == [1, 2] and "CPU" not in figure.recorded
    assert [check.ours for check in figure.checks(arrays)] == [arrays["test 3 2 0"].max()]
    figure.picture(arrays)
    assert reproduce.fingerprint(figure, "quick") != before
    own = figures.ALL["head-ranks"]
    arrays = own.compute("quick")
    assert [name for name in arrays if name.startswith("heads")] == ["heads adam+muon"]
    assert not own.checks(arrays) and own.picture(arrays) is not None
    spoken = figures.ALL["language"]
    arrays = spoken.compute("quick")
    assert arrays["fit adam"].shape == (1, 3) and spoken.picture(arrays) is not None


def test_what_is_missing_is_said(data, tmp_path, monkeypatch):
    asked = ["sentiment", "--data", str(data), "--out", str(tmp_path)]
    monkeypatch.setattr(again.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU"):
        again.main(asked)
    with pytest.raises(SystemExit, match=r"data\.py images"):
        again.main(["vision", *asked[1:]])
    with pytest.raises(ValueError, match="sentiment, vision"):
        recompute.recompute(["two-clouds"], data, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data\.py reviews"):
        recompute.recompute([], tmp_path / "nowhere", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recompute, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(FileNotFoundError, match="not in the wheel"):
        recompute.script()
