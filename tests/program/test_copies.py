"""Repeated examples cost nothing: pools have one of all rows that are alike."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm.norms import Entrywise, l1, nuclear, spectral
from attsvm.program.constraints import Constraints
from attsvm.program.copies import distinct
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows
from attsvm.program.solution import NotSeparable
from attsvm.tokens import Tokens
from tests.program import conftest

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
    assert distinct(rows).tolist() == list(range(instance.tokens.n))
    for name in ("keys", "queries", "required"):
        other = np.array(getattr(rows, name))
        other[-1] *= 1 + 1e-15
        assert distinct(replace(rows, **{name: other})).tolist() == [*range(instance.tokens.n), rows.n - 1]
