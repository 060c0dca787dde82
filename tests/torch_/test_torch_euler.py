"""Gradients at mixed scales add up as Euler says: the margin has degree 1 in the keys."""

import numpy as np
import pytest
import torch

import attsvm.torch

FAR_APART = torch.tensor([[[-6.8e17, -5.1e17], [0, 0]], [[0.024, -0.028], [0, 0]]], dtype=torch.float64)


@pytest.mark.parametrize("norm", ["frobenius", "lp:1.5", "l1"])
def test_the_gradient_of_the_margin_adds_up_to_the_margin(norm):
    keys = FAR_APART.clone().requires_grad_()
    result = attsvm.torch.max_margin(keys, [0, 0], norm=norm)
    result.margin.backward()
    assert result.regular
    np.testing.assert_allclose((keys.grad * keys).sum().item(), result.margin.item(), rtol=1e-8)


def test_so_does_the_gradient_under_func():
    def margin(keys):
        return attsvm.torch.max_margin(keys, [0, 0]).margin

    slope = torch.func.grad(margin)(FAR_APART)
    np.testing.assert_allclose((slope * FAR_APART).sum().item(), margin(FAR_APART).item(), rtol=1e-8)
