"""What goes wrong on a Dask cluster comes through: an error, a lost scheduler, Ctrl-C, a dead address."""

import socket
import subprocess
import sys

import pytest

from attsvm_lab.workers import LostWorkers, cluster_executor, using
from tests.commands import run

pytest.importorskip("distributed", reason="needs attsvm[dask]")

TIMEOUT = 120
CLUSTER = """
import distributed
quiet = {"protocol": "tcp", "dashboard_address": None}
with distributed.LocalCluster(n_workers=1, processes=False, **quiet) as cluster:
    print(cluster.scheduler_address, flush=True)
    input()
"""
MEASURES = """
import os, pathlib, signal, time

def killed(path):
    os.kill(os.getpid(), signal.SIGKILL)

def pressed(path):
    os.kill(int((pathlib.Path(__file__).parent / "client").read_text()), signal.SIGINT)
    time.sleep(60)
"""
STUDY = 'measure = "trouble_here:{}"\nseeds = 1\n[data]\nn = 1\nT = 2\nd = 2\n[train]\nsteps = 9\n'


@pytest.fixture
def address():
    """A scheduler with one worker, in a process of its own."""
    words = [sys.executable, "-c", CLUSTER]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def study(folder, measure, cluster):
    """Exit code and stderr of `attsvm sweep` on a study that measures this, on a cluster."""
    (folder / "trouble_here.py").write_text(MEASURES)
    (folder / "study.toml").write_text(STUDY.format(measure))
    words = [sys.executable, "-m", "attsvm", "sweep", "study.toml", "--cluster", cluster]
    client = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    (folder / "client").write_text(str(client.pid))
    try:
        _, said = client.communicate(timeout=TIMEOUT)
    finally:
        client.kill()
    return client.returncode, said


def test_an_error_and_ctrl_c_come_through_as_they_are_and_the_cluster_goes_on(address):
    with pytest.raises(ZeroDivisionError), cluster_executor(address) as pool, using(pool, 2):
        pool.submit(divmod, 1, 0).result()
    with pytest.raises(KeyboardInterrupt), cluster_executor(address) as pool, using(pool, 2):
        pool.submit(divmod, 1, 0)
        raise KeyboardInterrupt
    with cluster_executor(address) as pool, using(pool, 2) as same:
        assert same.submit(divmod, 7, 3).result() == (2, 1)


def test_a_scheduler_that_is_killed_in_mid_run_is_told_in_one_sentence(address, tmp_path):
    code, said = study(tmp_path, "killed", address)
    assert (code, len(said.strip().splitlines())) == (1, 1), said
    assert "their cluster went away" in said and "Finished batches are kept" in said


def test_ctrl_c_ends_a_study_on_a_cluster_with_130(tmp_path):
    code, said = study(tmp_path, "pressed", "local:1")
    assert (code, said.strip().splitlines()[-1][:12]) == (130, "interrupted."), said


def test_every_command_says_that_its_workers_are_lost(monkeypatch):
    def lost(*_, **__):
        raise LostWorkers("their cluster went away")

    monkeypatch.setattr("attsvm_lab.claims.run.run", lost)
    done = run("claims", "aligned_factors_stay_aligned")
    assert (done.exit_code, "their cluster went away" in done.stderr) == (1, True)


@pytest.mark.parametrize("silent", [True, False], ids=["a service of another kind", "nobody"])
def test_an_address_where_no_scheduler_answers_is_named(silent, monkeypatch):
    monkeypatch.setattr("attsvm_lab.workers.PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] if silent else 9
        done = run("claims", "--cluster", f"tcp://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"no Dask scheduler answers at tcp://127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("word", ["nowhere", "post://127.0.0.1:9"])
def test_an_address_that_is_none_is_wrong_usage(word):
    done = run("claims", "--cluster", word)
    assert (done.exit_code, "Pass local:8, or an address" in done.stderr) == (64, True)
