"""The nuclear program: closed forms, low rank, and its Newton matrix."""

import numpy as np

from attsvm import Tokens, datasets
from attsvm.norms import frobenius, nuclear
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows
from attsvm.program.schatten import staged
from attsvm.program.schatten.nuclear import hadamard
from attsvm.program.solution import NotSeparable


def test_one_row_is_met_by_its_own_direction():
    delta, query = np.array([1.0, 2, -2]), np.array([3.0, 4])
    keys = np.stack([delta, 0 * delta])[None]
    W = max_margin(Tokens(keys, query[None]), [0], nuclear).W
    assert np.allclose(W, np.outer(delta, query) / 225, atol=1e-9)


def test_the_nuclear_solution_has_lower_rank_than_the_frobenius_one():
    ranks = {nuclear: [], frobenius: []}
    for seed in range(12):
        tokens, _ = datasets.sphere(5, 5, 10, seed=seed)
        for norm, found in ranks.items():
            found.append(max_margin(tokens, np.zeros(5, int), norm).rank)
    # "Transformers as SVMs", figure on ranks, accurate values: 2.65 against 5.00.
    assert 2.2 < np.mean(ranks[nuclear]) < 3.1
    assert np.mean(ranks[frobenius]) > 4.8


def test_noise_singular_values_are_far_below_the_rank_threshold():
    for seed in range(5):
        tokens, _ = datasets.sphere(10, 5, 10, seed=seed)
        try:
            sigma = np.linalg.svd(max_margin(tokens, np.zeros(10, int), nuclear).W, compute_uv=False)
        except NotSeparable:
            continue
        noise = sigma[sigma < 1e-6 * sigma[0]]
        assert len(noise) >= 3
        assert noise.max() < 1e-8 * sigma[0]


def test_the_newton_matrix_is_the_quadratic_form_of_the_scaling():
    tokens, _ = datasets.sphere(4, 3, 5, seed=0)
    rows = Constraints.of(tokens, np.zeros(4, int))
    pool = Rows.of(rows)
    d, e = pool.d, pool.e
    X = np.random.default_rng(0).standard_normal((d + e, d + e))
    V = X @ X.T
    lifted = np.zeros((8, d + e, d + e))
    lifted[:, :d, d:] = pool.delta[:, :, None] * pool.queries[pool.owner][:, None, :]
    lifted += lifted.swapaxes(1, 2)
    expected = np.einsum("iab,bc,jcd,da->ij", lifted, V, lifted, V)
    assert np.allclose(np.tril(hadamard(pool, V)), np.tril(expected))


def test_a_crowd_with_one_heavy_row_needs_a_small_pool(monkeypatch):
    """Its multiplier is nearly all there is, the first pool has that row alone, and no path leads further."""
    rng, pools = np.random.default_rng(1), []
    keys, queries = rng.standard_normal((400, 4, 2)), rng.standard_normal((400, 2))
    best = np.argmax(np.einsum("ntd,nd->nt", keys, queries @ rng.standard_normal((2, 2))), 1)
    path, solve = staged.StagedPath, staged.StagedPath.__call__
    monkeypatch.setattr(path, "__call__", lambda self, rows: pools.append(len(rows)) or solve(self, rows))
    assert max_margin(Tokens(keys, queries), best, nuclear).certified
    assert pools[0] < 2
    assert max(pools) < 250
