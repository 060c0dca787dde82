"""Ctrl-C at the terminal: a real signal to a real process, and the run that goes on after it."""

import os
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import attsvm
from tests.commands import run

FOREVER = 10**12
TIMEOUT = 120
SOON = """
from attsvm._support import progress
progress.PATIENCE = 0.1
from attsvm.cli import app
app()
"""
"""The command line, which shows its progress at once: all steps until then are taken twice more here."""


def command(*words):
    return [sys.executable, "-c", SOON, *map(str, words)]


def interrupted(words, shown_by="left", number=signal.SIGINT):
    """Run a command whose stderr is a terminal; press Ctrl-C, or send a signal, once it shows progress."""
    ours, theirs = pty.openpty()
    screen = os.environ | {"TERM": "xterm"}  # a dumb one shows no progress
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=screen)
    os.close(theirs)
    shown = b""
    while shown_by.encode() not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(number)
    try:
        process.communicate(timeout=TIMEOUT)
        return process.returncode, _rest(ours)
    finally:
        process.kill()
        os.close(ours)


def _rest(terminal):
    """What is left to read: Linux answers the end with an error."""
    text = b""
    try:
        while part := os.read(terminal, 4096):
            text += part
    except OSError:
        pass
    return text.decode()


def goes_on(problem, file, other, steps):
    """Resume the run of a file, and train another to the same number of steps without a stop."""
    for words in ((file, "--resume"), (problem, "--out", other)):
        done = run("train", *words, "--steps", steps)
        assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    tokens, v = attsvm.datasets.sphere(3, 4, 5, seed=0)
    file = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(file, **tokens.arrays(), v=v)
    return file


def test_a_run_goes_on_after_ctrl_c_to_the_same_bits_as_one_that_was_never_stopped(problem, tmp_path):
    file, other = tmp_path / "run.npz", tmp_path / "other.npz"
    code, said = interrupted(command("train", problem, "--steps", FOREVER, "--out", file))
    taken = int(attsvm.Path.load(file).index[-1])
    assert (code, 0 < taken < FOREVER) == (130, True)
    assert f"interrupted after {taken:,} of" in said
    goes_on(problem, file, other, taken + 9)
    resumed, whole = attsvm.Path.load(file), attsvm.Path.load(other)
    assert resumed.index[-1] == whole.index[-1] == taken + 9
    assert all(np.array_equal(resumed.state[name], whole.state[name]) for name in ("0", "1", "2"))
    np.testing.assert_array_equal(resumed.final, whole.final)
    assert not np.array_equal(resumed.final, resumed.W[-2])


SLOW = """
import time
from attsvm import Tokens, max_margin
from attsvm._support import progress
from attsvm.numbers.stored import array
from tests.program.test_working_set import problem
from tests.numbers.test_stored import Sliced

class Slow(Sliced):
    def __getitem__(self, examples):
        time.sleep(0.5 if self.read > 3 * len(self.array) else 0)
        return super().__getitem__(examples)

array.BLOCK, progress.PATIENCE = 1, 0.0
keys, _, best = problem(900, 6, 20, 1)
try:
    max_margin(Tokens(Slow(keys)), best)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
"""Keys of which a pass takes minutes after the first, one example at a time."""


def test_a_solve_ends_promptly_in_the_midst_of_a_pass():
    begun = time.perf_counter()
    code, _ = interrupted([sys.executable, "-c", SLOW], shown_by="pass 1")
    assert code == 130
    assert time.perf_counter() - begun < 60
