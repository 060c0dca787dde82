"""Enumeration finds every separable and every locally optimal selection of a small problem."""

import itertools

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens, locally_optimal
from attsvm.program import selections as module
from attsvm.program.max_margin import max_margin
from attsvm.program.selections import selections
from attsvm.program.solution import NotSeparable


def chosen(solutions):
    return {tuple(int(t) for t in s.selected.argmax(-1)) for s in solutions}


def brute_force(tokens):
    for alpha in itertools.product(range(tokens.T), repeat=tokens.n):
        try:
            yield max_margin(tokens, np.array(alpha))
        except NotSeparable:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_pruned_enumeration_equals_brute_force(seed):
    tokens, v = datasets.prompt_sphere(3, 4, 3, seed=seed)
    every = list(brute_force(tokens))
    assert len(every) < tokens.T**tokens.n
    assert chosen(selections(tokens)) == chosen(every)
    local = [s for s in every if locally_optimal(tokens, v, s)]
    assert chosen(selections(tokens, v)) == chosen(local)


def test_the_best_tokens_are_locally_optimal_when_separable():
    tokens, v = datasets.sphere(2, 4, 6, seed=0)
    assert tuple(best_tokens(tokens, v).argmax(-1)) in chosen(selections(tokens, v))


def test_the_third_score_decides_local_optimality_of_the_single_input():
    assert chosen(selections(*datasets.single_input(0.0))) == {(0,), (1,)}
    assert chosen(selections(*datasets.single_input(0.9))) == {(0,)}


def test_too_many_selections_are_refused(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 10)
    with pytest.raises(ValueError, match="partial selections"):
        selections(datasets.sphere(3, 4, 6)[0])


def test_a_runs_axis_is_refused():
    with pytest.raises(ValueError, match=r"tokens.run\(k\)"):
        selections(datasets.sphere(2, 3, 4, seed=range(2))[0])
