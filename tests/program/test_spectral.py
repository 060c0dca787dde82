"""The spectral program: closed forms and the two eliminations of its Newton system."""

import numpy as np
import pytest

from attsvm import Tokens, datasets
from attsvm.norms import frobenius, spectral
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.rows import Rows
from attsvm.program.schatten.interior_point import Scaling
from attsvm.program.schatten.spectral import ByRows, ByWeight, System, inverse_of


def test_the_spectral_solution_spreads_its_singular_values():
    tokens, _ = datasets.sphere(6, 8, 10, seed=0)
    selected = np.zeros(6, int)
    sigma = np.linalg.svd(max_margin(tokens, selected, spectral).W, compute_uv=False)
    other = np.linalg.svd(max_margin(tokens, selected, frobenius).W, compute_uv=False)
    assert (sigma > (1 - 1e-6) * sigma[0]).sum() >= 3
    assert (other > (1 - 1e-6) * other[0]).sum() == 1
    assert sigma[0] < other[0]


@pytest.fixture(params=[(5, 4), (3, 6), (4, 4)], ids=str)
def system(request):
    """A Newton system (d, e) at a random well-conditioned scaling, with one tied row."""
    d, e = request.param
    rng = np.random.default_rng(3)
    tokens = Tokens(rng.standard_normal((7, 4, d)), rng.standard_normal((7, e)))
    selected = np.arange(4) == np.zeros((7, 1))
    selected[2, 1] = True
    rows = Constraints.of(tokens, selected)
    pool = Rows.of(rows)
    X = rng.standard_normal((d + e, d + e))
    U = X @ X.T + np.eye(d + e)
    backward = np.linalg.cholesky(U)
    scaling = Scaling(np.linalg.inv(backward).T, backward, np.ones(d + e))
    return System(pool, scaling, np.where(pool.tied, 0.0, rng.random(21) + 0.1))


def test_both_eliminations_solve_the_newton_system(system):
    rng = np.random.default_rng(4)
    right = rng.standard_normal(system.entries + 1 + 21)
    for elimination in (ByRows, ByWeight):
        found = elimination(system).solve(right)
        assert np.abs(right - system.times(found)).max() < 1e-9
        assert np.abs(right - system.times(1.01 * found)).max() > 1e-3


def test_the_inverse_undoes_the_operator(system):
    X = np.random.default_rng(5).standard_normal(system.F.shape)
    image = system.U11 @ X @ system.U22 + system.U12 @ X.T @ system.U12
    assert np.allclose(inverse_of(system)(2 * image), X)
    assert not np.allclose(inverse_of(system)(2 * system.U11 @ X @ system.U22), X)
