"""Soft margins of many small runs at once: the answers of the engine for one large run, and no run alone."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius
from attsvm.program import solve
from attsvm.program.answer import one_by_one
from attsvm.program.certificate import certify_scaled
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius.soft_gram import solve_soft_by_gram
from attsvm.program.max_margin import max_margin

GAP = 1e-9
"""An order below the certified 1e-8."""

SAME = 1e-8
"""Relative difference of two costs whose gaps are each below GAP; an order of room."""

RUNS = 6


def plain(keys, queries, chosen, mask):
    return keys, queries, chosen, mask


def integers(keys, queries, chosen, mask):
    return np.round(keys), queries, chosen, mask


def copies(keys, queries, chosen, mask):
    keys[:, :, -1] = keys[:, :, min(1, keys.shape[2] - 1)]
    return keys, queries, chosen, mask


def equal_examples(keys, queries, chosen, mask):
    keys[:, 1::2], queries[:, 1::2] = keys[:, :1], queries[:, :1]
    return keys, queries, chosen, mask


def ties_and_masks(keys, queries, chosen, mask):
    chosen[::2, :, -1] = True
    return keys, queries, chosen, mask & (keys[..., 0] < 1) | chosen


def copies_of_the_selected(keys, queries, chosen, mask):
    keys[:, 0, -1] = keys[:, 0, 0]
    return keys, queries, chosen, mask


def lengths_apart(keys, queries, chosen, mask):
    return keys * 10.0 ** np.linspace(-2, 2, keys.shape[2])[:, None], queries, chosen, mask


CHANGES = [plain, integers, copies, equal_examples, ties_and_masks, copies_of_the_selected, lengths_apart]
SHAPES = [(6, 8, 10, 10), (6, 8, 10, 1), (1, 5, 3, 2), (4, 2, 1, 3), (12, 4, 2, 1), (3, 1, 2, 2)]


def random_program(change, shape, size=1.0, seed=0):
    random, (n, T, d, e) = np.random.default_rng(seed), shape
    keys, queries = random.standard_normal((RUNS, n, T, d)), random.standard_normal((RUNS, n, e))
    chosen = np.broadcast_to(np.arange(T) == 0, (RUNS, n, T)).copy()
    keys, queries, chosen, mask = change(keys, queries, chosen, np.ones(chosen.shape, bool))
    required = random.choice([0.0, 0.5, 1.0, 2.0], size=(RUNS, n))
    return Tokens(size * keys, queries, mask=mask), chosen, required, random


def costs(program, answer):
    short = np.where(program.separating, program.bound - program.margins(answer.W), 0.0).max(-1)
    return 0.5 * np.square(answer.W).sum((-2, -1)) + (program.units.price * np.maximum(short, 0)).sum(-1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_the_cost_is_that_of_the_engine_for_one_run(change, shape):
    tokens, chosen, required, random = random_program(change, shape)
    for prices in (10.0 ** random.uniform(-3, 3, required.shape), np.full(required.shape, 1.0)):
        program = Constraints.of(tokens, chosen, required, prices)
        answer, alone = solve_soft_by_gram(program), one_by_one(solve._soft, program)
        worst = certify_scaled(program, frobenius, answer.W, answer.multipliers).worst
        assert worst.max() <= GAP
        assert costs(program, answer) == pytest.approx(costs(program, alone), rel=SAME, abs=1e-300)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("change", [plain, integers, copies, copies_of_the_selected, lengths_apart])
def test_the_engine_measures_what_the_certificate_says(change, size):
    """Where nothing is tied: rounding counts in both, and differs by little."""
    tokens, chosen, required, random = random_program(change, (6, 8, 10, 3), size)
    prices = 10.0 ** random.uniform(-3, 6, required.shape) / size**2
    program = Constraints.of(tokens, chosen, required, prices)
    answer = solve_soft_by_gram(program)
    worst = certify_scaled(program, frobenius, answer.W, answer.multipliers).worst
    assert answer.gap == pytest.approx(worst, rel=0.1, abs=1e-12)
    tied = Constraints.of(tokens, chosen | (np.arange(8) == 1), required, prices)
    assert np.isinf(solve_soft_by_gram(tied).gap).all()


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("price", [1e-6, 1.0, 1e6])
def test_no_run_is_solved_alone(monkeypatch, size, price):
    tokens, chosen, required, _ = random_program(plain, (6, 8, 10, 10), size)
    required = np.maximum(required, 0.5)  # rows that require no margin are paid for rounding at C = 1e6
    monkeypatch.setattr(solve, "_soft", lambda _: pytest.fail("solved alone"))
    solution = max_margin(tokens, chosen, required=required, slack=price / size**2)
    assert solution.certificate.worst.max() <= GAP
    assert not np.any(max_margin(tokens, chosen, required=required, slack=0.0).W)


def test_what_the_gram_matrix_cannot_see_is_left_to_the_other_engine(monkeypatch):
    tokens, chosen, _, _ = random_program(plain, (12, 10, 2, 2), seed=1)
    alone, engine = [], solve._soft
    monkeypatch.setattr(solve, "_soft", lambda run: alone.append(run) or engine(run))
    assert max_margin(tokens, chosen, slack=1.0).certified.all() and not alone
    assert max_margin(tokens, chosen, slack=1e13).certified.all() and alone


def test_a_run_alone_gives_the_answer_it_gives_in_the_batch():
    tokens, chosen, required, _ = random_program(plain, (6, 8, 10, 10), seed=2)
    together = max_margin(tokens, chosen, required=required, slack=0.3)
    alone = max_margin(tokens.run(4), chosen[4], required=required[4], slack=0.3)
    assert np.array_equal(together.W[4], alone.W)
    assert np.array_equal(together.run(4).multipliers, alone.multipliers)


def test_multipliers_name_the_rows_at_their_shortfall():
    """λ > 0 only where the margin is b − ξ, and Σ_t λ_it = C wherever ξ > 0: what derivatives need."""
    tokens, chosen, _, _ = random_program(plain, (6, 8, 10, 1), seed=3)
    solution = max_margin(tokens, chosen, slack=0.5)
    rows, short = solution.constraints, solution.shortfall
    over = rows.token_margins(solution.W) - 1 + short[..., None]
    paid, falls = solution.token_multipliers > 0, short > 1e-9
    assert 0 < falls.mean() < 1
    assert np.abs(over[paid]).max() <= 1e-10
    assert solution.token_multipliers.sum(-1)[falls] == pytest.approx(0.5, rel=1e-12)
