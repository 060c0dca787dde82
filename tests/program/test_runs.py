"""Many problems at once: a leading runs axis."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.program import runs
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import Solution
from attsvm.selection import best_tokens
from attsvm.tokens import Tokens
from tests.program import conftest


@pytest.mark.parametrize("queries", ["matrix", "prompt"])
def test_many_runs_at_once_equal_one_by_one(norm, queries):
    drawn, v = datasets.sphere(n=3, T=4, d=5, seed=range(6))
    tokens = drawn if queries == "matrix" else Tokens(drawn.keys[:, :2], None)
    selected = np.argmax(np.einsum("rntd,rd->rnt", tokens.keys, v), -1)
    together = max_margin(tokens, selected, norm)
    for k in np.flatnonzero(together.separable):
        alone = max_margin(tokens.run(k), selected[k], norm)
        assert together.margin[k] == pytest.approx(alone.margin, rel=1e-7)


def test_runs_share_what_has_no_runs_axis():
    tokens, v = datasets.sphere(n=3, T=4, d=6, seed=0)
    best = best_tokens(tokens, v)
    runs = Tokens(np.stack([tokens.keys, 2 * tokens.keys]), tokens.queries)
    solution = max_margin(runs, best)
    assert solution.margin[1] == pytest.approx(2 * solution.margin[0], rel=1e-9)


def test_a_run_of_a_batch_is_a_solution_of_its_own(norm):
    tokens, v = datasets.sphere(n=3, T=4, d=6, seed=range(3))
    selected = np.argmax(np.einsum("rntd,rd->rnt", tokens.keys, v), -1)
    solution = max_margin(tokens, selected, norm)
    assert solution.run(1).certified
    assert np.array_equal(solution.run(1).W, solution.W[1])


def test_runs_of_different_lengths_keep_their_own_multipliers():
    tokens, _ = datasets.sphere(n=2, T=4, d=6, seed=range(2))
    mask = np.ones((2, 2, 4), bool)
    mask[0, 1, 2:] = False
    solution = max_margin(Tokens(tokens.keys, tokens.queries, mask=mask), np.zeros((2, 2), int))
    assert solution.run(0).multipliers.size == 4
    assert solution.run(0).certified and solution.run(1).certified


def test_runs_may_differ_in_ties_masks_and_required_margins(norm):
    one = other = conftest.everything()
    order = np.arange(6)[::-1]
    keys = np.stack([one.tokens.keys, other.tokens.keys[order]])
    queries = np.stack([one.tokens.queries, other.tokens.queries[order]])
    mask = np.stack([one.tokens.mask, other.tokens.mask[order]])
    selected = np.stack([one.selected, other.selected[order]])
    required = np.stack([one.required, other.required[order]])
    solution = max_margin(Tokens(keys, queries, mask=mask), selected, norm, required=required)
    assert solution.certified.all(), solution.certificate
    assert solution.margin[1] == pytest.approx(solution.margin[0], rel=1e-7)


def test_a_batch_of_one_run(norm):
    instance = conftest.matrix()
    tokens = Tokens(instance.tokens.keys[None], instance.tokens.queries[None])
    solution = max_margin(tokens, instance.selected[None], norm)
    assert solution.W.shape == (1, 6, 6) and solution.certified.all()


def test_a_saved_batch_loads(tmp_path):
    tokens, _ = datasets.sphere(n=3, T=4, d=6, seed=range(3))
    solution = max_margin(tokens, np.zeros((3, 3), int))
    solution.save(tmp_path / "batch.npz")
    assert np.array_equal(Solution.load(tmp_path / "batch.npz").certified, solution.certified)


# ---------------------------------------------------------------------- batches with hard runs


def test_a_batch_marks_the_runs_that_cannot_be_separated(norm):
    good = bad = conftest.matrix()
    keys = np.stack([good.tokens.keys, bad.tokens.keys, np.zeros_like(bad.tokens.keys)])
    keys[1, 0, (bad.selected[0] + 1) % 5] = keys[1, 0, bad.selected[0]]
    solution = max_margin(Tokens(keys, good.tokens.queries), good.selected, norm)
    assert solution.separable.tolist() == [True, False, False]
    assert solution.certified.tolist() == [True, False, False]
    assert solution.margin[1:].tolist() == [0, 0]


def test_a_batch_solves_runs_of_very_different_size(norm):
    instance = conftest.matrix()
    sizes = np.array([1e-120, 1.0, 1e120])
    keys = sizes[:, None, None, None] * instance.tokens.keys
    solution = max_margin(Tokens(keys, instance.tokens.queries), instance.selected, norm)
    assert solution.margin / sizes == pytest.approx(solution.margin[1], rel=1e-7)


def test_a_batch_solves_near_ties_and_duplicates(norm):
    instance = conftest.matrix()
    keys = np.stack([instance.tokens.keys] * 3)
    own, other = instance.selected[2], (instance.selected[2] + 1) % 5
    keys[1, 2, other] = keys[1, 2, own] * (1 - 1e-5)
    keys[2, 2, (own + 2) % 5] = keys[2, 2, other]
    solution = max_margin(Tokens(keys, instance.tokens.queries), instance.selected, norm)
    assert solution.certified.all(), solution.certificate


@pytest.mark.parametrize("queries", [1, 5], ids=["prompt", "matrix"])
def test_runs_shared_among_cores_are_solved_as_on_one(queries, monkeypatch):
    rng = np.random.default_rng(4)
    tokens = Tokens(rng.standard_normal((23, 3, 4, 6)), rng.standard_normal((23, 3, queries)))
    first = rng.integers(4, size=(23, 3))
    monkeypatch.setattr(runs, "cores", lambda: 1)
    together = max_margin(tokens, first)
    monkeypatch.setattr(runs, "cores", lambda: 3)
    monkeypatch.setattr(runs, "WORTH", 1)
    shared = max_margin(tokens, first)
    assert np.array_equal(shared.W, together.W)
    assert not np.array_equal(max_margin(tokens, (first + 1) % 4).W, together.W)


def test_the_parts_cover_all_runs_once_and_fit_the_memory(monkeypatch):
    monkeypatch.setattr(runs, "cores", lambda: 2)
    for count, entries, least in [(1, 9, 1), (7, 9, 100), (4000, 2304, 57), (50, 1 << 21, 1)]:
        edges = runs._edges(count, entries, least)
        sizes = np.diff(edges)
        assert edges[0] == 0
        assert edges[-1] == count
        assert (sizes >= 1).all()
        assert sizes.max() * entries <= max(runs.ENTRIES, entries)
    assert len(runs._edges(7, 9, 100)) == 2  # too little work for a second thread
