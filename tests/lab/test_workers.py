"""Executors: worker processes, Dask, this process; their settings, and that they leave nothing behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing import popen_forkserver
from pathlib import Path

import pytest

from attsvm_lab.workers import SerialExecutor, cluster_executor, preload, using, workers


def test_workers_use_one_thread_each_and_our_settings_stay_untouched(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    preload("json")
    with workers(1) as pool:
        inherited = pool.submit(os.getenv, "OMP_NUM_THREADS").result()
    assert inherited == "1"
    assert dict(os.environ) == before


def test_an_interrupt_ends_what_the_workers_are_doing():
    others = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt), workers(1) as pool:
        pool.submit(time.sleep, 60)
        ours = [child for child in multiprocessing.active_children() if child not in others]
        raise KeyboardInterrupt
    for child in ours:
        child.join(10)
    assert ours
    assert not any(child.is_alive() for child in ours)


def test_a_second_interrupt_while_workers_end_leaves_none_of_them(monkeypatch):
    def pressed_again(child):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1e-3)  # Python handles a signal between two instructions
        terminate(child)

    terminate = multiprocessing.process.BaseProcess.terminate
    others = multiprocessing.active_children()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="first"), workers(1) as pool:
        pool.submit(time.sleep, 60)
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "terminate", pressed_again)
        raise KeyboardInterrupt("first")
    assert [child for child in multiprocessing.active_children() if child not in others] == []
    assert time.monotonic() - begun < 30


@pytest.mark.skipif(os.name != "posix", reason="workers are forked by a server")
@pytest.mark.parametrize("deferred", [True, False])
def test_an_interrupt_while_a_process_starts_finds_it_among_those_to_end(deferred, monkeypatch):
    def launched(self, process):
        launch(self, process)
        started.append(self.pid)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1e-3)

    if not deferred:
        monkeypatch.setattr("attsvm_lab.workers.deferring_ctrl_c", nullcontext)
    launch, started = popen_forkserver.Popen._launch, []
    monkeypatch.setattr(popen_forkserver.Popen, "_launch", launched)
    with pytest.raises(KeyboardInterrupt), workers(1) as pool:
        try:
            pool.submit(os.getpid)
        finally:
            known = {child.pid for child in multiprocessing.active_children()}
    assert (started[0] in known) == deferred
    assert not (deferred and alive(started[0]))


def test_a_single_job_runs_here_and_several_run_elsewhere():
    with using(None, 1) as pool:
        assert pool.submit(os.getpid).result() == os.getpid()
    with using(None, 2) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()


def test_an_executor_of_the_users_own_is_used_as_it_is():
    with ThreadPoolExecutor(1) as own, using(own, 5) as pool:
        assert pool is own


def test_an_error_here_is_the_jobs_and_not_ours():
    job = SerialExecutor().submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        job.result()


@pytest.mark.parametrize("word", ["local", "local:", "local:0", "local:two"])
def test_a_cluster_that_means_nothing_is_refused(word):
    with pytest.raises(ValueError, match="Pass local:8, or an address"), cluster_executor(word):
        pass


def test_without_a_cluster_there_is_no_executor():
    with cluster_executor(None) as pool:
        assert pool is None


def test_a_dask_cluster_is_an_executor_and_found_by_its_address():
    pytest.importorskip("distributed", reason="needs attsvm[dask]")
    with cluster_executor("local:1") as local:
        address = local._client.scheduler.address
        with cluster_executor(address) as remote:
            assert remote.submit(os.getpid).result() == local.submit(os.getpid).result() != os.getpid()
        asked = local._client.run(lambda dask_worker: sorted(dask_worker.periodic_callbacks))
        assert all("heartbeat" in calls and "profile" not in calls for calls in asked.values())


def test_workers_end_with_a_client_that_was_killed():
    code = "from attsvm_lab.workers import workers\nimport os, time\nwith workers(1) as pool:\n"
    code += "    print(pool.submit(os.getpid).result(), flush=True)\n    pool.submit(time.sleep, 60).result()"
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(client.stdout.readline())
    client.kill()
    client.wait()
    for _ in range(100):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


INHERITED = """
import signal
from attsvm_lab.workers import workers
with workers(1) as pool:
    print(pool.submit(signal.getsignal, signal.SIGINT).result().name)
"""


@pytest.mark.parametrize(("trap", "found"), [("trap '' INT", "SIG_IGN"), ("true", "SIG_DFL")])
def test_ctrl_c_is_ignored_by_the_workers_of_a_job_that_ignores_it(trap, found):
    shell = ["sh", "-c", f'{trap}; exec "$@"', "sh", sys.executable, "-c", INHERITED]
    assert subprocess.run(shell, capture_output=True, text=True).stdout.strip() == found
