"""One step of Muon on a projection of several heads: what a head with a small gradient gets of it.

    python lab/experiments/per_head_steps.py        # seconds; the table of docs/practice/per_head_muon.md

Gradients are Gaussian, (heads · width, d), and one head's is multiplied by `small`. A share is the length of
the head's update over √width, its length where the head has an exact step of its own. The steps are those of
docs/files/per_head_muon.py.
"""

from __future__ import annotations

import argparse
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

FILE = Path(__file__).parents[2] / "docs" / "files" / "per_head_muon.py"
SHAPES = ((4, 16, 128), (4, 16, 64), (4, 16, 32), (8, 16, 16))
SMALL = (1.0, 0.1, 0.01, 0.001)


def polar_of_the_file():
    spec = spec_from_file_location(FILE.stem, FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.polar


def shares(shape: tuple[int, int, int], small: float, method: str, draws: int) -> torch.Tensor:
    """(draws, 2): the small head's share of a fused step, and of a step of its own."""
    heads, width, d = shape
    polar, generator = polar_of_the_file(), torch.Generator().manual_seed(0)
    G = torch.randn(draws, heads, width, d, generator=generator, dtype=torch.float64)
    G[:, 0] *= small
    fused = polar(G.flatten(1, 2), method).unflatten(1, (heads, width))[:, 0]
    apart = polar(G[:, 0], method)
    return torch.stack([torch.linalg.matrix_norm(X) / width**0.5 for X in (fused, apart)], 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=32)
    options = parser.parse_args()
    print(f"| heads · width / d | polar factor | {' | '.join(f'fused, {s:g}' for s in SMALL)} | apart, any |")
    for shape in SHAPES:
        for method in ("svd", "polished", "newton-schulz"):
            columns = [shares(shape, small, method, options.draws) for small in SMALL]
            fused = " | ".join(f"{column[:, 0].median():.2g}" for column in columns)
            apart = torch.cat([column[:, 1] for column in columns])
            own = f"{apart.min():.2g} to {apart.max():.2g}"
            print(f"| {shape[0] * shape[1] / shape[2]:g} | {method} | {fused} | {own} |")


if __name__ == "__main__":
    main()
