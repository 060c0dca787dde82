"""Figures of the papers and our own: each is compute() (seeded arrays) and draw() (axes only)."""

from attsvm.figures import next_token, past_saturation, published_numbers, two_clouds
from attsvm.figures.figure import Check, Figure

ALL: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE
    for module in (published_numbers, two_clouds, past_saturation, next_token)
}

__all__ = ["ALL", "Check", "Figure"]
