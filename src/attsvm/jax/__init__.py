"""What attsvm offers to programs of JAX: certified max-margin solutions with gradients.

max_margin      solutions of a batch, under jit, vmap and grad

The twin of `attsvm.torch.max_margin`: what both share is in `program/derivative/`.
"""

from attsvm.jax.max_margin import MaxMargin, max_margin
from attsvm.program.derivative.batch import NotDifferentiable

__all__ = ["MaxMargin", "NotDifferentiable", "max_margin"]
