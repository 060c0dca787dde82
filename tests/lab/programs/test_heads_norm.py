"""Norms of several heads: closed forms, laws, and their layouts."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs

Layout = att.HeadLayout
CLOSE = 1e-8
"""The brackets are narrower than 2e-9."""


def heads(count, size=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, size, size))


def test_one_head_has_half_of_p():
    W = heads(1)
    for steps, half in (
        (att.spectral, att.spectral),
        (att.frobenius, att.nuclear),
        (att.Schatten(4), att.frobenius),
    ):
        for layout in (Layout.fused(1), Layout.stacked(1), Layout.grouped_queries(1, 1)):
            assert programs.HeadsNorm(layout, steps).value(W) == pytest.approx(half.value(W[0]), rel=CLOSE)


def test_keys_and_queries_in_one_matrix_have_the_numerical_radius():
    W = heads(1, 5)
    turns = np.exp(1j * np.linspace(0, 2 * np.pi, 4001))
    radius = max(np.linalg.eigvalsh((t * W[0] + (t * W[0]).conj().T) / 2)[-1] for t in turns)
    value = programs.HeadsNorm(Layout.keys_with_queries(1)).value(W)
    assert value == pytest.approx(radius, rel=1e-6)  # of 4,001 angles
    assert value < 0.99 * att.spectral.value(W[0])


def test_fused_frobenius_steps_have_the_sum_of_nuclear_norms():
    W = heads(3)
    total = sum(att.nuclear.value(w) for w in W)
    assert programs.HeadsNorm(Layout.fused(3), att.frobenius).value(W) == pytest.approx(total, rel=CLOSE)
    low, high = programs.HeadsNorm(Layout.fused(3), att.Schatten(2 + 1e-6)).bracket(W)
    assert low < high < total < 1.001 * high  # the semidefinite program beside it


def test_the_fused_norm_is_between_its_bounds():
    W = heads(3)
    U, s, Vt = np.linalg.svd(W)
    right = sum((V.T * x) @ V for V, x in zip(Vt, s, strict=True))
    left = sum((u * x) @ u.T for u, x in zip(U, s, strict=True))
    value = programs.HeadsNorm(Layout.fused(3)).value(W)
    assert att.spectral.value(np.concatenate(list(W), 1)) < value
    assert value < np.sqrt(np.linalg.norm(left, 2) * np.linalg.norm(right, 2))


@pytest.mark.parametrize(
    "layout", [Layout.fused(2), Layout.keys_with_queries(2), Layout.grouped_queries(1, 2)], ids=str
)
def test_the_dual_norm_bounds_products_and_is_attained(layout):
    for steps in (att.spectral, att.Schatten(3)):
        norm, M = programs.HeadsNorm(layout, steps), heads(2, seed=1)
        low, high = norm.dual_bracket(M)
        assert high - low <= CLOSE * high
        W = heads(2, seed=2)
        assert (M * W).sum() < high * norm.value(W)
        assert norm.value(3 * W) == pytest.approx(3 * norm.value(W), rel=CLOSE)
        assert norm.value(W + M) <= norm.value(W) + norm.value(M)


def test_values_of_many_heads_at_once_and_of_none():
    norm = programs.HeadsNorm(Layout.fused(2))
    W = np.stack([heads(2), 1e9 * heads(2), 0 * heads(2)])
    value = norm.value(W)
    assert value[1] == pytest.approx(1e9 * value[0], rel=CLOSE)
    assert value[2] == 0
    with pytest.raises(ValueError, match="NaN"):
        norm.value(np.nan * heads(2))


def test_layouts_name_every_block_once():
    assert Layout.groups(3, 2).components == ((0, 1), (2,))
    assert Layout.apart(2).matrices == ((("K0",),), (("K1",),), (("Q0",),), (("Q1",),))
    assert str(Layout.fused(8)) == "[K1 … K8], [Q1 … Q8]"
    for matrices in ((), ((("K0",),),), ((("K0", "Q0", "Q0"),),), ((("V0",),),)):
        with pytest.raises(ValueError, match="Pass"):
            Layout(matrices)


def test_steps_without_a_convex_norm_are_refused():
    for steps in (att.nuclear, att.linf, att.Schatten(1.5)):
        with pytest.raises(ValueError, match="p from 2 on"):
            programs.HeadsNorm(Layout.fused(2), steps)
