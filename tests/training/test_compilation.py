"""The compiler's settings: never a flag that XLA does not know, never over the user's own."""

import os

import jax
import pytest

from attsvm._support import xla_flags
from attsvm.training import compilation


@pytest.mark.parametrize(("release", "expected"), [("0.10.2", True), ("0.11.0", False), ("1.0", False)])
def test_only_a_jaxlib_that_knows_the_flag_is_given_it(monkeypatch, release, expected):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(xla_flags, "version", lambda _: release)
    xla_flags.compile_quickly()
    assert ("XLA_FLAGS" in os.environ) is expected


def test_the_users_own_flags_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    xla_flags.compile_quickly()
    assert os.environ["XLA_FLAGS"] == "--mine"


@pytest.mark.parametrize("before", [True, False])
def test_of_two_that_are_in_haste_at_once_the_last_puts_back_what_was_set(before):
    settings, name = jax.config, "jax_disable_most_optimizations"
    usual = settings.read(name)
    settings.update(name, before)
    try:
        first, second = compilation.few_optimisations(), compilation.few_optimisations()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert settings.read(name)
        second.__exit__(None, None, None)
        assert settings.read(name) == before
    finally:
        settings.update(name, usual)
