"""The sets of lab/benchmarks/practice/worst.py: labels are what the tokens say, in use and for training."""

from pathlib import Path

import numpy as np
import pytest

PRACTICE = Path(__file__).parents[2] / "lab" / "benchmarks" / "practice"


@pytest.fixture
def worst(monkeypatch):
    monkeypatch.syspath_prepend(str(PRACTICE))
    import worst

    return worst


def drawn(draw, n, in_use, seed=0):
    return draw(np.random.default_rng(seed), n, in_use)


def agreement(told, labels):
    return float((np.asarray(told) == labels).mean())


def concepts(bag):
    """Which of the means 2 and 3 the bag has; ten standard errors of a mean of 16 draws apart from others."""
    return {c for c in (2, 3) if (np.abs(bag.mean(1) - c) < 0.25).any()}


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("name", ["one token, longer", "one of 1,000"])
def test_the_marked_token_tells_the_class_and_any_other_does_not(worst, name, in_use):
    sequences, labels = drawn(worst.sets(None)[name].draw, 60, in_use)
    marked = [x[x[:, 0].argmax(), 1] > 0 for x in sequences]
    others = [x[x[:, 0].argmin(), 1] > 0 for x in sequences]
    assert agreement(marked, labels) > 0.8 > agreement(others, labels)


def test_in_use_sequences_are_twenty_times_as_long_and_their_share_of_yes_tells_more(worst):
    told, lengths = {}, {}
    for in_use in (False, True):
        sequences, labels = drawn(worst.share_longer, 200, in_use)
        lengths[in_use] = np.mean([len(x) for x in sequences])
        told[in_use] = agreement([(x[:, 0] > 0).mean() > 0.5 for x in sequences], labels)
    assert 15 < lengths[True] / lengths[False] < 25
    assert told[True] > 0.95 > told[False] > 0.6


def test_spread_evidence_is_in_the_mean_of_one_feature_and_in_no_other(worst):
    sequences, labels = drawn(worst.spread, 400, False)
    means = np.stack([x.mean(0) for x in sequences])
    apart = means[labels == 1].mean(0) - means[labels == 0].mean(0)
    # An error of 0.01 (2 / √(400 · 96)): the planted 0.12 is twelve of them, the others stay under five.
    assert apart[0] == pytest.approx(0.12, abs=0.05)
    assert np.abs(apart[1:]).max() < 0.05


@pytest.mark.parametrize("name", ["any_concept", "both_concepts"])
def test_poison_is_in_negative_bags_for_training_and_in_positive_ones_in_use(worst, name):
    for in_use in (False, True):
        bags, labels = drawn(getattr(worst, name), 100, in_use)
        poisoned = np.array([(x.mean(1) < -9).any() for x in bags])
        np.testing.assert_array_equal(poisoned, labels == in_use)


@pytest.mark.parametrize("in_use", [False, True])
def test_a_bag_is_positive_because_of_instances_beyond_ten_that_differ_from_those(worst, in_use):
    bags, labels = drawn(worst.any_concept, 200, in_use)
    clean = [x[x.mean(1) > -9] for x in bags]
    np.testing.assert_array_equal([len(x) > 10 for x in clean], labels == 1)
    concepts, others = (
        np.concatenate(part) for part in zip(*((x[:-10], x[-10:]) for x in clean), strict=True)
    )
    assert (concepts**2).mean() > 3  # half of them of variance 9, half 1 from zero: 5.5 on average
    assert (others**2).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("name", ["both_concepts", "false_frequency"])
def test_a_bag_is_positive_because_of_both_concepts_and_one_of_them_does_not_tell(worst, name, in_use):
    bags, labels = drawn(getattr(worst, name), 200, in_use)
    assert agreement([concepts(x) == {2, 3} for x in bags], labels) > 0.98
    assert agreement([3 in concepts(x) for x in bags], labels) < 0.9


def test_a_bag_of_images_is_positive_because_of_a_nine(worst, tmp_path):
    rng, n = np.random.default_rng(0), 500
    digits = rng.integers(0, 10, n).astype(np.uint8)
    pixels = np.repeat(digits, 784)  # an image of a digit is that number everywhere
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(bytes(16) + pixels.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(bytes(8) + digits.tobytes())
    bags, labels = drawn(worst.nines(tmp_path), 100, True)
    largest = np.array([np.rint(255 * x.max()) for x in bags])
    np.testing.assert_array_equal(largest == 9, labels == 1)
    assert agreement(largest >= 8, labels) < 1
    assert np.mean([len(x) for x in bags]) == pytest.approx(10, abs=1)  # five errors of 2 / √100


def test_the_promise_is_broken_by_a_method_below_mean_pooling_and_kept_by_one_above(worst):
    of = {worst.MEAN: (0.8, 0.7, 0.9), "max pooling": (0.7, 0.61, 0.8), "last token": (0.81, 0.70, 0.91)}
    done = [
        {"set": "made", "seed": seed, "method": method, "AUC": auc, "CPU s": 1.0}
        for method, values in of.items()
        for seed, auc in enumerate(values)
    ]
    kept = {row["method"]: row["kept"] for row in worst.rows("made", done)}
    assert kept == {worst.MEAN: "–", "max pooling": "NO", "last token": "yes"}
