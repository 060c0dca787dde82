"""The max-margin prompt of a probe's picks: on few working rows that of the whole program, certified."""

import numpy as np
import pytest

from attsvm.probe import AttentionProbe
from attsvm.probe.reading import separation


@pytest.fixture
def certified(X, y):
    """A probe with its certificate, its rows all in memory or a few at a time."""

    def fit(monkeypatch, kept, sequences=X):
        monkeypatch.setattr(separation, "KEPT", kept)
        return AttentionProbe(head_ridge=0.01, prompt_ridge=0.01, certify=True).fit(sequences, y)

    return fit


def test_working_rows_give_the_whole_programs_margin_and_certificate(certified, monkeypatch):
    calls = []
    few = separation.Standardised.few
    monkeypatch.setattr(separation.Standardised, "few", lambda *a: calls.append(1) or few(*a))
    monkeypatch.setattr(separation, "ADDED", 1)
    whole = certified(monkeypatch, 10**9)
    assert not calls
    part = certified(monkeypatch, 0)
    assert len(calls) > 1  # one row per sequence does not do at once
    assert part.margin_ == pytest.approx(whole.margin_, rel=1e-9)
    assert part.certificate_.worst < 1e-8 and part.certificate_.rows == whole.certificate_.rows
    assert np.array_equal(part.support_tokens_, whole.support_tokens_)
    assert part.separation_.alignment == pytest.approx(whole.separation_.alignment, abs=1e-6)


def test_equal_tokens_have_no_margin_and_the_reason_names_their_places(certified, monkeypatch, X):
    first = X[0].copy()
    first[:] = first[0]
    for kept in (10**9, 0):
        tied = certified(monkeypatch, kept, [first, *X[1:]])
        assert tied.certificate_ is None and "not separable" in tied.separation_.reason
        assert "example 0" in tied.separation_.reason


def test_without_rounds_the_stored_program_is_solved(certified, monkeypatch):
    whole = certified(monkeypatch, 10**9)
    monkeypatch.setattr(separation, "ROUNDS", 0)
    assert certified(monkeypatch, 0).margin_ == pytest.approx(whole.margin_, rel=1e-9)


def test_without_certify_nothing_is_solved(probe):
    assert probe.certificate_ is None and "certify=True" in probe.separation_.reason
