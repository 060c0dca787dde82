"""Laws of the programs: what must not change, what must scale, what can only grow."""

from itertools import pairwise

import numpy as np
import pytest
from benchmarks.instances import planted
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from attsvm.norms import Entrywise, Norm, frobenius, l1, linf, nuclear, spectral
from attsvm.program.max_margin import max_margin, separable
from attsvm.program.solution import NotSeparable
from attsvm.tokens import Tokens
from tests.program.conftest import ALL_NORMS, ROTATION_INVARIANT
from tests.program.oracles import farkas_residual, feasible, rows_of

pytestmark = pytest.mark.quick

SAME = 1e-7
"""Two norms, each certified to 1e-8, of programs with one optimum."""

every_norm = pytest.mark.parametrize("norm", ALL_NORMS, ids=str)
few = settings(max_examples=6, deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)


def least(keys, queries, selected, norm: Norm, required=1.0) -> float:
    """The optimal value of the program."""
    return float(norm.value(max_margin(Tokens(keys, queries), selected, norm, required=required).W))


def drawn(seed: int):
    """A separable instance of changing size, its arrays, and a generator."""
    rng = np.random.default_rng(seed)
    n, T, d, e = rng.integers(1, 5), rng.integers(2, 6), rng.integers(2, 6), rng.integers(1, 5)
    tokens, selected = planted(int(n), int(T), int(d), e=int(e), seed=seed)
    return tokens.keys, tokens.queries, selected, rng


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


# ---------------------------------------------------------------------- symmetries


@every_norm
@few
@given(seed=seeds)
def test_the_order_of_examples_does_not_matter(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    order = rng.permutation(len(keys))
    before, after = (least(keys[o], queries[o], selected[o], norm) for o in (slice(None), order))
    assert after == pytest.approx(before, rel=SAME)


@every_norm
@few
@given(seed=seeds)
def test_the_order_of_tokens_does_not_matter(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    order = rng.permutation(keys.shape[1])
    moved = np.argsort(order)[selected]
    before = least(keys, queries, selected, norm)
    assert least(keys[:, order], queries, moved, norm) == pytest.approx(before, rel=SAME)


@pytest.mark.parametrize("norm", ROTATION_INVARIANT, ids=str)
@few
@given(seed=seeds)
def test_rotated_keys_and_queries_rotate_the_weight(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    U, V = orthogonal(rng, keys.shape[-1]), orthogonal(rng, queries.shape[-1])
    before = least(keys, queries, selected, norm)
    assert least(keys @ U, queries @ V, selected, norm) == pytest.approx(before, rel=SAME)


@pytest.mark.parametrize("norm", [l1, linf, Entrywise(1.5)], ids=str)
def test_an_entrywise_norm_notices_a_rotation(norm):
    keys, queries, selected, rng = drawn(8)
    turned = least(keys @ orthogonal(rng, keys.shape[-1]), queries, selected, norm)
    assert abs(turned / least(keys, queries, selected, norm) - 1) > 1e-3


@every_norm
@few
@given(seed=seeds)
def test_coordinates_may_be_permuted_and_change_sign(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    order, sign = rng.permutation(keys.shape[-1]), rng.choice([-1.0, 1.0], keys.shape[-1])
    before = least(keys, queries, selected, norm)
    assert least(keys[..., order] * sign, -queries, selected, norm) == pytest.approx(before, rel=SAME)


@every_norm
@few
@given(seed=seeds)
def test_a_vector_added_to_all_tokens_of_an_example_changes_nothing(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    shift = rng.standard_normal((len(keys), 1, keys.shape[-1]))
    before = least(keys, queries, selected, norm)
    assert least(keys + shift, queries, selected, norm) == pytest.approx(before, rel=SAME)


# ---------------------------------------------------------------------- scales


@every_norm
@few
@given(seed=seeds, power=st.floats(-3, 3))
def test_keys_c_times_longer_make_the_weight_c_times_smaller(norm, seed, power):
    keys, queries, selected, _ = drawn(seed)
    before = least(keys, queries, selected, norm)
    assert least(10**power * keys, queries, selected, norm) == pytest.approx(before / 10**power, rel=SAME)


@every_norm
@few
@given(seed=seeds, power=st.floats(-3, 3))
def test_queries_c_times_longer_make_the_weight_c_times_smaller(norm, seed, power):
    keys, queries, selected, _ = drawn(seed)
    before = least(keys, queries, selected, norm)
    assert least(keys, 10**power * queries, selected, norm) == pytest.approx(before / 10**power, rel=SAME)


@every_norm
@few
@given(seed=seeds, power=st.floats(-3, 3))
def test_a_margin_c_times_larger_needs_a_weight_c_times_larger(norm, seed, power):
    keys, queries, selected, _ = drawn(seed)
    before = least(keys, queries, selected, norm)
    assert least(keys, queries, selected, norm, 10**power) == pytest.approx(before * 10**power, rel=SAME)


@every_norm
@few
@given(seed=seeds)
def test_a_longer_query_is_a_smaller_required_margin(norm, seed):
    keys, queries, selected, rng = drawn(seed)
    c = 10 ** rng.uniform(-1, 1, len(keys))
    before = least(keys, c[:, None] * queries, selected, norm)
    assert least(keys, queries, selected, norm, 1 / c) == pytest.approx(before, rel=SAME)


# ---------------------------------------------------------------------- more and fewer constraints


@every_norm
@few
@given(seed=seeds)
def test_repeated_examples_and_tokens_change_nothing(norm, seed):
    keys, queries, selected, _ = drawn(seed)
    others = np.where(selected == 0, 1, 0)[:, None, None]
    repeated = np.concatenate([keys, np.take_along_axis(keys, others, 1)], axis=1)
    twice = [np.concatenate([x, x]) for x in (repeated, queries, selected)]
    assert least(*twice, norm) == pytest.approx(least(keys, queries, selected, norm), rel=SAME)


@every_norm
@few
@given(seed=seeds)
def test_a_further_example_never_shortens_the_weight(norm, seed):
    keys, queries, selected, _ = drawn(seed)
    assume(len(keys) > 1)
    fewer = least(keys[1:], queries[1:], selected[1:], norm)
    assert fewer <= (1 + SAME) * least(keys, queries, selected, norm)


@every_norm
@few
@given(seed=seeds)
def test_asking_less_of_one_example_never_lengthens_the_weight(norm, seed):
    keys, queries, selected, _ = drawn(seed)
    assume(len(keys) > 1)
    required = np.r_[0.0, np.ones(len(keys) - 1)]
    assert least(keys, queries, selected, norm, required) <= (1 + SAME) * least(keys, queries, selected, norm)


@few
@given(seed=seeds)
def test_the_least_norms_are_ordered_as_the_norms_are(seed):
    keys, queries, selected, _ = drawn(seed)
    chains = [linf, Entrywise(3), frobenius, Entrywise(1.5), l1], [spectral, frobenius, nuclear]
    for chain in chains:
        values = [least(keys, queries, selected, N) for N in chain]
        assert all(a <= (1 + SAME) * b for a, b in pairwise(values))


# ---------------------------------------------------------------------- degenerate grids


@st.composite
def grids(draw):
    """Integer tokens in a small box: duplicates, ties, dependent and zero rows at every turn."""
    n, T, d, e = (draw(st.integers(low, high)) for low, high in ((1, 4), (1, 4), (1, 3), (1, 3)))
    small = st.integers(-2, 2)
    keys = draw(arrays(np.int64, (n, T, d), elements=small))
    queries = draw(arrays(np.int64, (n, e), elements=small))
    selected = draw(arrays(bool, (n, T)))
    selected[~selected.any(1), 0] = True
    required = draw(arrays(np.int64, n, elements=st.integers(0, 2)))
    return Tokens(keys, queries), selected, required


@every_norm
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(grid=grids())
def test_on_integer_grids_every_answer_is_certified_or_proved_impossible(norm, grid):
    tokens, selected, required = grid
    try:
        assert max_margin(tokens, selected, norm, required=required).certified
    except NotSeparable as error:
        assert farkas_residual(rows_of(tokens, selected, required), error.multipliers) <= 1e-9


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(grid=grids())
def test_on_integer_grids_the_verdict_is_that_of_a_linear_program(grid):
    tokens, selected, _ = grid
    rows = rows_of(tokens, selected)
    assert separable(tokens, selected) == (rows[1].size == 0 or feasible(*rows))
