"""The max-margin prompt of a probe's picks, certified: tokens that stay in their store give the same one."""

import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.probe import AttentionProbe, separation
from attsvm.probe.data.sequences import as_store
from attsvm.probe.fitting.objective import Standard
from attsvm.probe.separation import Standardised
from attsvm.program.constraints import Constraints


@pytest.fixture
def certified(X, y):
    """The separation of a probe, its tokens in memory or in their store."""

    def fit(monkeypatch, kept, sequences=X):
        monkeypatch.setattr(separation, "COPY_LIMIT", kept)
        return AttentionProbe(head_ridge=0.01, prompt_ridge=0.01).fit(sequences, y).separation(sequences)

    return fit


def test_stored_tokens_give_the_whole_programs_margin_and_certificate(certified, monkeypatch):
    calls, margins = [], Standardised.margins
    monkeypatch.setattr(Standardised, "margins", lambda *a: calls.append(1) or margins(*a))
    whole = certified(monkeypatch, 10**9)
    assert not calls
    part = certified(monkeypatch, 0)
    assert len(calls) > 1  # a few rows do not do at once
    assert part.margin == pytest.approx(whole.margin, rel=1e-9)
    assert part.certificate.worst < 1e-8 and part.certificate.rows == whole.certificate.rows
    assert np.array_equal(part.support, whole.support)
    assert part.alignment == pytest.approx(whole.alignment, abs=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e5])  # far from one: every example in units of its own
def test_tokens_are_priced_where_they_are_as_in_a_padded_array(size, monkeypatch):
    rng = np.random.default_rng(0)
    mask = rng.random((7, 9)) < 0.6
    mask[:, 3] = True
    store = as_store((rng.standard_normal((7, 9, 5)) * size, mask))
    keys = Standardised(store, Standard(rng.standard_normal(5), rng.random(5) + 0.5))
    monkeypatch.setattr(separation, "BLOCK", 40)  # a few sequences at a time
    there, here = (
        Constraints.of(Tokens(each, mask=mask), np.full(7, 3)) for each in (keys, np.asarray(keys))
    )
    W, multipliers = rng.standard_normal((5, 1)), rng.random((7, 9)) * here.active
    assert there.stored and not here.stored and bool(there.units.exponent.any()) == (size > 1)
    for name, asked in (("margins", W), ("combine", multipliers)):
        found, wanted = getattr(there, name)(asked), getattr(here, name)(asked)
        assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)
        assert not np.allclose(found, getattr(here, name)(1.001 * asked), rtol=1e-12, atol=1e-12)


def test_equal_tokens_have_no_margin_and_the_reason_names_their_places(certified, monkeypatch, X):
    first = X[0].copy()
    first[:] = first[0]
    for kept in (10**9, 0):
        tied = certified(monkeypatch, kept, [first, *X[1:]])
        assert tied.certificate is None and "not separable" in tied.reason
        assert "example 0" in tied.reason


def test_several_heads_have_no_program(three, X):
    found = three.separation(X)
    assert found.certificate is None and "several heads" in found.reason
