"""The joint programs of several heads against cvxpy, their certificates, and hostile input."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

import attsvm as att
from attsvm_lab.programs import HeadsNorm, max_margin_of_heads
from attsvm_lab.programs.heads_norm import Proof
from tests.program.oracles import rows_of

Layout = att.HeadLayout
LAYOUTS = [
    Layout.fused(2),
    Layout.groups(3, 2),
    Layout.apart(2),
    Layout.stacked(2),
    Layout.keys_with_queries(2),
    Layout.grouped_queries(2, 2),
    Layout.grouped_queries(1, 2, queries="apart"),
    Layout.weights(2),
    Layout.weights(2, stacked=True),
]
STEPS = [att.spectral, att.Schatten(4), att.frobenius]
NEAR = 1e-6
"""Clarabel ends near 1e-8 of the value."""


def instance(heads, seed=0, n=3, T=3, d=4):
    tokens, _ = att.datasets.sphere(n, T, d, seed=seed)
    return tokens, np.random.default_rng(seed).integers(T, size=(heads, n))


def by_cvxpy(tokens, selected, norm):
    """The least norm of the heads, the program written out with the Gram matrices of the factors."""
    layout, p = norm.layout, 2.0 if norm.steps == att.frobenius else norm.steps.p
    size = {2.0: cp.trace, 4.0: lambda X: cp.norm(X, "fro"), np.inf: cp.lambda_max}[p]
    d, e = tokens.d, tokens.e
    limits, gram = [], {}
    for g in sorted(set(layout.key_of)):
        heads = [h for h, k in enumerate(layout.key_of) if k == g]
        whole = cp.Variable((d + e * len(heads),) * 2, PSD=True)
        gram[f"K{g}"] = whole[:d, :d]
        for k, h in enumerate(heads):
            b = slice(d + k * e, d + (k + 1) * e)
            gram[f"Q{h}"] = whole[b, b]
            A, bounds, _ = rows_of(tokens, selected[h])
            limits.append(A @ cp.vec(whole[:d, b], order="C") >= bounds)
    sizes = []
    for matrix in layout.matrices:
        rows = [sum(gram[name] for name in row) for row in matrix]
        if len(rows) == 1:
            total = size(rows[0])
        else:  # the norm of the block diagonal
            each = cp.hstack([size(row) for row in rows])
            total = {2.0: cp.sum, 4.0: cp.norm2, np.inf: cp.max}[p](each)
        sizes.append(total / (2 if {name[0] for row in matrix for name in row} == {"K", "Q"} else 1))
    return float(cp.Problem(cp.Minimize(cp.maximum(*sizes, 0)), limits).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_joint_program_is_certified(layout):
    several = layout.of_factors and len(layout.matrices) > 2 and len(layout.components) == 1
    for steps in STEPS[::2] if several else STEPS:  # a sum of norms that are not smooth at zero is refused
        norm = HeadsNorm(layout, steps)
        solution = max_margin_of_heads(*instance(norm.heads), norm)
        assert solution.certified
        assert solution.margin == pytest.approx(1 / norm.value(solution.W), rel=1e-7)
        assert not replace(solution, W=0.9 * solution.W).certified
        assert not replace(solution, multipliers=0.9 * solution.multipliers + 0.01).certified


SPLIT_GROUPS = Layout(((("K0",),), (("Q0",),), (("Q1",),), (("K1",),), (("Q2",),)), (0, 0, 1))
"""Grouped queries with every K_g and every Q_h a matrix by itself."""

BESIDE_CVXPY = [
    (Layout.fused(2), att.spectral),
    (Layout.fused(3), att.Schatten(4)),
    (Layout.fused(2), att.frobenius),
    (Layout.groups(3, 2), att.spectral),
    (Layout.stacked(2), att.Schatten(4)),
    (Layout.keys_with_queries(2), att.spectral),
    (Layout.keys_with_queries(2), att.Schatten(4)),
    (Layout.grouped_queries(1, 2), att.spectral),
    (Layout.grouped_queries(2, 2, queries="apart"), att.spectral),
    (SPLIT_GROUPS, att.spectral),
]


@pytest.mark.parametrize(("layout", "steps"), BESIDE_CVXPY, ids=str)
@pytest.mark.parametrize("draw", range(3))
def test_cvxpy_finds_the_same_joint_margin(layout, steps, draw):
    norm = HeadsNorm(layout, steps)
    tokens, selected = instance(norm.heads, 10 * BESIDE_CVXPY.index((layout, steps)) + draw)
    solution = max_margin_of_heads(tokens, selected, norm)
    assert solution.certified
    assert solution.margin == pytest.approx(1 / by_cvxpy(tokens, selected, norm), rel=NEAR)
    apart = by_cvxpy(tokens, selected, HeadsNorm(Layout.apart(norm.heads), att.frobenius))
    assert solution.margin != pytest.approx(1 / apart, rel=NEAR)


def test_a_shared_key_beside_queries_apart_costs_nothing():
    tokens, selected = instance(2, 110)  # a draw in which the semidefinite program stalls at 1.4e-8
    margin = max_margin_of_heads(tokens, selected, HeadsNorm(LAYOUTS[6])).margin
    assert margin == pytest.approx(max_margin_of_heads(tokens, selected, HeadsNorm(Layout.apart(2))).margin)
    assert (
        margin > 1.01 * max_margin_of_heads(tokens, selected, HeadsNorm(Layout.grouped_queries(1, 2))).margin
    )


def test_a_proof_of_another_program_proves_nothing():
    tokens, selected = instance(2)
    fused = max_margin_of_heads(tokens, selected, HeadsNorm(Layout.fused(2)))
    larger = tuple(1.1 * gram for gram in fused.proofs[0].grams)
    assert not replace(fused, proofs=(Proof(fused.proofs[0].X, larger),)).certified
    smaller = tuple(0.9 * x for x in fused.proofs[0].X)
    assert not replace(fused, proofs=(Proof(smaller, fused.proofs[0].grams),)).certified


def test_fused_muon_charges_heads_that_share_directions():
    tokens, selected = instance(1)
    one = max_margin_of_heads(tokens, selected, HeadsNorm(Layout.fused(1)))
    two = max_margin_of_heads(tokens, np.repeat(selected, 2, 0), HeadsNorm(Layout.fused(2)))
    apart = max_margin_of_heads(tokens, np.repeat(selected, 2, 0), HeadsNorm(Layout.apart(2)))
    assert two.margin == pytest.approx(one.margin / 2)
    assert apart.margin == pytest.approx(one.margin)


def test_ties_are_equalities_of_their_head():
    tokens, _ = instance(2)
    selected = np.zeros((2, 3, 3), bool)
    selected[:, :, 0], selected[1, 0, 1] = True, True
    solution = max_margin_of_heads(tokens, selected, HeadsNorm(Layout.fused(2)))
    logits = (tokens.keys @ solution.W[1] @ tokens.queries[..., None])[..., 0]
    assert solution.certified
    assert logits[0, 0] == pytest.approx(logits[0, 1], abs=1e-7)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_keys_of_any_scale_have_certified_heads(scale):
    tokens, selected = instance(2)
    scaled = att.Tokens(scale * tokens.keys, tokens.queries / scale**0.5)
    norm = HeadsNorm(Layout.fused(2))
    assert max_margin_of_heads(scaled, selected, norm).certified


@pytest.mark.parametrize(("n", "T", "d"), [(1, 2, 1), (1, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_the_smallest_problems_are_solved(n, T, d):
    tokens, selected = instance(2, seed=1, n=n, T=T, d=d)
    for layout in (Layout.fused(2), Layout.apart(2), Layout.weights(2), Layout.keys_with_queries(2)):
        solution = max_margin_of_heads(tokens, selected, HeadsNorm(layout))
        assert solution.certified
        assert (solution.W == 0).all() == (T == 1)


def test_heads_that_cannot_separate_are_named():
    tokens = att.Tokens(np.ones((1, 2, 3)), np.ones((1, 3)))
    with pytest.raises(att.NotSeparable) as error:
        max_margin_of_heads(tokens, [[0], [1]], HeadsNorm(Layout.fused(2)))
    assert "head 0" in error.value.__notes__[0]


def test_wrong_input_is_refused_with_a_remedy():
    tokens, selected = instance(2)
    norm = HeadsNorm(Layout.fused(2))
    with pytest.raises(ValueError, match="one selection per head"):
        max_margin_of_heads(tokens, selected[0], norm)
    with pytest.raises(ValueError, match="positive margins"):
        max_margin_of_heads(tokens, selected, norm, required=0)
    with pytest.raises(ValueError, match="normalised apart"):
        max_margin_of_heads(
            tokens, selected, HeadsNorm(Layout.grouped_queries(1, 2, queries="apart"), STEPS[1])
        )
