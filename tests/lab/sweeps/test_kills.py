"""Studies under SIGKILL: processes, a Dask cluster."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from attsvm_lab.sweeps.sweep import sweep
from attsvm_lab.workers import BadWorkers, SerialExecutor, cluster_executor

STUDY = {
    "measure": ["kind"],
    "seeds": 256,
    "data": {"model": "prompt_sphere", "n": 2, "T": [2, 4], "d": 2},
    "train": {"steps": [150, 300], "lr": 0.5},
}
CLIENT = """
import sys
from attsvm_lab.sweeps.sweep import sweep
from attsvm_lab.workers import workers
study, out = eval(sys.argv[1]), sys.argv[2]
with workers(1) as pool:
    print(pool.submit(__import__("os").getpid).result(), flush=True)
    sweep(study, pool, out=out)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as environment:
        # The processes of these tests share what they compile, which takes longer than all they do besides.
        environment.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
        environment.setenv("XDG_CACHE_HOME", str(folder / "programs"))
        environment.setattr(
            "attsvm_lab.sweeps.page.page", lambda _: ""
        )  # the pictures alone would take a second
        sweep(STUDY, SerialExecutor(), out=folder)
        yield (folder / "runs.parquet").read_bytes()


def files(folder):
    return {f.name: f.stat().st_mtime_ns for f in (folder / "batches").glob("*.parquet")}


@pytest.mark.parametrize("hit", ["client", "worker"])
def test_a_killed_client_or_worker_costs_no_finished_batch(hit, undisturbed, tmp_path):
    tmp_path.joinpath("batches").mkdir()
    command = [sys.executable, "-c", CLIENT, repr(STUDY), str(tmp_path)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    worker = int(client.stdout.readline())
    while len(files(tmp_path)) < 3 and client.poll() is None:
        time.sleep(0.02)
    time.sleep(random.Random(hit).uniform(0, 0.2))
    os.kill(client.pid if hit == "client" else worker, signal.SIGKILL)
    client.wait(60)
    held = files(tmp_path)
    sweep(STUDY, SerialExecutor(), out=tmp_path)
    assert (tmp_path / "runs.parquet").read_bytes() == undisturbed
    assert held.items() <= files(tmp_path).items()


def test_a_dask_cluster_goes_on_without_a_killed_worker(undisturbed, tmp_path):
    pytest.importorskip("distributed", reason="needs attsvm[dask]")
    tmp_path.joinpath("batches").mkdir()

    def kill(pid):
        while len(files(tmp_path)) < 2:
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)

    with cluster_executor("local:1") as pool:
        killer = threading.Thread(target=kill, args=[pool.submit(os.getpid).result()], daemon=True)
        killer.start()
        sweep(STUDY, pool, out=tmp_path)
        killer.join()
        assert len(files(tmp_path)) > 2
    assert (tmp_path / "runs.parquet").read_bytes() == undisturbed


def test_a_worker_that_cannot_import_attsvm_is_named_before_the_first_job(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs attsvm[dask]")
    tmp_path.joinpath("attsvm.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)  # spawned workers inherit it; here attsvm is imported already
    with pytest.raises(BadWorkers, match=r"cannot import attsvm_lab: .*not a package.* Install"):
        cluster_executor("local:1").__enter__()
