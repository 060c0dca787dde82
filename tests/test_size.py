"""Laws at sizes that no other test visits: many examples, many records, one token, width one."""

import tracemalloc

import numpy as np
import pytest

import attsvm as att
from attsvm.comparison import verdict
from attsvm.data import path as path_module
from attsvm.data.equal_keys import merged
from tests.numbers.test_stored import Sliced

SMALL = [(3, 4, 5, 5), (3, 1, 4, 4), (3, 4, 1, 1), (2, 2, 1, 3)]
"""n, T, d, e."""
COPIES = 2_000


def problem(n, T, d, e, copies=1):
    """Gaussian tokens, every example so many times, and a head whose best tokens a random W selects."""
    rng = np.random.default_rng(0)
    keys, queries, W = (rng.standard_normal(shape) for shape in ((n, T, d), (n, e), (d, e)))
    logits = np.einsum("ntd,de,ne->nt", keys, W, queries)
    keys, queries, values = (np.concatenate([x] * copies) for x in (keys, queries, logits[..., None]))
    return att.Tokens(keys, queries, values=values), np.ones(1)


def ray(tokens, W, records):
    """A path along W and the solution of what it selects."""
    path = att.Path.of(tokens, np.arange(records)[:, None, None] * W)
    return path, att.max_margin(tokens, path.selected)


def test_records_cost_no_further_reading_of_the_keys():
    tokens, _ = problem(300, 4, 2, 2)
    counts = []
    for records in (3, 60):
        keys = Sliced(np.array(tokens.keys))
        path, solution = ray(att.Tokens(keys, tokens.queries), np.eye(2), records)
        keys.read = 0
        att.compare(path, solution)
        counts.append(keys.read)
    assert counts[0] == counts[1] <= 6 * tokens.n


def test_a_verdict_of_many_records_takes_less_memory_than_a_few_times_the_keys():
    tokens, v = problem(20_000, 8, 6, 6)
    path, solution = ray(tokens, np.eye(6), 50)
    att.compare(*ray(problem(5, 8, 6, 6)[0], np.eye(6), 3))  # compiles
    tracemalloc.start()
    try:
        att.compare(path, solution, v)
        path.least_attention()
        assert tracemalloc.get_traced_memory()[1] < 5 * tokens.keys.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("records", [1, 7])
def test_blocks_of_examples_change_no_number(records, monkeypatch):
    tokens, _ = problem(40, 5, 3, 2)
    path, solution = ray(tokens, np.ones((3, 2)), records + 1)
    whole = att.margin_ratio(path, solution), path.least_attention(), path.attention, path.selected
    for module in (path_module, verdict):
        monkeypatch.setattr(module, "BLOCK", 1)
    parts = att.margin_ratio(path, solution), path.least_attention(), path.attention, path.selected
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-300)
    mass = np.where(path.selected, path.attention, 0).sum(-1).min(-1)
    np.testing.assert_allclose(whole[1], mass, rtol=1e-12)


@pytest.mark.parametrize("size", SMALL, ids=str)
def test_copies_of_every_example_change_no_selection_and_no_verdict(size):
    few, many = problem(*size), problem(*size, copies=COPIES)
    answers = []
    for tokens, v in (few, many):
        best = att.best_tokens(tokens, v)
        solution = att.max_margin(tokens, best)
        path = att.Path.of(tokens, np.arange(4)[:, None, None] * (solution.W + 0.01))
        verdict = att.compare(path, solution, v)
        numbers = [solution.margin, *(item.value for item in verdict.evidence), *path.least_attention()]
        words = att.classify(path, v), verdict.status, att.locally_optimal(tokens, v, solution)
        arrays = np.stack([best, path.selected, solution.support])[:, : size[0]]
        answers.append((np.array(numbers), words, arrays))
    (numbers, words, arrays), others = answers
    np.testing.assert_allclose(numbers, others[0], rtol=1e-6)
    assert words == others[1]
    np.testing.assert_array_equal(arrays, others[2])


@pytest.mark.parametrize("size", [(3, 4, 5, 5), (3, 4, 1, 1)], ids=str)
def test_copies_of_every_example_change_no_step_of_a_training(size):
    few, many = (
        att.train(tokens, att.Linear(v), optimizer=att.gd(0.5), steps=60, record=5)
        for tokens, v in (problem(*size), problem(*size, copies=COPIES))
    )
    np.testing.assert_allclose(many.W, few.W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(many.loss, few.loss, rtol=1e-9)
    np.testing.assert_array_equal(many.selected[: size[0]], few.selected)


def test_equal_keys_of_many_examples_are_averaged_as_those_of_each_alone():
    rng = np.random.default_rng(0)
    keys, values = rng.integers(-1, 2, (400, 6, 2)) + 0.0, rng.integers(0, 3, (400, 6, 2)) / 7
    mask = rng.random((400, 6)) < 0.8
    mask[:, 0] = True
    everything = merged(att.Tokens(keys, mask=mask, values=values)).values
    stored = merged(att.Tokens(Sliced(keys), mask=mask, values=values)).values
    for i in range(400):
        alike = (keys[i][:, None] == keys[i]).all(-1) & mask[i]
        mean = (alike @ values[i]) / np.maximum(alike.sum(-1), 1)[:, None]
        np.testing.assert_allclose(everything[i][mask[i]], mean[mask[i]], rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(stored[:][mask], everything[mask])
