"""Heads of trained encoders in docs/practice/transformers.md:  python experiments/head_tables.py

Shares of the best margins, shapes and weights, from the package's records.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.figures.figure import Arrays
from attsvm.figures.ours import head_geometry, head_pairs, head_ranks
from attsvm.figures.recorded import recorded


def main() -> None:
    margins_of_heads()
    pairs_of_heads()
    layers_of_heads()


def margins_of_heads() -> None:
    """Mean and interval over heads, by optimizer and norm."""
    arrays = head_geometry.experiment()
    print(f"heads: {len(arrays['certified'])} programs, certified {arrays['certified'].mean():.0%}")
    for group, (size, _, norms) in head_geometry.GROUPS.items():
        mass, heads = arrays[f"{group} mass"].round(2).tolist(), arrays[f"{group} heads"].tolist()
        print(f"size {size}, {group} selections: heads {heads}, attention on the selections {mass}")
        for name, scale in (("ratio", 100), ("cosine", 1)):
            found = scale * arrays[f"{group} {name}"]
            for rule, *numbers in zip(arrays[f"{group} rules"], *found, strict=True):
                cells = zip(norms, *numbers, strict=True)
                words = (f"{norm} {mean:.3f} [{low:.3f}, {high:.3f}]" for norm, mean, low, high in cells)
                print(f"  {name} {rule}:", ", ".join(words))
    for rule in arrays["own rules"]:
        curve, layers = arrays[f"layers {rule}"].mean(1).round(3), arrays[f"layers {rule}"][-1].round(3)
        epochs = arrays[f"epochs {rule}"].tolist()
        print(f"  Frobenius cosine {rule}: epochs {epochs}, {curve.tolist()}; layers {layers.tolist()}")


def pairs_of_heads() -> None:
    """Heads and weights of p = 1.1 and 2, means and their quotient seed by seed, with Student's intervals."""
    arrays = head_pairs.experiment()
    for group in head_pairs.GROUPS:
        print(f"pairs of size {group}: p = 1.1, p = 2; quotients by seed")
        if f"pair {group} seed" in arrays:
            pairs_of_a_group(arrays, group)
        for kind in head_pairs.KINDS:
            for what, (above, below) in head_pairs.weights(arrays, group, kind).items():
                sides = [x.round(3).tolist() for x in (above, below)]
                print(f"  {kind} weights, {what}: {sides}; {_quotients(above / below)}")
    small = head_pairs.SMALL / head_pairs.START
    print(f"spread of a first step by that of gradient descent: {head_pairs.first_step(1.1):.3f}")
    print(f"initial weights: {100 * small:.1f} % below {head_pairs.SMALL}, none above {head_pairs.LARGE}")


def pairs_of_a_group(arrays: Arrays, group: str) -> None:
    """Every measure of the heads, and the norm of p = 1.1 beside the Frobenius one."""
    print(f"  heads by seed {np.bincount(arrays[f'pair {group} seed'])}")
    for name in head_pairs.PATHS:
        if (values := arrays.get(f"pair {group} {name}")) is None:
            continue
        values = 100 * values if name in head_pairs.MARGINS else values
        each = ", ".join("{:.4g} [{:.4g}, {:.4g}]".format(*head_ranks.bootstrap(x)) for x in values)
        print(f"  {name}: {each}; {_quotients(head_pairs.quotient(arrays, group, name))}")
    for name, other in (("W, l1.1", "W, Frobenius"), ("K and Q, l1.1", "K and Q, Frobenius")):
        if f"pair {group} {name}" in arrays:
            print(f"  {name} by {other}: {_quotients(head_pairs.beside(arrays, group, name, other))}")


def _quotients(values: Any) -> str:
    """Each seed's, and the mean of their logarithms with its interval."""
    mean = np.exp(np.log(values).mean())
    ends = " [{:.3f}, {:.3f}]".format(*head_ranks.interval(values)) if len(values) > 1 else ""
    return f"{', '.join(f'{x:.3f}' for x in values)}; {mean:.3f}{ends}"


def layers_of_heads() -> None:
    """Nets at their end by layer, on own selections: attention on them, Frobenius margin and cosine."""
    for name, layers in recorded("heads")["layers"].items():
        words = (f"{mass:.2f}, {100 * ratio:.2f}, {cosine:.3f}" for mass, ratio, cosine in layers)
        print(f"  {name}: attention, margin in %, cosine by layer: {'; '.join(words)}")


if __name__ == "__main__":
    main()
