"""Laws of the programs: what must not change, what must scale, what can only grow."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from lab.benchmarks.instances import planted

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, frobenius, l1, linf, nuclear, spectral
from attsvm.program.max_margin import max_margin, separable
from attsvm.program.solution import NotSeparable
from tests.program.conftest import ALL_NORMS, ROTATION_INVARIANT
from tests.program.oracles import farkas_residual, feasible, rows_of

pytestmark = pytest.mark.quick

SAME = 1e-7
"""Two norms, each certified to 1e-8, of programs with one optimum."""

every_norm = pytest.mark.parametrize("norm", ALL_NORMS, ids=str)
SEEDS = range(6)


def least(keys, queries, selected, norm: Norm, required=1.0) -> float:
    """The optimal value of the program."""
    return float(norm.value(max_margin(Tokens(keys, queries), selected, norm, required=required).W))


@cache
def drawn(seed: int):
    """The arrays of a separable instance, whose size changes with the seed."""
    rng = np.random.default_rng(seed)
    n, T, d, e = rng.integers(1, 5), rng.integers(2, 6), rng.integers(2, 6), rng.integers(1, 5)
    tokens, selected = planted(int(n), int(T), int(d), e=int(e), seed=seed)
    return tokens.keys, tokens.queries, selected


@cache
def value(seed: int, norm: Norm) -> float:
    return least(*drawn(seed), norm)


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


# ---------------------------------------------------------------------- symmetries and scales
# A law makes another program: its keys, queries, selection and required margins, and by what factor its
# value is larger.


def the_order_of_examples_does_not_matter(keys, queries, selected, rng):
    order = rng.permutation(len(keys))
    return keys[order], queries[order], selected[order], 1.0, 1.0


def the_order_of_tokens_does_not_matter(keys, queries, selected, rng):
    order = rng.permutation(keys.shape[1])
    return keys[:, order], queries, np.argsort(order)[selected], 1.0, 1.0


def coordinates_may_be_permuted_and_change_sign(keys, queries, selected, rng):
    order, sign = rng.permutation(keys.shape[-1]), rng.choice([-1.0, 1.0], keys.shape[-1])
    return keys[..., order] * sign, -queries, selected, 1.0, 1.0


def a_vector_added_to_all_tokens_of_an_example_changes_nothing(keys, queries, selected, rng):
    return keys + rng.standard_normal((len(keys), 1, keys.shape[-1])), queries, selected, 1.0, 1.0


def repeated_examples_and_tokens_change_nothing(keys, queries, selected, _):
    others = np.where(selected == 0, 1, 0)[:, None, None]
    repeated = np.concatenate([keys, np.take_along_axis(keys, others, 1)], axis=1)
    return *(np.concatenate([x, x]) for x in (repeated, queries, selected)), 1.0, 1.0


def keys_c_times_longer_make_the_weight_c_times_smaller(keys, queries, selected, rng):
    c = 10 ** rng.uniform(-3, 3)
    return c * keys, queries, selected, 1.0, 1 / c


def queries_c_times_longer_make_the_weight_c_times_smaller(keys, queries, selected, rng):
    c = 10 ** rng.uniform(-3, 3)
    return keys, c * queries, selected, 1.0, 1 / c


def a_margin_c_times_larger_needs_a_weight_c_times_larger(keys, queries, selected, rng):
    c = 10 ** rng.uniform(-3, 3)
    return keys, queries, selected, c, c


def a_longer_query_takes_a_larger_required_margin(keys, queries, selected, rng):
    c = 10 ** rng.uniform(-1, 1, len(keys))
    return keys, c[:, None] * queries, selected, c, 1.0


def rotated_keys_and_queries_rotate_the_weight(keys, queries, selected, rng):
    U, V = orthogonal(rng, keys.shape[-1]), orthogonal(rng, queries.shape[-1])
    return keys @ U, queries @ V, selected, 1.0, 1.0


LAWS = [
    the_order_of_examples_does_not_matter,
    the_order_of_tokens_does_not_matter,
    coordinates_may_be_permuted_and_change_sign,
    a_vector_added_to_all_tokens_of_an_example_changes_nothing,
    repeated_examples_and_tokens_change_nothing,
    keys_c_times_longer_make_the_weight_c_times_smaller,
    queries_c_times_longer_make_the_weight_c_times_smaller,
    a_margin_c_times_larger_needs_a_weight_c_times_larger,
    a_longer_query_takes_a_larger_required_margin,
]
CASES = [(law, norm) for law in LAWS for norm in ALL_NORMS]
CASES += [(rotated_keys_and_queries_rotate_the_weight, norm) for norm in ROTATION_INVARIANT]


@pytest.mark.parametrize(("law", "norm"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_law_of_the_least_norm_holds(law, norm):
    for seed in SEEDS:
        *program, required, factor = law(*drawn(seed), np.random.default_rng(seed))
        assert least(*program, norm, required) == pytest.approx(factor * value(seed, norm), rel=SAME)


@pytest.mark.parametrize("norm", [l1, linf, Entrywise(1.5)], ids=str)
def test_an_entrywise_norm_notices_a_rotation(norm):
    keys, queries, selected, *_ = rotated_keys_and_queries_rotate_the_weight(
        *drawn(8), np.random.default_rng(8)
    )
    assert abs(least(keys, queries, selected, norm) / value(8, norm) - 1) > 1e-3


# ---------------------------------------------------------------------- more and fewer constraints


@every_norm
def test_fewer_examples_and_smaller_margins_never_lengthen_the_weight(norm):
    for seed in SEEDS:
        keys, queries, selected = drawn(seed)
        if len(keys) > 1:
            required = np.r_[0.0, np.ones(len(keys) - 1)]
            assert least(keys[1:], queries[1:], selected[1:], norm) <= (1 + SAME) * value(seed, norm)
            assert least(keys, queries, selected, norm, required) <= (1 + SAME) * value(seed, norm)


def test_the_least_norms_are_ordered_as_the_norms_are():
    chains = [linf, Entrywise(3), frobenius, Entrywise(1.5), l1], [spectral, frobenius, nuclear]
    for seed in SEEDS:
        for chain in chains:
            assert all(value(seed, a) <= (1 + SAME) * value(seed, b) for a, b in pairwise(chain))


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
