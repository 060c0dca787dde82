"""Weights of several objectives: without TorchJD, and in its places."""

import numpy as np
import pytest

import attsvm as att

torch = pytest.importorskip("torch", reason="needs the extra torch")

from attsvm.torch import DualConeProjector, MGDAWeighting  # noqa: E402

SINGLE = 1e-5
"""Difference that single precision makes to weights of well-separated gradients."""


def gradients(m=12, d=40, seed=0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal((m, d)) + rng.standard_normal(d))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_are_those_of_the_numpy_functions_in_the_dtype_of_the_gram_matrix(dtype):
    J = gradients()
    G, U = (J @ J.T).to(dtype).requires_grad_(), torch.eye(12, dtype=dtype)[None]
    weights, projections = MGDAWeighting()(G), DualConeProjector()(U, G)
    assert weights.dtype == projections.dtype == dtype
    assert not (weights.requires_grad or projections.requires_grad)
    np.testing.assert_allclose(weights, att.smallest_in_hull(J.numpy()).weights, atol=SINGLE)
    oracle = att.dual_cone_projection(np.eye(12), J.numpy())
    assert projections.shape == (1, 12, 12)
    np.testing.assert_allclose(projections[0], oracle.weights, atol=SINGLE)


def test_a_singular_gram_matrix_in_single_precision_has_moderate_weights():
    J = gradients(m=30, d=12).float()
    G = J @ J.T
    weights = DualConeProjector()(torch.eye(30), G)
    assert weights.abs().max() < 100 and (weights >= torch.eye(30)).all()
    assert (weights @ G).min() > -1e-3 * G.diagonal().max()


def test_a_weighting_follows_a_function():
    J = gradients()
    composed = MGDAWeighting() << (lambda matrix: matrix @ matrix.T)
    torch.testing.assert_close(composed(J), MGDAWeighting()(J @ J.T))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="ridge is -1"):
        DualConeProjector(ridge=-1)
    with pytest.raises(ValueError, match="NaN"):
        MGDAWeighting()(torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match="square"):
        DualConeProjector()(torch.ones(2), torch.ones(2, 3))
    assert repr(DualConeProjector(0.1)) == "DualConeProjector(ridge=0.1)"


def test_torchjd_takes_both_in_the_places_of_its_own():
    aggregation = pytest.importorskip("torchjd.aggregation", reason="needs torchjd")
    J = gradients(m=32, d=64)
    ours = aggregation.GramianWeightedAggregator(MGDAWeighting())(J)
    theirs = aggregation.MGDA()(J)
    assert ours.norm() <= theirs.norm()
    assert (J @ theirs).min() / theirs.norm() < (J @ ours).min() / ours.norm()
    upgrad = aggregation.UPGrad(projector=DualConeProjector())(J)
    assert (J @ upgrad).min() > -1e-12
    pytest.importorskip("quadprog", reason="needs torchjd[quadprog_projector]")
    from torchjd.linalg import QuadprogProjector

    plain = aggregation.UPGrad(projector=QuadprogProjector(norm_eps=0.0, reg_eps=0.0))(J)
    torch.testing.assert_close(upgrad, plain, atol=1e-9, rtol=0)
