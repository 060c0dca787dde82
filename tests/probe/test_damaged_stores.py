"""Hundreds of damaged stores: each is read or refused in words, and none reaches the depths."""

import os

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.numbers import files
from attsvm.numbers.files import BadFile
from attsvm.probe import AttentionProbe, TokenStore
from tests.numbers.test_damaged_files import ARRAYS, BYTES
from tests.numbers.test_files import write_safetensors

OFFSETS = np.array([0, 3, 4, 9, 12])
FIXED = {"head_ridge": 0.1, "prompt_ridge": 0.1}


def sound():
    return {"tokens": np.random.default_rng(0).standard_normal((12, 5)), "offsets": OFFSETS}


def npz(folder, arrays):
    np.savez(folder / "store.npz", **arrays)
    return folder / "store.npz", folder / "store.npz"


def compressed(folder, arrays):
    np.savez_compressed(folder / "store.npz", **arrays)
    return folder / "store.npz", folder / "store.npz"


def safetensors(folder, arrays):
    kept = {
        name: array if array.dtype.kind in "fiu" else np.ones(array.shape) for name, array in arrays.items()
    }
    write_safetensors(folder / "store.safetensors", kept)
    return folder / "store.safetensors", folder / "store.safetensors"


def shards(folder, arrays):
    """Of two shards the second one is damaged."""
    (folder / "s").mkdir(exist_ok=True)
    write_safetensors(folder / "s" / "a.safetensors", sound())
    return folder / "s", safetensors(folder / "s", arrays)[1]


def npy(folder, arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder, folder / "tokens.npy"


KINDS = (npz, compressed, safetensors, shards, npy)


def damaged(kind, damage, seed, folder):
    """A store with this damage."""
    rng, arrays = np.random.default_rng(seed), sound()
    if damage in ARRAYS:
        name = list(arrays)[rng.integers(2)]
        arrays[name] = damage(rng, arrays[name])
    store, file = kind(folder, arrays)
    if damage in BYTES:
        file.write_bytes(damage(rng, file.read_bytes()))
    return store


def ends_in_words(store):
    """How opening and reading it end, and whether both end as they should."""
    try:
        found = TokenStore.open(store)
        assert [x.shape for x in found] == [(length, found.width) for length in found.lengths]
    except (BadFile, FileNotFoundError) as error:
        said = str(error)
        assert said.startswith(str(store)) and said.count(str(store)) == 1, said
        assert "\n" not in said and "pickle" not in said, said
        return said
    return "read"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", (*BYTES, *ARRAYS), ids=lambda damage: damage.__name__)
def test_a_damaged_store_is_read_or_refused_in_words(kind, damage, tmp_path):
    said = [ends_in_words(damaged(kind, damage, seed, tmp_path)) for seed in range(24)]
    assert set(said) != {"read"} or damage.__name__ in ("noisy", "headless", "poisoned")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_undamaged_store_is_read(kind, tmp_path):
    assert ends_in_words(damaged(kind, None, 0, tmp_path)) == "read"


def test_a_store_that_would_fill_the_memory_is_refused_and_its_smaller_twin_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "trap.npz", tokens=np.zeros((100_000, 10)), offsets=[0, 100_000])
    assert (tmp_path / "trap.npz").stat().st_size < 8_000_000 // files.STRETCH
    assert len(TokenStore.open(tmp_path / "trap.npz")) == 1
    monkeypatch.setattr(files, "FREE", 2**20)
    with pytest.raises(BadFile, match=r"trap.npz: .* expand to 7.629 MiB"):
        TokenStore.open(tmp_path / "trap.npz")
    np.savez(tmp_path / "plain.npz", tokens=np.zeros((100_000, 10)), offsets=[0, 100_000])
    assert len(TokenStore.open(tmp_path / "plain.npz")) == 1  # a map fills nothing


def test_offsets_of_every_shard_must_fit_to_its_own_tokens(tmp_path):
    """Together they did: the second shard made up for what the first one had too few of."""
    tokens = np.ones((6, 2))
    write_safetensors(tmp_path / "a.safetensors", {"tokens": tokens, "offsets": np.array([0, 3, 5])})
    write_safetensors(tmp_path / "b.safetensors", {"tokens": tokens, "offsets": np.array([0, 4, 7])})
    with pytest.raises(BadFile, match=r"a.safetensors: offsets go from 0 to 5, x has 6 rows"):
        TokenStore.open(tmp_path)
    for name, middle in (("a", 3), ("b", 4)):
        write_safetensors(
            tmp_path / f"{name}.safetensors", {"tokens": tokens, "offsets": np.array([0, middle, 6])}
        )
    np.testing.assert_array_equal(TokenStore.open(tmp_path).lengths, [3, 3, 4, 2])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_offsets_that_go_back_are_refused_in_every_type(dtype):
    with pytest.raises(ValueError, match="increasing"):
        TokenStore.from_flat(np.ones((12, 2)), np.array([0, 9, 3, 12], dtype))
    assert len(TokenStore.from_flat(np.ones((12, 2)), np.array([0, 3, 9, 12], dtype))) == 3


@pytest.mark.parametrize("kind", [npz, safetensors, shards, npy], ids=lambda kind: kind.__name__)
def test_a_store_whose_file_became_shorter_is_refused_and_not_read_beyond_its_end(kind, tmp_path):
    tokens = np.random.default_rng(0).standard_normal((4000, 5))
    path, file = kind(tmp_path, {"tokens": tokens, "offsets": np.arange(0, 4001, 100)})
    store = TokenStore.open(path)
    y = np.arange(len(store)) % 2
    assert AttentionProbe(**FIXED).fit(store, y).predict(store).shape == y.shape
    os.truncate(file, 500)
    for use in (
        lambda: list(store),
        lambda: store.read(slice(0, len(store))),
        lambda: AttentionProbe(**FIXED).fit(store, y),
    ):
        with pytest.raises(ValueError, match="changed after it was opened"):
            use()
