"""Keys in the chunks of a dask array: priced there, on threads or on workers, whatever becomes of these."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from attsvm import Tokens, frobenius, max_margin
from attsvm.numbers.stored import as_stored, cluster
from attsvm.numbers.stored.cluster import OnCluster, _in_blocks, _margins
from tests.numbers.test_homes import chunked
from tests.numbers.test_stored import numbers
from tests.program.test_working_set import problem

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")


def loaded(load, array, size):
    """Chunks of `size` examples that load(number of the chunk, its examples) gives when it is asked."""
    parts = [array[a : a + size] for a in range(0, len(array), size)]
    one = [
        da.from_delayed(dask.delayed(load)(i, part), part.shape, part.dtype) for i, part in enumerate(parts)
    ]
    return da.concatenate(one)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("same", [False, True], ids=["directions", "one direction"])
def test_margins_in_chunks_are_those_in_memory(dtype, same):
    keys = numbers(30, 5, 8, dtype=dtype)
    rng = np.random.default_rng(1)
    examples, wide = np.array([0, 1, 2, 9, 29]), keys.astype(float)
    anchor, directions = rng.integers(5, size=5), rng.standard_normal((5, 8))
    directions = directions[[0] * 5] if same else directions
    expected = np.einsum("ntd,nd->nt", wide[examples, anchor][:, None] - wide[examples], directions)
    for chunks in ((7, -1, -1), ((2, 27, 1), -1, -1), (11, 2, 3)):  # the last: parts of examples
        found = OnCluster(da.from_array(keys, chunks)).margins(examples, anchor, directions, np.eye(8))
        assert np.array_equal(found, expected)
    assert not len(
        OnCluster(da.from_array(keys)).margins(examples[:0], anchor[:0], directions[:0], np.eye(8))
    )


def test_large_chunks_are_widened_a_part_at_a_time(monkeypatch):
    keys, directions = numbers(30, 5, 8), np.random.default_rng(1).standard_normal((30, 8))
    stored = OnCluster(chunked(keys, len(keys)))
    whole = stored.margins(np.arange(30), np.zeros(30, int), directions, np.eye(8))
    monkeypatch.setattr("attsvm.numbers.stored.cluster.BLOCK", 100)
    assert np.array_equal(stored.margins(np.arange(30), np.zeros(30, int), directions, np.eye(8)), whole)


def test_only_chunks_that_are_asked_are_computed():
    asked = []
    keys = numbers(20, 4, 3)
    stored = OnCluster(loaded(lambda i, part: asked.append(i) or part, keys, 5))
    stored.margins(np.array([6, 8, 19]), np.zeros(3, int), np.ones((3, 1)), np.ones((3, 1)))
    assert sorted(asked) == [1, 3]
    stored[np.array([12, 10, 12]), np.array([0, 1, 2])]
    assert sorted(asked) == [1, 2, 3]
    stored.largest()
    assert len(asked) == 7


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_the_answer_depends_neither_on_the_chunks_nor_on_who_computes_them(scheduler):
    keys, _, best = problem(120, 5, 8, 1)
    expected = max_margin(Tokens(chunked(keys, len(keys))), best).W
    with dask.config.set(scheduler=scheduler):
        found = max_margin(Tokens(da.from_array(keys, chunks=(17, 2, 5))), best).W
    assert np.array_equal(found, expected)


def test_arrays_that_are_none_are_refused():
    keys = chunked(numbers(8, 4, 3), 3)
    with pytest.raises(ValueError, match=r"unknown size\. Pass keys\.compute_chunk_sizes\(\)"):
        Tokens(keys[keys[:, 0, 0] > 0])
    with pytest.raises(ValueError, match="not an array of real numbers"):
        Tokens(dask.delayed(np.ones)((2, 3, 4)))
    assert isinstance(as_stored("keys", keys, np.float64), OnCluster)


# ---------------------------------------------------------------------- what goes wrong


def broken(i, part):
    if i == 2:
        raise OSError("connection lost")
    return part


def test_a_chunk_that_fails_is_named():
    with pytest.raises(
        ValueError, match="keys, examples 10 to 14, could not be computed: OSError: conn"
    ) as e:
        Tokens(loaded(broken, numbers(20, 4, 3), 5))
    assert isinstance(e.value.__cause__, OSError)
    with pytest.raises(ValueError, match=r"examples 0 to 4, .* shape \(5, 4, 2\), expected \(5, 4, 3\)"):
        Tokens(loaded(lambda _, part: part[..., :2], numbers(5, 4, 3), 5))


def test_a_failure_that_does_not_come_back_names_all_that_was_asked():
    first = []

    def once(i, part):
        if not first:
            first.append(i)
            raise OSError("connection lost")
        return part

    with pytest.raises(ValueError, match="keys, examples 0 to 19, could not be computed: OSError"):
        Tokens(loaded(once, numbers(20, 4, 3), 5))


# ---------------------------------------------------------------------- on a cluster


WORKER = """
import pickle, sys
sys.modules["attsvm"] = None
import numpy as np
task = pickle.load(sys.stdin.buffer)
asked = dict(shape=(1, 3, 3), index=(np.array([0]),), arrays=[np.array([1]), np.ones((1, 3))])
print(task(np.eye(3)[None], **asked).shape)
"""


@pytest.mark.parametrize(
    ("made", "runs"), [(_in_blocks(partial(_margins(), W=np.ones((3, 3)))), True), (OnCluster.margins, False)]
)
def test_a_worker_needs_only_numpy(made, runs):
    task = pytest.importorskip("cloudpickle").dumps(made)
    done = subprocess.run([sys.executable, "-c", WORKER], input=task, capture_output=True)
    assert (done.stdout.split() == b"(1, 3)".split()) is runs


def start(**options):
    """A cluster on this machine and its client."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(threads_per_worker=1, dashboard_address=None, **options)
    return cluster, distributed.Client(cluster)


@pytest.fixture
def small():
    """A cluster with one worker, in this process."""
    cluster, client = start(n_workers=1, processes=False)
    with cluster, client:
        yield cluster


def mortal(armed):
    """Loads chunks; where there is a file `armed`, the worker is killed in the middle of that, once."""

    def load(i, part):
        if i == 3 and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    return load


def test_a_worker_that_is_killed_in_a_pass_changes_nothing(tmp_path, monkeypatch):
    armed, real = tmp_path / "armed", OnCluster.margins
    keys, queries, best = problem(400, 5, 6, 5)
    chunks = loaded(mortal(armed), keys, 12)
    threads, here = max_margin(Tokens(chunks, queries), best), max_margin(Tokens(keys, queries), best)
    cluster, client = start(n_workers=2, processes=True)
    with cluster, client:
        tokens, workers = Tokens(chunks, queries), set(client.run(os.getpid).values())
        arm = [armed.touch]
        monkeypatch.setattr(OnCluster, "margins", lambda *asked: (arm and arm.pop()()) or real(*asked))
        there = max_margin(tokens, best)
        assert workers - set(client.run(os.getpid, on_error="ignore").values())
    assert there.certified and not arm and not armed.exists()
    assert np.array_equal(there.W, threads.W)
    assert frobenius.value(there.W) == pytest.approx(frobenius.value(here.W), rel=1e-10)


def test_margins_come_to_the_client_and_keys_do_not(small, monkeypatch):
    client = pytest.importorskip("distributed").Client
    sizes, real = [], client.gather

    def gather(*asked, **how):
        found = real(*asked, **how)
        sizes.append(sum(part.nbytes for part in found))
        return found

    monkeypatch.setattr(client, "gather", gather)
    stored = OnCluster(chunked(numbers(40, 4, 50), 7))
    stored.margins(np.arange(40), np.zeros(40, int), np.ones((40, 1)), np.ones((50, 1)))
    stored[:]
    assert sizes == [40 * 4 * 8, 40 * 4 * 50 * 8]


def test_many_queries_are_sent_without_a_warning(small, recwarn):
    n, e = 30, 1 << 16  # 16 MB of queries
    stored = OnCluster(da.zeros((n, 2, 3), chunks=(10, 2, 3), dtype="float16"))
    queries = np.random.default_rng(0).standard_normal((n, e))
    stored.margins(np.arange(n), np.zeros(n, int), queries, np.ones((3, e)))
    assert not [w for w in recwarn if "large graph" in str(w.message)]


def test_a_chunk_that_fails_on_a_worker_is_named(small):
    keys = numbers(20, 4, 3)
    assert np.array_equal(Tokens(loaded(lambda _, part: part, keys, 5)).keys[:], keys.astype(float))
    with pytest.raises(ValueError, match="keys, examples 10 to 14, could not be computed: OSError: conn"):
        Tokens(loaded(broken, keys, 5))


def test_a_cluster_without_workers_is_given_up(small, monkeypatch):
    small.scale(0)
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    with pytest.raises(
        ValueError, match=r"keys, examples 0 to 19, .*: the cluster has had no worker for 0\.5 s"
    ):
        Tokens(chunked(numbers(20, 4, 3), 5))


def test_a_cluster_that_is_lost_is_named(small, monkeypatch):
    def closing(future, client):
        small.close()
        wait(future, client)

    wait = cluster._wait
    monkeypatch.setattr(cluster, "_wait", closing)
    with pytest.raises(ValueError, match=r"keys, examples 0 to 19, .*: the cluster was closed or lost"):
        Tokens(loaded(lambda _, part: time.sleep(0.2) or part, numbers(20, 4, 3), 5))
