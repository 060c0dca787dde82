"""Hundreds of damaged files: each is read or refused in words, and none reaches the depths."""

import zlib
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from attsvm import Path, Solution, Tokens, datasets, max_margin
from tests.archives import arrays_of
from tests.commands import run
from tests.numbers.test_files import write_safetensors

KINDS = ("problem", "safetensors", "path", "solution")
LOADERS = {"problem": Tokens, "safetensors": Tokens, "path": Path, "solution": Solution}


@cache
def sound(kind):
    """The arrays of a sound file."""
    tokens, v = datasets.sphere(3, 4, 3, seed=0)
    if kind in ("problem", "safetensors"):
        return tokens.arrays() | {"selected": np.array([0, 1, 2]), "v": v}
    W = np.random.default_rng(0).standard_normal((3, 3, 3))
    path = Path(tokens, np.array([0, 10, 100]), W, np.ones(3), np.zeros(3), "steps")
    thing = path if kind == "path" else max_margin(tokens, [0, 1, 2])
    with TemporaryDirectory() as folder:
        return arrays_of(thing.save(f"{folder}/sound.npz"))


def write(kind, file, arrays):
    if kind == "safetensors":
        kept = {
            name: np.asarray(array, float) for name, array in arrays.items() if array.dtype.kind in "fiub"
        }
        write_safetensors(file, kept | {"selected": np.arange(3)})
    else:
        np.savez(file, **arrays)


# ---------------------------------------------------------------------- damage to bytes, damage to arrays


def truncated(rng, data):
    return data[: rng.integers(len(data))]


def flipped(rng, data):
    out = np.frombuffer(data, np.uint8).copy()
    out[rng.integers(len(out), size=rng.integers(1, 9))] ^= np.uint8(1 << rng.integers(8))
    return out.tobytes()


def scribbled(rng, data):
    start = rng.integers(len(data))
    return data[:start] + rng.bytes(rng.integers(1, 200)) + data[start + rng.integers(200) :]


def headless(rng, data):
    """The end of the file holds the directory of a zip archive: damage just that."""
    return data[:-300] + flipped(rng, data[-300:])


def replaced(rng, data):
    texts = (
        b"",
        b"hello",
        b"PK\3\4",
        b"PK\5\6",
        b"{}",
        b"\x93NUMPY",
        bytes(9),
        bytes(8) + b"{",
        zlib.compress(data),
    )
    return texts[rng.integers(len(texts))]


BYTES = (truncated, flipped, scribbled, headless, replaced)


def retyped(rng, array):
    kinds = (
        np.int8,
        np.float16,
        np.float32,
        ">f8",
        complex,
        bool,
        object,
        "U3",
        "S3",
        "M8[s]",
        np.longdouble,
    )
    try:
        return array.astype(kinds[rng.integers(len(kinds))])
    except (ValueError, TypeError):
        return np.array([{}, None], object)


def reshaped(rng, array):
    ways = (lambda a: a[None], lambda a: a[..., None], lambda a: a.ravel(), lambda a: a.T, lambda a: a[:0])
    ways += (lambda a: a[..., :1], lambda a: a.ravel()[:1].reshape(()), lambda a: np.stack([a, a]))
    return ways[rng.integers(len(ways))](np.atleast_1d(array))


def poisoned(rng, array):
    if array.dtype.kind != "f":
        return array
    out = np.atleast_1d(array.copy())
    out.flat[rng.integers(out.size)] = (np.nan, np.inf, -np.inf, 1e308, -1e-308, 5e-324)[rng.integers(6)]
    return out


def noisy(rng, array):
    """Random bits in the numbers themselves, under a check sum that fits."""
    return (
        np.frombuffer(flipped(rng, array.tobytes()), array.dtype).reshape(array.shape)
        if array.size
        else array
    )


ARRAYS = (retyped, reshaped, poisoned, noisy)


def damaged(kind, damage, seed, folder):
    """A file with this damage."""
    rng, arrays = np.random.default_rng(seed), dict(sound(kind))
    file = folder / f"{kind}.{'safetensors' if kind == 'safetensors' else 'npz'}"
    if damage in ARRAYS:
        name = list(arrays)[rng.integers(len(arrays))]
        arrays[name] = damage(rng, arrays[name])
    elif damage == "missing":
        del arrays[list(arrays)[rng.integers(len(arrays))]]
    elif damage == "renamed":
        arrays["kyes"] = arrays.pop("keys")
    write(kind, file, arrays)
    if damage in BYTES:
        file.write_bytes(damage(rng, file.read_bytes()))
    return file


def ends_in_words(kind, file, command="solve"):
    """How the loader and the command end, and whether both end as they should."""
    try:
        repr(LOADERS[kind].load(file))
        loaded = "loaded"
    except (ValueError, OSError) as error:
        loaded = str(error)
        assert file.name in loaded and "\n" not in loaded and "pickle" not in loaded, loaded
    done = run(command, file)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 2, 3) and "pickle" not in done.stderr
    return loaded, done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", (*BYTES, *ARRAYS), ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_read_or_refused_in_words(kind, damage, tmp_path):
    refused = 0
    for seed in range(16):  # a picture takes a second, so that few are drawn
        command = "show" if seed == 0 else "solve"
        loaded, _ = ends_in_words(kind, damaged(kind, damage, seed, tmp_path), command)
        refused += loaded != "loaded"
    assert refused or damage in (noisy, headless)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["missing", "renamed"])
def test_a_file_without_an_array_is_read_or_refused_in_words(kind, damage, tmp_path):
    for seed in range(8):
        ends_in_words(kind, damaged(kind, damage, seed, tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_not_a_file(kind, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    loaded, done = ends_in_words(kind, tmp_path / "folder.npz")
    assert "is a folder" in loaded and done.exit_code == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_file_works(kind, tmp_path):
    loaded, done = ends_in_words(kind, damaged(kind, None, 0, tmp_path))
    assert (loaded, done.exit_code) == ("loaded", 0)
