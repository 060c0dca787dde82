"""Ctrl-C pressed twice: sweep and reproduce still say how to resume, and print no traceback."""

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import commands

app = importlib.import_module("attsvm.cli.app")

STUDY = """
measure = "kind"
seeds = 512
[data]
model = "prompt_sphere"
n = 2
T = [2, 3, 4, 5]
d = [2, 3, 4, 5]
[train]
steps = 20_000
lr = 0.5
"""
TIMEOUT = 120


def press(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1e-3)  # Python handles a signal between two instructions


@pytest.mark.parametrize(
    ("words", "work", "kept"),
    [
        (("sweep", "study.toml"), "attsvm_lab.sweeps.sweep.sweep", "batches"),
        (("sweep", "study.toml"), "attsvm_lab.cli.sweep.preload", "batches"),
        (("reproduce",), "attsvm_lab.reproduce.reproduce", "figures"),
        (("reproduce",), "attsvm_lab.cli.reproduce.preload", "figures"),
    ],
)
def test_ctrl_c_in_the_work_and_in_the_message_leaves_the_message_whole(
    words, work, kept, tmp_path, monkeypatch
):
    def warn_when_pressed(message):
        press()
        warn(message)

    warn = app.warn
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setattr("attsvm_lab.cli.sweep.preload", lambda *_: None)
    monkeypatch.setattr("attsvm_lab.cli.reproduce.preload", lambda *_: None)
    monkeypatch.setattr(work, press)
    monkeypatch.setattr(app, "warn", warn_when_pressed)
    done = commands.run(*words)
    assert (done.exit_code, done.stderr) == (
        130,
        f"interrupted. Finished {kept} are kept: run the same command again to resume.\n",
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.name != "posix", reason="a group of processes")
def test_a_terminal_that_sends_ctrl_c_twice_shows_one_sentence(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    words = [sys.executable, "-c", "from attsvm.cli import app; app()", "sweep", "study.toml"]
    process = subprocess.Popen(
        words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    try:
        end = time.monotonic() + TIMEOUT
        while not (tmp_path / "out" / "study" / "batches").exists() and time.monotonic() < end:
            time.sleep(0.05)
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        _, said = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert said == "interrupted. Finished batches are kept: run the same command again to resume.\n"
    assert process.returncode in (130, -signal.SIGINT)  # the shell shows 130 for both
