"""`follow` and `TokenStore.open` on the files of vLLM: whole, half written, locked, damaged, after a kill."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from attsvm.numbers.archives import BadFile, tensors
from attsvm.probe import AttentionProbe, RequestScore, TokenStore, follow, request_scores
from attsvm.probe.data import requests

LAYERS, WIDTH = 3, 6


def request(T, seed, dtype=np.float16):
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((T, LAYERS, WIDTH)).astype(dtype)
    return {"hidden_states": states, "token_ids": np.arange(T)}


def write(folder, name, arrays):
    path = folder / f"{name}.safetensors"
    path.write_bytes(tensors(arrays, {}))
    return path


@pytest.fixture(scope="module")
def probe():
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((rng.integers(3, 9), WIDTH)) for _ in range(60)]
    labels = [x[:, 0].max() > 1.2 for x in sequences]
    return AttentionProbe(head_ridge=0.1, prompt_ridge=0.1).fit(sequences, labels)


def scored(folder, probe, log, **options):
    return list(follow(folder, {1: probe}, log, every=0.01, idle=0.0, **options))


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16], ids=str)
def test_a_request_has_the_score_of_its_states(tmp_path, probe, dtype):
    arrays = request(6, 1, dtype)
    if dtype is ml_dtypes.bfloat16:
        from safetensors.numpy import save_file

        save_file(arrays, tmp_path / "a.safetensors")
    else:
        write(tmp_path, "a", arrays)
    (found,) = scored(tmp_path, probe, tmp_path / "log.jsonl")
    states = arrays["hidden_states"][1:].astype(np.float64)
    assert found.request == "a" and found.tokens == 5 and found.error is None
    assert found.scores[1] == pytest.approx(probe.decision_function([states[:, 1]])[0], abs=1e-6)
    assert found.scores[1] != pytest.approx(probe.decision_function([states[:, 0]])[0], abs=1e-3)


def test_ids_of_layers_are_positions_of_what_the_server_writes(tmp_path, probe):
    write(tmp_path, "a", request(4, 2))
    by_place = scored(tmp_path, probe, tmp_path / "1.jsonl")
    by_id = follow(tmp_path, {18: probe}, tmp_path / "2.jsonl", layers=(2, 18, 33), idle=0.0, every=0.01)
    assert next(by_id).scores[18] == by_place[0].scores[1]
    with pytest.raises(ValueError, match="layer 5, and the server writes"):
        follow(tmp_path, {5: probe}, tmp_path / "3.jsonl", layers=(2, 18, 33))


def test_every_request_has_one_line_however_often_one_starts(tmp_path, probe):
    log = tmp_path / "log.jsonl"
    for k in range(3):
        write(tmp_path, f"first-{k}", request(4, k))
    watching = follow(tmp_path, {1: probe}, log, every=0.01, idle=0.0)
    next(watching)
    watching.close()
    write(tmp_path, "later", request(5, 9))
    assert len(scored(tmp_path, probe, log)) == 3
    names = [json.loads(line)["request"] for line in log.read_text().splitlines()]
    assert sorted(names) == ["first-0", "first-1", "first-2", "later"]
    assert scored(tmp_path, probe, log) == []


def test_a_line_that_was_cut_off_is_written_again(tmp_path, probe):
    log = tmp_path / "log.jsonl"
    for k in range(2):
        write(tmp_path, f"r{k}", request(4, k))
    whole = scored(tmp_path, probe, log)
    log.write_bytes(log.read_bytes()[:-9])
    assert [s.request for s in scored(tmp_path, probe, log)] == [whole[-1].request]
    assert {json.loads(line)["request"] for line in log.read_text().splitlines()} == {"r0", "r1"}


def test_a_file_that_is_being_written_waits(tmp_path, probe):
    path = write(tmp_path, "slow", request(8, 3))
    content = path.read_bytes()
    for share in (0, 5, len(content) // 3, len(content) - 1):
        path.write_bytes(content[:share])
        assert scored(tmp_path, probe, tmp_path / "log.jsonl") == []
    path.write_bytes(content)
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert requests.is_locked(path)
        assert scored(tmp_path, probe, tmp_path / "log.jsonl") == []
    assert len(scored(tmp_path, probe, tmp_path / "log.jsonl")) == 1


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


def test_a_damaged_file_is_told_once_and_stops_nobody(tmp_path, probe, monkeypatch):
    monkeypatch.setattr(request_scores, "PATIENCE", 0.05)
    damaged = write(tmp_path, "damaged", request(8, 3))
    damaged.write_bytes(damaged.read_bytes()[:-7])
    states = request(4, 4)
    states["hidden_states"][2, 1, 0] = np.nan
    write(tmp_path, "nan", states)
    write(tmp_path, "good", request(4, 5))
    found = {s.request: s for s in follow(tmp_path, {1: probe}, tmp_path / "log", every=0.02, idle=0.3)}
    assert "is damaged" in found["damaged"].error and "NaN" in found["nan"].error
    assert found["nan"].scores == {} and found["good"].error is None


UNFIT = [
    ({"shape": (4, LAYERS, WIDTH + 1)}, {}, "of width 7, the probe of layer 1 was fitted on 6"),
    ({"shape": (4, 1, WIDTH)}, {}, "has 1 layers, none at position 1"),
    ({"shape": (4, 2, WIDTH)}, {"layers": (0, 1, 2)}, "has 2 layers, and layers= names 3"),
]


@pytest.mark.parametrize(("states", "options", "reason"), UNFIT)
def test_states_of_another_model_are_refused_first_and_told_later(tmp_path, probe, states, options, reason):
    log, bad = tmp_path / "log", {"hidden_states": np.ones(states["shape"], np.float32)}
    write(tmp_path, "bad", bad)
    with pytest.raises(ValueError, match=reason):  # the call is wrong: nothing is counted as scored
        scored(tmp_path, probe, log, **options)
    assert log.read_bytes() == b""
    os.remove(tmp_path / "bad.safetensors")
    write(tmp_path, "good", request(4, 5))
    assert scored(tmp_path, probe, log, **options)[0].error is None
    write(tmp_path, "bad", bad)
    (told,) = scored(tmp_path, probe, log, **options)
    assert reason in told.error and told.scores == {}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (np.full((4, LAYERS, WIDTH), 3e38, np.float32), "too large"),
        (np.full((4, LAYERS, WIDTH), np.inf, np.float16), "infinite"),
        (np.ones((1, LAYERS, WIDTH), np.float16), "no token to score: 1 in the file, the first 1"),
    ],
)
def test_a_request_without_a_score_is_told_and_stops_nobody(tmp_path, probe, states, reason):
    write(tmp_path, "bad", {"hidden_states": states})
    write(tmp_path, "good", request(4, 5))
    found = {s.request: s for s in scored(tmp_path, probe, tmp_path / "log")}
    assert reason in found["bad"].error and found["good"].error is None
    assert scored(tmp_path, probe, tmp_path / "log") == []


def test_a_file_without_a_name_is_one_request(tmp_path, probe):
    write(tmp_path, "", request(4, 5))
    write(tmp_path, 'b\n"c', request(4, 6))
    assert {s.request for s in scored(tmp_path, probe, tmp_path / "log")} == {"", 'b\n"c'}
    assert scored(tmp_path, probe, tmp_path / "log") == []


def test_a_file_that_may_not_be_read_is_told_after_a_while(tmp_path, probe, monkeypatch):
    monkeypatch.setattr(request_scores, "PATIENCE", 0.02)
    whole = requests.hidden_states

    def refused(path):
        if path.stem == "private":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(requests, "hidden_states", refused)
    write(tmp_path, "private", request(4, 5))
    write(tmp_path, "open", request(4, 5))
    found = {s.request: s for s in follow(tmp_path, {1: probe}, tmp_path / "log", every=0.01, idle=0.2)}
    assert "Permission denied" in found["private"].error and found["open"].error is None


def test_a_folder_that_goes_is_named_and_one_that_is_back_goes_on(tmp_path, probe):
    folder, log = tmp_path / "states", tmp_path / "log"
    folder.mkdir()
    path = write(folder, "a", request(4, 5))
    watching = follow(folder, {1: probe}, log, every=0.01, idle=5.0)
    assert next(watching).request == "a"
    os.remove(path)
    folder.rmdir()
    with pytest.raises(NotADirectoryError, match="is gone"):
        next(watching)
    folder.mkdir()
    write(folder, "a", request(4, 5))
    write(folder, "b", request(4, 6))
    assert [s.request for s in scored(folder, probe, log)] == ["b"]


def test_a_log_that_somebody_deletes_is_an_error(tmp_path, probe):
    write(tmp_path, "a", request(4, 5))
    write(tmp_path, "b", request(4, 6))
    watching = follow(tmp_path, {1: probe}, tmp_path / "log", idle=0.0)
    next(watching)
    os.remove(tmp_path / "log")
    with pytest.raises(FileNotFoundError, match="was deleted"):
        next(watching)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"probes": {"1": None}}, "the layer '1'"),
        ({"probes": {-1: None}}, "the layer -1"),
        ({"probes": {}}, "no mapping"),
        ({"probes": {1: "probe"}}, r"probes\[1\] is a str"),
        ({"probes": {1: AttentionProbe()}}, "not fitted"),
        ({"layers": (1, 1, 2)}, "an id twice"),
        ({"every": -1}, "every is -1"),
        ({"idle": "5"}, "idle is '5'"),
        ({"skip": -1}, "skip is -1"),
    ],
)
def test_what_cannot_be_followed_is_said_at_once(tmp_path, probe, options, reason):
    probes = options.pop("probes", {1: probe})
    with pytest.raises((ValueError, TypeError), match=reason):
        follow(tmp_path, probes, tmp_path / "log", **options)
    assert not (tmp_path / "log").exists()
    assert next(follow(tmp_path, {np.int64(1): probe}, tmp_path / "log", idle=0.0), None) is None


def test_two_processes_do_not_write_one_log(tmp_path, probe):
    write(tmp_path, "a", request(4, 0))
    write(tmp_path, "b", request(4, 1))
    one = follow(tmp_path, {1: probe}, tmp_path / "log", idle=0.0)
    assert isinstance(next(one), RequestScore)
    with pytest.raises(BlockingIOError, match="another process writes"):
        next(follow(tmp_path, {1: probe}, tmp_path / "log", idle=0.0))


def test_a_log_of_something_else_is_refused(tmp_path, probe):
    (tmp_path / "log").write_text('{"name": 1}\n')
    with pytest.raises(BadFile, match="no score of a request"):
        scored(tmp_path, probe, tmp_path / "log")
    for content in ("a note without an end of line", '{"name": '):  # not the beginning of a line of ours
        (tmp_path / "log").write_text(content)
        with pytest.raises(BadFile, match="no score of a request"):
            scored(tmp_path, probe, tmp_path / "log")
        assert (tmp_path / "log").read_text() == content
    with pytest.raises(NotADirectoryError, match="shared_storage_path"):
        follow(tmp_path / "none", {1: probe}, tmp_path / "log")


FOLLOW = """
import sys
from attsvm.probe import AttentionProbe, follow
probe = AttentionProbe.load(sys.argv[2])
for _ in follow(sys.argv[1], {1: probe}, sys.argv[3], every=0.001):
    pass
"""


def test_a_killed_follower_goes_on_where_it_was(tmp_path, probe):
    folder, log = tmp_path / "states", tmp_path / "log.jsonl"
    folder.mkdir()
    for k in range(200):
        write(folder, f"r{k:03}", request(4, k))
    command = [sys.executable, "-c", FOLLOW, folder, probe.save(tmp_path / "probe"), log]
    process = subprocess.Popen(command)
    while not log.exists() or log.read_bytes().count(b"\n") < 20:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = log.read_bytes().count(b"\n")
    found = scored(folder, probe, log)
    names = [json.loads(line)["request"] for line in log.read_text().splitlines()]
    assert sorted(names) == [f"r{k:03}" for k in range(200)]
    assert before >= 20 and len(found) in (200 - before, 201 - before)
