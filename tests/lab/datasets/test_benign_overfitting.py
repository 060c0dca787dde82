"""Signals among noise: the papers' laws, also in the span, and test inputs that training never saw."""

import numpy as np
import pytest

from attsvm import Linear, gd, train
from attsvm_lab import datasets

pytestmark = pytest.mark.quick

MODELS = [datasets.signal_and_noise, datasets.signal_beside_noise]
SIZES = {"n": 6, "T": 3, "d": 40, "signal": 5.0}
ROUNDING = 1e-12
"""Sums of forty products, relative to numbers of order one; ten times what was seen."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", [{}, {"in_span": True}, {"fresh": 5}, {"in_span": True, "fresh": 5}])
def test_a_range_of_seeds_stacks_single_draws(model, kind):
    tokens, head = model(**SIZES, **kind, seed=range(2, 5))
    one, own = model(**SIZES, **kind, seed=3)
    np.testing.assert_array_equal(tokens.run(1).keys, one.keys)
    np.testing.assert_array_equal(tokens.run(1).labels, one.labels)
    np.testing.assert_array_equal(head[1], own)


@pytest.mark.parametrize("model", MODELS)
def test_test_inputs_share_no_draw_with_training_and_have_right_labels(model):
    trained, fresh = (model(**SIZES, seed=range(4), flipped=0.4, fresh=count)[0] for count in (0, 6))
    shared = np.intersect1d(np.abs(trained.keys[..., 2:]), np.abs(fresh.keys[..., 2:]))
    assert set(shared) <= {0.0}  # the class token of the second model has no noise
    classes = np.where(fresh.keys[..., 0].sum(-1) > fresh.keys[..., 1].sum(-1), 1, -1)
    beside = model is datasets.signal_beside_noise
    assert (classes == fresh.labels).mean() >= (1.0 if beside else 0.7)
    assert not np.array_equal(trained.labels, fresh.labels)


def test_tokens_have_the_published_means_and_unit_noise():
    tokens, head = datasets.signal_and_noise(200, 4, 12, 9.0, seed=range(20), weak=0.3)
    keys = tokens.keys[:, ::2]  # the class of μ₊
    means = keys.mean((0, 1))
    wanted = np.zeros((4, 12))
    wanted[:3, :2] = [(9, 0), (2.7, 0), (0, 2.7)]
    np.testing.assert_allclose(means, wanted, atol=0.12)  # 2,000 draws: five standard errors
    np.testing.assert_allclose(keys.std((0, 1)), 1, atol=0.09)
    np.testing.assert_allclose(head[0][:3], [1 / (9 * 2**0.5), -1 / (9 * 2**0.5), 0])


def test_wrong_labels_are_as_many_as_asked_and_as_many_in_either_class():
    tokens, _ = datasets.signal_and_noise(20, 3, 10, flipped=0.2)
    wrong = datasets.flipped_examples(20, 0.2)
    assert wrong.sum() == 4 and wrong[::2].sum() == 2
    np.testing.assert_array_equal(tokens.labels == np.where(np.arange(20) % 2, -1, 1), ~wrong)


def test_noise_beside_a_signal_is_orthogonal_to_both_signals_and_places_vary():
    tokens, _ = datasets.signal_beside_noise(200, 3, 10, 4.0)
    along = tokens.keys[..., :2]
    assert set(np.unique(along)) == {0.0, 4.0}
    assert (np.count_nonzero(along, axis=(1, 2)) == 1).all()
    assert set(along.any(-1).argmax(-1)) == {0, 1, 2}


@pytest.mark.parametrize("model", MODELS)
def test_training_tokens_in_their_span_have_the_same_law(model):
    gram = {}
    for in_span in (False, True):
        keys = model(4, 3, 30, 6.0, seed=range(1000), in_span=in_span)[0].keys[..., 2:]
        rows = keys.reshape(1000, 12, -1)
        gram[in_span] = np.matmul(rows, rows.swapaxes(1, 2))
    whole, span = (np.sort(np.linalg.eigvalsh(gram[key]), axis=-1) for key in (False, True))
    error = np.sqrt((whole.var(0) + span.var(0)) / 1000) + ROUNDING
    assert (np.abs(whole.mean(0) - span.mean(0)) <= 5 * error).all()
    np.testing.assert_allclose(span.std(0) + ROUNDING, whole.std(0) + ROUNDING, rtol=0.1)
    short = np.sort(np.linalg.eigvalsh(0.95 * gram[True]), axis=-1).mean(0)  # what it would not miss
    assert not (np.abs(whole.mean(0) - short) <= 5 * error).all()


def test_a_rotation_into_the_span_changes_no_loss_and_no_fresh_margin():
    tokens, v = datasets.signal_and_noise(**SIZES, seed=1)
    fresh, _ = datasets.signal_and_noise(**SIZES, seed=1, fresh=50)
    turn, _ = np.linalg.qr(np.concatenate([np.eye(40)[:2], tokens.keys.reshape(-1, 40)]).T)
    small = type(tokens)(tokens.keys @ turn, labels=tokens.labels)
    runs = [train(t, Linear(h), optimizer=gd(0.1), steps=50) for t, h in ((tokens, v), (small, v @ turn))]
    np.testing.assert_allclose(runs[0].loss, runs[1].loss, rtol=ROUNDING)
    np.testing.assert_allclose(fresh.keys @ runs[0].final, fresh.keys @ turn @ runs[1].final, atol=1e-11)
    assert small.d == 20 and runs[0].loss[-1] < runs[0].loss[0] - 0.01


@pytest.mark.parametrize("model", MODELS)
def test_bad_sizes_are_refused(model):
    with pytest.raises(ValueError, match="T is 1"):
        model(4, 1, 10)
    with pytest.raises(ValueError, match="below one half"):
        datasets.signal_and_noise(4, 3, 10, flipped=0.5)
