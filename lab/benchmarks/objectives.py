"""Weights of several objectives, beside TorchJD's own: time, length of the shortest vector, residuals.

Run by hand, with torchjd, quadprog and qpsolvers installed: python lab/benchmarks/objectives.py. CPU seconds
of one process, one thread, the least over rounds that take both in turn. Gradients are Gaussian with a common
part; their Gram matrix is in float64.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torchjd.aggregation import MGDAWeighting as FrankWolfe
from torchjd.linalg import QuadprogProjector

from attsvm.torch import DualConeProjector, MGDAWeighting
from measure import least_milliseconds

ROUNDS = 7
SIZES = [(8, 100), (32, 100), (64, 200), (128, 400), (64, 10), (128, 127)]


def residual(V: torch.Tensor, U: torch.Tensor, G: torch.Tensor) -> float:
    """The worst of −⟨g_j, x⟩ / |g_j| |y|, where x projects y, and of (v − u)ᵀ G v / |y|²."""
    square = (U @ G * U).sum(-1)
    wrong = -(V @ G) / G.diagonal().sqrt() / square.sqrt()[:, None]
    gap = ((V - U) * (V @ G)).sum(-1).abs() / square
    return max(float(wrong.max()), float(gap.max()))


def main() -> None:
    torch.set_num_threads(1)
    print("| m, d | shortest vector, ms | TorchJD, ms | × | its length per ours | m projections, ms | "
          "TorchJD, ms | × | residual | its |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for m, d in SIZES:
        rng = np.random.default_rng(0)
        J = torch.tensor(rng.standard_normal((m, d)) + 0.3 * rng.standard_normal(d))
        G, U = J @ J.T, torch.eye(m, dtype=torch.float64) / m
        ours, theirs = MGDAWeighting(), FrankWolfe()
        fast, slow = least_milliseconds(partial(ours, G), partial(theirs, G), rounds=ROUNDS)
        ratio = float((theirs(G) @ J).norm() / (ours(G) @ J).norm())
        length = f"{ratio:.3f}" if ratio < 1e3 else "zero is in the hull"
        project, quadprog = DualConeProjector(), QuadprogProjector()
        cone, loop = least_milliseconds(partial(project, U, G), partial(quadprog, U, G), rounds=ROUNDS)
        numbers = [f"{fast:.2f}", f"{slow:.1f}", f"{slow / fast:.0f}", length, f"{cone:.2f}", f"{loop:.1f}"]
        residuals = [f"{residual(p(U, G), U, G):.0e}" for p in (project, quadprog)]
        print(f"| {m}, {d} | {' | '.join([*numbers, f'{loop / cone:.0f}', *residuals])} |")


if __name__ == "__main__":
    main()
