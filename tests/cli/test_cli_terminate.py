"""SIGTERM, as SLURM and docker send it: a real signal to real processes, taken for Ctrl-C."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import attsvm
from tests.cli.test_cli_interrupt import FOREVER, TIMEOUT, command, goes_on, interrupted, problem  # noqa: F401

IGNORES = """
import os, signal, sys
from attsvm.cli import app
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda *_: print("mine"))
from attsvm.cli import train
train._run = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or sys.exit(7)
app(["train", sys.argv[2]])
"""


DEAF = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
"""What a script does to its commands in the background: they do not hear Ctrl-C."""


@pytest.mark.parametrize("before", [[], DEAF], ids=["plain", "SIGINT ignored"])
def test_a_run_that_slurm_ends_is_kept_and_goes_on(problem, tmp_path, before):  # noqa: F811
    file, other = tmp_path / "run.npz", tmp_path / "other.npz"
    words = command("train", problem, "--steps", FOREVER, "--out", file, "--json")
    code, said = interrupted([*before, *words], number=signal.SIGTERM)
    taken = int(attsvm.Path.load(file).index[-1])
    assert (code, 0 < taken < FOREVER) == (143, True)
    assert f"interrupted after {taken:,} of" in said
    if not before:
        goes_on(problem, file, other, taken + 9)
        np.testing.assert_array_equal(attsvm.Path.load(file).final, attsvm.Path.load(other).final)


def test_a_run_that_is_killed_goes_on_from_what_was_written_on_the_way(problem, tmp_path):  # noqa: F811
    file, other = tmp_path / "run.npz", tmp_path / "other.npz"
    words = command("train", problem, "--steps", FOREVER, "--out", file, "--checkpoint", 0.5)
    process = subprocess.Popen(words)
    while not file.exists():
        assert process.poll() is None, "the command ended before its first checkpoint"
        time.sleep(0.05)
    process.kill()
    process.wait()
    taken = int(attsvm.Path.load(file).index[-1])
    goes_on(problem, file, other, taken + 9)
    np.testing.assert_array_equal(attsvm.Path.load(file).final, attsvm.Path.load(other).final)


@pytest.mark.parametrize(("handler", "expected"), [("own", (7, "mine\n")), ("none", (143, ""))])
def test_a_handler_of_ones_own_stays_and_without_one_the_code_is_143(handler, expected, problem):  # noqa: F811
    words = [sys.executable, "-c", IGNORES, handler, str(problem)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == expected
