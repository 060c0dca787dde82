"""Settings of the whole suite, most of them about its time."""

import gc
import os
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from functools import cache

import pytest
import typer.testing

from attsvm._support.xla_flags import compile_quickly
from tests.browsers import driven

# Most of the suite's time would be XLA compiling small programs once each, so it compiles them in half
# the time with few optimisations; users run with XLA's own settings. Both are read at JAX's first use.
compile_quickly()
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
# What is compiled stays in this process: no test passes by what an earlier one left on the disk.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
# On a GPU the workers share its memory with each other and with torch.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Byte code is kept, also of the dozens of processes that tests start: without it each compiles JAX's sources.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Commands are built once and not for every command line, which takes longer than most of them.
typer.testing._get_command = cache(typer.main.get_command)
# A job in the background of a script inherits that Ctrl-C is ignored; tests press it, here and in processes
# that they start, which inherit from this one.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing is garbage while half a million objects of modules and tests are made.
gc.disable()

# On a fresh clone the first file compiles the solvers, for three quarters of a minute; the next three
# need none of them, so the other workers find them in the cache. Then the longest files.
ORDER = (
    "tests/program/test_max_margin.py",
    "tests/training/test_train.py",
    "tests/training/test_regularise.py",
    "tests/training/test_limits.py",
    "tests/lab/claims/test_transformers_as_svms.py",
    "tests/lab/claims/test_mirror_descent_and_rates.py",
    "tests/lab/claims/test_law_of_halves.py",
    "tests/lab/claims/test_waiting.py",
    "tests/lab/claims/test_factor_kkt_points.py",
    "tests/next_token/test_next_token_claims.py",
)


def pytest_configure(config):
    config.option.loadscopereorder = False  # pytest-xdist would start with the file of most tests


def pytest_ignore_collect(collection_path, config):
    """With `-m quick` files that have no such test are not even imported."""
    if config.option.markexpr == "quick" and collection_path.suffix in (".py", ".md"):
        return "mark.quick" not in collection_path.read_text(encoding="utf8") or None
    return None


def pytest_collection_modifyitems(items):
    rank = {name: place for place, name in enumerate(ORDER)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("::")[0], len(rank)))


def pytest_collection_finish():
    gc.freeze()  # they stay to the end: no collection need look at them
    gc.set_threshold(100_000, 20, 20)  # as in workers.py: tracing makes many objects, and few circles
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """What this machine lacks, in one line."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        counted = (f"{count} × {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"Skipped: {'; '.join(counted)}")


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """A test may change sys.path; processes of later tests inherit it, and would import from its folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="session")
def chrome():
    """One browser for all pages that tests of this process look at; each opens its page afresh."""
    with driven() as found:
        yield found


@contextmanager
def all_optimisations():
    """For runs so long that slow programs would cost more than XLA's optimiser."""
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def long_programs():
    """A test with long runs."""
    with all_optimisations():
        yield
