"""How far points are from the convex hull of some of them, from above, and which of them span it well.

No query can tell a point of the hull from its corners: q · k ≤ max_i q · k_i over kept keys k_i. A key at the
distance r from it wins by at most r ‖q‖.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2**22
"""Weights of corners that are held at once."""


def distances(points: Tensor, corners: Tensor, steps: int) -> Tensor:
    """An upper bound on the distance of every point (p, d) from the hull of the corners (c, d), float64 (p,).

        min ‖x − Σ λ_i k_i‖  subject to  λ ≥ 0, Σ λ = 1

    by accelerated projected gradients. Any λ of the simplex gives a bound, which is computed anew from it, so
    that too few steps loosen it and cannot break it.
    Reference: Beck, Teboulle 2009, FISTA; Duchi et al. 2008, projection onto the simplex.
    """
    if not len(points):
        return points.new_zeros(0, dtype=torch.float64)
    mean = corners.double().mean(0)  # what all keys share would only slow the steps
    corners = corners.double() - mean
    rate = 1 / torch.linalg.eigvalsh(corners.T @ corners)[-1].clamp_min(torch.finfo(mean.dtype).tiny)
    blocks = points.split(max(1, BLOCK // len(corners)))
    return torch.cat([_one_block(x.double() - mean, corners, rate, steps) for x in blocks])


def spanning(points: Tensor, count: int, last: int = 0) -> Tensor:
    """Indices of `count` of the points (p, d), among them the last so many, whose hull is near all others.

    Greedy: the point farthest from the hull so far joins, and all take a step towards it.
    Reference: Blum, Har-Peled, Raichel 2016, Sparse approximation via generating point sets.
    """
    x = points.to(torch.float64 if points.dtype == torch.float64 else torch.float32)
    given = list(range(len(x) - last, len(x)))
    first = given[0] if given else int((x - x.mean(0)).square().sum(1).argmax())
    chosen, rest = [first], x - x[first]
    for k in range(1, count):
        far = rest.square().sum(1)
        far[chosen] = -1  # a point twice the same is chosen once
        new = given[k] if k < len(given) else int(far.argmax())
        way = x[new] - (x - rest)
        share = (rest * way).sum(1) / way.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        rest = rest - share.clamp(0, 1)[:, None] * way
        chosen.append(new)
    return torch.tensor(chosen, device=points.device)


# ---------------------------------------------------------------------- details


def _one_block(x: Tensor, corners: Tensor, rate: Tensor, steps: int) -> Tensor:
    gram, products = corners @ corners.T, x @ corners.T
    nearest = (gram.diagonal() - 2 * products).argmin(1)
    weights = torch.nn.functional.one_hot(nearest, len(corners)).to(x)
    ahead, momentum = weights, 1.0
    for _ in range(steps):
        new = _on_simplex(ahead - rate * (ahead @ gram - products))
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, weights = new + (momentum - 1) / after * (new - weights), new
        momentum = after
    weights = weights.clamp_min(0)
    weights = weights / weights.sum(1, keepdim=True)
    found = torch.linalg.vector_norm(x - weights @ corners, dim=1)
    best = torch.minimum(found, torch.linalg.vector_norm(x - corners[nearest], dim=1))
    # The sum of the weights is one up to rounding, which moves the point by at most so much.
    return best + len(corners) * torch.finfo(x.dtype).eps * corners.abs().amax() * corners.shape[1] ** 0.5


def _on_simplex(y: Tensor) -> Tensor:
    """The nearest weights, rows ≥ 0 of sum 1."""
    falling = y.sort(dim=1, descending=True).values
    counts = torch.arange(1, y.shape[1] + 1, device=y.device, dtype=y.dtype)
    heights = (falling.cumsum(1) - 1) / counts
    many = (falling > heights).sum(1, keepdim=True)
    return (y - heights.gather(1, many - 1)).clamp_min(0)
