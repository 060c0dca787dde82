"""Euler's identities at mixed scales: multipliers and slopes have the right common size, in every norm.

N(W) has degree −1 in the keys and in the queries, the margin degree 1; N(W) has degree 1 in the margins
required. So the slopes times their data add up to these numbers, and so do the multipliers, which a gap does
not see: it is a ratio.
"""

from dataclasses import replace

import numpy as np
import pytest

import attsvm as att
from attsvm.norms import Entrywise, Schatten, frobenius, l1, linf, nuclear, spectral
from attsvm.program.certificate import TOLERANCE
from attsvm.program.derivative.pull_back import Derivative
from tests.program import exact
from tests.program.cases import Case

NORMS = [frobenius, l1, linf, Entrywise(1.5), Entrywise(3), nuclear, spectral, Schatten(1.5), Schatten(3)]
FAR_APART = np.array([[-6.8e17, -5.1e17], [0.024, -0.028]])
"""Its multipliers were too small by the factor |W| in the units of the program: 0.85."""


def pairs(rows):
    """Rows as tokens: each the difference of two keys."""
    return np.stack([rows, np.zeros_like(rows)], 1)


def two_rows(seed):
    rng = np.random.default_rng(seed)
    return pairs(rng.standard_normal((2, 2)) * 10.0 ** rng.integers(-12, 19, (2, 1))), None, [0, 0]


def examples(seed):
    """Three tokens and four entries a key, examples of size 1e±9 … 1e±14."""
    rng = np.random.default_rng(seed)
    n, size = int(rng.integers(2, 5)), rng.uniform(9, 14)
    keys = rng.standard_normal((n, 3, 4)) * 10.0 ** rng.uniform(-size, size, (n, 1, 1))
    return keys, rng.standard_normal((n, 2)) if seed % 2 else None, rng.integers(3, size=n)


def solved(program, norm):
    keys, queries, selected = program
    solution = att.max_margin(att.Tokens(keys, queries), selected, norm)
    assert solution.certified
    return solution


def judged(solution, multipliers):
    """The violation in exact arithmetic."""
    queries = solution.tokens.queries
    return exact.violation(
        Case(solution.tokens.keys, queries, solution.selected, solution.norm), solution.W, multipliers
    )


def identities(solution):
    """What each identity misses, relatively."""
    size, tokens = float(solution.norm.value(solution.W)), solution.tokens
    slopes = Derivative.of(solution).pull_back(norm=np.ones(1))
    total = float((solution.token_multipliers * solution.required[:, None]).sum())
    of_keys, of_queries = (slopes.keys[0] * tokens.keys).sum(), (slopes.queries[0] * tokens.queries).sum()
    of_required = float((slopes.required[0] * solution.required).sum())
    return np.abs(np.array([total, -of_keys, -of_queries, of_required]) / size - 1)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize(
    "program",
    [(pairs(FAR_APART), None, [0, 0]), *map(two_rows, (201, 1172)), *map(examples, (0, 1, 2, 4))],
    ids=["the first", "pair", "another pair", *(f"examples {seed}" for seed in (0, 1, 2, 4))],
)
def test_slopes_and_multipliers_have_the_size_of_the_norm(program, norm):
    solution = solved(program, norm)
    assert judged(solution, solution.multipliers) <= TOLERANCE
    assert identities(solution).max() <= 2 * TOLERANCE  # a margin may miss its bound by one TOLERANCE


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("factor", [0.85, 1 - 2e-8, 1 + 2e-8])
def test_multipliers_with_a_common_factor_are_not_certified(norm, factor):
    solution = solved(examples(1), norm)
    wrong = replace(solution, multipliers=factor * solution.multipliers)
    assert not wrong.certified
    assert wrong.certificate.dual == pytest.approx(abs(factor - 1), rel=0.6)
    assert judged(wrong, wrong.multipliers) > TOLERANCE


def test_every_run_of_a_batch_has_the_size_of_its_own_norm():
    keys = np.stack([pairs(FAR_APART), pairs(FAR_APART / [[1e17], [1]]), pairs(0 * FAR_APART + [1, 2])])
    solution = att.max_margin(att.Tokens(keys), np.zeros((3, 2), int))
    assert solution.certified.all()
    np.testing.assert_allclose(solution.multipliers.sum(-1), solution.norm.value(solution.W), rtol=TOLERANCE)
