"""Flags that halve the time in which XLA compiles small programs, set without importing JAX."""

from __future__ import annotations

import os
from importlib.metadata import version

# XLA ends the process at an unknown flag; jaxlib 0.11 has removed the first of these.
_RELEASES_WITH_FLAGS = ((0, 8), (0, 11))
_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 "
    "--xla_cpu_parallel_codegen_split_count=1 "
    # A loop over at most a megabyte becomes one function: it compiles and runs faster.
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000"
)


def compile_quickly() -> None:
    """Let XLA compile small programs in half the time; the compiled programs are slower.

    For commands that run many small programs once. Call it before JAX is first used. It does nothing if
    XLA_FLAGS is set, or if the installed jaxlib does not have these flags.
    """
    if _RELEASES_WITH_FLAGS[0] <= jaxlib_release() < _RELEASES_WITH_FLAGS[1]:
        os.environ.setdefault("XLA_FLAGS", _FLAGS)


def jaxlib_release() -> tuple[int, ...]:
    """The major and minor version of jaxlib, such as (0, 10)."""
    return tuple(int(number) for number in version("jaxlib").split(".")[:2])
