"""The offset program: the best weight of norm one where every example has an offset of its own."""

import cvxpy as cp
import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs
from tests.program.oracles import _objective, rows_of

NORMS = [att.frobenius, att.nuclear, att.spectral, att.l1, att.linf, att.Entrywise(3), att.Schatten(4)]
WITH_PATH = NORMS[:-1]
CVXPY = 1e-6
"""Accuracy of the oracle; the program itself is certified to 1e-8."""


def draw(seed, spread, n=4, T=3, d=4):
    tokens, _ = att.datasets.sphere(n=n, T=T, d=d, seed=seed)
    rng = np.random.default_rng(seed)
    return tokens, rng.integers(0, T, n), spread * rng.random(n)


def by_cvxpy(tokens, selected, norm, offsets):
    A, _, _ = rows_of(tokens, selected)
    owner = np.repeat(np.arange(tokens.n), tokens.lengths - 1)
    W, level = cp.Variable((tokens.d, tokens.e)), cp.Variable()
    w = cp.vec(W, order="C")
    size, more = _objective(norm, W, w)
    limits = [A @ w + offsets[owner] >= level, size <= 1]
    return cp.Problem(cp.Maximize(level), limits + more).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_value_is_that_of_a_general_solver(norm, spread):
    problem = draw(1, spread)
    best = programs.offset_margin(*problem[:2], norm, offsets=problem[2])
    assert best.certified
    assert best.value == pytest.approx(by_cvxpy(*problem[:2], norm, problem[2]), abs=CVXPY)


@pytest.mark.parametrize("norm", [*NORMS, programs.MaxNorm()], ids=str)
def test_equal_offsets_give_the_max_margin(norm):
    tokens, selected, _ = draw(2, 0.0)
    best = programs.offset_margin(tokens, selected, norm, offsets=0.7)
    assert best.certified and best.least_offset == 0.7
    assert best.gain == pytest.approx(float(att.max_margin(tokens, selected, norm).margin), rel=1e-8)


def test_a_common_offset_is_added_to_the_value():
    tokens, selected, offsets = draw(3, 0.5)
    first, second = (programs.offset_margin(tokens, selected, offsets=offsets + c) for c in (0.0, 5.0))
    assert second.value == pytest.approx(first.value + 5, rel=1e-9)


def test_the_plain_max_margin_weight_falls_short_where_offsets_differ():
    tokens, selected, offsets = draw(4, 0.5)
    best = programs.offset_margin(tokens, selected, offsets=offsets)
    plain = att.max_margin(tokens, selected).W
    assert best.share(best.W) == pytest.approx(1.0, abs=1e-9)
    assert best.share(plain) < 0.95
    other = programs.OffsetMargin(tokens, best.selected, best.norm, offsets, plain, best.multipliers)
    assert not other.certified


def test_multipliers_of_other_offsets_prove_nothing():
    tokens, selected, offsets = draw(4, 0.5)
    best = programs.offset_margin(tokens, selected, offsets=offsets)
    wrong = programs.offset_margin(tokens, selected, offsets=0 * offsets).multipliers
    assert not programs.OffsetMargin(tokens, best.selected, best.norm, offsets, best.W, wrong).certified


@pytest.mark.parametrize("norm", WITH_PATH, ids=str)
def test_examples_that_contradict_each_other_share_what_their_offsets_leave(norm):
    # x − y and y − x for the same query: margins m and −m, so the best least is (0 + 1)/2 at m = 1/2.
    keys = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]])
    tokens = att.Tokens(keys, np.ones((2, 1)))
    best = programs.offset_margin(tokens, [0, 0], norm, offsets=[0.0, 1.0])
    assert best.certified and best.value == pytest.approx(0.5, abs=1e-9)
    assert best.above.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("norm", WITH_PATH, ids=str)
def test_no_weight_gains_where_equal_offsets_contradict(norm):
    keys = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]])
    best = programs.offset_margin(att.Tokens(keys, np.ones((2, 1))), [0, 0], norm, offsets=[2.0, 2.0])
    assert best.certified and best.gain == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
@pytest.mark.parametrize("norm", [att.frobenius, att.spectral], ids=str)
def test_the_value_scales_with_tokens_and_offsets(norm, scale):
    tokens, selected, offsets = draw(5, 3.0)
    scaled = att.Tokens(scale * tokens.keys, tokens.queries)
    value = programs.offset_margin(tokens, selected, norm, offsets=offsets).value
    best = programs.offset_margin(scaled, selected, norm, offsets=scale * offsets)
    assert best.certified and best.value == pytest.approx(scale * value, rel=1e-8)


def test_a_token_equal_to_the_selected_one_leaves_its_offset():
    keys = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])
    best = programs.offset_margin(att.Tokens(keys), [0, 0], offsets=[0.3, 0.0])
    assert best.certified and best.value == pytest.approx(0.3)


def test_an_example_with_one_token_has_no_say():
    keys, mask = np.array([[[1.0], [0.0]], [[2.0], [0.0]]]), [[True, True], [True, False]]
    best = programs.offset_margin(att.Tokens(keys, mask=mask), [0, 0], offsets=[1.0, -5.0])
    assert best.certified and best.value == pytest.approx(2.0)


def test_a_gap_that_remains_is_said():
    tokens, _ = att.datasets.sphere(n=4, T=4, d=5, seed=1)
    rng = np.random.default_rng(1)
    selected, offsets = rng.integers(0, 4, 4), 3 * rng.random(4)
    with pytest.warns(att.NotCertified, match="offset program is not certified"):
        best = programs.offset_margin(tokens, selected, att.Schatten(1.5), offsets=offsets)
    assert best.value < best.bound and "NOT certified" in repr(best)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [1.0, 2.0]}, "offsets has shape"),
        ({"offsets": [0, 0, np.nan, 0]}, "NaN or infinite"),
        ({"selected": np.ones((4, 3), bool)}, "one token per example"),
    ],
)
def test_a_wrong_argument_is_named(change, message):
    tokens, selected, offsets = draw(0, 1.0)
    arguments = {"selected": selected, "offsets": offsets} | change
    with pytest.raises(ValueError, match=message):
        programs.offset_margin(tokens, arguments["selected"], offsets=arguments["offsets"])


def test_tokens_without_a_loser_or_with_runs_are_refused():
    with pytest.raises(ValueError, match="no example has a losing token"):
        programs.offset_margin(att.Tokens(np.ones((2, 1, 3))), [0, 0], offsets=0.0)
    with pytest.raises(ValueError, match="runs"):
        programs.offset_margin(att.Tokens(np.ones((2, 2, 2, 3))), [0, 0], offsets=0.0)
