"""Norms of parts that an optimizer treats differently, and their programs."""

import math
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import attsvm as att
from attsvm.norms.names import from_saved, saved_words
from attsvm_lab import programs

cvxpy = pytest.importorskip("cvxpy")

NORMS = [
    programs.HybridNorm(("spectral", "linf"), (4, 1), (1.0, 0.3)),
    programs.HybridNorm(("spectral", "frobenius"), (4, 1)),
    programs.HybridNorm(("nuclear", "l1"), (3, 2), (1.0, 2.0)),
    programs.HybridNorm(("linf", "spectral", "l1"), (1, 2, 1), axis=0),
]
OF_CVXPY = {
    "spectral": cvxpy.sigma_max,
    "nuclear": cvxpy.normNuc,
    "Frobenius": lambda W: cvxpy.norm(W, "fro"),
    "l1": lambda W: cvxpy.sum(cvxpy.abs(W)),
    "l∞": lambda W: cvxpy.max(cvxpy.abs(W)),
}
ORACLE = 1e-6


def problem(seed=0, n=6, scale=1.0):
    """Keys 4 wide, and queries 4 wide with a 1 behind them: W (4, 5)."""
    rng = np.random.default_rng(seed)
    queries = np.c_[rng.normal(size=(n, 4)), np.ones(n)]
    return att.Tokens(scale * rng.normal(size=(n, 3, 4)), queries), rng.integers(3, size=n)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_the_program_agrees_with_cvxpy(norm, seed):
    tokens, selected = problem(seed)
    W, keys, queries = cvxpy.Variable((4, 5)), tokens.keys, tokens.queries
    pairs = [(i, s, t) for i, s in enumerate(selected) for t in range(3) if t != s]
    rows = [(keys[i, s] - keys[i, t]) @ W @ queries[i] >= 1 for i, s, t in pairs]
    ends = pairwise(np.cumsum((0, *norm.sizes)))
    parts = [W[:, a:b] if norm.axis else W[a:b] for a, b in ends]
    sizes = [OF_CVXPY[str(one)](part) for one, part in zip(norm.norms, parts, strict=True)]
    largest = cvxpy.maximum(*[size / rate for size, rate in zip(sizes, norm.rates, strict=True)])
    oracle = cvxpy.Problem(cvxpy.Minimize(largest), rows).solve(solver="CLARABEL")
    best = att.max_margin(tokens, selected, norm)
    assert best.certified and best.margin * oracle == pytest.approx(1, abs=ORACLE)
    other = att.max_margin(tokens, selected, att.frobenius)  # its norm is larger here
    assert norm.value(other.W) * best.margin > 1 + 100 * ORACLE


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_steps_have_length_one_and_attain_the_dual_norm(norm, p):
    norm = programs.HybridNorm(norm.norms, norm.sizes, norm.rates, norm.axis, p)
    G = np.random.default_rng(1).normal(size=(7, 4, 5))
    step = norm.steepest(G)
    np.testing.assert_allclose(norm.value(step), 1)
    np.testing.assert_allclose((G * step).sum((1, 2)), norm.dual.value(G))
    assert norm.dual.dual == norm
    assert from_saved(saved_words(norm)) == norm
    assert np.isfinite(att.capabilities_of(norm).rounding(4, 5))
    longest = norm.value(G) / np.linalg.norm(G, axis=(1, 2))
    assert (longest <= att.capabilities_of(norm).stretch(4, 5) * (1 + 1e-12)).all()


def test_a_step_moves_each_part_by_its_own_rule_and_rate():
    norm, G = NORMS[0], np.random.default_rng(0).normal(size=(4, 5))
    step = norm.steepest(G)
    np.testing.assert_allclose(step[:, :4], att.spectral.steepest(G[:, :4]))
    np.testing.assert_allclose(step[:, 4:], 0.3 * np.sign(G[:, 4:]))


def test_one_part_is_its_norm():
    tokens, selected = problem()
    for name in ("spectral", "l1"):
        alone = att.max_margin(tokens, selected, name)
        whole = att.max_margin(tokens, selected, programs.HybridNorm((name,), (5,), (2.0,)))
        assert whole.certified and whole.margin == pytest.approx(2 * alone.margin, rel=1e-8)


def test_a_shrunk_or_foreign_solution_is_not_certified():
    tokens, selected = problem()
    best, other = (att.max_margin(tokens, selected, norm) for norm in NORMS[:2])
    assert best.certified
    assert not replace(best, W=0.9 * best.W).certified
    assert not replace(best, W=other.W).certified
    assert not replace(best, norm=NORMS[1]).certified


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_units_of_the_keys_do_not_matter(scale):
    one, other = (att.max_margin(*problem(scale=s), NORMS[0]) for s in (1.0, scale))
    assert other.certified and other.margin == pytest.approx(scale * one.margin, rel=1e-7)


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 1e3])
def test_rates_may_lie_far_apart(rate):
    assert att.max_margin(
        *problem(), programs.HybridNorm(("spectral", "linf"), (4, 1), (1.0, rate))
    ).certified


def test_ties_and_rows_without_a_bound_are_kept():
    tokens, _ = problem(n=3)
    selected = np.zeros((3, 3), bool)
    selected[:, 0] = selected[0, 1] = True
    best = att.max_margin(tokens, selected, NORMS[0])
    assert best.certified and best.constraints.tied.any()
    relaxed = att.max_margin(tokens, [0, 1, 2], NORMS[0], required=[1.0, 0.0, 1.0])
    plain = att.max_margin(tokens, [0, 1, 2], NORMS[0])
    assert relaxed.certified and relaxed.margin >= plain.margin * (1 - 1e-8)


def test_the_smallest_programs():
    tiny = att.Tokens(np.array([[[1.0], [0.0]]]), np.array([[2.0, 1.0]]))
    best = att.max_margin(tiny, [0], programs.HybridNorm(("spectral", "linf"), (1, 1)))
    assert best.certified and best.margin == pytest.approx(3)
    with pytest.raises(att.NotSeparable):
        both = programs.HybridNorm(("spectral", "linf"), (1, 1))
        att.max_margin(att.Tokens(np.ones((1, 2, 1)), np.ones((1, 2))), [0], both)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        att.max_margin(att.Tokens(np.ones((1, 1, 4)), np.ones((1, 5))), [0], NORMS[0])


def test_steps_of_a_mixture_have_a_limit():
    limit = att.limit_norm(att.FullWeight(), att.steepest(NORMS[0], lambda k: 0.1 / (k + 1.0)))
    assert limit.norm == NORMS[0] and limit.standing == "theorem"


def test_what_does_not_fit_is_refused_in_words():
    tokens, selected = problem()
    with pytest.raises(ValueError, match="4 columns but the matrix has 5"):
        att.max_margin(tokens, selected, programs.HybridNorm(("spectral", "l1"), (3, 1)))
    with pytest.raises(ValueError, match="no program"):
        att.max_margin(tokens, selected, programs.HybridNorm(("schatten:3", "l1"), (4, 1)))
    for wrong in ({"sizes": (4,)}, {"sizes": (0, 5)}, {"rates": (1.0, -1.0)}, {"axis": 2}):
        with pytest.raises(ValueError, match="Pass"):
            programs.HybridNorm(**{"norms": ("spectral", "l1"), "sizes": (4, 1)} | wrong)


def frame(first, count):
    """Orthonormal columns, the first along a vector."""
    others = np.random.default_rng(1).normal(size=(len(first), count - 1))
    columns = np.linalg.qr(np.c_[first, others])[0]
    return columns * np.sign(columns[:, 0] @ first)


def test_with_factors_the_bias_is_measured_by_its_length():
    """K turns a vector into a corner of the cube: 9 signs at rate 0.3 have the length 0.9."""
    of_Q = programs.HybridNorm(("spectral", "linf"), (4, 1), (1.0, 0.3), axis=0)
    implied = programs.norm_with_bias(of_Q, rank=9)
    W = np.random.default_rng(0).normal(size=(4, 5))
    W[:, 4] *= 5  # the bias decides
    K = frame(W[:, 4], 4) @ frame(np.ones(9), 4).T
    Q = W.T @ K
    np.testing.assert_allclose(K @ Q.T, W, atol=1e-12)
    np.testing.assert_allclose(implied.value(W), np.linalg.norm(W[:, 4]) / 0.9)
    np.testing.assert_allclose(att.spectral.value(K) * of_Q.value(Q), implied.value(W))
    assert programs.norm_with_bias(of_Q, rank=4) != implied  # the width decides
    with pytest.raises(ValueError, match="its norm an lp"):
        programs.norm_with_bias(programs.HybridNorm(("spectral", "l1"), (4, 1), axis=0), rank=9)
