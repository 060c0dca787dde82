"""How XLA compiles, for work that runs each program once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

# XLA ends the process at a flag it does not know; the first of these is gone from jaxlib 0.11 on.
_KNOWN = ((0, 8), (0, 11))
_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 "
    "--xla_cpu_parallel_codegen_split_count=1"
)


def compile_quickly() -> None:
    """Let XLA compile small programs in half the time, at some cost to how fast they then run.

    For commands that run many small programs once. Has an effect before JAX is first used, on the
    versions of jaxlib that know the setting, and only if the user has set no XLA_FLAGS.
    """
    release = tuple(int(part) for part in version("jaxlib").split(".")[:2])
    if _KNOWN[0] <= release < _KNOWN[1]:
        os.environ.setdefault("XLA_FLAGS", _FLAGS)


def backend() -> str:
    """What JAX computes on: cpu, gpu or tpu. The first question starts it."""
    import jax

    return jax.default_backend()


@contextmanager
def few_optimisations() -> Iterator[None]:
    """Compile with few optimisations: for runs so short that compiling them takes longer."""
    import jax

    settings: Any = jax.config
    before = settings.read("jax_disable_most_optimizations")
    settings.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        settings.update("jax_disable_most_optimizations", before)
