"""Compiling ahead: after it no small problem meets a loop that is not compiled. The cache changes no bit."""

import os
import subprocess
import sys

from attsvm.program.entrywise.newton import step
from attsvm.program.frobenius.dense import solve_all
from attsvm.program.frobenius.gram import pivot
from attsvm.program.schatten.compiled_path import follow
from attsvm.program.warm_up import warm_up


def test_warming_up_compiles_every_loop_of_small_problems():
    warm_up()
    small = (pivot, solve_all, follow, step)
    assert all(loop.signatures for loop in small)


HASHES = """
import hashlib, attsvm as att
tokens, v = att.datasets.sphere(n=2, T=8, d=2, seed=range(64))
first = att.Tokens(tokens.keys[0], tokens.queries[0])
best = att.best_tokens(tokens, v)
solutions = [att.max_margin(tokens, best)]
solutions += [att.max_margin(first, best[0], norm) for norm in ("lp:1.5", "nuclear")]
print(*(hashlib.sha256(s.W.tobytes() + s.multipliers.tobytes()).hexdigest() for s in solutions))
"""


def test_a_process_that_compiles_and_one_that_reads_the_cache_give_the_same_bytes(tmp_path):
    """A loop had one rounding where it was compiled, and another where it was read from the cache."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def hashes():
        command = [sys.executable, "-c", HASHES]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    cold = hashes()
    assert any(tmp_path.rglob("*.nbc"))  # the second process has something to read
    assert hashes() == cold
