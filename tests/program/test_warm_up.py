"""Compiling ahead: after it no small problem meets a loop that is not compiled."""

from attsvm.program.entrywise.newton import step
from attsvm.program.frobenius.dense import solve_all
from attsvm.program.frobenius.gram import pivot
from attsvm.program.schatten.compiled_path import follow
from attsvm.program.warm_up import warm_up


def test_warming_up_compiles_every_loop_of_small_problems():
    warm_up()
    small = (pivot, solve_all, follow, step)
    assert all(loop.signatures for loop in small)
