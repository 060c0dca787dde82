"""Sequences inside of longer contexts."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.metrics import roc_auc_score

from attsvm.probe import AttentionProbe, TokenStore, surround

WEAK = {"head_ridge": 0.01, "prompt_ridge": 0.01}


def numbered(lengths, first):
    """Sequences whose tokens have numbers of their own."""
    numbers = first + np.arange(sum(lengths), dtype=np.float32)
    return TokenStore.from_flat(np.stack([numbers, -numbers], 1), np.cumsum([0, *lengths]))


@pytest.mark.parametrize("length", [1, 7, 40])
def test_every_sequence_stands_whole_among_whole_benign_ones(length):
    X, benign = numbered([1, 3, 9], 0), numbered([2, 5], 1000)
    store = surround(X, benign, length)
    parts = {tuple(x[:, 0]) for x in [*X, *benign]}
    for x, context in zip(X, store, strict=True):
        assert len(x) < length or np.array_equal(context, x)
        assert length <= len(context) < max(length, len(x) + 1) + 5
        numbers, pieces = context[:, 0].tolist(), []
        while numbers:
            pieces.append(next(part for part in parts if numbers[: len(part)] == list(part)))
            numbers = numbers[len(pieces[-1]) :]
        assert pieces.count(tuple(x[:, 0])) == 1


def test_a_seed_draws_the_same_contexts_and_another_seed_others():
    X, benign = numbered([2] * 20, 0), numbered([3] * 30, 1000)
    first, again, another = (surround(X, benign, 30, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(np.concatenate(list(first)), np.concatenate(list(again)))
    assert not np.array_equal(np.concatenate(list(first)), np.concatenate(list(another)))
    assert len({int(np.argmax(x[:, 0] < 1000)) for x in first}) > 3  # it does not always come first


def test_a_probe_fitted_in_contexts_tells_in_longer_ones_and_one_fitted_on_short_ones_does_not():
    rng = np.random.default_rng(0)
    labels, truth = np.arange(80) % 2, np.arange(120) % 2

    def texts(y):
        return rng.standard_normal((len(y), 6, 6)) + 0.8 * (2 * y - 1)[:, None, None] * (np.arange(6) == 0)

    benign = rng.standard_normal((100, 6, 6)) + 4 * (np.arange(6) == 1)
    train, test = texts(labels), surround(texts(truth), benign, 200, seed=1)
    short = AttentionProbe(**WEAK).fit(train, labels)
    long = AttentionProbe(**WEAK).fit(surround(train, benign, 40), labels)
    assert roc_auc_score(truth, long.decision_function(test)) > 0.9
    assert roc_auc_score(truth, short.decision_function(test)) < 0.85


def test_what_cannot_be_surrounded_is_refused():
    X = numbered([2, 3], 0)
    with pytest.raises(ValueError, match="2 wide, benign 3"):
        surround(X, np.zeros((2, 4, 3)), 8)
    for length in (0, 2.5, "8"):
        with pytest.raises(ValueError, match="number of tokens"):
            surround(X, X, length)
