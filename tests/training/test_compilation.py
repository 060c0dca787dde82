"""The compiler's settings: never a flag that XLA does not know, never over the user's own."""

import os

import pytest

from attsvm.training import compilation


@pytest.mark.parametrize(("release", "expected"), [("0.10.2", True), ("0.11.0", False), ("1.0", False)])
def test_only_a_jaxlib_that_knows_the_flag_is_given_it(monkeypatch, release, expected):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(compilation, "version", lambda _: release)
    compilation.compile_quickly()
    assert ("XLA_FLAGS" in os.environ) is expected


def test_the_users_own_flags_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    compilation.compile_quickly()
    assert os.environ["XLA_FLAGS"] == "--mine"
