"""Many problems at once, a leading runs axis, and examples that repeat others."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, l1, nuclear, spectral
from attsvm.program import answer
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows
from attsvm.program.solution import NotSeparable, Solution
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
    monkeypatch.setattr(answer, "cores", lambda: 1)
    together = max_margin(tokens, first)
    monkeypatch.setattr(answer, "cores", lambda: 3)
    monkeypatch.setattr(answer, "WORTH", 1)
    shared = max_margin(tokens, first)
    assert np.array_equal(shared.W, together.W)
    assert not np.array_equal(max_margin(tokens, (first + 1) % 4).W, together.W)


def test_the_parts_cover_all_runs_once_and_fit_the_memory(monkeypatch):
    monkeypatch.setattr(answer, "cores", lambda: 2)
    for count, entries, least in [(1, 9, 1), (7, 9, 100), (4000, 2304, 57), (50, 1 << 21, 1)]:
        edges = answer._edges(count, entries, least)
        sizes = np.diff(edges)
        assert edges[0] == 0
        assert edges[-1] == count
        assert (sizes >= 1).all()
        assert sizes.max() * entries <= max(answer.ENTRIES, entries)
    assert len(answer._edges(7, 9, 100)) == 2  # too little work for a second thread


# ---------------------------------------------------------------------- repeated examples


TIMES = 50


def repeated(instance):
    tokens = instance.tokens
    return Tokens(np.tile(tokens.keys, (TIMES, 1, 1)), np.tile(tokens.queries, (TIMES, 1)))


@pytest.fixture
def largest(monkeypatch):
    """The most rows that an engine saw: call it."""
    seen, named = [], Rows.named.__func__

    def spied(cls, *arguments, **named_arguments):
        rows = named(cls, *arguments, **named_arguments)
        seen.append(len(rows))
        return rows

    monkeypatch.setattr(Rows, "named", classmethod(spied))
    return lambda: max(seen)


@pytest.mark.parametrize("norm", [l1, Entrywise(50), nuclear, spectral], ids=str)
def test_examples_that_are_repeated_change_neither_the_solution_nor_the_pool(norm, largest):
    instance = conftest.matrix()
    plain, selected = max_margin(instance.tokens, instance.selected, norm), instance.selected
    few = largest()
    solution = max_margin(repeated(instance), np.tile(selected, TIMES), norm)
    assert solution.certified
    assert solution.margin == pytest.approx(plain.margin, rel=1e-8)
    assert largest() == few < TIMES * few
    assert solution.multipliers.size == TIMES * plain.multipliers.size


def test_examples_that_a_run_repeats_are_left_out_too(largest):
    instance = conftest.matrix()
    plain, selected = max_margin(instance.tokens, instance.selected, l1), np.tile(instance.selected, TIMES)
    few, tokens = largest(), repeated(instance)
    runs = Tokens(np.stack([tokens.keys, 2 * tokens.keys]), np.stack([tokens.queries] * 2))
    solution = max_margin(runs, np.stack([selected] * 2), l1)
    assert solution.certified.all()
    assert solution.margin == pytest.approx([plain.margin, 2 * plain.margin], rel=1e-8)
    assert largest() == few


def test_a_contradiction_among_repeated_examples_is_found():
    instance = conftest.matrix()
    selected = np.tile(instance.selected, TIMES)
    selected[-1] = (selected[-1] + 1) % instance.tokens.T
    with pytest.raises(NotSeparable) as caught:
        max_margin(repeated(instance), selected, l1)
    assert caught.value.multipliers.size == len(selected) * (instance.tokens.T - 1)


def test_examples_are_alike_only_if_all_of_them_is():
    instance = conftest.matrix()
    rows = Constraints.of(repeated(instance), np.tile(instance.selected, TIMES))
    assert rows.distinct_examples().tolist() == list(range(instance.tokens.n))
    for name in ("keys", "queries", "required"):
        changed = np.array(getattr(rows, name))
        changed[-1] *= 1 + 1e-15
        distinct = replace(rows, **{name: changed}).distinct_examples()
        assert distinct.tolist() == [*range(instance.tokens.n), rows.n - 1]
