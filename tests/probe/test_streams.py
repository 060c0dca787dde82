"""The running score is the batch score, whatever the stream, in memory that does not grow."""

import pickle

import numpy as np
import pytest

EXACT = 1e-12
"""Agreement of the two orders of summation in float64; the largest seen is 1e-14."""


def test_after_every_token_the_score_is_that_of_the_tokens_so_far(any_probe, X):
    for x in X[:20]:
        state = any_probe.start()
        for t, token in enumerate(x):
            state, score = any_probe.step(state, token)
            batch = any_probe.decision_function([x[: t + 1]])[0]
            assert np.abs(score - batch).max() <= EXACT


def test_many_tokens_at_once_are_the_same_stream(any_probe, X):
    x = X[3]
    whole = any_probe.step(any_probe.start(), x)[1]
    state, _ = any_probe.step(any_probe.start(), x[:1])
    assert np.abs(any_probe.step(state, x[1:])[1] - whole).max() <= EXACT
    assert np.abs(any_probe.step(state, x[:1])[1] - whole).max() > EXACT  # another stream has another score


def test_a_long_saturated_stream_neither_overflows_nor_drifts(probe):
    from sklearn.base import clone

    sharp = clone(probe)
    for name, value in vars(probe).items():
        setattr(sharp, name, value)
    sharp.prompt_ = 400 * probe.prompt_  # logits in the thousands: exp of them is no number
    x = np.random.default_rng(1).standard_normal((4000, 12)) + 3
    state = sharp.start()
    with np.errstate(over="raise", invalid="raise"):
        for token in x:
            state, score = sharp.step(state, token)
    assert abs(score - sharp.decision_function([x])[0]) <= EXACT


def test_the_state_does_not_grow_and_can_be_gone_on_from_twice(probe, X):
    first, _ = probe.step(probe.start(), X[0][0])
    size = len(pickle.dumps(first))
    state = first
    for token in np.concatenate(X[:30]):
        state, score = probe.step(state, token)
    assert len(pickle.dumps(state)) <= size + 8 and state.seen == 1 + sum(map(len, X[:30]))
    again = probe.step(first, np.concatenate(X[:30]))[1]
    assert abs(again - score) <= EXACT


def test_half_precision_and_tensors_are_read(probe, X):
    torch = pytest.importorskip("torch", reason="tensors need torch")
    half = X[0].astype(np.float16)
    score = probe.step(probe.start(), half)[1]
    assert probe.step(probe.start(), torch.tensor(half))[1] == score
    assert abs(score - probe.decision_function([half.astype(float)])[0]) <= EXACT


def test_what_is_no_token_is_refused(probe):
    from sklearn.exceptions import NotFittedError

    from attsvm.probe import AttentionProbe

    for x, said in ((np.zeros(3), r"Pass one token \(12,\)"), (np.full(12, np.nan), "NaN or infinite")):
        with pytest.raises(ValueError, match=said):
            probe.step(probe.start(), x)
    with pytest.raises(NotFittedError):
        AttentionProbe().start()
