"""Recorded figures are computed again from data, and errors say what is missing."""

import argparse
from functools import partial

import numpy as np
import pytest
import torch

import again
import drive
import run
from attsvm_lab import figures, reproduce
from attsvm_lab.figures.recorded import FOLDER
from data import Images
from tasks import Vision

PLAN = """# a cell of the table, and what the other figures draw
sentiment --size 3 --optimizer mirror:2 --seed 0 --keep
sentiment --size 3 --optimizer mirror:1.1 --seed 0 --keep 0
sentiment --size 3 --optimizer mirror:2 --seed 10 --init 0 --keep
sentiment --size 3 --optimizer mirror:2 --seed 0 --no-half --keep
vision --optimizer mirror:1.1
vision --optimizer adam
patches --optimizer adam --keep 0
digits --optimizer adam --lr 3e-4 --seed 0 --epochs 150 --only last-query-key --keep
digits --optimizer adam --lr 3e-3 --seed 0 --epochs 150 --only last-query-key-head --keep
"""
SMALL = {"width": 16, "depth": 1, "heads": 2, "hidden": 16}


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


def pictures(_):
    """Made-up images, ten of each half."""
    pixels = torch.randint(0, 255, (10, 3, 32, 32), dtype=torch.uint8)
    return 2 * (Images(pixels, torch.arange(10)),)


def test_every_recorded_figure_of_a_net_is_computed_again_from_data(data, tmp_path, monkeypatch):
    """As `attsvm reproduce --only … --scale quick --data FOLDER`; small nets, in one process."""
    (tmp_path / "plan.txt").write_text(PLAN)
    (tmp_path / "own.txt").write_text(
        "sentiment --size 3 --optimizer adam+muon --seed 0 --keep --enough 0.17"
    )
    (data / "images.npz").touch()
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

    monkeypatch.setattr(reproduce, "subprocess", argparse.Namespace(run=here))
    monkeypatch.setattr(drive, "drive", one_by_one)
    monkeypatch.setattr(run, "images", pictures)
    monkeypatch.setattr(run, "PATCHES", run.PATCHES | SMALL)
    monkeypatch.setattr(run, "Sentiment", partial(run.Sentiment, width=24, hidden=16))
    small = {"pieces": 40, "length": 8, "width": 16, "depth": 1, "heads": 2, "hidden": 16}
    monkeypatch.setattr(run, "Language", partial(run.Language, **small))
    monkeypatch.setattr(run, "Vision", lambda *data, **sizes: Vision(*data, **(SMALL | sizes)))
    monkeypatch.setenv(FOLDER, "")  # put back at the end
    figure = figures.ALL["sentiment"]
    before = reproduce.fingerprint(figure, "quick")
    reproduce.recompute([*again.FIGURES, "two-clouds"], data, tmp_path / "trained", tiny=True)
    found = {name: figures.ALL[name].compute("quick") for name in again.FIGURES}
    for name, arrays in found.items():
        assert figures.ALL[name].picture(arrays) is not None
        figures.ALL[name].checks(arrays)
    arrays = found["sentiment"]
    tested = [name for name in arrays if name.startswith("test")]
    assert tested == ["test 3 1.1 0", "test 3 2 0", "test 3 2 10"]  # no control in float32
    assert arrays["epoch 3 2 0"].tolist() == [1, 2] and "CPU" not in figure.recorded
    cells = [check.ours for check in figure.checks(arrays)]
    assert cells == [arrays[f"test 3 {p} 0"].max() for p in ("1.1", "2")]
    assert reproduce.fingerprint(figure, "quick") != before
    heads = [name for name in found["head-ranks"] if name.startswith("heads")]
    assert heads == ["heads adam+muon"]
    heads = found["head-geometry"]
    layers = {name: x.shape[::2] for name, x in heads.items() if name.startswith("layers")}
    assert layers == {f"layers 3 {p}": (1, 3) for p in ("1.1", "2", "start")}
    assert heads["pair 1.1, size 3 K and Q, l1.1"].shape[0] == 2
    assert found["vision"]["epoch Adam"].tolist() == [1, 2]
    for control in ("fixed, head trained", "fixed, at chance"):
        assert found["vision-sparsity"][f"{control} 0"].shape == (3, 3)
    assert found["language"]["fit adam"].shape == (1, 3)


def test_what_is_missing_is_said(data, tmp_path, monkeypatch):
    asked = ["sentiment", "--data", str(data), "--out", str(tmp_path)]
    monkeypatch.setattr(again.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU"):
        again.main(asked)
    with pytest.raises(SystemExit, match=r"data\.py images"):
        again.main(["vision", *asked[1:]])
    with pytest.raises(ValueError, match="sentiment, vision"):
        reproduce.recompute(["two-clouds"], data, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data\.py reviews"):
        reproduce.recompute([], tmp_path / "nowhere", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(FileNotFoundError, match="the wheel does not hold it"):
        reproduce.script()
