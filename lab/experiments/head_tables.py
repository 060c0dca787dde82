"""Heads of trained encoders in docs/practice/transformers.md:  python lab/experiments/head_tables.py

Shares of the best margins, shapes and weights, what optimizers added, a learned temperature; from the
package's records.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm_lab.figures.figure import Arrays
from attsvm_lab.figures.mirror_descent import trials
from attsvm_lab.figures.ours import head_geometry, head_pairs, head_ranks
from attsvm_lab.figures.recorded import recorded


def main() -> None:
    arrays = head_geometry.experiment()
    print(f"pairs of heads: {len(arrays['certified'])} programs, certified {arrays['certified'].mean():.0%}")
    pairs_of_heads(arrays)
    layers_of_heads(arrays)
    added_to_heads()
    margins_by_the_law()
    temperatures()


def pairs_of_heads(arrays: Arrays) -> None:
    """Heads and weights of p and of 2, means and their quotient seed by seed, with Student's intervals."""
    for group, (p, _) in head_pairs.GROUPS.items():
        if not any(name.startswith(f"pair {group} ") for name in arrays):
            continue
        print(f"pairs of p = {group}: p = {p}, p = 2; quotients by seed")
        if f"pair {group} seed" in arrays:
            pairs_of_a_group(arrays, group, p)
        for kind in head_pairs.KINDS if f"pair {group} large key" in arrays else ():
            for weight_name, (above, below) in head_pairs.weights(arrays, group, kind).items():
                sides = [x.round(3).tolist() for x in (above, below)]
                print(f"  {kind} weights, {weight_name}: {sides}; {_quotients(above / below)}")
    small = head_pairs.SMALL / head_pairs.START
    print(f"spread of a first step by that of gradient descent: {head_pairs.first_step(1.1):.3f}")
    print(f"initial weights: {100 * small:.1f} % below {head_pairs.SMALL}, none above {head_pairs.LARGE}")


def pairs_of_a_group(arrays: Arrays, group: str, p: str) -> None:
    """Every measure of the heads, and the norm of p beside the Frobenius one."""
    heads = np.bincount(arrays[f"pair {group} seed"])
    programs = sum(f"pair {group} W, {norm}" in arrays for norm in ("Frobenius", "nuclear", "l1.1", "l3"))
    print(f"  heads by seed {heads}, {2 * heads.sum() * programs} programs")
    for name in head_pairs.PATHS:
        if (values := arrays.get(f"pair {group} {name}")) is None:
            continue
        values = 100 * values if name in head_pairs.MARGINS else values
        each = ", ".join("{:.4g} [{:.4g}, {:.4g}]".format(*head_ranks.bootstrap(x)) for x in values)
        print(f"  {name}: {each}; {_quotients(head_pairs.quotient(arrays, group, name))}")
    for name, beside in ((f"W, l{p}", "W, Frobenius"), (f"K and Q, l{p}", "K and Q, Frobenius")):
        if f"pair {group} {name}" in arrays:
            quotients = head_pairs.relative_quotient(arrays, group, name, beside)
            print(f"  {name} by {beside}: {_quotients(quotients)}")


def _quotients(values: Any) -> str:
    """Each seed's, and the mean of their logarithms with its interval."""
    mean = np.exp(np.log(values).mean())
    ends = " [{:.3f}, {:.3f}]".format(*head_ranks.interval(values)) if len(values) > 1 else ""
    return f"{', '.join(f'{x:.3f}' for x in values)}; {mean:.3f}{ends}"


def layers_of_heads(arrays: Arrays) -> None:
    """By layer, on own selections, before training and at its end: attention, Frobenius margin and cosine."""
    for name, values in arrays.items():
        if name.startswith("layers "):
            print(f"{name}: {len(values)} seeds; attention, margin in %, cosine by layer")
            for seed in values:
                cells = (f"{mass:.2f}, {100 * ratio:.2f}, {cosine:.3f}" for mass, ratio, cosine in seed)
                print(f"  {'; '.join(cells)}")
            mean = values[..., 2].mean(1)
            ends = ", ".join(f"{x:.3f}" for x in mean)
            print(f"  cosine, mean over heads: {ends}")


def added_to_heads() -> None:
    """What optimizers of W_Q and W_K added, by seed, with intervals; by layer; and with longer steps."""
    arrays, runs = head_ranks.experiment(), recorded("factors")["runs"]
    print("what training added to a head: seeds, mean, 95 % interval")
    for rule in (*head_ranks.RULES, *head_ranks.WHOLE):
        print(f"  {rule}")
        columns = {measure: head_ranks.seeds(arrays, rule, measure) for measure in head_ranks.MEASURES}
        columns |= {name: 100 * arrays[f"{name} {rule}"] for name in ("best", "stop")}
        columns |= {name: arrays[f"{name} {rule}"] for name in ("epochs", "loss")}
        for name, values in columns.items():
            low, high = head_ranks.interval(values)
            each = ", ".join(f"{x:.4g}" for x in values)
            print(f"    {name}: {each}; {_digits(values.mean())} [{_digits(low)}, {_digits(high)}]")
        layers = arrays[f"heads {rule}"].mean(0).reshape(3, -1, 3).mean(1)
        for measure, values in zip(head_ranks.MEASURES, layers.T, strict=True):
            print(f"    by layer, {measure}: {', '.join(_digits(x) for x in values)}")
        first = arrays[f"first {rule}"]
        print(f"    after one epoch: {', '.join(_digits(x) for x in first[:, 3:].mean(0))}")
        powers = np.log(columns["length"] / first[:, 5]) / np.log(columns["epochs"])
        print(f"    length grows like epochs to the power {powers.mean():.2f}")
    for name, run in runs.items():
        if name.endswith("4e-4"):
            ranks = ", ".join(_digits(x) for x in np.mean(run["heads"], 0))
            print(f"  {name}: {ranks}; loss {run['loss']:.3f}, test {100 * run['best']:.2f}")


def _digits(x: float) -> str:
    """Two decimals below ten, one below a hundred."""
    return f"{x:.2f}" if x < 10 else f"{x:.1f}"


def margins_by_the_law() -> None:
    """Shares of the certified margin and cosines, of W and of what was added, on shared selections."""
    for kind in ("own", "same"):
        if margins := head_ranks.margins(kind):
            print(f"margins by the law, {kind} selections: W, its cosine; what was added, its cosine")
        for rule, norms in margins.items():
            for norm, (heads, numbers) in norms.items():
                cells = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in numbers)
                print(f"  {rule} {norm} ({heads} heads): {', '.join(cells)}")


def temperatures() -> None:
    """Growth of the heads' norms by layer with Adam, with a learned temperature and without."""
    runs, interval = recorded("factors")["runs"], trials.interval
    plain, selective = (
        [runs[f"sentiment-3-adam-{seed}{end}"] for seed in range(head_ranks.SEEDS)]
        for end in ("", "-selective")
    )
    print("growth of norms by layer with Adam, without and with a learned temperature; percent saved")
    for moment, at in (("at equal loss", -1), ("after six epochs", 6)):
        grown = np.array(
            [[np.subtract(run["norms"][at], run["norms"][0]) for run in some] for some in (plain, selective)]
        )
        for layer, saved in enumerate(100 * (1 - grown[1] / grown[0]).T):
            means = ", ".join(f"{x:.3f}" for x in grown[:, :, layer].mean(1))
            ends = "{:.0f}, {:.0f}".format(*interval(saved))
            print(f"  {moment}, layer {layer + 1}: {means}; saved {saved.mean():.0f} [{ends}]")
    lost = np.array([100 * (a["best"] - b["best"]) for a, b in zip(plain, selective, strict=True)])
    means = ", ".join(f"{100 * np.mean([run['best'] for run in some]):.2f}" for some in (plain, selective))
    ends = "{:.2f}, {:.2f}".format(*interval(lost))
    print(f"  best test: {means}; lost {lost.mean():.2f} [{ends}]")
    for run in selective:
        print(f"  temperature {run['temperature']}; {run['epochs']:.1f} epochs, loss {run['loss']:.3f}")
    last = np.mean([run["temperature"][1] for run in selective], 0)
    print(f"  mean temperature at the end: {', '.join(f'{x:.2f}' for x in last)}")


if __name__ == "__main__":
    main()
