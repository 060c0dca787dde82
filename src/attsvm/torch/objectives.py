"""Several objectives at once: what TorchJD asks of a Gram matrix of gradients, computed exactly.

Both classes take the places of TorchJD's own: `UPGrad(projector=DualConeProjector())`, and
`GramianWeightedAggregator(MGDAWeighting())`. They do not need TorchJD.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attsvm._support.validation import is_finite
from attsvm.program.hull import dual_cone_projection, smallest_in_hull


class MGDAWeighting(torch.nn.Module):
    """The weights of the shortest vector in the convex hull of the gradients: gramian (m, m) → (m,).

    The same as `smallest_in_hull`, in the dtype and on the device of the Gram matrix; no gradient passes.
    TorchJD's takes at most 100 steps of Frank and Wolfe, and stops where one is short.
    Reference: Désidéri 2012, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization".
    """

    def forward(self, gramian: Tensor, /) -> Tensor:
        return _like(smallest_in_hull(gram=_numbers(gramian)).weights, gramian)

    def __lshift__(self, function: Callable[[Tensor], Tensor]) -> Composed:
        """The weights of what the function returns: how TorchJD joins a weighting to a Gram matrix."""
        return Composed(self, function)


class Composed(torch.nn.Module):
    """A weighting of what a function returns."""

    def __init__(self, weighting: MGDAWeighting, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weighting, self.function = weighting, function

    def forward(self, matrix: Tensor, /) -> Tensor:
        weights: Tensor = self.weighting(self.function(matrix))
        return weights


class DualConeProjector:
    """Weights of projections on the dual cone of the gradients: U (…, m), G (m, m) → (…, m).

        min vᵀ G v   subject to  v ≥ u

    The same as `dual_cone_projection`, in the dtype and on the device of G; no gradient passes.

    ridge: the share of each diagonal entry of G that is added to it; by default m times the rounding of its
    dtype. In single precision a singular G has tiny eigenvalues of either sign, on which weights would be
    large and arbitrary. TorchJD's adds 1e-4 of the trace.
    """

    def __init__(self, ridge: float | None = None) -> None:
        if ridge is not None and not (is_finite(ridge) and ridge >= 0):
            raise ValueError(f"ridge is {ridge!r}. Pass a share ≥ 0, or None.")
        self.ridge = ridge

    def __call__(self, U: Tensor, G: Tensor) -> Tensor:
        gram = _numbers(G)
        ridge = len(gram) * torch.finfo(G.dtype).eps if self.ridge is None else self.ridge
        if ridge and gram.shape == 2 * gram.shape[:1]:  # else an error names the shape
            gram = gram + ridge * np.diag(np.diagonal(gram))
        return _like(dual_cone_projection(_numbers(U), gram=gram).weights, G)

    def __repr__(self) -> str:
        return f"DualConeProjector(ridge={self.ridge})"


def _numbers(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().to("cpu", torch.float64))


def _like(array: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.as_tensor(array).to(tensor)
