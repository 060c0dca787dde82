"""`TokenStore.open` on the files of vLLM: one request each, and a folder of them."""

import fcntl
import os
import threading

import ml_dtypes
import numpy as np
import pytest

from attsvm.numbers.archives import BadFile, tensors
from attsvm.probe import TokenStore

LAYERS, WIDTH = 3, 6


def request(T, seed, dtype=np.float16):
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((T, LAYERS, WIDTH)).astype(dtype)
    return {"hidden_states": states, "token_ids": np.arange(T)}


def write(folder, name, arrays):
    path = folder / f"{name}.safetensors"
    path.write_bytes(tensors(arrays, {}))
    return path


def test_a_folder_of_requests_is_a_store_of_one_layer(tmp_path):
    all_states = [request(T, T) for T in (5, 3, 7)]
    for k, arrays in enumerate(all_states):
        write(tmp_path, f"request-{k}", arrays)
    store = TokenStore.open(tmp_path, layer=2, skip=1)
    assert len(store) == 3 and store.width == WIDTH
    for sequence, arrays in zip(store, all_states, strict=True):
        assert (sequence == arrays["hidden_states"][1:, 2]).all()
        assert not (sequence == arrays["hidden_states"][1:, 1]).any()  # another layer


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "has 3 layers. Pass layer="),
        ({"layer": 3}, "no layer 3 among 3"),
        ({"layer": 0, "skip": 3}, "has none"),
    ],
)
def test_a_layer_that_a_request_does_not_have_is_refused(tmp_path, options, reason):
    write(tmp_path, "short", request(3, 0))
    with pytest.raises(BadFile, match=reason):
        TokenStore.open(tmp_path, **options)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_a_folder_holds_no_file_open_and_a_file_that_changes_is_named(tmp_path, monkeypatch, dtype):
    """A process may have a thousand files open, and a server writes more."""
    from safetensors.numpy import save_file

    all_states = [request(4, k, dtype) for k in range(40)]
    for k, arrays in enumerate(all_states):
        save_file(arrays, tmp_path / f"{k:02}.safetensors")
    before = len(os.listdir("/proc/self/fd"))
    in_memory = TokenStore.open(tmp_path, layer=2)
    monkeypatch.setattr("attsvm.probe.data.store.COPY_LIMIT", 0)
    store = TokenStore.open(tmp_path, layer=2)
    expected = all_states[7]["hidden_states"][:, 2].astype(np.float32)
    for opened in (in_memory, store):
        assert np.array_equal(opened.numpy(slice(0, 40))[4 * 7 : 4 * 8], expected)
        assert np.array_equal(opened[7], expected)
    assert len(os.listdir("/proc/self/fd")) - before < 5
    write(tmp_path, "07", request(9, 7))
    with pytest.raises(ValueError, match=r"07\.safetensors could not be read: it changed"):
        store[7]
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="is empty"):
        TokenStore.open(empty, layer=2)


def test_layers_are_of_requests_alone(tmp_path):
    write(tmp_path, "shard", {"tokens": np.zeros((4, 2)), "offsets": np.array([0, 1, 4])})
    assert len(TokenStore.open(tmp_path)) == 2
    with pytest.raises(BadFile, match="layer and skip are for requests"):
        TokenStore.open(tmp_path, layer=0)


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_store_waits_for_a_file_that_is_being_written(tmp_path, of_folder):
    """`generate` names the files before they are written; the lock is there by then."""
    arrays = request(8, 3)
    path = write(tmp_path, "a", arrays)
    content = path.read_bytes()
    if of_folder:
        path.write_bytes(content[:90])
    else:
        os.remove(path)
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish():
            path.write_bytes(content)
            fcntl.flock(lock, fcntl.LOCK_UN)

        threading.Timer(0.1, finish).start()
        store = TokenStore.open(tmp_path if of_folder else path, layer=1)
    assert np.array_equal(store[0], arrays["hidden_states"][:, 1])
