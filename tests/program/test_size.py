"""Thousands of inputs: every norm is certified, and no basis loses its orthogonality."""

import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.program import working_set
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius import route
from attsvm.program.frobenius.active_set import ACTIVE, ActiveSet
from attsvm.program.max_margin import max_margin, separable
from attsvm.program.solution import NotSeparable
from tests.program.oracles import farkas_residual, rows_of

ORTHOGONAL = 1e-13
"""Largest entry of Q Qᵀ − 1 after hundreds of exchanges: measured 2e-15; 4e-12 where remainders are not
projected again after a row has left."""


def plain(n, T, d, e, seed=0):
    """Gaussian tokens, and the selection of a random W."""
    random = np.random.default_rng(seed)
    keys, W = random.standard_normal((n, T, d)), random.standard_normal((d, e))
    queries = np.ones((n, 1)) if e == 1 else random.standard_normal((n, e))
    selected = np.einsum("ntd,nd->nt", keys, queries @ W.T).argmax(1)
    return Tokens(keys, None if e == 1 else queries), selected


@pytest.mark.parametrize("shape", [(5000, 4, 3, 2), (20_000, 3, 2, 2)], ids=str)
def test_thousands_of_inputs_are_certified_in_every_norm(norm, shape):
    tokens, selected = plain(*shape)
    solution = max_margin(tokens, selected, norm)
    assert solution.certified
    # The first inputs alone ask for less.
    fewer = max_margin(Tokens(tokens.keys[:500], tokens.queries[:500]), selected[:500], norm)
    assert solution.margin < fewer.margin


@pytest.mark.parametrize("slack", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("e", [1, 3])
def test_soft_margins_of_thousands_are_certified(slack, e):
    tokens, selected = plain(12_000, 8, 4, e)
    assert max_margin(tokens, selected, slack=slack).certified


@pytest.mark.parametrize(("e", "ties"), [(1, 3), (3, 5)])
def test_ties_among_thousands_hold(e, ties):
    tokens, selected = plain(6000, 4, 5, e)
    chosen = selected[:, None] == np.arange(4)
    keys = tokens.keys.copy()
    for i in range(ties):  # a token that differs from the selected one where W is free to be zero
        keys[i, (selected[i] + 1) % 4] = keys[i, selected[i]] * (1 - 1e-3 * (i + 1))
        chosen[i, (selected[i] + 1) % 4] = True
    tokens = Tokens(keys, tokens.queries)
    try:
        assert max_margin(tokens, chosen).certified
    except NotSeparable as reason:
        assert farkas_residual(rows_of(tokens, chosen), reason.multipliers) <= 1e-9


@pytest.mark.parametrize("shape", [(5000, 4, 3, 2), (120, 16, 34, 34)], ids=str)
def test_random_selections_end_in_a_proof(shape):
    tokens, _ = plain(*shape)
    selected = np.random.default_rng(1).integers(shape[1], size=shape[0])
    assert not separable(tokens, selected) or max_margin(tokens, selected).certified


@pytest.mark.parametrize("shape", [(4000, 10, 100, 1), (3000, 8, 10, 10)], ids=str)
def test_a_basis_stays_orthogonal_over_many_exchanges(shape):
    program = Constraints.of(*plain(*shape))
    engine, chosen = ActiveSet(program.d * program.e), working_set.some_examples(program, route.PROBE)
    working_set.solve_on_pools(program, route.frobenius, engine, chosen, route.STRIDES)
    Q = engine.state.Q[: int(engine.state.sizes[ACTIVE])]
    assert len(Q) > 50
    assert np.abs(Q @ Q.T - np.eye(len(Q))).max() <= ORTHOGONAL
