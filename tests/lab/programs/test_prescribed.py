"""The finite part in every norm that has programs: the ratios, and the least norm."""

import numpy as np
import pytest

from attsvm import (
    Entrywise,
    NotCertified,
    Schatten,
    datasets,
    finite_part,
    frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)
from attsvm.norms import RowWise
from attsvm.program.constraints import Constraints
from attsvm_lab.programs import MaxNorm, finite_part_in, prescribed
from tests.program.tied import tied_problem

NORMS = [nuclear, spectral, l1, linf, Entrywise(1.5), Entrywise(3), Schatten(1.1), Schatten(8), MaxNorm()]


@pytest.fixture
def problem():
    return tied_problem()


@pytest.fixture
def margins(problem):
    """The tokens, attention and selection, and rows (k, d, e) with the differences of log attention (k,)."""
    tokens, selected, attention = problem
    rows = Constraints.of(tokens, selected)
    i, t = np.nonzero(rows.tied)
    A = np.einsum("kd,ke->kde", rows.differences(i, t), rows.queries[i])
    return problem, A, np.log(attention[i, rows.anchor[i]] / attention[i, t])


def units(A):
    """δ (k, d), z (k, e) of length one and the length (k,) of rows A (k, d, e) of rank one."""
    length = np.linalg.norm(A, axis=(1, 2))
    delta = np.stack([np.linalg.svd(a)[0][:, 0] for a in A])
    return delta, np.einsum("kde,kd->ke", A, delta) / length[:, None], length


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_finite_part_has_the_ratios_and_the_least_norm(norm, margins):
    (tokens, selected, attention), A, b = margins
    W = finite_part_in(tokens, attention, selected, norm)
    np.testing.assert_allclose(np.einsum("kde,de->k", A, W), b, atol=1e-9)
    # N(W) is the largest ⟨M, W⟩ over M in the dual ball; an M of the rows alone proves that no W is smaller
    delta, z, length = units(A)
    proof = prescribed.smallest(delta, z, b / length, norm, finite_part(tokens, attention, selected))
    M = np.einsum("k,kde->de", proof.multipliers / length, A)
    bound = float(proof.multipliers @ (b / length)) / float(norm.dual.value(M))
    assert bound * (1 - 1e-12) <= float(norm.value(W)) <= bound * (1 + 1e-8)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_frobenius_finite_part_is_not_the_smallest_in_another_norm(norm, problem):
    tokens, selected, attention = problem
    sizes = [float(norm.value(finite_part_in(tokens, attention, selected, n))) for n in (norm, frobenius)]
    assert sizes[0] < 0.98 * sizes[1]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_one_ratio_needs_its_logarithm_over_the_dual_norm_of_its_row(norm):
    tokens, _ = datasets.sphere(1, 2, 3, seed=0)
    row = np.outer(tokens.keys[0, 0] - tokens.keys[0, 1], tokens.queries[0])
    W = finite_part_in(tokens, [[0.8, 0.2]], np.ones((1, 2), bool), norm)
    assert float(norm.value(W)) == pytest.approx(np.log(4) / float(norm.dual.value(row)), rel=1e-8)


def test_the_gap_of_a_longer_weight_is_seen(margins):
    _, A, b = margins
    delta, z, length = units(A)
    rows = prescribed._rows(delta, z)
    first = np.linalg.lstsq(rows.dense, b / length, rcond=None)[0].reshape(8, 8)
    proof = prescribed.smallest(delta, z, b / length, nuclear, first)
    assert proof.gap < 1e-9
    assert prescribed.gap(rows, b / length, nuclear, first, proof.multipliers) > 0.02


def test_a_norm_without_programs_has_no_finite_part(problem):
    tokens, selected, attention = problem
    with pytest.raises(ValueError, match="no finite part for the norm"):
        finite_part_in(tokens, attention, selected, RowWise(1))


def test_a_finite_part_that_is_not_proven_warns(problem, monkeypatch):
    tokens, selected, attention = problem
    monkeypatch.setattr("attsvm_lab.programs.prescribed.TOLERANCE", -1.0)
    with pytest.warns(NotCertified, match="nuclear finite part is not certified"):
        finite_part_in(tokens, attention, selected, "nuclear")
